package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// A caller must not say for which node its forwarded call is: the leader would refuse it, and log the text.
func TestCallerNamesNoNode(t *testing.T) {
	t.Parallel()
	r := startRouted(t)
	to := make(chan string, 1)
	r.elect(leads(t, 2, func(w http.ResponseWriter, q *http.Request) {
		to <- q.Header.Get("Seqledger-Peer-To")
		accepts(w, q)
	}))
	q := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost,
		r.url+seqledgerv1connect.LedgerServiceWriteProcedure, strings.NewReader("a write")))(t)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Seqledger-Peer-To", "99")
	a := must.Get(http.DefaultClient.Do(q))(t)
	_ = a.Body.Close()
	check.Equal(t, <-to, "", "the leader is told that the call is for node %s")
}

// A change of the members whose outcome is unknown is told as such, and not as an unknown write or a failure.
func TestUnknownChangeIsTold(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{errors.New("the leadership was lost meanwhile"), context.DeadlineExceeded} {
		err := changeError(fmt.Errorf("%w: %w", cluster.ErrUnknownChange, cause))
		e := connectError(t.Context(), slog.New(slog.DiscardHandler), err)
		if e.Code() != unknownCode(cause) || !strings.Contains(e.Message(), "status of the cluster") {
			t.Errorf("%v is told as %v", cause, e)
		}
	}
}
