package ledger

import (
	"context"
	"errors"
	"net/http"
)

// ErrAlone refuses a change of the cluster of a ledger that was opened without Options.Cluster.
var ErrAlone = errors.New("this ledger runs on one node that takes no others: start it with --peer-listen")

// Leader is who leads the cluster, as far as this node knows.
type Leader struct {
	ID     uint64 // of the node; 0: not known, an election goes on
	Self   bool   // this node leads, and takes writes
	Term   uint64 // Raft's
	Peer   string // host and port on which the node listens for other nodes; may be empty
	Client string // the same for clients, as the node was told to advertise it; may be empty
}

// Member is a node of the cluster.
type Member struct {
	ID      uint64
	Voter   bool   // else a learner, which gets the log and has no vote
	Peer    string // as in Leader
	Client  string
	Active  bool   // it was heard of within an election timeout; known to the leader alone
	Matched uint64 // index up to which its log is the leader's; known to the leader alone
}

// ClusterStatus is the cluster as one node sees it.
type ClusterStatus struct {
	Self      uint64 // id of this node
	Leader    Leader
	Applied   uint64 // log index up to which this node has applied
	Committed uint64 // log index up to which this node knows that the log is committed
	Last      uint64 // last index of this node's log
	Members   []Member
}

// Leader returns who leads, and a channel that is closed when that changes.
func (l *Ledger) Leader() (Leader, <-chan struct{}) {
	return Leader{ID: 1, Self: true, Term: 1}, nil
}

// PeerTransport reaches other nodes at their Member.Peer: with TLS when the cluster has it. It is nil
// without Options.Cluster.
func (l *Ledger) PeerTransport() http.RoundTripper { return nil }

// ClusterStatus returns the cluster as this node sees it.
func (l *Ledger) ClusterStatus() ClusterStatus { return ClusterStatus{} }

// PromoteNode makes a learner a voter. It returns when the change is applied here. This node leads,
// or the error is a *NotLeaderError.
func (l *Ledger) PromoteNode(ctx context.Context, id uint64) error { return ErrAlone }

// RemoveNode takes a node out of the cluster; see PromoteNode. Its id is never used again.
func (l *Ledger) RemoveNode(ctx context.Context, id uint64) error { return ErrAlone }

// TransferLeadership hands the leadership to a voter, or, with 0, to the one whose log is longest. It
// returns when another node leads.
func (l *Ledger) TransferLeadership(ctx context.Context, to uint64) error { return ErrAlone }
