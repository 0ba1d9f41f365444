package server_test

import (
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// While a disk does not answer, the probes say so, and the status and the metrics answer without it. Here a read of the
// state does not end, so that a write cannot be applied.
func TestProbesTellThatADiskHangs(t *testing.T) {
	t.Parallel()
	h := start(t)
	reading, hang, read := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { // ends with hang; received below
		read <- h.ledger.ViewLocal(func(machine.View) error { close(reading); <-hang; return nil })
	}()
	<-reading
	written := make(chan error, 1)
	go func() { // ends behind hang; received below
		_, err := h.client.Write(t.Context(), connect.NewRequest(&seqledgerv1.WriteRequest{
			Scope: scope(), ClientId: "c", Sequence: 1, Operations: []*seqledgerv1.Operation{appendOp("x")},
		}))
		written <- err
	}()
	for _, path := range []string{"/readyz", "/healthz"} {
		must.Await(t, func() bool {
			status, text := h.get(t, path)
			return status == http.StatusServiceUnavailable && strings.Contains(text, "a disk does not answer")
		})
	}
	answer := must.Get(h.admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
	if status := answer.Msg.Status; !strings.Contains(status.Node.NotReady, "the application of an entry has not") ||
		status.Node.Cluster.Members[0].Stalled == "" || status.LedgerId == "" || status.Index == 0 {
		t.Errorf("%v", status)
	}
	if status, text := h.get(t, "/metrics"); status != http.StatusOK ||
		!strings.Contains(text, "\nseqledger_stalled_seconds ") ||
		strings.Contains(text, "seqledger_stalled_seconds 0\n") ||
		!strings.Contains(text, "\nseqledger_ready 0\n") {
		t.Errorf("%d: %s", status, text)
	}
	close(hang)
	for _, done := range []chan error{read, written} {
		must.Do(t, <-done)
	}
	for _, path := range []string{"/readyz", "/healthz"} {
		if status, text := h.get(t, path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}
