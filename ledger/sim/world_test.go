package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Durations of simulated time, in nanoseconds.
const (
	microsecond = int64(1_000)
	millisecond = 1_000 * microsecond
	second      = 1_000 * millisecond
)

// epochStart is the time on the wall clock when a simulation begins.
const epochStart = 1_700_000_000 * second

// world is one simulation: a clock, an event queue, one node or a cluster, and its clients. It runs on one thread and
// takes every decision from its seed.
type world struct {
	seed    uint64
	rng     *rand.Rand
	plan    plan
	bugs    bugs
	now     int64 // monotonic
	wallOff int64 // the wall clock reads now + wallOff
	events  eventQueue
	steps   uint64
	trace   uint64 // a hash of everything that has happened
	calm    bool   // no more faults and no new writes; open work finishes

	node    *node    // nil in a cluster
	cluster *cluster // nil for one node
	oracle  *oracle
	actors  []actor
	counted map[string]int // how often each event has happened
	// ordinals has the records that one node has applied, by their index in its log.
	ordinals map[uint64]uint64
	dir      string // of the real state file; "" for a simulated one

	archive     *archiveDisk // nil for none
	archiveMark archive.Mark // as recorded by the ledger
	faults      int
}

// actor is a client or another source of events in the world.
type actor interface {
	start()
	// unsettled describes what is still open, or returns the empty string.
	unsettled() string
}

type event struct {
	at   int64
	rank uint64 // events at equal times happen in the order of their creation
	do   func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].rank < q[j].rank
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(e any)   { *q = append(*q, e.(event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return e
}

// violation is the value with which a check panics; run turns it into an error.
type violation struct {
	what   string
	stream *name            // the stream whose history helps to explain it
	key    *machine.KeyedID // the same
}

func (w *world) fail(stream *name, format string, args ...any) {
	panic(violation{what: fmt.Sprintf(format, args...), stream: stream})
}

// failCommand is fail, with the history of what a command is about.
func (w *world) failCommand(c *command, format string, args ...any) {
	panic(violation{what: fmt.Sprintf(format, args...), stream: c.name(), key: c.keyID()})
}

// must fails the run on an error that no simulated fault explains.
func (w *world) must(err error, what string) {
	if err != nil {
		w.fail(nil, "%s: %v", what, err)
	}
}

// after schedules do.
func (w *world) after(delay int64, do func()) {
	w.steps++
	heap.Push(&w.events, event{w.now + max(delay, 0), w.steps, do})
}

// mark adds values to the trace.
func (w *world) mark(values ...uint64) {
	for _, v := range values {
		w.trace = (w.trace ^ v) * 0x100000001b3
		w.trace ^= w.trace >> 29
	}
}

func (w *world) wall() int64 { return w.now + w.wallOff }

// chance returns true once in n times on average, and never for n = 0.
func (w *world) chance(n int) bool { return n > 0 && w.rng.IntN(n) == 0 }

// upTo draws a duration.
func (w *world) upTo(most int64) int64 { return w.rng.Int64N(most + 1) }

func pick[V any](w *world, from ...V) V { return from[w.rng.IntN(len(from))] }

// uuid draws 16 bytes.
func (w *world) uuid() (u [16]byte) {
	for i := 0; i < 16; i += 8 {
		v := w.rng.Uint64()
		for j := range 8 {
			u[i+j] = byte(v >> (8 * j))
		}
	}
	return u
}

// plan is the fault plan of an episode. All of it comes from the seed.
type plan struct {
	commands int // the number after which the episode becomes calm
	config   machine.Config
	real     bool // the state is in a real boltstore, in files
	replays  bool // at the end the log is applied again in other ways

	drop, dup   int   // one in so many messages; 0: none
	latency     int64 // maximum, of a message
	connBreak   int   // one in so many frames breaks its connection
	crash       int   // one in so many steps of the node ends with a crash
	clientCrash int   // the same for clients
	wallJump    int64 // maximum jump of the wall clock
	syncTime    int64 // maximum
	flushEvery  int64 // changed bytes that trigger a checkpoint
	keepLog     int   // records that trigger a truncation
	cache       int   // number of receipts; 0: off
	queue       int   // maximum number of waiting commands
	entry       int   // maximum number of commands in an entry, which the configuration may lower

	writers, pairs, simple, buggy int
	owners, jobbers               int
	epochs                        bool // the operator sometimes restores the ledger

	retain      int64 // initial Config.RetainBlocks, except in a cluster
	archive     bool
	archiveTime int64 // maximum time that the archive takes for a file
}

// newPlan draws the plan of an episode. The length is part of the plan, so that a seed determines the same run
// regardless of the requested total.
func newPlan(seed uint64) plan {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1))}
	p := plan{
		commands: 6_000 + w.rng.IntN(8_000),
		config: machine.Config{
			EvictionInterval: pick[uint64](w, 3, 10, 50, 200, 1000), ClientTTL: pick[int64](w, 2, 5, 20, 3600) * second,
			EvictionLimit: pick[uint64](w, 1, 3, 20, 2000), ReceiptWindow: pick[uint64](w, 2, 4, 16, 64, 64),
			MaxStreams: pick[uint64](w, 30, 200, 10_000_000),
		},
		real: w.chance(8), replays: w.chance(4),
		drop: pick(w, 0, 10, 50), dup: pick(w, 0, 10, 30), latency: pick(w, 200*microsecond, 5*millisecond,
			100*millisecond),
		connBreak: pick(w, 0, 50, 300), crash: pick(w, 0, 300, 1500, 5000), clientCrash: pick(w, 0, 200, 1000),
		wallJump: pick[int64](w, 0, 1, 60, 4000) * second, syncTime: pick(w, 100*microsecond, 5*millisecond),
		flushEvery: pick[int64](w, 8<<10, 64<<10, 512<<10), keepLog: pick(w, 40, 200, 2000),
		cache: pick(w, 0, 10, 1000), queue: pick(w, 4, 12, 400), entry: pick(w, 1, 2, 5, engine.MaxEntryCommands),
		writers: 3 + w.rng.IntN(10), pairs: w.rng.IntN(4), simple: 2 + w.rng.IntN(8), buggy: w.rng.IntN(4),
		epochs: w.chance(5),
	}
	p.archive, p.archiveTime = w.chance(2), pick(w, millisecond, 100*millisecond, 5*second)
	p.retain = pick[int64](w, 0, 1, 1, 5, 20) * second
	p.replays = p.replays || p.real
	// From a source of their own, so that the rest of the plan is what it was before there were keys.
	k := &world{rng: rand.New(rand.NewPCG(seed, 5))}
	p.owners, p.jobbers = pick(k, 0, 6, 12), pick(k, 0, 2, 4)
	return p
}
