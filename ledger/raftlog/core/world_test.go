package core_test

import (
	"container/heap"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/drill"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
	"github.com/seqledger/seqledger/ledger/raftlog/simdisk"
)

// The library draws its election timeouts from crypto/rand.Reader. While a world handles an
// event, they come from the world's seed instead.
type router struct {
	mu      sync.Mutex
	current io.Reader
	real    io.Reader
}

var random = &router{real: crand.Reader}

func (r *router) Read(b []byte) (int, error) {
	if r.current != nil { // set by the goroutine that reads, which holds mu
		return r.current.Read(b)
	}
	return r.real.Read(b)
}

func TestMain(m *testing.M) {
	crand.Reader = random
	os.Exit(m.Run())
}

// drawing makes f draw from the world's seed; one world at a time does.
func (w *world) drawing(f func()) {
	random.mu.Lock()
	random.current = w.source
	defer func() { random.current = nil; random.mu.Unlock() }()
	f()
}

const (
	microsecond = int64(1)
	millisecond = 1000 * microsecond
	tick        = 10 * millisecond
)

// event happens at a time, unless its node has died since.
type event struct {
	at, order int64
	node      *node
	life      int
	do        func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// world is a cluster on one thread: virtual time, and a network and disks that a seed makes fail.
type world struct {
	rng    *rand.Rand
	source *rand.ChaCha8
	now    int64
	order  int64
	queue  events
	nodes  []*node
	cut    map[[2]uint64]bool
	faults bool
	mutant string
	trace  uint64
	wrong  error
	met    map[string]int

	applyBytes uint64 // see core.Options
	drill      *drill.Drill
	duelUntil  int64  // a duel for the leadership is on
	slower     uint64 // of the two, the node whose requests for votes take longer

	leaders map[uint64]uint64           // by term
	written map[segment.Position]uint64 // digest of each entry that was ever in a log, and of the term before
	votes   map[[2]uint64]uint64        // of a node in a term
	history map[uint64]core.Committed   // what was applied, by index
	digests map[uint64]uint64           // of the state behind each index
	members map[uint64]string           // the same, as of some checkpoints
	last    uint64                      // highest index that was applied
	acked   uint64                      // highest index whose proposal was answered
	answers int
	next    uint64            // proposals and reads
	asked   map[uint64]uint64 // by read: what was acknowledged before it
}

// position of a state, with its digest.
type state struct {
	segment.Position
	digest    uint64
	members   core.Members
	installed bool // from a snapshot; the log may still be the one of before
}

// node is a host of one core: what its drivers do is here a chain of steps.
type node struct {
	w         *world
	id        uint64
	life      int
	up        bool
	disk      *simdisk.Disk
	log       *segment.Log
	core      *core.Node
	state     state // in memory
	durable   state // what a crash leaves
	appends   []core.Append
	writing   []core.Append // from appends, and perhaps not in the log yet
	appending bool
	applies   []core.Committed
	applying  bool
	heldUntil int64 // the applier stands still
	leads     bool
}

func newWorld(seed uint64, count int, mutant string) *world {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), source: rand.NewChaCha8(key), cut: map[[2]uint64]bool{},
		mutant: mutant, met: map[string]int{}, leaders: map[uint64]uint64{}, written: map[segment.Position]uint64{},
		votes: map[[2]uint64]uint64{}, history: map[uint64]core.Committed{}, digests: map[uint64]uint64{1: 1},
		members: map[uint64]string{}, asked: map[uint64]uint64{}, last: 1, acked: 1,
	}
	w.drill, w.applyBytes = drill.New(&drillWorld{w}), []uint64{0, 0, 500}[w.rng.IntN(3)]
	var members core.Members
	for id := uint64(1); id <= uint64(count); id++ {
		members.Voters, members.Highest = append(members.Voters, id), id
	}
	// The log begins behind an entry that no node has, so that a node that joins gets a
	// snapshot, and with it the members.
	first := state{segment.Position{Index: 1, Term: 1}, 1, members, false}
	w.drawing(func() {
		for id := uint64(1); id <= uint64(count); id++ {
			w.add(id, first)
		}
	})
	return w
}

// add makes a node that has never run.
func (w *world) add(id uint64, first state) *node {
	n := &node{w: w, id: id, disk: simdisk.New(), durable: first}
	c := segment.Checkpoint{Position: first.Position, Data: first.members.Encode()}
	if err := segment.Create(n.options(), c, segment.State{Term: first.Term}); err != nil {
		panic(err)
	}
	w.nodes = append(w.nodes, n)
	n.start()
	return n
}

