package sim

import (
	"math"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// node hosts the parts of the engine on one thread. Instead of the loops and goroutines of package ledger it has chains
// of steps, and between any two steps the node may die.
type node struct {
	w     *world
	life  int // steps of an earlier life do nothing
	ready bool
	log   logDisk
	state stateDisk
	m     *machine.Machine

	base, began int64 // ledger time at the start of the term, and the monotonic clock's reading then
	queue       *queue
	flights     []*flight
	seen        uint64 // the horizon
	proposing   bool
	syncing     bool
	applying    bool
	working     bool // a job is being done
	retain      retention
	receipts    receipts
	buffer      engine.Buffer
	tamper      tamper
}

// flight is a log entry that is not answered yet.
type flight struct {
	record   record
	spans    []engine.Span
	parts    []waiting
	outcomes []machine.Outcome
	synced   bool
}

// step runs do after a delay, unless the node dies before.
func (n *node) step(delay int64, do func()) {
	life := n.life
	n.w.after(delay, func() {
		if n.life != life {
			return
		}
		if !n.w.calm && n.w.chance(n.w.plan.crash) {
			n.die()
			return
		}
		do()
	})
}

// quick is the duration of a step that waits for no disk.
func (n *node) quick() int64 { return n.w.upTo(50 * microsecond) }

func (n *node) receive(r request) {
	if !n.ready {
		for i := range r.commands {
			r.reply(i, answer{kind: notConnected})
		}
		return
	}
	var left []waiting
	for i, c := range r.commands {
		n.w.mark(1, uint64(len(c.encoded)))
		reply := func(a answer) { r.reply(i, a) }
		if c.write != nil && n.answerRetry(c, reply) || c.keyID() != nil && n.answerKeyed(c, reply) {
			continue
		}
		left = append(left, waiting{c, reply})
	}
	n.queue.add(left)
	n.propose()
}

// answerRetry answers from the state whatever the engine would. Sometimes the state is busy, and the log decides.
func (n *node) answerRetry(c *command, reply func(a answer)) bool {
	if n.w.chance(4) || n.w.bugs.noDeduplication {
		return false
	}
	if n.w.bugs.staleCache {
		if r := n.receipts.byName[name{Scope: c.write.Scope, ID: c.write.ClientID}][c.write.Sequence]; r != nil {
			n.answerFromState(c, r, reply)
			return true
		}
	}
	var found *machine.Receipt
	err := n.state.view(func(r machine.Reader) (err error) {
		found, err = engine.Retry(n.m.View(n.reader(r)), &c.retry, &n.receipts, &n.buffer)
		return err
	})
	n.w.must(err, "answering a retry")
	if found == nil {
		return false
	}
	if n.w.bugs.staleCache {
		n.receipts.remember(c.write, found)
	}
	n.answerFromState(c, found, reply)
	return true
}

func (n *node) answerFromState(c *command, r *machine.Receipt, reply func(a answer)) {
	n.w.counted["answered from the state"]++
	out := machine.Outcome{Code: machine.Replayed, CommittedSequence: c.write.Sequence, Receipt: *r}
	n.w.oracle.answeredFromState(c, &out)
	reply(answer{out: out})
}

// answerKeyed answers a command on a key from the state, if the engine would: it is what the log would say now.
func (n *node) answerKeyed(c *command, reply func(a answer)) bool {
	if n.w.chance(4) || n.w.bugs.ofKeys() {
		return false
	}
	now := n.base + n.w.now - n.began
	var out machine.Outcome
	answered := false
	err := n.state.view(func(r machine.Reader) (err error) {
		v := n.m.View(n.reader(r))
		if c.job != nil {
			hash, _ := machine.HashOperations(nil, c.job.Operations)
			out.Code = machine.Replayed
			out.Receipt, answered, err = v.AnswerKeyedWrite(c.job, hash, now)
			return err
		}
		out, answered, err = v.AnswerKeyed(c.keyed, now)
		if err == nil && answered {
			_, err = v.ReadAttachments(out.Keyed.Record)
		}
		return err
	})
	n.w.must(err, "answering a command on a key")
	if !answered {
		return false
	}
	n.w.counted["keys: answered from the state"]++
	want := n.w.oracle.model.Ask(c.forModel(), now)
	if difference := ledgermodel.Differ(&out, &want); difference != "" {
		n.w.failCommand(c, "answered from the state: %s\ncommand: %s", difference, describe(c))
	}
	reply(answer{out: out})
	return true
}

// propose starts to write the next entry, if there is one.
func (n *node) propose() {
	if n.proposing || !n.queue.MayCut() || !n.ready {
		return
	}
	n.proposing = true
	n.step(n.quick(), func() {
		n.proposing = false
		f := n.cut()
		if f == nil {
			return
		}
		n.flights = append(n.flights, f)
		n.log.records = append(n.log.records, f.record)
		n.w.oracle.proposed(f.record, f.parts)
		if n.w.bugs.ackBeforeSync {
			n.apply(f)
			n.answer(f)
		}
		n.sync()
		n.propose()
	})
}

// cut takes the next entry from the queue and stamps it.
func (n *node) cut() *flight {
	spans, parts, frames := n.queue.cut()
	if len(spans) == 0 {
		return nil
	}
	index := max(n.log.last(), n.state.applied().Index) + 1
	stamp := n.base + n.w.now - n.began
	if n.w.bugs.wallStamp {
		stamp = n.w.wall()
	}
	n.w.oracle.stamped(stamp)
	header := n.m.Header()
	header.UnixNanos = stamp
	data := append(machine.AppendEntryHeader(nil, header, len(parts)), frames...)
	return &flight{record: record{index, uint64(n.life), data}, spans: spans, parts: parts}
}

// sync makes everything durable that was written before it begins.
func (n *node) sync() {
	if n.syncing || n.log.synced == len(n.log.records) {
		return
	}
	n.syncing = true
	upTo, began := n.log.last(), n.w.now
	n.step(n.w.upTo(n.w.plan.syncTime), func() {
		if !n.w.calm && n.w.plan.crash > 0 && n.w.chance(4*n.w.plan.crash) {
			n.w.counted["syncs failed"]++
			n.log.deaf = true
			n.stop(false) // the first storage error is final
			return
		}
		n.syncing = false
		n.log.sync(upTo)
		n.queue.Stored(time.Duration(n.w.now - began))
		for _, f := range n.flights {
			f.synced = f.synced || f.record.index <= upTo
		}
		n.applyNext()
		n.sync()
	})
}

// applyNext applies the oldest durable entry, and answers it.
func (n *node) applyNext() {
	if n.applying || len(n.flights) == 0 || !n.flights[0].synced {
		return
	}
	n.applying = true
	n.step(n.quick(), func() {
		f := n.flights[0]
		if !n.w.bugs.ackBeforeSync {
			n.apply(f)
		}
		n.step(n.quick(), func() {
			n.applying = false
			n.flights = n.flights[1:]
			if !n.w.bugs.ackBeforeSync {
				n.answer(f)
			}
			n.queue.woken()
			n.propose()
			n.applyNext()
		})
	})
}

func (n *node) apply(f *flight) { f.outcomes = n.applyRecord(f.record) }

func (n *node) answer(f *flight) {
	n.w.oracle.acknowledged(f.record.index)
	n.queue.decide(f.spans, f.outcomes, nil)
}

// applyRecord decides an entry against the state, either for the first time or again after a start.
func (n *node) applyRecord(r record) []machine.Outcome {
	entry := n.tamper.entry(n.w, r)
	var outcomes []machine.Outcome
	var digest machine.Hash
	var horizon uint64
	var most int
	err := n.state.update(boltstore.Position{Index: r.index, Term: r.term}, func(tx machine.Tx) (err error) {
		tx = n.writer(tx)
		if outcomes, err = n.m.Apply(tx, entry); err != nil {
			return err
		}
		v := n.m.View(tx)
		digest, horizon = v.Digest(), v.Horizon().Index()
		most = mostCommands(n.w, v.Config())
		return nil
	})
	n.w.must(err, "applying an entry")
	n.w.oracle.applied(r, outcomes, digest)
	n.queue.Applied(time.Duration(n.quick()), most, n.gathered())
	if horizon != n.seen {
		n.seen = horizon
		n.dropHistory()
	}
	n.work()
	return outcomes
}

// gathered returns what has gathered since the last checkpoint; now and then more blocks than there are.
func (n *node) gathered() engine.Gathered {
	g := engine.Gathered{Changes: n.state.pending(), LongLog: n.ready && len(n.log.records) > n.w.plan.keepLog}
	if n.w.chance(30) {
		g.Blocks = math.MaxInt64
	}
	return g
}

// work does the job that the engine says is next, concurrently with everything else.
func (n *node) work() {
	job := n.queue.NextJob()
	if job.Kind != engine.NoJob && n.working {
		n.w.fail(nil, "two jobs are done at a time")
	}
	n.working = n.working || job.Kind != engine.NoJob
	switch job.Kind {
	case engine.Flush:
		n.flush(job)
	case engine.SyncBlocks:
		n.step(n.w.upTo(5*n.w.plan.syncTime), func() {
			n.w.must(n.state.syncBlocks(), "syncing blocks")
			n.w.counted["syncs of blocks"]++
			n.worked(job, engine.JobResult{})
		})
	case engine.Truncate:
		n.step(n.quick(), func() { // the snapshot that records it is written
			n.log.truncate(job.UpTo)
			n.w.counted["truncations"]++
			n.worked(job, engine.JobResult{})
		})
	case engine.Carry:
		n.carry(job)
	case engine.Drop:
		n.drop(job)
	case engine.Sweep:
		n.step(n.quick(), func() { n.sweep(job) })
	}
}

func (n *node) worked(job engine.Job, r engine.JobResult) {
	n.working = false
	r.Gathered = n.gathered()
	n.queue.JobDone(job, r)
	n.propose()
	n.work()
}

// flush writes a checkpoint.
func (n *node) flush(job engine.Job) {
	if n.w.bugs.horizonVolatile && job.UpTo > 0 {
		n.worked(job, engine.JobResult{})
		return
	}
	covered := n.state.applied().Index
	n.state.beginFlush()
	if n.w.bugs.truncateEarly {
		n.log.truncate(covered)
	}
	if !n.w.calm && n.w.plan.crash > 0 && n.w.chance(20) {
		n.step(n.w.upTo(10*n.w.plan.syncTime), n.die) // possibly in the middle of it
	}
	n.step(n.w.upTo(10*n.w.plan.syncTime), func() {
		n.w.must(n.state.endFlush(), "writing a checkpoint")
		n.w.counted["checkpoints"]++
		n.archiveFiles()
		n.worked(job, engine.JobResult{Covered: covered})
	})
}

// begin starts a term.
func (n *node) begin() {
	var last int64
	err := n.state.view(func(r machine.Reader) error {
		last = n.m.View(r).Time()
		return nil
	})
	n.w.must(err, "reading ledger time")
	n.base, err = engine.TermBase(last, 0, time.Unix(0, n.w.wall()), false)
	n.w.must(err, "beginning a term")
	n.began = n.w.now
	n.w.oracle.term()
	n.ready = true
	n.archiveFiles()
	n.dropHistory()
}

// receipts is the simulation's receipt cache, a FIFO. Unlike the engine's cache it is deterministic; no answer depends
// on it.
type receipts struct {
	limit  int
	byKey  map[engine.ReceiptName]*machine.Receipt
	order  []engine.ReceiptName
	byName map[name]map[uint64]*machine.Receipt // used by the stale cache, a control
}

func newReceipts(limit int) receipts {
	return receipts{
		limit: limit, byKey: map[engine.ReceiptName]*machine.Receipt{},
		byName: map[name]map[uint64]*machine.Receipt{},
	}
}

// Get implements engine.Receipts.
func (c *receipts) Get(name engine.ReceiptName) *machine.Receipt { return c.byKey[name] }

// Put implements engine.Receipts.
func (c *receipts) Put(name engine.ReceiptName, r *machine.Receipt) {
	if c.limit == 0 {
		return
	}
	if len(c.order) == c.limit {
		delete(c.byKey, c.order[0])
		c.order = c.order[1:]
	}
	c.byKey[name] = r
	c.order = append(c.order, name)
}

func (c *receipts) remember(w *machine.Write, r *machine.Receipt) {
	n := name{Scope: w.Scope, ID: w.ClientID}
	if c.byName[n] == nil {
		c.byName[n] = map[uint64]*machine.Receipt{}
	}
	c.byName[n][w.Sequence] = r
}
