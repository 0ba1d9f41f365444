package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// ServePeers sets the handler for requests of other nodes that are not messages of the consensus: requests to join, to
// fetch the state, and forwarded calls. Until ServePeers is called, they are refused. It does nothing in a
// ledger on one node.
func (n *Node) ServePeers(h http.Handler) { n.handler.Store(&h) }

func (n *Node) servePeer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case forgottenPath:
		n.takeForgotten(w, r)
		return
	case identityPath:
		n.tellIdentity(w)
		return
	case pulsePath:
		n.tellPulse(w)
		return
	case digestPath:
		n.tellDigest(w, r)
		return
	}
	h := n.handler.Load()
	if h == nil {
		http.Error(w, "this node is starting", http.StatusServiceUnavailable)
		return
	}
	(*h).ServeHTTP(w, r)
}

// openTransport starts the transport to the other nodes. The ledger must have its id.
func (n *Node) openTransport() error {
	c := n.host.Options
	state, err := n.host.State()
	if err != nil {
		return err
	}
	t, err := transport.New(transport.Options{
		Ledger: state.Ledger.String(), ID: n.id(), TLS: c.TLS, Insecure: c.Insecure, Logger: n.host.Logger,
		Receive: func(messages []*pb.Message) {
			n.heard.note(messages, time.Now())
			_ = n.log.Receive(messages) // it fails only once the log has stopped, and then nothing is left to do
		},
		// This, too, fails only once the log has stopped.
		Unreachable: func(id uint64) { _ = n.log.Unreachable(id) },
		Handler:     http.HandlerFunc(n.servePeer),
		Access:      n.access(),
	})
	if err != nil {
		return err
	}
	n.transport.Store(t)
	n.serving.Go(func() { // ends when the transport is closed; joined by Close
		if err := t.Serve(c.Listener); err != nil {
			n.host.Fail(fmt.Errorf("listen for other nodes: %w", err))
		}
	})
	return nil
}

// Send sends messages to other nodes. Until there is a transport they are dropped.
func (d *Driver) Send(messages []*pb.Message) {
	if t := d.transport.Load(); t != nil {
		t.Send(messages)
	}
}

// connectMembers passes the current members to the transport.
func (n *Node) connectMembers() error {
	t := n.transport.Load()
	if t == nil {
		return nil
	}
	members := n.log.Members()
	n.forgetRemoved(&members)
	peers := map[uint64]string{}
	for _, a := range members.Addresses {
		// A node that joins has not announced an address yet.
		if a.ID != n.id() && a.Peer != "" && !n.hasForgotten(a.ID) {
			peers[a.ID] = a.Peer
		}
	}
	return t.SetPeers(peers)
}

// PeerTransport returns a RoundTripper that reaches other nodes at their Member.Peer, over TLS if the cluster uses it.
// It is nil in a ledger on one node.
func (n *Node) PeerTransport() http.RoundTripper {
	t := n.transport.Load()
	if t == nil {
		return nil
	}
	return t.RoundTripper()
}

// askMember sends a request to another member. If another node has taken over the member's address, that node refuses
// the request. The error is ErrRemoved if the member reports that this node was removed. A member that has applied the
// change knows this, and the removal is permanent.
func (n *Node) askMember(
	ctx context.Context, m *Member, method, path string, body io.Reader,
) (*http.Response, error) {
	if m.Peer == "" {
		return nil, fmt.Errorf("node %d has announced no address yet", m.ID)
	}
	r, err := http.NewRequestWithContext(ctx, method, peerURL(n.host.Options.TLS != nil, m.Peer)+path, body)
	if err != nil {
		return nil, err
	}
	transport.AddressTo(r.Header, m.ID)
	response, err := (&http.Client{Transport: n.PeerTransport()}).Do(r)
	if err != nil || response.StatusCode != http.StatusForbidden {
		return response, err
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	var no transport.Refusal
	if err := json.NewDecoder(io.LimitReader(response.Body, mostRefusalBytes)).Decode(&no); err == nil && no.Removed {
		return nil, ErrRemoved
	}
	return nil, fmt.Errorf("node %d refuses it: %s", m.ID, cmp.Or(no.Message, response.Status))
}

// mostRefusalBytes is the maximum number of bytes read of a refusal.
const mostRefusalBytes = 4 << 10

// Close closes the connections to other nodes.
func (d *Driver) Close() error {
	if t := d.transport.Load(); t != nil {
		// Deferred, because Serve returns only once the transport is closed.
		defer d.serving.Wait()
		return t.Close()
	}
	if c := d.host.Options; c != nil {
		return c.Listener.Close()
	}
	return nil
}
