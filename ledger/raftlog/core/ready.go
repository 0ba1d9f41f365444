package core

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// collect turns the library's output into effects.
func (n *Node) collect() {
	for n.raft.HasReady() {
		rd := n.raft.Ready()
		if !raft.IsEmptyHardState(rd.HardState) {
			n.commit = rd.HardState.GetCommit()
		}
		if rd.SoftState != nil || rd.HardState.GetTerm() > n.role.Term {
			n.changeRole(rd.SoftState)
		}
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				n.queueAppend(m)
			case raft.LocalApplyThread:
				n.queueApply(m)
			default:
				if !n.holdsBack(m) {
					n.send(m)
				}
			}
		}
		for _, r := range rd.ReadStates {
			n.confirmRead(r)
		}
	}
}

// changeRole updates the role. Proposals of a deposed leader may still be committed.
func (n *Node) changeRole(s *raft.SoftState) {
	before := n.role
	if s != nil {
		n.role.Leads, n.role.Leader = s.RaftState == raft.StateLeader, s.Lead
	}
	n.role.Term = n.raft.BasicStatus().HardState.GetTerm()
	if n.role == before {
		return
	}
	role := n.role
	n.out.Role = &role
	if before.Leads {
		n.loseProposals()
	}
	n.repeatReads()
}

func (n *Node) loseProposals() {
	for _, p := range n.proposals {
		n.out.Lost = append(n.out.Lost, p.number)
	}
	n.proposals = nil
}

// queueAppend hands out a write. If there is nothing to write, it hands out the messages that wait for earlier writes.
func (n *Node) queueAppend(m *pb.Message) {
	var a Append
	for _, e := range m.GetEntries() {
		a.Entries = append(a.Entries, toEntry(e))
	}
	n.changes.append(a.Entries)
	s := n.state
	if m.Term != nil {
		s.Term, s.Vote = m.GetTerm(), m.GetVote()
	}
	// A new commit index alone need not be stored, because the node learns it again, unless it decides who the members
	// are.
	if s != n.state || len(a.Entries) > 0 && n.changes.between(n.state.Commit, n.commit) {
		s.Commit = n.commit
		a.State, n.state = &s, s
	}
	if n.proposing && len(a.Entries) > 0 {
		n.placed = &a.Entries[len(a.Entries)-1]
	}
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		a.Snapshot = fromSnapshot(m.GetSnapshot())
		n.restored = a.Snapshot.Index
	}
	switch f := (inFlight{0, m.GetEntries(), a.Snapshot, m.GetResponses()}); {
	case a.State != nil || a.Entries != nil || a.Snapshot != nil:
		n.handOut(a, f)
	case len(n.appends) > 0:
		waiting := &n.appends[len(n.appends)-1]
		waiting.responses = append(waiting.responses, f.responses...)
	default:
		n.respond(f.responses)
	}
}

func (n *Node) handOut(a Append, f inFlight) {
	n.number++
	a.Number, f.number = n.number, n.number
	n.out.Append = append(n.out.Append, a)
	n.appends = append(n.appends, f)
}

// changes records which entries of the log are membership changes.
//
// A node that acknowledges an entry after a membership change must not forget that the change is committed. The leader
// proposes one change after the other, and counts the acknowledgements of the second change among the members that the
// first one created. Suppose that a node has acknowledged the second change, restarts, and falls back to the members
// from before the first one. A majority of those members can elect it while the others form a majority of the new
// members, so that two leaders commit two entries at one index. The commit index therefore becomes durable no later
// than the entries after a change. A node that receives the second change learns in the same message that the first one
// is committed.
type changes struct {
	indexes []uint64 // ascending
	unknown uint64   // the log had the entries up to here at the start, and any of them may be a change
}

// append records the changes among entries, which replace the log from the first of them on.
func (c *changes) append(entries []segment.Entry) {
	if len(entries) == 0 {
		return
	}
	first := entries[0].Index
	for len(c.indexes) > 0 && c.indexes[len(c.indexes)-1] >= first {
		c.indexes = c.indexes[:len(c.indexes)-1]
	}
	for _, e := range entries {
		if e.Kind == KindChange {
			c.indexes = append(c.indexes, e.Index)
		}
	}
}

// between reports whether there may be a change after index stored and up to index commit. It forgets the changes up to
// stored.
func (c *changes) between(stored, commit uint64) bool {
	for len(c.indexes) > 0 && c.indexes[0] <= stored {
		c.indexes = c.indexes[1:]
	}
	return stored < min(commit, c.unknown) || len(c.indexes) > 0 && c.indexes[0] <= commit
}

// queueApply hands out committed entries. If they change the members, the commit index becomes durable first: a node
// that restarts must not ask the old voters for their votes.
func (n *Node) queueApply(m *pb.Message) {
	b := batch{entries: m.GetEntries(), responses: m.GetResponses()}
	for _, e := range b.entries {
		if e.GetType() != pb.EntryNormal {
			n.state.Commit = n.commit
			s := n.state
			n.handOut(Append{State: &s}, inFlight{})
			b.after = n.number
			break
		}
	}
	n.queued = append(n.queued, b)
	n.release()
}

// release hands out the batches that no longer have to wait.
func (n *Node) release() {
	for len(n.queued) > 0 && n.queued[0].after <= n.appended {
		b := n.queued[0]
		n.queued = n.queued[1:]
		n.applying = append(n.applying, b)
		for _, e := range b.entries {
			c := toEntry(e)
			at := segment.Position{Index: c.Index, Term: c.Term}
			n.out.Apply = append(n.out.Apply, Committed{at, c.Kind, c.Data, n.takeProposal(at)})
		}
	}
}

// takeProposal returns the number of the proposal that became the entry at a position. A proposal is lost if another
// entry took its position.
func (n *Node) takeProposal(at segment.Position) uint64 {
	for len(n.proposals) > 0 && n.proposals[0].Index <= at.Index {
		p := n.proposals[0]
		n.proposals = n.proposals[1:]
		if p.Position == at {
			return p.number
		}
		n.out.Lost = append(n.out.Lost, p.number)
	}
	return 0
}
