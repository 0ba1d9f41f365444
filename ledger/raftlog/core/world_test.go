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
	"sync"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/drill"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// The library draws its election timeouts from crypto/rand.Reader. While a world handles an event, they come from the
// world's seed instead.
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

// drawing makes f draw from the world's seed. Only one world does so at a time.
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

// event happens at a given time, unless its node has died since.
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

// world is a cluster on one thread, with virtual time, and with a network and disks whose faults the seed decides.
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
	duelUntil  int64  // end of the current duel for the leadership
	slower     uint64 // the node of the two whose vote requests take longer

	leaders map[uint64]uint64           // by term
	written map[segment.Position]uint64 // digest of each entry that was ever in a log, and of the term before it
	votes   map[[2]uint64]uint64        // by node and term
	history map[uint64]core.Committed   // applied entries by index
	digests map[uint64]uint64           // of the state after each index
	members map[uint64]string           // as of some checkpoints, by index
	last    uint64                      // highest applied index
	acked   uint64                      // highest index whose proposal was answered
	answers int
	next    uint64            // number of the next proposal or read
	asked   map[uint64]uint64 // by read: the highest index acknowledged before it
}

// state is the position of a state, with its digest.
type state struct {
	segment.Position
	digest    uint64
	members   core.Members
	installed bool // from a snapshot; the log may still be the previous one
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
	// The log begins after an entry that no node has, so that a joining node gets a snapshot, and with it the members.
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

// mark adds values to the trace.
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

// upTo returns a random duration of at least 1 µs.
func (w *world) upTo(most int64) int64 { return 1 + w.rng.Int64N(most) }

func (w *world) chance(oneIn int) bool { return w.rng.IntN(oneIn) == 0 }

// run handles events until a condition holds or the limit of virtual time is reached.
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

// send gives a message to the network, which may lose, duplicate and delay it.
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

// leader returns a leader that knows of no later term.
func (w *world) leader() *node {
	for _, n := range w.nodes {
		if n.up && n.leads {
			return n
		}
	}
	return nil
}

// propose makes some proposals on each leader.
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

// read starts a read on a random node.
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
