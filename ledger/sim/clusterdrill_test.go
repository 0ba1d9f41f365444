package sim

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// maxNodes bounds the number of nodes that a cluster with drills ever has.
const maxNodes = 15

// drill injects faults that chance produces too rarely, again and again: several failures in exactly the order that
// does harm.
//
// One drill changes the members twice, the second time right after the first. One voter is away during the first change
// and another during the second, so that the first of them, which is back by then, is needed for the second change.
// That voter dies at an unlucky moment and restarts. Then the network splits: on one side is a majority of the voters
// from before both changes, on the other side the leader with a majority of the new voters. If the restarted voter
// forgot what it acknowledged, its side elects a leader, and two leaders commit entries.
//
// Drills vary: voters are added, replaced in one joint change, or removed without learning of it; the voter that was
// away gets the missing entries or a snapshot that includes the change; it dies right after an acknowledgement, or its
// state machine is paused; the leader dies between the commit and the apply of a change.
//
// Another drill makes a node replace its own entries with committed ones, and tears that write.
type drill struct {
	c         *cluster
	gathering bool
	on        bool

	leader  uint64
	old     []uint64 // the voters before both changes, the leader's id first
	victim  uint64   // the voter that is away during the first change
	changed uint64   // index of the last membership change before the current step
	first   *pb.ConfChangeV2
	second  *pb.ConfChangeV2 // nil: it follows automatically, because the first one is joint

	newest     uint64 // index of the newest change in the leader's log
	dies       uint64 // this node dies after it acknowledges the second change
	leaderDies bool   // the leader dies before it applies that
	died       bool

	tears uint64 // a write of this node is torn that replaces entries with ones of which some are committed
}

// Durations of a drill.
const (
	poll           = 200 * microsecond
	learnersWithin = 3 * second
	changeWithin   = 200 * millisecond
	deathWithin    = 100 * millisecond
	settleWithin   = 20 * millisecond
	split          = 600 * millisecond
	campaigns      = 15 * millisecond
)

// run starts a drill if the members allow it.
func (d *drill) run() {
	found := d.c.leader()
	if d.on || d.gathering || found == nil || !found.up || len(found.core.Members().Voters) < 3 {
		return
	}
	n, leader := found.core, found.id
	if d.chance(3) {
		d.overwrite(n, leader)
		return
	}
	d.gathering = true
	d.c.w.after(0, func() { d.gather(leader, learnersWithin) })
}

func (d *drill) core(id uint64) *core.Node {
	if n := d.c.node(id); n != nil && n.up {
		return n.core
	}
	return nil
}

// leads returns the consensus of a node if it is still the leader.
func (d *drill) leads(id uint64) *core.Node {
	if n := d.core(id); n != nil && n.Role().Leads {
		return n
	}
	return nil
}

// join makes a node that has never run, and reports whether the cluster has room for one more.
func (d *drill) join(id uint64) bool {
	if len(d.c.nodes) >= maxNodes {
		return false
	}
	if d.c.node(id) == nil {
		d.c.add(id, core.Members{})
	}
	return true
}

func (d *drill) chance(oneIn int) bool { return d.c.w.rng.IntN(oneIn) == 0 }

// gather waits for two learners that have caught up.
func (d *drill) gather(leader uint64, patience int64) {
	n := d.leads(leader)
	if n == nil || d.c.w.calm || patience < 0 {
		d.gathering = false
		return
	}
	m := n.Members()
	if len(m.Voters) >= 5 && len(m.Outgoing) == 0 {
		d.begin(n, leader)
		return
	}
	if len(m.Learners) >= 2 && caughtUp(n, m.Learners[:2]) && len(m.Outgoing) == 0 {
		d.begin(n, leader)
		return
	}
	if len(m.Learners) < 2 && len(m.Outgoing) == 0 && d.join(m.Highest+1) {
		d.propose(leader, single(pb.ConfChangeAddLearnerNode, m.Highest+1))
	}
	const again = 5 * millisecond
	d.c.w.after(again, func() { d.gather(leader, patience-again) })
}

