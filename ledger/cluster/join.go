package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// JoinPath is the path at which a node asks to join the cluster; see AskToJoin and Node.Admit.
const JoinPath = "/seqledger.peer.v1/Join"

// SeedPath is the path at which a node sends its state to one that joins; see package seed.
const SeedPath = "/seqledger.peer.v1/Seed"

// JoinRequest asks the leader to add a node, or to update the addresses of a member.
type JoinRequest struct {
	// Nonce is 16 random bytes that the node stores, so that a repeated request gets the same id until the node has
	// announced its address.
	Nonce [16]byte `json:"nonce"`
	// ID is 0, or the id of a member whose addresses have changed.
	ID     uint64 `json:"id,omitempty"`
	Peer   string `json:"peer"`
	Client string `json:"client,omitempty"`
}

// JoinAnswer is what a joining node needs to start.
type JoinAnswer struct {
	ID     uint64           `json:"id"`     // of the joining node
	Ledger machine.LedgerID `json:"ledger"` // the ledger that it joins
	// AtLeast is the log index that the state which the node fetches must have reached.
	AtLeast uint64 `json:"atLeast"`
}

// Admit adds a node as a learner, which becomes a voter once it has caught up, or updates the addresses of a member. A
// node that is added has no address before it has announced one, and an address is committed only after the node has
// answered at it. Admit returns once the change is applied on this node. A repeated call changes nothing more and
// returns the same answer. If this node does not lead, the error is a *NotLeaderError; if the request is invalid, it is
// a *machine.FieldError.
func (n *Node) Admit(ctx context.Context, q JoinRequest) (JoinAnswer, error) {
	if err := q.validate(); err != nil {
		return JoinAnswer{}, err
	}
	if err := n.mustLead(); err != nil {
		return JoinAnswer{}, err
	}
	if err := n.checkAddress(q.Peer); err != nil {
		return JoinAnswer{}, err
	}
	if q.ID == 0 {
		// The node that joins announces its addresses to this one, whose own address it learns from the state.
		if _, err := n.Admit(ctx, n.ownAddress()); err != nil {
			return JoinAnswer{}, errors.New("the leader's own address: " + err.Error()) // it may be mended
		}
	}
	// Before the lock, because a node at a wrong address must not keep others waiting.
	if members := n.log.Members(); q.addressChanges(&members) || n.hasForgotten(q.ID) {
		found, err := n.mustAnswer(ctx, q.ID, q.Peer)
		if err == nil {
			err = n.mustRemember(&found)
		}
		if err != nil {
			return JoinAnswer{}, err
		}
	}
	unlock, err := n.lockChanges(ctx)
	if err != nil {
		return JoinAnswer{}, err
	}
	defer unlock()
	return n.admit(ctx, &q)
}

// admit makes the change that a request needs. The caller holds lockChanges.
func (n *Node) admit(ctx context.Context, q *JoinRequest) (JoinAnswer, error) {
	if err := n.mustLead(); err != nil {
		return JoinAnswer{}, err
	}
	members := n.log.Members()
	change, id, err := q.change(&members)
	if err == nil && change != nil {
		before, _ := members.Address(id)
		err = n.change(ctx, change, false)
		switch {
		case err != nil:
		case q.ID == 0:
			n.host.Logger.Info("a node has joined the cluster", "node", id, "its address, to be announced", q.Peer)
		default:
			n.host.Logger.Info("a node has announced its address", "node", id, "before", before.Peer, "now", q.Peer,
				"for clients", q.Client)
		}
	}
	if err == nil {
		err = n.offerState(ctx)
	}
	if err != nil {
		return JoinAnswer{}, err
	}
	state, err := n.host.State()
	return JoinAnswer{ID: id, Ledger: state.Ledger, AtLeast: n.log.MembersChanged()}, err
}

func (q *JoinRequest) validate() error {
	// Any id but 0, because a node that joins has none yet.
	a := core.Address{ID: 1, Peer: q.Peer, Client: q.Client}
	switch {
	case q.Nonce == [16]byte{} && q.ID == 0:
		return &machine.FieldError{Field: "nonce", Problem: "must not be zero"}
	case q.Peer == "":
		return &machine.FieldError{Field: "peer", Problem: "must be the node's address for other nodes"}
	}
	if err := a.Validate(); err != nil {
		return &machine.FieldError{Field: "peer", Problem: err.Error()}
	}
	return nil
}