func (n *node) options() segment.Options {
	return segment.Options{
		Disk: n.disk, Identity: fmt.Append(nil, "node ", n.id), SegmentBytes: 16 << 10,
		Random: n.w.source, Logger: slog.New(slog.DiscardHandler),
	}
}

func (w *world) failf(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

// mark puts something into the trace.
func (w *world) mark(values ...uint64) {
	h := fnv.New64a()
	b := binary.BigEndian.AppendUint64(nil, w.trace)
	for _, v := range values {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	h.Write(b)
	w.trace = h.Sum64()
}

func (w *world) after(delay int64, n *node, do func()) {
	w.order++
	life := 0
	if n != nil {
		life = n.life
	}
	heap.Push(&w.queue, event{w.now + delay, w.order, n, life, do})
}

// upTo returns a random time of at least 1 µs.
func (w *world) upTo(most int64) int64 { return 1 + w.rng.Int64N(most) }

func (w *world) chance(oneIn int) bool { return w.rng.IntN(oneIn) == 0 }

// run handles events until a condition holds or the virtual time has passed.
func (w *world) run(limit int64, until func() bool) (done bool) {
	w.drawing(func() { done = w.runEvents(limit, until) })
	return done
}

func (w *world) runEvents(limit int64, until func() bool) bool {
	end := w.now + limit
	for len(w.queue) > 0 && w.wrong == nil {
		if until() {
			return true
		}
		e := heap.Pop(&w.queue).(event)
		if e.at > end {
			heap.Push(&w.queue, e)
			w.now = end
			return until()
		}
		w.now = e.at
		if e.node == nil || e.life == e.node.life {
			e.do()
		}
	}
	return w.wrong == nil && until()
}

// start opens what the disk has.
func (n *node) start() {
	n.life++
	log, err := segment.Open(n.options())
	if err != nil {
		n.w.failf("node %d does not open: %v", n.id, err)
		return
	}
	n.log, n.state = log, n.durable
	if at, err := log.Term(n.state.Index); err != nil || at != n.state.Term {
		if !n.state.installed {
			n.w.failf("node %d has entry %d of term %d (%v), and its state knows term %d",
				n.id, n.state.Index, at, err, n.state.Term)
			return
		}
		n.w.met["log behind an installed state"]++
		if err := n.reset(n.state, log.State()); err != nil {
			n.w.failf("node %d: %v", n.id, err)
			return
		}
	}
	o := core.Options{
		ID: n.id, Applied: n.state.Position, Members: n.state.members, Log: log, State: log.State(),
		Nonce: n.w.rng.Uint64(), Snapshot: n.snapshot, ApplyBytes: n.w.applyBytes,
	}
	if n.core, err = core.New(o); err != nil {
		n.w.failf("node %d: %v", n.id, err)
		return
	}
	n.appends, n.writing, n.appending, n.applies, n.applying = nil, nil, false, nil, false
	n.up, n.leads = true, false
	n.w.after(n.w.upTo(tick), n, n.tick)
}

func (n *node) snapshot(atLeast uint64) (core.Snapshot, error) {
	if n.durable.Index < atLeast {
		n.w.met["snapshot too old"]++
		if n.state.Index >= atLeast {
			n.setDurable()
		}
		return core.Snapshot{}, errors.New("later")
	}
	n.w.met["snapshot sent"]++
	data := binary.BigEndian.AppendUint64(nil, n.durable.digest)
	return core.Snapshot{Position: n.durable.Position, Members: n.durable.members, Data: data}, nil
}

func (n *node) tick() {
	n.must(n.core.Tick())
	n.w.after(tick*9/10+n.w.upTo(tick/5), n, n.tick) // clocks differ
	n.effects()
}

func (n *node) must(err error) {
	if err != nil {
		n.w.failf("node %d: %v", n.id, err)
	}
}

// effects does what the core wants, or begins it.
func (n *node) effects() {
	out := n.core.Effects()
	if out.Role != nil {
		n.changeRole(*out.Role)
	}
	for _, m := range out.Send {
		n.send(m)
	}
	for _, a := range out.Append {
		n.note(a)
		n.appends = append(n.appends, a)
	}
	n.applies = append(n.applies, out.Apply...)
	if n.w.drill.Effects(n.id, &out) {
		n.w.after(0, n, n.crash)
	}
	n.w.met["proposal lost"] += len(out.Lost)
	for _, read := range out.Reads {
		n.w.met["read answered"]++
		if !n.leads {
			n.w.met["read answered by a follower"]++
		}
		if asked := n.w.asked[read]; n.state.Index < asked {
			n.w.failf("node %d answers a read at index %d, and %d was acknowledged before it",
				n.id, n.state.Index, asked)
		}
	}
	n.write()
	n.apply()
}

func (n *node) changeRole(r core.Role) {
	n.w.mark(1, n.id, r.Leader, r.Term)
	n.leads = r.Leads
	if !r.Leads {
		return
	}
	n.w.met["election"]++
	if other, ok := n.w.leaders[r.Term]; ok && other != n.id {
		n.w.failf("nodes %d and %d lead in term %d", other, n.id, r.Term)
	}
	n.w.leaders[r.Term] = n.id
	// A leader has all that was committed.
	for i := max(n.log.First(), 2); i <= n.w.last; i++ {
		if term, err := n.term(i); err != nil || term != n.w.history[i].Term {
			n.w.failf("node %d leads in term %d with entry %d of term %d (%v), and %d was committed",
				n.id, r.Term, i, term, err, n.w.history[i].Term)
		}
	}
}

// term returns that of an entry as the consensus has the log: a node may be elected with entries
// that it holds only in memory. It counts itself among those that have them only once they are durable,
// and if it dies before, its term ends with it.
func (n *node) term(index uint64) (uint64, error) {
	for _, waiting := range [][]core.Append{n.appends, n.writing} {
		for _, a := range slices.Backward(waiting) {
			if len(a.Entries) == 0 || index < a.Entries[0].Index {
				continue
			}
			if k := index - a.Entries[0].Index; k < uint64(len(a.Entries)) {
				return a.Entries[k].Term, nil
			}
			return 0, segment.ErrMissing // what was behind them is replaced
		}
	}
	return n.log.Term(index)
}

// note checks that two logs with the same index and term have the same entry, and the same before it.
func (n *node) note(a core.Append) {
	for _, e := range a.Entries {
		h := fnv.New64a()
		h.Write(append([]byte{e.Kind}, e.Data...))
		at := segment.Position{Index: e.Index, Term: e.Term}
		if was, ok := n.w.written[at]; ok && was != h.Sum64() {
			n.w.failf("two entries %d of term %d", e.Index, e.Term)
		}
		n.w.written[at] = h.Sum64()
	}
}

// write takes all that waits to the disk, and syncs it.
func (n *node) write() {
	if n.appending || len(n.appends) == 0 {
		return
	}
	n.appending = true
	batch := n.appends
	n.appends, n.writing = nil, batch
	if n.w.mutant == "acknowledge before the sync" {
		n.w.after(1, n, func() { n.must(n.core.Appended(batch[len(batch)-1].Number)); n.effects() })
	}
	n.w.after(n.w.upTo(200), n, func() { n.writeBatch(batch) })
}

func (n *node) writeBatch(batch []core.Append) {
	for _, a := range batch {
		if a.Snapshot != nil && n.applying {
			// The applier ends before its state is replaced.
			n.w.after(n.w.upTo(100), n, func() { n.writeBatch(batch) })
			return
		}
		if err := n.writeOne(a); err != nil {
			n.crash()
			return
		}
	}
	took := n.w.upTo(500)
	if n.w.faults && n.w.chance(400) {
		took = n.w.upTo(300 * millisecond)
		n.w.met["slow sync"]++
	}
	n.w.after(took, n, func() {
		if err := n.log.Sync(); err != nil {
			n.w.met["failed sync"]++
			n.crash()
			return
		}
		n.appending, n.writing = false, nil
		if n.w.mutant != "acknowledge before the sync" {
			n.must(n.core.Appended(batch[len(batch)-1].Number))
		}
		n.effects()
	})
}

func (n *node) writeOne(a core.Append) error {
	if n.w.faults && n.w.chance(3000) {
		n.disk.FailAt(1+n.w.rng.IntN(3), errors.New("input/output error"))
	}
	if n.w.drill.Writes(n.id, &a, n.log.Last().Index) {
		n.disk.TearAt(1, n.w.rng.IntN(200), errors.New("power failure"))
	}
	if s := a.Snapshot; s != nil {
		if err := n.install(s); err != nil {
			return err
		}
	}
	if n.w.mutant == "commit stored before its entries" && a.State != nil {
		if err := n.log.Append(a.State, nil); err != nil {
			return err
		}
	}
	n.forget(&a)
	return n.log.Append(a.State, a.Entries)
}

// forget is what two of the mutants do: a part of Raft's state is not stored.
func (n *node) forget(a *core.Append) {
	if a.State == nil {
		return
	}
	stored := n.log.State()
	switch n.w.mutant {
	case "vote not stored":
		a.State = &segment.State{Term: a.State.Term, Commit: a.State.Commit}
	case "commit not stored behind a change":
		if len(a.Entries) > 0 && a.State.Term == stored.Term && a.State.Vote == stored.Vote {
			a.State = nil
		}
	}
}

// install makes the state of a snapshot durable, and then empties the log.
func (n *node) install(s *core.Snapshot) error {
	n.w.met["snapshot installed"]++
	at := state{s.Position, binary.BigEndian.Uint64(s.Data), s.Members, true}
	if want, ok := n.w.digests[s.Index]; !ok || want != at.digest {
		n.w.failf("node %d installs a state at %d with another digest", n.id, s.Index)
	}
	if at.Index <= n.state.Index {
		n.w.failf("node %d is at %d and installs a state at %d", n.id, n.state.Index, at.Index)
	}
	if n.log.Last().Index >= at.Index {
		n.w.met["snapshot over a tail"]++
	}
	st := n.log.State()
	if n.w.mutant == "log emptied before the state is durable" {
		if err := n.reset(at, st); err != nil || n.w.chance(3) {
			return errors.Join(err, errors.New("crash"))
		}
	}
	n.state, n.durable, n.applies = at, at, nil
	if n.w.faults && n.w.chance(4) {
		return errors.New("crash") // between the two
	}
	return n.reset(at, st)
}

// reset empties the log behind a state.
func (n *node) reset(at state, st segment.State) error {
	st.Term = max(st.Term, at.Term)
	return n.log.Reset(segment.Checkpoint{Position: at.Position, Data: at.members.Encode()}, st)
}

// apply applies what is committed, a part at a time.
func (n *node) apply() {
	if n.applying || len(n.applies) == 0 {
		return
	}
	n.applying = true
	took := n.w.upTo(100)
	if n.w.faults && n.w.chance(100) {
		took = n.w.upTo(100 * millisecond)
		n.w.met["slow apply"]++
	}
	took = max(took, n.heldUntil-n.w.now)
	n.w.after(took, n, func() {
		n.applying = false
		if len(n.applies) == 0 {
			return
		}
		count := 1 + n.w.rng.IntN(len(n.applies))
		for _, c := range n.applies[:count] {
			n.applyOne(c)
		}
		n.applies = n.applies[count:]
		n.must(n.core.Done(n.state.Index))
		n.state.members = n.core.Members()
		n.effects()
		n.checkpoint()
	})
}

func (n *node) applyOne(c core.Committed) {
	if c.Index <= n.state.Index {
		return // a snapshot has it
	}
	if c.Index != n.state.Index+1 {
		n.w.failf("node %d applies %d behind %d", n.id, c.Index, n.state.Index)
	}
	h := fnv.New64a()
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n.state.digest), c.Term)
	h.Write(append(append(b, c.Kind), c.Data...))
	n.state.Position, n.state.digest = c.Position, h.Sum64()
	if want, ok := n.w.digests[c.Index]; ok && want != n.state.digest {
		n.w.failf("node %d applies another entry at %d, or behind another state", n.id, c.Index)
	}
	n.w.digests[c.Index], n.w.history[c.Index] = n.state.digest, c
	n.w.last = max(n.w.last, c.Index)
	n.w.mark(2, n.id, c.Index, c.Term, n.state.digest)
	if c.Proposal == 0 {
		return
	}
	if c.Kind == core.KindChange {
		n.w.met["change of members"]++
	} else if binary.BigEndian.Uint64(c.Data) != c.Proposal {
		n.w.failf("proposal %d is answered with entry %d", c.Proposal, binary.BigEndian.Uint64(c.Data))
	}
	n.w.acked = max(n.w.acked, c.Index)
	n.w.answers++
}

