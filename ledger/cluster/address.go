package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

const (
	// identityPath is the path at which a node tells who it is.
	identityPath = "/seqledger.peer.v1/Identity"
	// identityTimeout bounds a request for it.
	identityTimeout = 2 * time.Second
	// announcePatience bounds one announcement to all nodes, and askPatience one request of it: the leader asks for
	// this node's identity meanwhile and commits a change.
	announcePatience = 10 * time.Second
	askPatience      = 4 * time.Second
	// longestAnnounceRetry is the longest pause before an announcement that failed is repeated.
	longestAnnounceRetry = 5 * time.Second
)

// identity is what a node says of itself.
type identity struct {
	Ledger machine.LedgerID `json:"ledger"`
	Node   uint64           `json:"node"`
	Last   uint64           `json:"last"` // index at which its log ended when it was started
}

// tellIdentity answers askIdentity.
func (n *Node) tellIdentity(w http.ResponseWriter) {
	state, err := n.host.State()
	if err != nil {
		http.Error(w, "the state cannot be read", http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, http.StatusOK, identity{state.Ledger, n.id(), n.opened})
}

// askIdentity asks the node at an address who it is. A node of another ledger is an *OtherLedgerError. If to is not 0,
// only the node with that id answers. The request names no sender, because the other node's members may be old, and it
// needs no transport, because this node may be starting.
func (n *Node) askIdentity(ctx context.Context, address string, to uint64) (found identity, err error) {
	state, err := n.host.State()
	if err != nil {
		return found, err
	}
	token := cmp.Or(n.token(), n.host.Options.Token)
	if token == "" {
		if token, err = n.directory.JoinToken(); err != nil {
			return found, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	encrypted := n.host.Options.TLS != nil
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, peerURL(encrypted, address)+identityPath, http.NoBody)
	if err != nil {
		return found, err
	}
	if to != 0 {
		transport.AddressTo(r.Header, to)
	}
	client := &http.Client{Transport: transport.As(transport.NewRoundTripper(n.host.Options.TLS),
		func() transport.Identity { return transport.Identity{Token: token, Ledger: state.Ledger.String()} })}
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	if err != nil {
		return found, err
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	body := json.NewDecoder(io.LimitReader(response.Body, maxJoinBytes))
	if response.StatusCode != http.StatusOK {
		no := &refused{status: response.Status}
		_ = body.Decode(&no.Refusal) // what is no refusal of a node is told by its status
		if no.Ledger != "" {
			return found, &OtherLedgerError{Own: state.Ledger.String(), Node: address, Other: no.Ledger}
		}
		return found, no
	}
	if err := body.Decode(&found); err != nil {
		return found, fmt.Errorf("what listens there is no node: %w", err)
	}
	if found.Ledger != state.Ledger {
		return found, &OtherLedgerError{Own: state.Ledger.String(), Node: address, Other: found.Ledger.String()}
	}
	return found, nil
}

// refused is the answer of a node that does not tell who it is.
type refused struct {
	transport.Refusal

	status string
}

// Error returns the node's reason.
func (e *refused) Error() string { return cmp.Or(e.Message, e.status) }

// mustAnswer returns what a node at an address says of itself, and an error unless it has that id. Anything may listen
// at an address that an operator has mistyped.
func (n *Node) mustAnswer(ctx context.Context, id uint64, address string) (found identity, err error) {
	found, err = n.askIdentity(ctx, address, id)
	if err == nil && found.Node != id {
		err = fmt.Errorf("it is node %d", found.Node)
	}
	if err != nil {
		return found, fmt.Errorf("node %d does not answer at %s, which it gives as its address for other nodes "+
			"(is its --peer-advertise right?): %w", id, address, err)
	}
	return found, nil
}

// announcer is how far this node is with telling its addresses. It belongs to the goroutine of tendLoop.
type announcer struct {
	confirmed bool // by a leader, since this node was started
	next      time.Time
	pause     time.Duration
	said      string // the last problem that was logged
}

// announce sends this node's addresses to the leader, until it has confirmed them. What the node's own log says of them
// does not count: it may be older than a change, or have one that the other nodes do not have.
func (n *Node) announce() {
	a := &n.announcer
	if now := time.Now(); a.confirmed || now.Before(a.next) {
		return
	}
	ctx, cancel := context.WithTimeout(n.host.Stopping, announcePatience)
	defer cancel()
	var err error
	if leader, _ := n.Leader(); leader.Self {
		_, err = n.Admit(ctx, n.ownAddress())
	} else {
		err = n.announceTo(ctx, leader.Peer)
	}
	if a.confirmed = err == nil; a.confirmed || n.host.Stopping.Err() != nil {
		return
	}
	a.pause = min(max(2*a.pause, leadInterval), longestAnnounceRetry)
	a.next = time.Now().Add(a.pause)
	if text := err.Error(); text != a.said {
		a.said = text // log an error once, not for each attempt
		n.host.Logger.Warn("the other nodes do not know the address of this one yet; it is tried again", "error", err)
	}
}

// ownAddress returns the announcement of this node.
func (n *Node) ownAddress() JoinRequest {
	c := n.host.Options
	return JoinRequest{ID: n.id(), Peer: c.Peer, Client: c.Client}
}

// announceTo sends this node's addresses to the leader. It tries every known node, because the leader may have another
// address than this node knows.
func (n *Node) announceTo(ctx context.Context, leader string) error {
	members := n.log.Members()
	var asked []string
	add := func(address string) {
		if address != "" && address != n.host.Options.Peer && !slices.Contains(asked, address) {
			asked = append(asked, address)
		}
	}
	add(leader)
	for _, a := range members.Addresses {
		if a.ID != n.id() {
			add(a.Peer)
		}
	}
	for _, address := range n.host.Options.Nodes {
		add(address)
	}
	problems := errors.New("no address of another node is known")
	for i := 0; i < len(asked); i++ {
		err := n.announceAt(ctx, asked[i])
		if err == nil {
			return nil
		}
		if i == 0 {
			problems = nil
		}
		problems = errors.Join(problems, err)
		if refusal, is := errors.AsType[*JoinRefusal](err); is {
			add(refusal.Leader)
		}
	}
	return problems
}

func (n *Node) announceAt(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	_, err := AskToJoin(ctx, n.PeerTransport(), peerURL(n.host.Options.TLS != nil, address), n.ownAddress())
	return err
}

// checkAddress returns an error if a node must not be reached at an address, or cannot be.
func (n *Node) checkAddress(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			err = fmt.Errorf("%s is no address at which other nodes reach this one: give it with --peer-advertise",
				address)
		}
	}
	if t := n.transport.Load(); err == nil && t != nil {
		err = t.Allowed(address)
	}
	if err != nil {
		return &machine.FieldError{Field: "peer", Problem: err.Error()}
	}
	return nil
}

// addressChanges reports whether a request gives a member another address for other nodes than the one that is
// committed.
func (q *JoinRequest) addressChanges(m *raftlog.Members) bool {
	known, _ := m.Address(q.ID)
	return q.ID != 0 && m.Has(q.ID) && known.Peer != q.Peer
}
