package cluster

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestCompareLedger: an address of another ledger is passed over if a node of this ledger answers, and while one that
// may answer later is silent. Otherwise it stops the node.
func TestCompareLedger(t *testing.T) {
	t.Parallel()
	same, foreign := isNode(2), says(http.StatusOK, `{"ledger":1,"node":2}`)
	for _, test := range []struct {
		what    string
		nodes   []http.HandlerFunc // nil is a node that is down
		member  bool               // the ledger has had a second node
		refused bool
		left    int // nodes that are asked again
	}{
		{what: "the same", nodes: []http.HandlerFunc{same}},
		{what: "another", nodes: []http.HandlerFunc{foreign}, refused: true, left: 1},
		{what: "another of a member", nodes: []http.HandlerFunc{foreign}, member: true, refused: true, left: 1},
		{what: "another before the same", nodes: []http.HandlerFunc{foreign, same}},
		{what: "another after the same", nodes: []http.HandlerFunc{same, foreign}, member: true},
		{what: "another beside one that is down", nodes: []http.HandlerFunc{foreign, nil}, refused: true, left: 2},
		{what: "another beside one that is down, of a member", nodes: []http.HandlerFunc{foreign, nil}, member: true,
			left: 2},
		{what: "down", nodes: []http.HandlerFunc{nil}, member: true, left: 1},
	} {
		var addresses []string
		for _, h := range test.nodes {
			address := "127.0.0.1:1"
			if h != nil {
				address = other(t, h)
			}
			addresses = append(addresses, address)
		}
		members := voters(t)
		if test.member {
			members = voters(t, nil)
		}
		f := newFake(t, members, func(h *Host) { h.Options.Nodes, h.Options.Token = addresses, "the token" })
		err := f.CompareLedger(t.Context())
		_, refused := errors.AsType[*OtherLedgerError](err)
		if refused != test.refused || err != nil && !refused || len(f.uncompared) != test.left {
			t.Errorf("%s: %v, and %v are asked again", test.what, err, f.uncompared)
		}
		if passed := strings.Contains(f.logged.String(), "is of another ledger"); passed != (len(test.nodes) > 1 &&
			test.left == 0) {
			t.Errorf("%s: the log says %s", test.what, f.logged.String())
		}
	}
}

// TestChangeWaitsForItsCaller: a caller that gives up does not wait for a change of another one.
func TestChangeWaitsForItsCaller(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	f.joins(t)
	unlock := must.Get(f.lockChanges(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, change := range map[string]func() error{
		"promote": func() error { return f.Promote(ctx, 2, true) },
		"remove":  func() error { return f.Remove(ctx, 2, true) },
		"join": func() error {
			_, err := f.Admit(ctx, JoinRequest{Nonce: [16]byte{9}, Peer: "127.0.0.1:7459"})
			return err
		},
	} {
		check.ErrorContains(t, change(), "another change", "%s", what)
	}
	unlock()
	must.Do(t, f.Remove(t.Context(), 2, true))
}