// checkpoint makes the state durable now and then, and truncates the log.
func (n *node) checkpoint() {
	if !n.w.chance(40) {
		return
	}
	n.setDurable()
	if !n.w.chance(2) {
		n.truncate()
	}
}

// truncate drops the log up to the durable state.
func (n *node) truncate() {
	c := segment.Checkpoint{Position: n.durable.Position, Data: n.durable.members.Encode()}
	if n.log.Last().Index < c.Index {
		return
	}
	if err := n.log.Truncate(c); err != nil {
		n.crash()
		return
	}
	n.w.met["truncation"]++
	n.must(n.core.Truncated(n.log.First()))
}

// setDurable makes the state durable as it is, with the members that belong to it.
func (n *node) setDurable() {
	n.state.installed = false // the log has been reset
	n.durable = n.state
	b := n.durable.members.Encode()
	if was, ok := n.w.members[n.durable.Index]; ok && was != string(b) {
		n.w.failf("node %d has other members at index %d: %+v", n.id, n.durable.Index, n.durable.members)
	}
	n.w.members[n.durable.Index] = string(b)
}

// crash ends the node; it comes back later.
func (n *node) crash() {
	pause := n.w.upTo(400 * millisecond)
	if n.w.now < n.w.duelUntil {
		pause = n.w.upTo(millisecond)
	} else if n.w.chance(2) {
		pause = n.w.upTo(5 * millisecond)
	}
	n.crashFor(pause)
}

