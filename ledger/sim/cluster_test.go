package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// tick is the tick interval of the consensus.
const tick = 20 * millisecond

// cluster is the nodes, the network between them, and the external record of what they have agreed on.
type cluster struct {
	w       *world
	episode *clusterEpisode
	plan    clusterPlan
	mutant  string
	source  *rand.ChaCha8 // of election timeouts and file names
	own     *world        // draws wrong clocks and hangs, so that everything else is drawn as without them
	nodes   []*member
	cut     map[[2]uint64]bool
	drill   *drill
	wallOff map[uint64]int64

	numbers   uint64
	proposals map[uint64][]waiting // by number, until they are committed
	history   []committedEntry     // by index, from first.Index+1 on
	acked     uint64               // the last index whose commands were answered
	time      int64                // ledger time of the last entry
	leaders   map[uint64]uint64    // by term
	written   map[segment.Position]segment.Entry
	votes     map[[2]uint64]uint64 // by node and term
	changes   map[uint64][]byte    // the members as of some checkpoints, by index
	snapshots []*memoryDisk
}

type committedEntry struct {
	core.Committed
	number  uint64
	ordinal uint64 // position among the entries with commands; 0: no commands
}

// clusterPlan is the fault plan of a cluster. All of it comes from the seed.
type clusterPlan struct {
	nodes     int
	crash     int // one in so many steps of a node ends with a crash
	keepLog   int
	rivals    int64 // maximum time between two
	partition int64 // maximum time between two changes of the network
	change    int64 // maximum time between two membership changes
	duel      int64 // maximum time between two; 0: never
	drill     int64 // the same
	kill      int64 // the same
	transfer  int64 // the same

	wrongClocks bool // the clocks of a minority are wrong at each election
	hangs       bool // appliers hang

	applyBytes uint64 // see core.Options
	badDisks   bool   // disks fill up and suffer bit rot
	badStates  bool   // state files have no space, and rot
}

// met counts a fault, or the consequence of one.
func (c *cluster) met(what string) { c.w.counted["cluster: "+what]++ }

func (c *cluster) number() uint64 {
	c.numbers++
	return c.numbers
}

