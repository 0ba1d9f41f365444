package cluster

import (
	"net/http"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// closed counts calls of CloseIdleConnections.
type closed struct {
	http.RoundTripper
	count int
}

func (c *closed) CloseIdleConnections() { c.count++ }

// http.Client.CloseIdleConnections must reach the connections of a RoundTripper of transport.As, as askIdentity wants.
func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	c := new(closed)
	(&http.Client{Transport: transport.As(c, func() transport.Identity { return transport.Identity{} })}).
		CloseIdleConnections()
	if c.count == 0 {
		t.Error("CloseIdleConnections does nothing")
	}
}

// While a node that was elected does not take writes yet, it must not name itself as another node that leads.
func TestElectedNodeThatIsNotReady(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	must.Get(f.Admit(t.Context(), f.ownAddress()))(t)
	f.term.Store(0) // as while it applies the terms before, and asks for the clocks
	f.noteLeader()
	if l, _ := f.Leader(); !l.Self && l.Peer != "" {
		t.Errorf("the router passes calls on to %+v, which is this node", l)
	}
}
