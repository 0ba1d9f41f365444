package server_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// A client that was given servers of two ledgers stays with the first one: the other one gets no write, by a call or by
// a stream, and answers no read.
func TestClientRefusesAnotherLedger(t *testing.T) {
	t.Parallel()
	first, other := start(t), start(t)
	servers := strings.TrimPrefix(first.url, "http://") + "," + strings.TrimPrefix(other.url, "http://")
	c := must.Get(client.New(client.Options{Server: servers}))(t)
	defer c.Close()
	for sequence := range uint64(2) { // the first one learns, the second one goes the short way
		must.Get(c.Write(within(t), writeOf("till-1", sequence+1, appendOp("x"))))(t)
	}
	before := other.state(t)
	first.h1.CloseIdleConnections()
	first.h2.CloseIdleConnections()
	must.Do(t, first.stop())
	ctx, cancel := context.WithCancel(within(t))
	refused := make(chan error, 3)
	// All three end with cancel; they are received below.
	go func() { _, err := c.Write(ctx, writeOf("till-1", 3, appendOp("x"))); refused <- err }()
	go func() {
		_, err := c.GetEntity(ctx, &seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"})
		refused <- err
	}()
	go func() {
		w, err := writer.Open(ctx, c, writer.Options{Scope: scope(), ClientID: "till-2"})
		if err == nil {
			_, err = w.Write(ctx, op.Append([]byte("x")))
		}
		refused <- err
	}()
	must.Await(t, func() bool { return c.Counters().CallRepeats >= 12 }) // each was at both servers
	cancel()
	for range 3 {
		if err := <-refused; err == nil || errors.Is(err, failure.ErrNotFound) {
			t.Errorf("a call was answered: %v", err)
		}
	}
	if after := other.state(t); after != before {
		t.Errorf("the other ledger was at %+v and is at %+v", before, after)
	}
}

// A server says which ledger it has to who asks and may know, and refuses every call that is meant for another one.
func TestCallsForAnotherLedger(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	id := must.Get(g.ledger.ID())(t)
	for name, test := range map[string]struct {
		caller, meant string
		status        int
		answer        string // the header of the answer
	}{
		"not asked":   {"root", "", http.StatusOK, ""},
		"any":         {"root", "any", http.StatusOK, id.String()},
		"this one":    {"root", id.String(), http.StatusOK, ""},
		"another one": {"root", "0000000000000001", http.StatusBadRequest, id.String()},
		"nonsense":    {"root", strings.Repeat("x", 200), http.StatusBadRequest, id.String()},
		"a stranger":  {"", "any", http.StatusUnauthorized, ""},
	} {
		q := must.Get(http.NewRequestWithContext(within(t), http.MethodPost,
			g.url+seqledgerv1connect.AdminServiceGetStatusProcedure, strings.NewReader("{}")))(t)
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Seqledger-Ledger", test.meant)
		if key := g.keys[test.caller]; key != "" {
			q.Header.Set("Authorization", "Bearer "+key)
		}
		status, header, text := g.do(t, q)
		if status != test.status || header.Get("Seqledger-Ledger") != test.answer {
			t.Errorf("%s: got %d %s, header %q; want %d and %q", name, status, text, header.Get("Seqledger-Ledger"),
				test.status, test.answer)
		}
	}
}
