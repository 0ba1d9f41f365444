package sim

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// node hosts the parts of the engine, the consensus of a node without others and its log on one thread. Instead of the
// loops and goroutines of packages ledger and raftlog it has chains of steps, and between any two steps the node may
// die.
type node struct {
	w     *world
	life  int // steps of an earlier life do nothing
	ready bool
	disk  *simdisk.Disk
	log   *segment.Log
	core  *core.Node
	state stateDisk
	m     *machine.Machine

	base, began int64 // ledger time at the start of the term, and the monotonic clock's reading then
	queue       *queue
	appends     []core.Append
	applies     []core.Committed
	flights     []*flight // in the order of the log
	ordinal     uint64    // of the last entry with commands in the log
	seen        uint64    // the horizon
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
	ordinal uint64
	spans   []engine.Span
	parts   []waiting
}

// record is a log entry with commands, as the oracle knows it. Its index counts these alone, and is the beginning of
// what the entry has in the log.
type record struct {
	index, term uint64
	data        []byte
}

// recordIn returns the record of an entry, or false if the entry has no commands.
func recordIn(term uint64, data []byte) (r record, ok bool) {
	if len(data) == 0 {
		return record{}, false
	}
	return record{binary.BigEndian.Uint64(data), term, data[8:]}, true
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
		f, data := n.cut()
		if f == nil {
			return
		}
		n.flights = append(n.flights, f)
		n.w.must(n.core.Propose(f.ordinal, data), "proposing")
		n.effects()
		n.propose()
	})
}

// cut takes the next entry from the queue and stamps it.
func (n *node) cut() (f *flight, data []byte) {
	spans, parts, frames := n.queue.cut()
	if len(spans) == 0 {
		return nil, nil
	}
	stamp := n.base + n.w.now - n.began
	if n.w.bugs.wallStamp {
		stamp = n.w.wall()
	}
	n.w.oracle.stamped(stamp)
	header := n.m.Header()
	header.UnixNanos = stamp
	n.ordinal++
	data = machine.AppendEntryHeader(binary.BigEndian.AppendUint64(nil, n.ordinal), header, len(parts))
	data = append(data, frames...)
	n.w.oracle.proposed(record{n.ordinal, uint64(n.life), data[8:]}, parts)
	return &flight{ordinal: n.ordinal, spans: spans, parts: parts}, data
}

// effects starts what the consensus asks for.
func (n *node) effects() {
	out := n.core.Effects()
	n.appends = append(n.appends, out.Append...)
	n.applies = append(n.applies, out.Apply...)
	n.sync()
	n.applyNext()
	if !n.ready && n.core.Ready() {
		n.w.must(n.state.endReplay(), "looking for blocks that the log has not made")
		n.begin()
	}
}

// sync writes what is to be appended, and makes it durable.
func (n *node) sync() {
	if n.syncing || len(n.appends) == 0 {
		return
	}
	n.syncing = true
	batch, began := n.appends, n.w.now
	n.appends = nil
	for _, a := range batch {
		n.w.must(n.log.Append(a.State, a.Entries), "writing to the log")
	}
	stored := func() {
		n.w.must(n.core.Appended(batch[len(batch)-1].Number), "appended")
		n.effects()
	}
	if n.w.bugs.ackBeforeSync {
		n.step(0, stored)
	}
	n.step(n.w.upTo(n.w.plan.syncTime), func() {
		if !n.w.calm && n.w.plan.crash > 0 && n.w.chance(4*n.w.plan.crash) {
			n.disk.FailAt(1+n.w.rng.IntN(2), errInjected)
		}
		if n.log.Sync() != nil {
			n.w.counted["syncs failed"]++
			n.stop(false) // the first storage error is final
			return
		}
		n.disk.FailAt(0, nil)
		n.syncing = false
		n.queue.Stored(time.Duration(n.w.now - began))
		if !n.w.bugs.ackBeforeSync {
			stored()
		}
		n.sync()
	})
}

// applyNext applies the oldest durable entries, and answers them: one at a time, but some while it replays.
func (n *node) applyNext() {
	if n.applying || len(n.applies) == 0 {
		return
	}
	n.applying = true
	n.step(n.quick(), func() {
		const some = 20
		part := n.applies[:1]
		if !n.ready {
			part = n.applies[:min(len(n.applies), some)]
		}
		n.applies = n.applies[len(part):]
		var outcomes []machine.Outcome
		for _, e := range part {
			if r, ok := recordIn(e.Term, e.Data); ok {
				outcomes = n.applyRecord(e.Index, r)
			}
		}
		n.step(n.quick(), func() {
			last := part[len(part)-1]
			n.applying = false
			if last.Proposal != 0 {
				n.answer(last.Proposal, outcomes)
			}
			n.w.must(n.core.Done(last.Index), "applied")
			n.effects()
			n.propose()
		})
	})
}

// answer answers the entry that was proposed first.
func (n *node) answer(proposal uint64, outcomes []machine.Outcome) {
	f := n.flights[0]
	if f.ordinal != proposal {
		n.w.fail(nil, "proposal %d is answered before proposal %d", proposal, f.ordinal)
	}
	n.flights = n.flights[1:]
	n.w.oracle.acknowledged(f.ordinal)
	n.queue.decide(f.spans, outcomes, nil)
	n.queue.woken()
}

// applyRecord decides an entry against the state, either for the first time or again after a start.
func (n *node) applyRecord(index uint64, r record) []machine.Outcome {
	entry := n.tamper.entry(n.w, r)
	var outcomes []machine.Outcome
	var digest machine.Hash
	var horizon uint64
	var most int
	n.w.ordinals[index] = r.index
	err := n.state.update(boltstore.Position{Index: index, Term: r.term}, func(tx machine.Tx) (err error) {
		tx = n.writer(tx)
		before := n.m.Check().Index
		if outcomes, err = n.m.Apply(tx, entry); err != nil {
			return err
		}
		v := n.m.View(tx)
		n.w.oracle.grown(v, before)
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
	length := n.log.Last().Index - n.log.Checkpoint().Index
	g := engine.Gathered{Changes: n.state.pending(), LongLog: n.ready && int(length) > n.w.plan.keepLog}
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
		n.step(n.quick(), func() {
			n.truncate(job.UpTo)
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

// truncate drops the log up to an index.
func (n *node) truncate(upTo uint64) {
	if upTo = min(upTo, n.log.Last().Index); upTo <= n.log.Checkpoint().Index {
		return
	}
	term, err := n.log.Term(upTo)
	n.w.must(err, "reading a term")
	at := segment.Checkpoint{Position: segment.Position{Index: upTo, Term: term}, Data: alone.Encode()}
	n.w.must(n.log.Truncate(at), "truncating the log")
	n.w.must(n.core.Truncated(n.log.First()), "truncated")
	n.w.counted["truncations"]++
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
		n.truncate(covered)
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
	if n.ordinal == 0 {
		n.create()
	}
	n.archiveFiles()
	n.dropHistory()
	n.propose()
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