func (c *cluster) node(id uint64) *member {
	for _, n := range c.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// leader returns a node that considers itself the leader.
func (c *cluster) leader() *member {
	for _, n := range c.nodes {
		if n.up && n.role.Leads {
			return n
		}
	}
	return nil
}

func (c *cluster) inOrder(flights map[uint64][]engine.Span) []uint64 {
	return slices.Sorted(maps.Keys(flights))
}

func (c *cluster) propose(parts []waiting) uint64 {
	number := c.number()
	c.proposals[number] = parts
	return number
}

func (c *cluster) forget(number uint64) { delete(c.proposals, number) }

func (c *cluster) last() uint64 { return first.Index + uint64(len(c.history)) }

// committed checks an entry that a node applies against the entry that others have applied at its index. It returns the
// number of its proposal and, for an entry with commands, the oracle's record of it.
func (c *cluster) committed(n *member, e core.Committed) (number uint64, entry record) {
	c.w.mark(12, n.id, e.Index, e.Term)
	if e.Index > c.last()+1 {
		c.w.fail(nil, "node %d applies entry %d, and nobody has applied entry %d", n.id, e.Index, c.last()+1)
	}
	if e.Index == c.last()+1 {
		c.commit(e)
	}
	was := c.history[e.Index-first.Index-1]
	if was.Term != e.Term || was.Kind != e.Kind || !bytes.Equal(was.Data, e.Data) {
		c.w.fail(nil, "invariant 2: node %d applies an entry %d of term %d, where one of term %d was committed",
			n.id, e.Index, e.Term, was.Term)
	}
	if was.ordinal == 0 {
		return 0, record{}
	}
	return was.number, record{was.ordinal, e.Term, e.Data[8:]}
}

// commit records an entry that is applied for the first time.
func (c *cluster) commit(e core.Committed) {
	entry := committedEntry{Committed: e}
	if e.Kind == core.KindCommand && len(e.Data) > 0 {
		entry.number = binary.BigEndian.Uint64(e.Data)
		header, _, err := machine.DecodeEntry(e.Data[8:])
		c.w.must(err, "decoding an entry")
		if header.UnixNanos < c.time {
			c.w.fail(nil, "time: entry %d bears %d, and one before it %d", e.Index, header.UnixNanos, c.time)
		}
		c.time = header.UnixNanos
		if right := epochStart + c.w.now + 2*rightClocks; c.plan.wrongClocks && c.time > right {
			c.w.fail(nil, "time: entry %d is %d s ahead of every right clock", e.Index, (c.time-right)/second)
		}
		parts := c.proposals[entry.number]
		if parts == nil {
			c.w.fail(nil, "entry %d is of proposal %d, which was not made or has been committed", e.Index, entry.number)
		}
		c.forget(entry.number)
		entry.ordinal = uint64(len(c.w.oracle.entries)) + 1
		c.w.oracle.proposed(record{entry.ordinal, e.Term, e.Data[8:]}, parts)
	}
	c.history = append(c.history, entry)
}

// elected checks that only one node leads a term and, if no later term has had a leader, that the leader has every
// committed entry.
func (c *cluster) elected(n *member) {
	c.met("elections")
	if other, ok := c.leaders[n.role.Term]; ok && other != n.id {
		c.w.fail(nil, "nodes %d and %d lead in term %d", other, n.id, n.role.Term)
	}
	c.leaders[n.role.Term] = n.id
	if n.hungSince != 0 && n.w.now-n.hungSince > 12*tick {
		c.w.fail(nil, "node %d hangs for %d ms and is elected", n.id, (n.w.now-n.hungSince)/millisecond)
	}
	c.mistime(n)
	// The leader has voted for itself.
	if other, ok := c.votes[[2]uint64{n.id, n.role.Term}]; ok && other != n.id {
		c.w.fail(nil, "node %d votes for %d and for %d in term %d", n.id, other, n.id, n.role.Term)
	}
	c.votes[[2]uint64{n.id, n.role.Term}] = n.id
	for term := range c.leaders {
		if term > n.role.Term {
			// The votes for this node arrived late. A later leader may have committed entries that this node never saw,
			// and this node cannot commit anything any more.
			return
		}
	}
	for i := max(n.log.First(), first.Index+1); i <= c.last(); i++ {
		want := c.history[i-first.Index-1].Term
		if term, err := n.term(i); err != nil || term != want {
			c.w.fail(nil, "invariant 2: node %d leads in term %d with an entry %d of term %d (%v), and one of term %d "+
				"was committed", n.id, n.role.Term, i, term, err, want)
		}
	}
}

// rightClocks is how far right clocks are apart at most.
const rightClocks = 3 * second

// mistime makes the clocks of a minority of the voters wrong at the moment of an election, and the others right.
func (c *cluster) mistime(leader *member) {
	if !c.plan.wrongClocks {
		return
	}
	for id := range c.wallOff {
		c.wallOff[id] = c.rightClock(id)
	}
	voters := leader.core.Members().Voters
	for _, i := range c.own.rng.Perm(len(voters))[:(len(voters)-1)/2] {
		off := pick(c.own, 20*second, 3600*second, 20*24*3600*second, 400*24*3600*second) + c.own.upTo(second)
		if c.own.chance(3) {
			off = -off
		}
		c.wallOff[voters[i]] += off
		c.met("clocks wrong at an election")
	}
}

func (c *cluster) rightClock(id uint64) int64 {
	return epochStart + int64(id)*rightClocks/int64(len(c.wallOff))
}

// keepMinority sets wrong clocks right where a change of the members has left them no minority.
func (c *cluster) keepMinority(voters []uint64) {
	wrong := 0
	for _, id := range voters {
		if c.wallOff[id] == c.rightClock(id) {
			continue
		}
		if wrong++; wrong > (len(voters)-1)/2 {
			c.wallOff[id] = c.rightClock(id)
			c.met("clocks set right behind a change")
		}
	}
}

// appended checks that two logs with the same index and term have the same entry.
func (c *cluster) appended(n *member, a core.Append) {
	for _, e := range a.Entries {
		at := segment.Position{Index: e.Index, Term: e.Term}
		if was, ok := c.written[at]; ok && (was.Kind != e.Kind || !bytes.Equal(was.Data, e.Data)) {
			c.w.fail(nil, "node %d has another entry %d of term %d", n.id, e.Index, e.Term)
		}
		c.written[at] = e
	}
}

// sent checks a message: a node votes once a term.
func (c *cluster) sent(n *member, m *pb.Message) {
	w := c.w
	w.mark(14, m.GetFrom(), m.GetTo(), uint64(m.GetType()), m.GetTerm(), m.GetIndex())
	switch {
	case m.GetType() == pb.MsgVoteResp && !m.GetReject():
		at := [2]uint64{n.id, m.GetTerm()}
		if other, ok := c.votes[at]; ok && other != m.GetTo() {
			w.fail(nil, "node %d votes for %d and for %d in term %d", n.id, other, m.GetTo(), m.GetTerm())
		}
		c.votes[at] = m.GetTo()
		if !w.calm && w.chance(4) {
			c.met("crashes behind a vote")
			n.safely(w.upTo(300*microsecond), n.crash)
		}
	case c.drill.sent(m):
		n.safely(w.upTo(300*microsecond), func() { n.crashFor(w.upTo(5 * millisecond)) })
	case m.GetType() == pb.MsgApp && len(m.GetEntries()) > 0 && c.mutant == "acknowledge before a majority":
		forged := &pb.Message{
			Type: pb.MsgAppResp.Enum(), From: new(m.GetTo()), To: new(n.id),
			Term: new(m.GetTerm()), Index: new(m.GetIndex() + uint64(len(m.GetEntries()))),
		}
		n.safely(1, func() { n.must(n.core.Receive(forged), "receiving"); n.effects() })
	}
}

// sameMembers checks that nodes agree on the members at an index.
func (c *cluster) sameMembers(n *member, index uint64) {
	members := n.members[index]
	b := members.Encode()
	if was, ok := c.changes[index]; ok && !bytes.Equal(was, b) {
		c.w.fail(nil, "node %d has other members at index %d: %+v", n.id, index, members)
	}
	c.changes[index] = b
}

func (c *cluster) transmit(m *pb.Message, copies int, delay int64) {
	encoded, err := core.AppendMessage(nil, m)
	c.w.must(err, "encoding a message")
	for range copies {
		c.w.after(delay, func() { c.deliver(encoded) })
		delay += c.w.upTo(millisecond)
	}
}

func (c *cluster) deliver(encoded []byte) {
	messages, err := core.DecodeMessages(encoded)
	c.w.must(err, "decoding a message")
	m := messages[0]
	to := c.node(m.GetTo())
	if to == nil || !to.up || c.cut[[2]uint64{m.GetFrom(), m.GetTo()}] {
		return
	}
	if s := m.GetSnapshot(); m.GetType() == pb.MsgSnap {
		late := s.GetMetadata().GetIndex() < to.state.applied().Index
		if late {
			c.met("late snapshots")
		}
		if late && c.mutant == "late snapshot accepted" {
			to.replaceState(c.snapshots[len(c.snapshots)-1])
		}
	}
	to.must(to.core.Receive(m), "receiving")
	to.effects()
}

// snapshot returns a copy of the checkpoint, for a node that is too far behind.
func (n *member) snapshot(atLeast uint64) (core.Snapshot, error) {
	at := position(n.state.checkpoint())
	if at.Index < atLeast {
		n.c.met("snapshots too old")
		n.step(0, func() {
			if n.state.applied().Index >= atLeast {
				n.work(true)
			}
		})
		return core.Snapshot{}, errors.New("later")
	}
	if n.state.rot != nil && !n.state.blind { // the file is read as a whole
		n.must(errRotten, "reading a checkpoint")
		return core.Snapshot{}, errRotten
	}
	n.c.met("snapshots sent")
	number := len(n.c.snapshots)
	n.c.snapshots = append(n.c.snapshots, n.state.copyCheckpoint(n.w))
	return core.Snapshot{
		Position: at, Members: n.members[at.Index], Data: binary.BigEndian.AppendUint64(nil, uint64(number)),
	}, nil
}

// install makes the state of a snapshot durable, and then resets the log. It reports whether the node has survived.
func (n *member) install(s *core.Snapshot) bool {
	n.c.met("snapshots installed")
	if at := n.state.applied().Index; s.Index <= at {
		n.w.fail(nil, "node %d is at %d and installs a state at %d", n.id, at, s.Index)
	}
	if n.log.Last().Index >= s.Index {
		n.c.met("snapshots over a tail")
	}
	if n.c.mutant == "log emptied before the state is durable" {
		if n.log.Reset(segment.Checkpoint{Position: s.Position, Data: s.Members.Encode()}, n.log.State()) != nil ||
			n.w.chance(3) {
			return false
		}
	}
	if n.state.full {
		n.c.met("snapshots met a full disk")
		return false
	}
	if n.state.rot != nil {
		n.c.met("rotten states replaced by a snapshot")
	}
	n.members[s.Index] = s.Members
	n.replaceState(n.c.snapshots[binary.BigEndian.Uint64(s.Data)])
	if !n.w.calm && n.w.chance(4) {
		n.c.met("crashes between state and log of a snapshot")
		return false
	}
	return n.resetLog() == nil
}

// replaceState replaces this node's state with a copy of another node's.
func (n *member) replaceState(from *memoryDisk) {
	n.w.must(n.state.close(), "closing the state")
	n.state = from.copyCheckpoint(n.w)
	n.applies, n.working, n.installed, n.reached, n.replayed = nil, false, true, 0, true
	n.queue.JobDone(engine.Job{Kind: engine.Flush}, engine.JobResult{Covered: n.state.checkpoint().Index})
	var err error
	n.m, err = machine.Open(n.state)
	n.must(err, "opening a state that was installed")
	n.learn() // as a start does
}

// resetLog makes the log start after the state.
func (n *member) resetLog() error {
	at := position(n.state.checkpoint())
	members, state := n.members[at.Index], n.log.State()
	state.Term = max(state.Term, at.Term)
	return n.log.Reset(segment.Checkpoint{Position: at, Data: members.Encode()}, state)
}

// copyCheckpoint returns a disk with only the durable content of this one.
func (d *memoryDisk) copyCheckpoint(w *world) *memoryDisk {
	to := newMemoryDisk()
	to.torn, to.blind, to.unaware = d.torn, d.blind, d.unaware
	for table := range machine.Table(machine.TableCount) {
		if table == machine.TableBlocks {
			continue
		}
		w.must(d.durable.Ascend(table, nil, func(k, v []byte) bool {
			k, v = bytes.Clone(k), append([]byte{}, v...)
			w.must(errors.Join(to.durable.Put(table, k, v), to.now.Put(table, k, v)), "copying a state")
			return true
		}), "reading a checkpoint")
	}
	m, err := machine.Open(d.durable)
	w.must(err, "opening a checkpoint")
	last := m.View(d.durable).Index()
	r := d.blocks.OwnReader()
	defer r.Close()
	w.must(r.Ascend(0, func(x blockfile.Record) bool {
		if x.Last <= last {
			w.must(to.blocks.Append(x.Last, x.Data), "copying blocks")
		}
		return x.Last < last
	}), "reading blocks")
	_, err = to.blocks.Sync()
	w.must(err, "syncing blocks")
	to.mark, to.at, to.durableAt = to.blocks.Mark(), d.durableAt, d.durableAt
	return to
}

// again repeats do at random intervals of at most that long, while there are faults; never for 0.
func (c *cluster) again(most int64, do func()) {
	if most == 0 {
		return
	}
	c.w.after(c.w.upTo(most), func() {
		if !c.w.calm {
			do()
			c.again(most, do)
		}
	})
}

func (c *cluster) any() *member { return c.nodes[c.w.rng.IntN(len(c.nodes))] }

// partition cuts some links and restores those that were cut before.
func (c *cluster) partition() {
	if c.drill.on {
		return
	}
	clear(c.cut)
	a, b := c.any().id, c.any().id
	switch c.w.rng.IntN(6) {
	case 0:
		c.met("ways cut in one direction")
		c.cut[[2]uint64{a, b}] = true
	case 1:
		c.met("ways cut in both directions")
		c.cut[[2]uint64{a, b}], c.cut[[2]uint64{b, a}] = true, true
	case 2:
		c.met("nodes cut off")
		for _, n := range c.nodes {
			c.cut[[2]uint64{a, n.id}] = true
			if c.w.chance(2) {
				c.cut[[2]uint64{n.id, a}] = true
			}
		}
	}
}

// change proposes a membership change, and starts the node that joins.
func (c *cluster) change() {
	n := c.leader()
	if n == nil || n.alone || c.drill.on {
		return
	}
	m := n.core.Members()
	if c.brokenMember(m) != nil {
		c.removeBroken()
		return
	}
	change := new(pb.ConfChangeV2)
	add := func(kind pb.ConfChangeType, id uint64) {
		change.Changes = append(change.Changes, &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: &id})
	}
	// Package cluster refuses to remove the leader. Otherwise it may be the only one that knows that its removal is
	// committed, and if another voter then ends for good, the rest need the vote of the removed one for ever.
	leads := func(id uint64) bool { return id == n.id && c.plan.badStates }
	removable := slices.DeleteFunc(slices.Clone(m.Voters), leads)
	switch {
	case len(m.Learners) > 0: // promoted, and another node removed in the same step
		add(pb.ConfChangeAddNode, m.Learners[0])
		if len(m.Voters) > 2 && c.w.chance(2) {
			c.met("joint changes proposed")
			add(pb.ConfChangeRemoveNode, removable[c.w.rng.IntN(len(removable))])
		}
	case len(m.Voters) > 3 && c.w.chance(2):
		add(pb.ConfChangeRemoveNode, removable[c.w.rng.IntN(len(removable))])
	case len(c.nodes) < 9+c.broken():
		if c.broken() > 0 {
			c.met("nodes added behind a broken one")
		}
		id := m.Highest + 1
		add(pb.ConfChangeAddLearnerNode, id)
		if c.node(id) == nil {
			c.add(id, core.Members{})
		}
	default:
		return
	}
	if n.core.Change(c.number(), change) == nil { // a refusal is a valid outcome
		c.met("changes of members proposed")
	}
	n.effects()
}