// crashFor ends the node, which comes back after a pause.
func (n *node) crashFor(pause int64) {
	n.w.mark(3, n.id)
	n.up, n.leads = false, false
	n.life++
	if n.w.chance(2) {
		n.w.met["kill"]++
		n.disk.Kill()
	} else {
		n.w.met["power loss"]++
		if n.appending {
			n.w.met["power loss during a write"]++
		}
		n.disk.PowerLoss(n.w.rng)
	}
	n.w.after(pause, n, n.start)
}

// send gives a message to the network, which may lose, double and delay it.
func (n *node) send(m *pb.Message) {
	w := n.w
	w.mark(4, uint64(w.now), m.GetFrom(), m.GetTo(), uint64(m.GetType()), m.GetTerm(), m.GetIndex())
	if m.GetType() == pb.MsgVoteResp && !m.GetReject() {
		key := [2]uint64{n.id, m.GetTerm()}
		if other, ok := w.votes[key]; ok && other != m.GetTo() {
			w.failf("node %d votes for %d and for %d in term %d", n.id, other, m.GetTo(), m.GetTerm())
		}
		w.votes[key] = m.GetTo()
		if w.faults && (w.now < w.duelUntil || w.chance(4)) {
			w.after(w.upTo(300), n, n.crash)
			w.met["crash behind a vote"]++
		}
	}
	if w.drill.Sent(m) {
		w.after(w.upTo(300), n, func() { n.crashFor(w.upTo(5 * millisecond)) })
	}
	copies, delay := 1, 20+w.upTo(200)
	if w.now < w.duelUntil {
		delay += w.duelDelay(m)
	}
	if w.faults {
		switch p := w.rng.IntN(1000); {
		case p < 20:
			copies = 0
			w.met["message lost"]++
		case p < 30:
			copies = 2
			w.met["message doubled"]++
		case p < 60:
			delay += w.upTo(80 * millisecond)
			w.met["message delayed"]++
		}
	}
	if m.GetType() == pb.MsgSnap {
		// The sender knows only whether it could send.
		arrived := !w.chance(4)
		w.after(delay+millisecond, n, func() { n.must(n.core.SnapshotSent(m.GetTo(), arrived)); n.effects() })
	} else if copies == 0 && w.chance(2) {
		w.after(delay, n, func() { n.must(n.core.Unreachable(m.GetTo())); n.effects() })
	}
	encoded, err := proto.Marshal(m)
	n.must(err)
	for range copies {
		w.after(delay, nil, func() { w.deliver(encoded) })
		delay += w.upTo(millisecond)
	}
}

