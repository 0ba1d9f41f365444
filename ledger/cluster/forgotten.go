package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// forgottenPath is the path at which a node tells the leader that its log has lost what it acknowledged.
const forgottenPath = "/seqledger.peer.v1/Forgotten"

// tellPatience bounds the request to it, which delays the end of the node.
const tellPatience = 2 * time.Second

// errForgotten means that the log of a node ends before an index up to which the node has acknowledged the log.
var errForgotten = errors.New("its log has lost entries that it acknowledged, so its data directory is an old copy: " +
	"remove the node and let the machine join again with an empty directory, or put back the one that it had last")

// forgotten is what a node tells of its log.
type forgotten struct {
	Acknowledged uint64 `json:"acknowledged"` // as in raftlog.ForgottenError
	Last         uint64 `json:"last"`
}

// stopped is called when this node stops. A node that has lost what it acknowledged notes that in its directory, so
// that it never again takes part in an election from there, and tells the leader.
func (n *Node) stopped() {
	lost, is := errors.AsType[*raftlog.ForgottenError](n.log.Err())
	if !is {
		return
	}
	if err := n.directory.MarkOldCopy(); err != nil {
		n.host.Logger.Error("it was not noted that the data directory is an old copy", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	if err := n.tellForgotten(ctx, lost); err != nil {
		n.host.Logger.Warn("the leader does not know that the data directory is an old copy", "error", err)
	}
}

func (n *Node) tellForgotten(ctx context.Context, lost *raftlog.ForgottenError) error {
	body, err := json.Marshal(forgotten{lost.Acknowledged, lost.Last})
	if err != nil {
		return err
	}
	members := n.log.Members()
	leader, _ := members.Address(lost.Leader)
	response, err := n.askMember(ctx, &Member{ID: lost.Leader, Peer: leader.Peer}, http.MethodPost, forgottenPath,
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusNoContent {
		return errors.Join(errors.New(response.Status), err)
	}
	return nil
}

// takeForgotten answers tellForgotten: from now on nothing is sent to the node, and its streams are refused. A node can
// say this only of itself.
func (n *Node) takeForgotten(w http.ResponseWriter, r *http.Request) {
	var f forgotten
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJoinBytes)).Decode(&f)
	if err != nil {
		http.Error(w, "must be JSON", http.StatusBadRequest)
		return
	}
	sender := transport.Sender(r.Context())
	if members := n.log.Members(); sender == n.id() || !members.Has(sender) {
		http.Error(w, "must come from another member", http.StatusForbidden)
		return
	}
	if !n.log.Role().Leads {
		http.Error(w, "this node does not lead", http.StatusServiceUnavailable)
		return
	}
	n.mu.Lock()
	if n.forgot == nil {
		n.forgot = map[uint64]forgotten{}
	}
	n.forgot[sender] = f
	n.mu.Unlock()
	n.host.Logger.Error("nothing is sent any more to a node, because "+errForgotten.Error(),
		"node", sender, "acknowledged", f.Acknowledged, "its log ends at", f.Last)
	_ = n.connectMembers() // the addresses have not changed, and errors in them were logged
	w.WriteHeader(http.StatusNoContent)
}

// forgetForgotten is called while this node does not lead. A member announces its log to the leader alone, so another
// node would refuse it for as long as it runs.
func (n *Node) forgetForgotten() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgot = nil
}

// forgetRemoved forgets what nodes have told that are no members any more.
func (n *Node) forgetRemoved(m *raftlog.Members) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.forgot, func(id uint64, _ forgotten) bool { return !m.Has(id) })
}

// hasForgotten reports whether a member has told that it has lost what it acknowledged.
func (n *Node) hasForgotten(id uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, has := n.forgot[id]
	return has
}

// mustRemember returns an error if a member has lost what it acknowledged. A member that says itself that its log has
// it is welcome again: any node could announce it.
func (n *Node) mustRemember(member *identity) error {
	n.mu.Lock()
	f, has := n.forgot[member.Node]
	if has && member.Last < f.Acknowledged {
		n.mu.Unlock()
		return fmt.Errorf("%w: node %d acknowledged the log up to index %d, and its log ended at index %d when it was "+
			"started", errForgotten, member.Node, f.Acknowledged, member.Last)
	}
	delete(n.forgot, member.Node)
	n.mu.Unlock()
	if has {
		_ = n.connectMembers() // as in takeForgotten
	}
	return nil
}
