package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// TestDrainUnderLoad: whatever a stream sent, its results are a prefix of receipts, then DRAINING, then the end; and
// every receipt is in the ledger.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		stream := h.client.WriteStream(within(t))
		drainUnderLoad(t, h, stream.Send, stream.Receive, stream.CloseResponse)
	})
	t.Run("upgraded", func(t *testing.T) {
		t.Parallel()
		h := start(t)
		stream := mustOpenUpgraded(t, h)
		drainUnderLoad(t, h, func(frame *seqledgerv1.WriteStreamRequest) error { return stream.Send(frame) },
			func() (*seqledgerv1.WriteStreamResponse, error) {
				m := new(seqledgerv1.WriteStreamResponse)
				return m, stream.Receive(m)
			}, stream.Close)
	})
}

func drainUnderLoad(
	t *testing.T, h *harness, send func(*seqledgerv1.WriteStreamRequest) error,
	receive func() (*seqledgerv1.WriteStreamResponse, error), end func() error,
) {
	var group sync.WaitGroup
	// Ends with the stream; joined below.
	group.Go(func() {
		for i := uint64(1); ; i++ {
			if send(frameOf(writeOf("c", i, appendOp("x")))) != nil {
				return
			}
		}
	})
	stopped := make(chan error, 1)
	var committed uint64
	draining := false
	for {
		m, err := receive()
		if err != nil {
			mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
			break
		}
		for _, r := range m.Results {
			if r.GetReceipt() == nil {
				if r.GetError().GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING {
					t.Fatal(r)
				}
				draining = true
				continue
			}
			if committed++; draining || r.GetReceipt().Sequence != committed {
				t.Fatal("after", committed, r)
			}
			if committed == 100 {
				go func() { stopped <- h.stop() }() // ends with the drain; received below
			}
		}
	}
	_ = end()
	group.Wait()
	must.Do(t, <-stopped)
	status, found := ledgerState(t, h.ledger, "c")
	if !found || status.Last != committed {
		t.Errorf("%d receipts, and the ledger has %d writes", committed, status.Last)
	}
}

func TestDrainRefusesNewWrites(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("c", 1, setOp("k", "v")))
	must.Do(t, h.server.Drain(t.Context()))
	_, err := h.client.Write(t.Context(), connect.NewRequest(writeOf("c", 2, appendOp("x"))))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	_, err = h.client.OpenSession(t.Context(), connect.NewRequest(&seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: "c", AttemptId: make([]byte, 16),
	}))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	_, err = h.admin.UpdateConfig(t.Context(), connect.NewRequest(new(seqledgerv1.UpdateConfigRequest)))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	must.Do(t, check.Err(h.client.GetEntity(t.Context(), connect.NewRequest(
		&seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"}))), "reads go on")
	if status, _ := h.get(t, "/readyz"); status != 503 {
		t.Error("a draining server is not ready:", status)
	}
	if status, _ := h.get(t, "/healthz"); status != 200 {
		t.Error("a draining server is alive:", status)
	}
}

// TestDrainIsBounded: a client that never reads cannot hold the server up.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{DrainTimeout: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	// With a small window, a few results fill it.
	transport := h.h2.Transport.(*http.Transport)
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10}
	stream := h.client.WriteStream(ctx)
	must.Do(t, stream.Send(frameOf(writeOf("deaf", 1, appendOp("x")))))
	receive(t, stream, 1)
	var group sync.WaitGroup
	group.Go(func() { // ends when the server closes the connection; waited for below
		// The results of a million writes fit into no window.
		for i := uint64(2); i < 1_000_000; i += 1_000 {
			var writes []*seqledgerv1.WriteRequest
			for j := range uint64(1_000) {
				writes = append(writes, writeOf("deaf", i+j, appendOp("x")))
			}
			if stream.Send(frameOf(writes...)) != nil {
				return
			}
		}
	})
	// The committed writes have results larger than the 64 KiB that may be under way, so the stream cannot end before
	// the client reads.
	for {
		if s, _ := ledgerState(t, h.ledger, "deaf"); s.Last > 2_000 {
			break
		}
		must.Do(t, ctx.Err(), "the writes are not committed")
	}
	// Mostly Serve times out. A result that is sent only in the drain has less time to be read, and then only the
	// stream is cut off.
	if err := h.stop(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error("Serve must give up, and say so:", err)
	}
	var end error
	for end == nil {
		_, end = stream.Receive()
	}
	if errors.Is(end, io.EOF) {
		t.Error("the stream has ended as if its client had read its results")
	}
	cancel()
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	group.Wait()
}