func (w *world) deliver(encoded []byte) {
	m := new(pb.Message)
	if err := proto.Unmarshal(encoded, m); err != nil {
		w.failf("%v", err)
		return
	}
	to := w.node(m.GetTo())
	if to == nil || !to.up || w.cut[[2]uint64{m.GetFrom(), m.GetTo()}] {
		return
	}
	to.must(to.core.Receive(m))
	to.effects()
}

func (w *world) node(id uint64) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// leader returns a node that has not heard of a later leader than itself.
func (w *world) leader() *node {
	for _, n := range w.nodes {
		if n.up && n.leads {
			return n
		}
	}
	return nil
}

// propose lets each leader make some proposals.
func (w *world) propose() {
	for _, n := range w.nodes {
		if !n.up || !n.leads {
			continue
		}
		for range 1 + w.rng.IntN(3) {
			w.next++
			data := binary.BigEndian.AppendUint64(nil, w.next)
			err := n.core.Propose(w.next, append(data, make([]byte, w.rng.IntN(200))...))
			if err != nil && !errors.Is(err, core.ErrNotLeader) && !errors.Is(err, core.ErrNotProposed) {
				w.failf("node %d: %v", n.id, err)
			}
		}
		n.effects()
	}
}

// read asks some node when it may read.
func (w *world) read() {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if !n.up {
		return
	}
	w.next++
	w.asked[w.next] = w.acked
	if w.mutant == "a leader reads without a majority" && n.leads && n.state.Index < w.acked {
		w.failf("node %d answers a read at index %d, and %d was acknowledged before it", n.id, n.state.Index, w.acked)
	}
	n.must(n.core.Read(w.next))
	n.effects()
}