// rivals makes two nodes campaign at about the same time.
func (c *cluster) rivals() {
	c.met("rival elections")
	for range 2 {
		if n := c.any(); n.up && !n.alone {
			n.safely(c.w.upTo(10*millisecond), func() { n.must(n.core.Campaign(), "an election"); n.effects() })
		}
	}
}

// silence is longer than any node still considers a leader alive that it does not hear from.
const silence = 10 * (tick + tick/10)

// duel kills the leader and separates two of the other nodes. Once no node refuses its vote because a leader may be
// alive, both campaign. A voter may die after it has voted for the first candidate and come back. The second candidate
// asks it before it learns that the first one leads. If the voter forgot its vote or the term, it would vote for both.
func (c *cluster) duel() {
	leader := c.leader()
	if leader == nil || c.drill.on {
		return
	}
	var rivals []*member
	for _, i := range c.w.rng.Perm(len(c.nodes)) {
		if n := c.nodes[i]; n.up && n != leader && len(rivals) < 2 {
			rivals = append(rivals, n)
		}
	}
	if len(rivals) < 2 {
		return
	}
	c.met("duels")
	leader.crash()
	a, b := rivals[0], rivals[1]
	c.cut[[2]uint64{a.id, b.id}], c.cut[[2]uint64{b.id, a.id}] = true, true
	stand := func(n *member) func() {
		return func() { n.must(n.core.Campaign(), "an election"); n.effects() }
	}
	a.safely(silence, stand(a))
	for later := c.w.upTo(3 * millisecond); later < tick; later += 3 * millisecond {
		b.safely(silence+later, stand(b)) // repeatedly, because the voter may be starting
	}
}

func (c *cluster) transfer() {
	if n := c.leader(); n != nil {
		c.met("transfers")
		n.must(n.core.Transfer(c.any().id), "a transfer")
		n.effects()
	}
}

// atRest reports whether the members have applied everything.
func (c *cluster) atRest() bool {
	n := c.leader()
	if n == nil || !n.serving || n.core.Applied().Index < c.last() || len(n.flights) > 0 {
		return false
	}
	m := n.core.Members()
	for _, other := range c.nodes {
		if m.Has(other.id) && (!other.up || other.core.Applied() != n.core.Applied() ||
			other.state.applied() != boltstore.Position(n.core.Applied())) {
			return false
		}
	}
	return true
}

func (c *cluster) describe() (s string) {
	for _, n := range c.nodes {
		at := n.state.applied()
		s += fmt.Sprintf("node %d up %t %+v serving %t applied %d of %d; ", n.id, n.up, n.role, n.serving, at.Index,
			c.last())
	}
	return s
}
