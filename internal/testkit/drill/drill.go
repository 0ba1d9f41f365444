package drill

import (
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// World is the simulated cluster as a drill needs it. All of it runs on one thread.
type World interface {
	Rand() *rand.Rand
	After(delay time.Duration, do func())
	// Over reports whether no more faults are wanted.
	Over() bool
	Met(what string)
	// Leader returns the id of a leader that knows of no later term, or 0.
	Leader() uint64
	// Node returns a node, or nil.
	Node(id uint64) Node
	// Join makes a node that has never run, and reports whether the world accepts one more node.
	Join(id uint64) bool
	// Number returns the number of a new proposal.
	Number() uint64
	// Cut drops all messages from one node to another until Mend is called.
	Cut(from, to uint64)
	Mend()
}

// Node is one node of the cluster.
type Node interface {
	// Core returns the node's consensus; nil while the node is down.
	Core() *core.Node
	// Event runs do on the node's consensus, and performs the resulting effects.
	Event(do func(*core.Node) error)
	// Checkpoint makes the state durable and truncates the log as far as possible.
	Checkpoint()
	// HoldApplier pauses the state machine for a while.
	HoldApplier(time.Duration)
}

// Drill runs a drill again and again.
type Drill struct {
	w         World
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
	poll           = 200 * time.Microsecond
	learnersWithin = 3 * time.Second
	changeWithin   = 200 * time.Millisecond
	deathWithin    = 100 * time.Millisecond
	settleWithin   = 20 * time.Millisecond
	split          = 600 * time.Millisecond
	campaigns      = 15 * time.Millisecond
)

// New returns a drill for a world.
func New(w World) *Drill { return &Drill{w: w} }

// On reports whether a drill is at a point at which no other fault may change the links.
func (d *Drill) On() bool { return d.on }

// Run starts a drill if the members allow it.
func (d *Drill) Run() {
	leader := d.w.Leader()
	if d.on || d.gathering || leader == 0 {
		return
	}
	n := d.core(leader)
	if n == nil || len(n.Members().Voters) < 3 {
		return
	}
	if d.chance(3) {
		d.overwrite(n, leader)
		return
	}
	d.gathering = true
	d.w.After(0, func() { d.gather(leader, learnersWithin) })
}

func (d *Drill) core(id uint64) *core.Node {
	if n := d.w.Node(id); n != nil {
		return n.Core()
	}
	return nil
}

// leads returns the consensus of a node if it is still the leader.
func (d *Drill) leads(id uint64) *core.Node {
	if n := d.core(id); n != nil && n.Role().Leads {
		return n
	}
	return nil
}

func (d *Drill) chance(oneIn int) bool { return d.w.Rand().IntN(oneIn) == 0 }

// gather waits for two learners that have caught up.
func (d *Drill) gather(leader uint64, patience time.Duration) {
	n := d.leads(leader)
	if n == nil || d.w.Over() || patience < 0 {
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
	if len(m.Learners) < 2 && len(m.Outgoing) == 0 && d.w.Join(m.Highest+1) {
		d.propose(leader, single(pb.ConfChangeAddLearnerNode, m.Highest+1))
	}
	const again = 5 * time.Millisecond
	d.w.After(again, func() { d.gather(leader, patience-again) })
}

func caughtUp(n *core.Node, ids []uint64) bool {
	progress := n.Progress()
	return !slices.ContainsFunc(ids, func(id uint64) bool {
		p := progress[id]
		return !p.Active || p.Matched+10 < n.Committed()
	})
}

// begin chooses which nodes are away during which change, and makes the first change.
func (d *Drill) begin(n *core.Node, leader uint64) {
	m := n.Members()
	*d = Drill{w: d.w, on: true, leader: leader, old: []uint64{leader}, changed: n.MembersChanged()}
	for _, i := range d.w.Rand().Perm(len(m.Voters)) {
		if id := m.Voters[i]; id != leader {
			d.old = append(d.old, id)
		}
	}
	d.victim = d.old[1]
	absent := d.old[2]
	switch last := len(d.old) - 1; {
	case len(m.Learners) < 2 || last >= 4 && d.chance(2):
		d.w.Met("drills that remove voters")
		d.first = single(pb.ConfChangeRemoveNode, d.old[last])
		d.second = single(pb.ConfChangeRemoveNode, absent)
	case last == 2 && d.chance(2):
		d.w.Met("drills that add voters")
		d.first = single(pb.ConfChangeAddNode, m.Learners[0])
		d.second = single(pb.ConfChangeAddNode, m.Learners[1])
	default:
		d.w.Met("drills that replace voters")
		d.first = single(pb.ConfChangeAddNode, m.Learners[0])
		d.first.Changes = append(d.first.Changes, single(pb.ConfChangeAddNode, m.Learners[1]).Changes...)
		d.first.Changes = append(d.first.Changes, single(pb.ConfChangeRemoveNode, d.victim).Changes...)
		if d.chance(2) {
			d.first.Changes = append(d.first.Changes, single(pb.ConfChangeRemoveNode, absent).Changes...)
		}
	}
	d.w.Mend()
	d.cutOff(d.victim)
	d.propose(leader, d.first)
	d.await(changeWithin, d.isChanged, func() { d.between(absent) })
}

// isChanged reports whether the leader has applied the last proposed change.
func (d *Drill) isChanged() bool {
	n := d.leads(d.leader)
	return n != nil && n.MembersChanged() > d.changed
}

// between brings the victim back, cuts off the next voter, and makes the second change.
func (d *Drill) between(absent uint64) {
	n := d.leads(d.leader)
	if n == nil {
		d.end()
		return
	}
	d.changed = n.MembersChanged()
	d.dies = d.victim
	victim := d.w.Node(d.victim)
	switch d.w.Rand().IntN(5) {
	case 0:
		d.w.Met("drills with a snapshot behind a change")
		d.w.Node(d.leader).Checkpoint()
	case 1:
		d.w.Met("drills with a slow applier")
		victim.HoldApplier(deathWithin)
	case 2:
		d.w.Met("drills in which the leader dies before it applies a change")
		d.leaderDies = true
	}
	d.w.Mend()
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
func (d *Drill) part() {
	d.dies = 0
	d.w.Mend()
	members := core.Members{}
	if n := d.core(d.leader); n != nil {
		members = n.Members()
	}
	there := slices.Concat([]uint64{d.leader}, members.Voters, members.Learners)
	here := d.old[1:]
	for _, a := range here {
		for _, b := range there {
			if !slices.Contains(here, b) {
				d.w.Cut(a, b)
				d.w.Cut(b, a)
			}
		}
	}
	d.w.Met("drills")
	for at := campaigns; at < split; at += campaigns {
		d.w.After(at, func() {
			id := d.victim
			if d.chance(3) {
				id = here[d.w.Rand().IntN(len(here))]
			}
			d.event(id, (*core.Node).Campaign)
		})
	}
	d.w.After(split, d.end)
}

func (d *Drill) end() {
	d.w.Mend()
	*d = Drill{w: d.w}
}

// await calls then once a condition holds or the time is up.
func (d *Drill) await(patience time.Duration, until func() bool, then func()) {
	switch {
	case d.w.Over():
		d.end()
	case until() || patience <= 0:
		then()
	default:
		d.w.After(poll, func() { d.await(patience-poll, until, then) })
	}
}

func (d *Drill) event(id uint64, do func(*core.Node) error) {
	if n := d.w.Node(id); n != nil && n.Core() != nil {
		n.Event(do)
	}
}

// propose proposes a membership change. A refusal is a valid outcome.
func (d *Drill) propose(leader uint64, change *pb.ConfChangeV2) {
	d.event(leader, func(n *core.Node) error { _ = n.Change(d.w.Number(), change); return nil })
}

// cutOff drops all messages from and to a node.
func (d *Drill) cutOff(id uint64) {
	n := d.core(d.leader)
	if n == nil {
		return
	}
	m := n.Members()
	for _, other := range slices.Concat(d.old, m.Voters, m.Learners) {
		d.w.Cut(id, other)
		d.w.Cut(other, id)
	}
}

func single(kind pb.ConfChangeType, id uint64) *pb.ConfChangeV2 {
	return &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &id}}}
}

// Effects is called with a node's effects before the node performs them. It reports whether the node dies before it has
// applied any of them.
func (d *Drill) Effects(id uint64, out *core.Effects) (dies bool) {
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
	d.w.Met("leaders that died before they applied a change")
	return true
}

func isChange(c core.Committed) bool { return c.Kind == core.KindChange }

// Sent is called with each message that a node sends. It reports whether the node dies right after it.
func (d *Drill) Sent(m *pb.Message) (dies bool) {
	if m.GetFrom() != d.dies || m.GetType() != pb.MsgAppResp || m.GetReject() || d.newest <= d.changed ||
		m.GetIndex() < d.newest {
		return false
	}
	d.dies, d.died = 0, true
	d.w.Met("crashes behind an acknowledgement")
	return true
}
