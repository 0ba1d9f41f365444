package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
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
	if got := <-to; got != "" {
		t.Errorf("the leader is told that the call is for node %s", got)
	}
}