// change returns the membership change that a request needs, if any, and the id of the node.
func (q *JoinRequest) change(m *core.Members) (*pb.ConfChangeV2, uint64, error) {
	for _, a := range m.Addresses {
		switch {
		case q.ID == 0 && a.Nonce == q.Nonce && a.Peer != "":
			// Announced, so it finished joining and asks with its id. Two nodes with one id could both vote.
			return nil, 0, &machine.FieldError{
				Field: "nonce",
				Problem: fmt.Sprintf("node %d has joined with this directory already, which is a copy from before: "+
					"join with an empty one", a.ID),
			}
		case q.ID == 0 && a.Nonce == q.Nonce:
			return nil, a.ID, nil
		case q.ID == 0 && a.Peer == q.Peer: // a member that has answered there has taken the address of one that is not
			return nil, 0, &machine.FieldError{
				Field:   "peer",
				Problem: fmt.Sprintf("%s is the address of node %d already: remove that one first", q.Peer, a.ID),
			}
		}
	}
	kind, address := pb.ConfChangeAddLearnerNode, core.Address{ID: m.Highest + 1, Nonce: q.Nonce}
	if q.ID != 0 {
		known, found := m.Address(q.ID)
		kind, address = pb.ConfChangeUpdateNode, core.Address{
			ID: q.ID, Nonce: known.Nonce, Peer: q.Peer, Client: q.Client,
		}
		switch {
		case !m.Has(q.ID):
			return nil, 0, fmt.Errorf("%w: node %d is no member of this cluster", ErrNoSuchNode, q.ID)
		case found && known == address:
			return nil, q.ID, nil
		}
	}
	change := single(kind, address.ID)
	address.AppendTo(change)
	return change, address.ID, nil
}

func peerURL(encrypted bool, address string) string {
	if encrypted {
		return "https://" + address
	}
	return "http://" + address
}

// JoinRefusal is the response of a node that refuses a request to join.
type JoinRefusal struct {
	Message string `json:"error"`
	Leader  string `json:"leader,omitempty"` // the leader's address, if this node does not lead
	Final   bool   `json:"final,omitempty"`  // the same request will be refused again
}

// Error returns the node's message.
func (e *JoinRefusal) Error() string { return e.Message }

// ErrToken means that the node at an address refuses the join token: the token is wrong, or the address is now one of
// another cluster.
var ErrToken = errors.New("the join token is refused")

// maxJoinBytes bounds a request to join, and its response.
const maxJoinBytes = 16 << 10

// AskToJoin asks the node at a URL to add this node. t sends this node's identity; see transport.As. A node that does
// not lead answers with a *JoinRefusal that names the leader. The error is ErrToken if the node refuses the token.
func AskToJoin(ctx context.Context, t http.RoundTripper, url string, q JoinRequest) (a JoinAnswer, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+JoinPath, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: t}).Do(r)
	if err != nil {
		return a, fmt.Errorf("join at %s: %w", url, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxJoinBytes))
	if err != nil {
		return a, fmt.Errorf("join at %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		refusal := &JoinRefusal{}
		if json.Unmarshal(answer, refusal) != nil || refusal.Message == "" {
			return a, fmt.Errorf("join at %s: %s: %.200q", url, response.Status, answer)
		}
		if response.StatusCode == http.StatusUnauthorized {
			return a, fmt.Errorf("%w: %w", ErrToken, refusal)
		}
		return a, refusal
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return a, fmt.Errorf("join at %s: %w", url, err)
	}
	return a, nil
}

// JoinHandler returns a handler for nodes that ask to join or to update their addresses. With TLS, a node's certificate
// must be for the address in its request.
func (n *Node) JoinHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q JoinRequest
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJoinBytes)).Decode(&q)
		if err != nil {
			writeJSON(w, http.StatusBadRequest, JoinRefusal{
				Message: "the request is no JSON of a join: " + err.Error(), Final: true,
			})
			return
		}
		if err := transport.CertificateFor(r, q.Peer); err != nil {
			writeJSON(w, http.StatusForbidden, JoinRefusal{Message: err.Error(), Final: true})
			return
		}
		a, err := n.Admit(r.Context(), q)
		_, elsewhere := errors.AsType[*NotLeaderError](err)
		_, wrong := errors.AsType[*machine.FieldError](err)
		switch {
		case elsewhere:
			leader, _ := n.Leader()
			writeJSON(w, http.StatusMisdirectedRequest, JoinRefusal{Message: err.Error(), Leader: leader.Peer})
		case wrong || errors.Is(err, ErrNoSuchNode) || errors.Is(err, errForgotten):
			writeJSON(w, http.StatusBadRequest, JoinRefusal{Message: err.Error(), Final: true})
		case err != nil:
			writeJSON(w, http.StatusServiceUnavailable, JoinRefusal{Message: err.Error()})
		default:
			writeJSON(w, http.StatusOK, a)
		}
	})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the node asks again
}
