package cluster

import (
	"errors"

	"github.com/seqledger/seqledger/ledger/raftlog"
)

var (
	// ErrAlone means that the ledger was opened without ledger.Options.Cluster, so that its cluster cannot be changed.
	ErrAlone = errors.New("this ledger runs on one node that takes no others: start it with --peer-listen")
	// ErrRemoved is the failure of a node that was removed from the cluster.
	ErrRemoved = errors.New("this node was removed from the cluster: to let the machine join again, " +
		"start it with an empty data directory")
	// ErrNoSuchNode means that a change names a node that is not a member, or that has no vote where it needs one.
	ErrNoSuchNode = errors.New("no such node")
	// ErrNoChange means that a membership change was refused; the members are unchanged. It wraps the reason.
	ErrNoChange = errors.New("the members of the cluster cannot be changed like this")
	// ErrUnknownChange means that a membership change may be made, now or later, or never. It wraps the reason.
	ErrUnknownChange = errors.New("it is not known whether the members have changed: " +
		"look at the status of the cluster before repeating it")
)

// ErrDiffers is the failure of a node whose state differs from that of a majority, although both were computed from the
// same log.
var ErrDiffers = errors.New("the state of this node is not that of the other nodes: to let the machine join again, " +
	"start it with an empty data directory")

// ErrSeedTooOld refuses a state that does not reach the index that was asked for yet.
var ErrSeedTooOld = errors.New("this node has not applied the log that far yet; ask again")

// ErrNoToken means that a node of a cluster has no join token although the cluster requires one.
var ErrNoToken = errors.New("the node has no join token, without which the other nodes refuse it: " +
	"give it that of the cluster with --join-token-file, such as JOIN-TOKEN in the data directory of another node")

// NotLeaderError says that nothing was proposed because another node leads.
type NotLeaderError struct {
	Leader string // address, empty when unknown
}

// Error names the leader, if there is one.
func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return "this node is not the leader, and there is none"
	}
	return "this node is not the leader; it is " + e.Leader
}

// BehindError is the failure of a node that needs another node's state, because the others have dropped the log entries
// that it is missing.
type BehindError = raftlog.BehindError