func caughtUp(n *core.Node, ids []uint64) bool {
	progress := n.Progress()
	return !slices.ContainsFunc(ids, func(id uint64) bool {
		p := progress[id]
		return !p.Active || p.Matched+10 < n.Committed()
	})
}

// begin chooses which nodes are away during which change, and makes the first change.
func (d *drill) begin(n *core.Node, leader uint64) {
	m := n.Members()
	*d = drill{c: d.c, on: true, leader: leader, old: []uint64{leader}, changed: n.MembersChanged()}
	for _, i := range d.c.w.rng.Perm(len(m.Voters)) {
		if id := m.Voters[i]; id != leader {
			d.old = append(d.old, id)
		}
	}
	d.victim = d.old[1]
	absent := d.old[2]
	switch last := len(d.old) - 1; {
	case len(m.Learners) < 2 || last >= 4 && d.chance(2):
		d.c.met("drills that remove voters")
		d.first = single(pb.ConfChangeRemoveNode, d.old[last])
		d.second = single(pb.ConfChangeRemoveNode, absent)
	case last == 2 && d.chance(2):
		d.c.met("drills that add voters")
		d.first = single(pb.ConfChangeAddNode, m.Learners[0])
		d.second = single(pb.ConfChangeAddNode, m.Learners[1])
	default:
		d.c.met("drills that replace voters")
		d.first = single(pb.ConfChangeAddNode, m.Learners[0])
		d.first.Changes = append(d.first.Changes, single(pb.ConfChangeAddNode, m.Learners[1]).Changes...)
		d.first.Changes = append(d.first.Changes, single(pb.ConfChangeRemoveNode, d.victim).Changes...)
		if d.chance(2) {
			d.first.Changes = append(d.first.Changes, single(pb.ConfChangeRemoveNode, absent).Changes...)
		}
	}
	clear(d.c.cut)
	d.cutOff(d.victim)
	d.propose(leader, d.first)
	d.await(changeWithin, d.isChanged, func() { d.between(absent) })
}

// isChanged reports whether the leader has applied the last proposed change.
func (d *drill) isChanged() bool {
	n := d.leads(d.leader)
	return n != nil && n.MembersChanged() > d.changed
}

// between brings the victim back, cuts off the next voter, and makes the second change.
func (d *drill) between(absent uint64) {
	n := d.leads(d.leader)
	if n == nil {
		d.end()
		return
	}
	d.changed = n.MembersChanged()
	d.dies = d.victim
	switch d.c.w.rng.IntN(5) {
	case 0:
		d.c.met("drills with a snapshot behind a change")
		if n := d.c.node(d.leader); n.up {
			n.work(true)
		}
	case 1:
		d.c.met("drills with a slow applier")
		d.c.node(d.victim).heldUntil = d.c.w.now + deathWithin
	case 2:
		d.c.met("drills in which the leader dies before it applies a change")
		d.leaderDies = true
	}
	clear(d.c.cut)
	d.cutOff(absent)
	if d.second != nil {
		d.propose(d.leader, d.second)
	}
	d.event(d.leader, func(n *core.Node) error { return n.Unreachable(d.victim) })
	// The acknowledgement must arrive: a later leader may lack the entry that it commits.
	d.await(deathWithin, func() bool { return d.died }, func() {
		d.await(settleWithin, func() bool { return d.leads(d.leader) == nil || d.isChanged() }, d.part)
	})
}

// part splits the cluster into a majority of the old members and a majority of the new ones. The side without the
// leader tries repeatedly to elect one.
func (d *drill) part() {
	d.dies = 0
	clear(d.c.cut)
	members := core.Members{}
	if n := d.core(d.leader); n != nil {
		members = n.Members()
	}
	there := slices.Concat([]uint64{d.leader}, members.Voters, members.Learners)
	here := d.old[1:]
	for _, a := range here {
		for _, b := range there {
			if !slices.Contains(here, b) {
				d.c.cut[[2]uint64{a, b}] = true
				d.c.cut[[2]uint64{b, a}] = true
			}
		}
	}
	d.c.met("drills")
	for at := campaigns; at < split; at += campaigns {
		d.c.w.after(at, func() {
			id := d.victim
			if d.chance(3) {
				id = here[d.c.w.rng.IntN(len(here))]
			}
			d.event(id, (*core.Node).Campaign)
		})
	}
	d.c.w.after(split, d.end)
}

