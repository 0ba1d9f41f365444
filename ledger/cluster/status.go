package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Leader describes the leader of the cluster, as far as this node knows.
type Leader struct {
	ID     uint64 // of the node; 0: unknown, an election is in progress
	Self   bool   // this node leads, and accepts writes
	Term   uint64 // the Raft term
	Peer   string // host and port at which the node listens for other nodes; may be empty
	Client string // host and port for clients, as configured; may be empty
	// Encrypted reports whether nodes communicate over TLS.
	Encrypted bool
}

// Member is a node of the cluster.
type Member struct {
	ID      uint64
	Voter   bool   // otherwise a learner, which receives the log and has no vote
	Peer    string // as in Leader
	Client  string
	Active  bool   // heard from within an election timeout; known only to the leader
	Matched uint64 // index up to which its log matches the leader's; known only to the leader
	// Heard is when this node received the last message from it. It is zero for this node, and if there was no message
	// since the ledger was opened. Only the leader hears from all nodes.
	Heard time.Time
	// State is the result of the last comparison of its state with this node's. Disk and Room are what it reported
	// about its disk then.
	State Comparison
	Disk  datadir.Usage
	Room  Room
	// ClockAhead is how far its wall clock is ahead of this node's, and Stalled its work that has stopped advancing,
	// such as a write to the log, empty for none. Both are as of its last answer; Answers tells whether there was one
	// lately.
	ClockAhead time.Duration
	Stalled    string
	Answers    bool
	// OldCopy reports that the node has told this one, which leads, that its data directory is an old copy: nothing is
	// sent to it.
	OldCopy bool
}

// Comparison is the result of comparing the states of two nodes.
type Comparison uint8

// Results of a comparison.
const (
	NotCompared Comparison = iota // not yet, or a node has not applied the entry, or no longer knows its digest
	Same
	Differs
)

// Status describes the cluster as one node sees it.
type Status struct {
	Self      uint64 // id of this node
	Leader    Leader
	Applied   uint64 // log index up to which this node has applied the log
	Committed uint64 // log index up to which this node knows the log to be committed
	Last      uint64 // last index in this node's log
	Members   []Member
	Compared  machine.Check // this node's index and digest at its last comparison with the others
	// Lagging is why ledger time lags, nil if it does not or this node does not lead; MayLag is by how much at most, if
	// the clock of any voter is right.
	Lagging error
	MayLag  time.Duration
}

// Heard returns when this node has last heard from another one; zero means not since the ledger was opened.
func (n *Node) Heard(id uint64) time.Time { return n.heard.last(id) }

// Status returns the cluster as this node sees it.
func (n *Node) Status() Status {
	members, progress := n.log.Members(), n.log.Progress()
	leader, _ := n.Leader()
	s := Status{
		Self: n.id(), Leader: leader,
		Applied: progress.Applied, Committed: progress.Committed, Last: progress.Last,
	}
	result := n.digests.lastResult()
	s.Compared = result.own
	if s.Lagging = n.pulses.why(); s.Lagging != nil {
		s.MayLag = n.mayLag()
	}
	recently := time.Now().Add(-pulseKept)
	add := func(ids []uint64, voter bool) {
		for _, id := range ids {
			if slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == id }) {
				continue // an outgoing voter that becomes a learner
			}
			m := Member{ID: id, Voter: voter, Heard: n.heard.last(id), OldCopy: n.hasForgotten(id)}
			if a, found := members.Address(id); found {
				m.Peer, m.Client = a.Peer, a.Client
			}
			if p, found := progress.Others[id]; found {
				// The consensus forgets once in each election timeout which nodes are active, until their next message.
				m.Active = p.Active || !m.Heard.IsZero() && time.Since(m.Heard) < n.log.ElectionTimeout()
				m.Matched = p.Matched
			}
			found := result.nodes[id]
			m.State, m.Disk, m.Room = found.state, found.disk, found.room
			if id == n.id() {
				m.Stalled, m.Answers = n.log.Stalled().Job, true
				if leader.Self {
					m.Matched = progress.Last // the consensus of a single node does not count
				}
			} else if p, found := n.pulses.last(id, recently); found {
				m.ClockAhead, m.Stalled, m.Answers = p.ahead, p.Stalled, true
			}
			s.Members = append(s.Members, m)
		}
	}
	add(members.Voters, true)
	add(members.Outgoing, true)
	add(members.Learners, false)
	add(members.LearnersNext, false)
	slices.SortFunc(s.Members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
