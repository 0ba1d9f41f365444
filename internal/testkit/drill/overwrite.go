package drill

import (
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// overwrite cuts off the leader, which keeps proposing. The others elect another leader, which changes the members.
// Then the first one is back: committed entries replace its own, and it dies in the middle of that write.
func (d *Drill) overwrite(n *core.Node, leader uint64) {
	*d = Drill{w: d.w, on: true, old: n.Members().Voters}
	d.w.Met("drills that replace entries")
	d.w.Mend()
	d.leader = leader
	d.cutOff(leader)
	d.await(electionWithin, func() bool { return d.otherLeader(leader) != 0 }, func() {
		d.leader = d.otherLeader(leader)
		next := d.leads(d.leader)
		if next == nil {
			d.end()
			return
		}
		m := next.Members()
		d.changed = next.MembersChanged()
		change := single(pb.ConfChangeAddLearnerNode, m.Highest+1)
		switch {
		case d.w.Join(m.Highest + 1):
		case len(m.Learners) > 0:
			change = single(pb.ConfChangeAddNode, m.Learners[0])
		default:
			change = single(pb.ConfChangeUpdateNode, leader)
		}
		d.propose(d.leader, change)
		d.await(changeWithin, d.isChanged, func() { d.tear(leader) })
	})
}

// otherLeader returns a leader other than the given node.
func (d *Drill) otherLeader(than uint64) uint64 {
	for _, id := range d.old {
		if id != than && d.leads(id) != nil {
			return id
		}
	}
	return 0
}

// tear lets a node come back, and waits until it has died during a write.
func (d *Drill) tear(id uint64) {
	d.tears = id
	d.w.Mend()
	d.event(d.leader, func(n *core.Node) error { return n.Unreachable(id) })
	d.await(tornWithin, func() bool { return d.tears == 0 }, d.end)
}

const (
	electionWithin = 2 * time.Second
	tornWithin     = 300 * time.Millisecond
)

// Writes is called with an append that a node is about to write after the last entry of its log. It reports whether the
// write is torn, which kills the node.
func (d *Drill) Writes(id uint64, a *core.Append, last uint64) (torn bool) {
	if id != d.tears || a.State == nil || len(a.Entries) == 0 || a.Entries[0].Index > last ||
		a.State.Commit < a.Entries[0].Index {
		return false
	}
	d.tears = 0
	d.w.Met("torn writes that replace entries")
	return true
}