func (d *drill) end() {
	clear(d.c.cut)
	*d = drill{c: d.c}
}

// await calls then once a condition holds or the time is up.
func (d *drill) await(patience int64, until func() bool, then func()) {
	switch {
	case d.c.w.calm:
		d.end()
	case until() || patience <= 0:
		then()
	default:
		d.c.w.after(poll, func() { d.await(patience-poll, until, then) })
	}
}

func (d *drill) event(id uint64, do func(*core.Node) error) {
	if n := d.c.node(id); n != nil && n.up {
		n.must(do(n.core), "a drill")
		n.effects()
	}
}

// propose proposes a membership change. A refusal is a valid outcome.
func (d *drill) propose(leader uint64, change *pb.ConfChangeV2) {
	d.event(leader, func(n *core.Node) error { _ = n.Change(d.c.number(), change); return nil })
}

// cutOff drops all messages from and to a node.
func (d *drill) cutOff(id uint64) {
	n := d.core(d.leader)
	if n == nil {
		return
	}
	m := n.Members()
	for _, other := range slices.Concat(d.old, m.Voters, m.Learners) {
		d.c.cut[[2]uint64{id, other}] = true
		d.c.cut[[2]uint64{other, id}] = true
	}
}

func single(kind pb.ConfChangeType, id uint64) *pb.ConfChangeV2 {
	return &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &id}}}
}

// effects is called with a node's effects before the node performs them. It reports whether the node dies before it has
// applied any of them.
func (d *drill) effects(id uint64, out *core.Effects) (dies bool) {
	if !d.on || id != d.leader {
		return false
	}
	for _, a := range out.Append {
		for _, e := range a.Entries {
			if e.Kind == core.KindChange {
				d.newest = e.Index
			}
		}
	}
	if !d.leaderDies || !slices.ContainsFunc(out.Apply, isChange) {
		return false
	}
	d.leaderDies = false
	d.c.met("leaders that died before they applied a change")
	return true
}

func isChange(c core.Committed) bool { return c.Kind == core.KindChange }

// sent is called with each message that a node sends. It reports whether the node dies right after it.
func (d *drill) sent(m *pb.Message) (dies bool) {
	if m.GetFrom() != d.dies || m.GetType() != pb.MsgAppResp || m.GetReject() || d.newest <= d.changed ||
		m.GetIndex() < d.newest {
		return false
	}
	d.dies, d.died = 0, true
	d.c.met("crashes behind an acknowledgement")
	return true
}

// overwrite cuts off the leader, which keeps proposing. The others elect another leader, which changes the members.
// Then the first one is back: committed entries replace its own, and it dies in the middle of that write.
func (d *drill) overwrite(n *core.Node, leader uint64) {
	*d = drill{c: d.c, on: true, old: n.Members().Voters}
	d.c.met("drills that replace entries")
	clear(d.c.cut)
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
		case d.join(m.Highest + 1):
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
func (d *drill) otherLeader(than uint64) uint64 {
	for _, id := range d.old {
		if id != than && d.leads(id) != nil {
			return id
		}
	}
	return 0
}

// tear lets a node come back, and waits until it has died during a write.
func (d *drill) tear(id uint64) {
	d.tears = id
	clear(d.c.cut)
	d.event(d.leader, func(n *core.Node) error { return n.Unreachable(id) })
	d.await(tornWithin, func() bool { return d.tears == 0 }, d.end)
}

const (
	electionWithin = 2 * second
	tornWithin     = 300 * millisecond
)

// writes is called with an append that a node is about to write after the last entry of its log. It reports whether the
// write is torn, which kills the node.
func (d *drill) writes(id uint64, a *core.Append, last uint64) (torn bool) {
	if id != d.tears || a.State == nil || len(a.Entries) == 0 || a.Entries[0].Index > last ||
		a.State.Commit < a.Entries[0].Index {
		return false
	}
	d.tears = 0
	d.c.met("torn writes that replace entries")
	return true
}
