package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// member is one node of a cluster: the real consensus, log and state machine on simulated disks. Instead of the
// goroutines of package raftlog it has chains of steps, and between any two steps the node may die.
type member struct {
	w    *world
	c    *cluster
	id   uint64
	life int // steps of an earlier life do nothing

	// What a crash leaves, in whole or in part.
	disk      *simdisk.Disk
	state     *memoryDisk
	members   map[uint64]core.Members // as of the checkpoints of state, by index
	installed bool                    // state is from a snapshot, and the log may still be the previous one
	reached   uint64                  // the highest index that state ever had; its blocks may reach up to it

	up        bool
	log       *segment.Log
	core      *core.Node
	m         *machine.Machine
	appends   []core.Append
	writing   []core.Append // taken from appends, and possibly not in the log yet
	appending bool
	applies   []core.Committed
	applying  bool
	heldUntil int64 // the applier is paused until then
	hungSince int64 // the applier hangs since then; 0: it does not
	working   bool  // a job is being done
	alone     bool  // there is no other node, and this one decides without the library
	replayed  bool  // state has reached its index from before the crash

	role        core.Role
	serving     bool  // the node leads and may stamp entries
	base, began int64 // a ledger time that is known, and the monotonic clock's reading then
	lagging     bool  // the node leads without a wall clock
	queue       *queue
	flights     map[uint64][]engine.Span // by proposal
	proposing   bool
	forwarded   int64 // arrival time of the last forwarded request
	reads       map[uint64]clusterRead
	tamper      tamper
	mended      func() // undoes the damage of a disk; nil: no damage
	broken      bool   // its state has rotted, and it never starts again
}

// clusterRead is a read that waits until the state is recent enough.
type clusterRead struct {
	asked    uint64 // the highest index acknowledged before the read
	at       name
	answered func(got streamRead)
	key      *keyRead // of a key instead of a stream
}

// first is the position at which the log of a new cluster begins. No node has its entry, so that a joining node needs a
// snapshot and gets the members with it.
var first = segment.Position{Index: 1, Term: 1}

// add creates a node that has never run. If members is empty, the node joins.
func (c *cluster) add(id uint64, members core.Members) {
	n := &member{
		w: c.w, c: c, id: id, disk: simdisk.New(), state: newMemoryDisk(), members: map[uint64]core.Members{},
		tamper: tamper{w: c.w},
	}
	n.state.torn = c.w.bugs.tornCheckpoint
	n.state.blind, n.state.unaware = c.mutant == rotBelieved, c.mutant == fullIgnored
	var at segment.Position
	if len(members.Voters) > 0 {
		at = first
		n.state.at = boltstore.Position{Index: at.Index, Term: at.Term}
		n.state.durableAt = n.state.at
	}
	n.members[at.Index] = members
	checkpoint := segment.Checkpoint{Position: at, Data: members.Encode()}
	c.w.must(segment.Create(n.options(), checkpoint, segment.State{Term: at.Term}), "creating a log")
	c.nodes = append(c.nodes, n)
	n.start()
}

func (n *member) options() segment.Options {
	return segment.Options{
		Disk: n.disk, Identity: fmt.Append(nil, "node ", n.id), SegmentBytes: 16 << 10,
		Random: n.c.source, Logger: slog.New(slog.DiscardHandler),
	}
}

// must ends the run on an error. A damaged read, or a bad state file, ends only the node.
func (n *member) must(err error, what string) {
	switch {
	case err == nil:
	case n.damagedRead(err):
		n.crash()
	case n.badState(err):
	default:
		n.w.must(err, fmt.Sprintf("node %d: %s", n.id, what))
	}
}

// step runs do after a delay, unless the node dies before.
func (n *member) step(delay int64, do func()) {
	n.safely(delay, func() {
		if !n.w.calm && n.w.chance(n.c.plan.crash) {
			n.crash()
			return
		}
		do()
	})
}

// safely is a step before which the node does not die by chance.
func (n *member) safely(delay int64, do func()) {
	life := n.life
	n.w.after(delay, func() {
		if n.life == life {
			do()
		}
	})
}

func position(p boltstore.Position) segment.Position {
	return segment.Position{Index: p.Index, Term: p.Term}
}

// start opens what is on the disks.
func (n *member) start() {
	n.life++
	n.up, n.appends, n.appending, n.applies, n.applying, n.working = true, nil, false, nil, false, false
	n.writing, n.hungSince, n.base, n.lagging = nil, 0, 0, false
	n.role, n.serving, n.queue, n.proposing, n.replayed = core.Role{}, false, newQueue(n.w), false, false
	n.flights, n.reads = map[uint64][]engine.Span{}, map[uint64]clusterRead{}
	var err error
	n.log, err = segment.Open(n.options())
	if n.badDisk(err) {
		return
	}
	n.must(err, "opening the log")
	if n.m, err = machine.Open(n.state); n.badState(err) {
		return
	}
	n.must(err, "opening the state")
	n.learn()
	at := position(n.state.checkpoint())
	if term, err := n.log.Term(at.Index); n.installed && (err != nil || term != at.Term) {
		n.c.met("log behind an installed state")
		if err := n.resetLog(); n.badDisk(err) {
			return
		} else {
			n.must(err, "emptying the log behind an installed state")
		}
	}
	n.alone = n.c.plan.nodes == 1 && len(n.c.nodes) == 1 && n.c.own.chance(2)
	n.core, err = core.New(core.Options{
		ID: n.id, Applied: at, Members: n.members[at.Index], Log: n.log, State: n.log.State(),
		Nonce: n.w.rng.Uint64(), Snapshot: n.snapshot, ApplyBytes: n.c.plan.applyBytes, Alone: n.alone,
	})
	n.must(err, "starting the consensus")
	n.safely(n.w.upTo(tick), n.tick)
	switch {
	case n.alone:
		n.c.met("nodes alone")
		n.must(n.core.Campaign(), "an election")
		n.effects()
	case len(n.c.nodes) == 1:
		n.c.met("nodes alone with the library")
	}
}

func (n *member) tick() {
	hung := n.hungSince != 0 && n.w.now-n.hungSince > 10*tick // an election timeout
	if n.c.mutant != hangUnnoticed {
		n.core.SetStalled(hung)
	}
	// It notices that after an election timeout, is silent for the rest of one in which others were heard of, and then
	// for a whole one. The messages on their way, and the slowest clock, take some more.
	if hung && n.role.Leads && n.w.now-n.hungSince > 36*tick*11/10 {
		n.w.fail(nil, "node %d hangs for %d ms and leads", n.id, (n.w.now-n.hungSince)/millisecond)
	}
	n.must(n.core.Tick(), "a tick")
	if n.serving && n.lagging {
		n.moveTime()
	}
	if !n.up { // a damaged read has ended the node
		return
	}
	n.safely(tick*9/10+n.w.upTo(tick/5), n.tick) // clocks run at different rates
	n.effects()
}

// effects performs or starts what the consensus asks for.
func (n *member) effects() {
	if !n.up {
		return // a damaged read has ended the node
	}
	out := n.core.Effects()
	for _, a := range out.Append {
		n.c.appended(n, a)
	}
	n.appends = append(n.appends, out.Append...)
	if out.Role != nil {
		n.changeRole(*out.Role)
	}
	for _, m := range out.Send {
		n.send(m)
	}
	n.applies = append(n.applies, out.Apply...)
	if n.c.drill.effects(n.id, &out) {
		n.safely(0, n.crash)
	}
	for _, number := range out.Lost {
		n.c.met("proposals lost")
		n.answer(number, nil, errLost)
	}
	for _, read := range out.Reads {
		if n.read(read); !n.up {
			return // a rotten state file has ended the node, and with it the reads that are left
		}
	}
	n.write()
	n.apply()
	if n.role.Leads && !n.serving && n.core.Ready() {
		n.begin()
	}
}

func (n *member) changeRole(r core.Role) {
	n.w.mark(11, n.id, r.Leader, r.Term)
	n.role = r
	if r.Leads {
		n.c.elected(n)
		return
	}
	n.serving = false
	n.propose() // which refuses what waits
}

// answer answers the commands of an entry of this node. An entry of another one has none.
func (n *member) answer(proposal uint64, outcomes []machine.Outcome, err error) {
	spans := n.flights[proposal]
	if delete(n.flights, proposal); len(spans) == 0 {
		return
	}
	n.queue.decide(spans, outcomes, err)
	n.queue.woken()
	n.propose()
}

// term returns the term of an entry as the consensus sees the log. A node may be elected with entries that it holds
// only in memory. It counts its own acknowledgement only once they are durable, and if it dies before that, its term
// ends with it.
func (n *member) term(index uint64) (uint64, error) {
	for _, waiting := range [][]core.Append{n.appends, n.writing} {
		for _, a := range slices.Backward(waiting) {
			if len(a.Entries) == 0 || index < a.Entries[0].Index {
				continue
			}
			if k := index - a.Entries[0].Index; k < uint64(len(a.Entries)) {
				return a.Entries[k].Term, nil
			}
			return 0, segment.ErrMissing // the entries after it are replaced
		}
	}
	return n.log.Term(index)
}

// write writes all waiting appends to the disk, and syncs it.
func (n *member) write() {
	if n.appending || len(n.appends) == 0 {
		return
	}
	n.appending = true
	batch := n.appends
	n.appends, n.writing = nil, batch
	number := batch[len(batch)-1].Number
	early := n.c.mutant == "acknowledge before the sync"
	if early {
		n.safely(1, func() { n.must(n.core.Appended(number), "appended"); n.effects() })
	}
	n.step(n.w.upTo(200*microsecond), func() { n.writeBatch(batch, early) })
}

func (n *member) writeBatch(batch []core.Append, early bool) {
	for i, a := range batch {
		if a.Snapshot != nil && n.applying {
			n.step(n.w.upTo(100*microsecond), func() { n.writeBatch(batch[i:], early) })
			return // the applier finishes before its state is replaced
		}
		if !n.writeOne(a) {
			n.crash()
			return
		}
	}
	took := n.w.upTo(n.w.plan.syncTime)
	if !n.w.calm && n.w.chance(400) {
		took = n.w.upTo(300 * millisecond)
		n.c.met("slow syncs")
	}
	n.step(took, func() {
		if n.log.Sync() != nil && n.c.mutant != failedWriteIgnored {
			n.c.met("failed syncs")
			n.crash()
			return
		}
		n.appending, n.writing = false, nil
		n.queue.Stored(time.Duration(took))
		if !early {
			n.must(n.core.Appended(batch[len(batch)-1].Number), "appended")
		}
		n.effects()
	})
}

// writeOne reports whether the node continues. The first error of its disk is final.
func (n *member) writeOne(a core.Append) bool {
	if !n.w.calm && n.w.chance(3000) {
		n.disk.FailAt(1+n.w.rng.IntN(3), errors.New("input/output error"))
	}
	if n.c.drill.writes(n.id, &a, n.log.Last().Index) {
		n.disk.TearAt(1, n.w.rng.IntN(200), errors.New("power failure"))
	}
	if a.Snapshot != nil && !n.install(a.Snapshot) {
		return false
	}
	if n.c.mutant == "commit stored before its entries" && a.State != nil && n.log.Append(a.State, nil) != nil {
		return false
	}
	n.forget(&a)
	err := n.log.Append(a.State, a.Entries)
	if errors.Is(err, syscall.ENOSPC) {
		n.c.met("full disks met")
	}
	return err == nil || n.c.mutant == failedWriteIgnored
}

// forget implements three of the controls: the vote is not stored, the term is not stored before an entry of it exists,
// or a commit index after a membership change is not stored.
func (n *member) forget(a *core.Append) {
	s := n.log.State()
	switch {
	case n.c.mutant == "commit not stored behind a change":
		if a.State != nil && len(a.Entries) > 0 && a.State.Term == s.Term && a.State.Vote == s.Vote {
			a.State = nil
		}
		return
	case n.c.mutant == "vote not stored" && a.State != nil:
		s = *a.State
	case n.c.mutant == "term not stored" && a.State != nil:
		s.Commit = a.State.Commit
	case n.c.mutant != "term not stored":
		return
	}
	s.Vote = 0
	if k := len(a.Entries); k > 0 {
		s.Term = max(s.Term, a.Entries[k-1].Term) // a log with entries of a later term would not open
	}
	a.State = &s
}

// apply applies committed entries in parts.
func (n *member) apply() {
	if n.applying || len(n.applies) == 0 {
		return
	}
	n.applying = true
	took := n.w.upTo(50 * microsecond)
	if !n.w.calm && n.w.chance(200) {
		took = n.w.upTo(100 * millisecond)
		n.c.met("slow applies")
	}
	took = max(took, n.heldUntil-n.w.now)
	if n.c.plan.hangs && !n.w.calm && n.c.own.chance(500) {
		n.c.met("hung appliers")
		took, n.hungSince = n.c.own.upTo(3*second), n.w.now
	}
	n.step(took, func() {
		n.applying, n.hungSince = false, 0
		if len(n.applies) == 0 {
			return // a snapshot covers them
		}
		count := 1 + n.w.rng.IntN(len(n.applies))
		part := n.applies[:count:count]
		n.applies = n.applies[count:]
		for _, c := range part {
			if n.applyOne(c); !n.up {
				return // its state file is full, or has rotted
			}
		}
		n.must(n.core.Done(n.state.applied().Index), "applied")
		n.effects()
		n.propose()
		if n.up {
			gathered := n.gathered()
			n.queue.Gather(gathered)
			if gathered.LongLog && !n.working && !n.queue.HasJob() {
				n.w.fail(nil, "the log of node %d is long, and no job is due", n.id)
			}
			n.work(n.w.chance(300))
		}
	})
}

func (n *member) applyOne(e core.Committed) {
	at := n.state.applied()
	if e.Index <= at.Index {
		return // a snapshot covers it
	}
	if e.Index != at.Index+1 {
		n.w.fail(nil, "node %d applies entry %d behind %d", n.id, e.Index, at.Index)
	}
	number, entry := n.c.committed(n, e)
	to := boltstore.Position{Index: e.Index, Term: e.Term}
	if entry.index == 0 {
		n.answer(e.Proposal, nil, errLost)
		n.must(n.state.update(to, func(machine.Tx) error { return nil }), "passing an entry over")
	} else {
		if e.Proposal != 0 && e.Proposal != number {
			n.w.fail(nil, "node %d: proposal %d is answered with entry %d", n.id, e.Proposal, number)
		}
		outcomes := n.decide(to, entry)
		if !n.up {
			return
		}
		if len(n.flights[e.Proposal]) > 0 {
			n.c.acked = max(n.c.acked, e.Index)
			n.answer(e.Proposal, outcomes, nil)
		}
	}
	n.reached = max(n.reached, e.Index)
	if !n.replayed && e.Index >= n.reached {
		n.replayed = true
		n.must(n.state.endReplay(), "looking for blocks that the log has not made")
	}
}

// decide feeds an entry to the machine.
func (n *member) decide(to boltstore.Position, entry record) (outcomes []machine.Outcome) {
	var digest machine.Hash
	wall := n.w.wallOff
	defer func() { n.w.wallOff = wall }()
	n.w.wallOff = n.c.wallOff[n.id] // for a control in which the machine reads this node's clock
	data := n.tamper.entry(n.w, entry)
	err := n.state.update(to, func(tx machine.Tx) (err error) {
		if n.tamper.on() {
			tx = tamperedTx{tx, &n.tamper}
		}
		before := n.m.Check().Index
		if outcomes, err = n.m.Apply(tx, data); err != nil {
			return err
		}
		v := n.m.View(tx)
		n.w.oracle.grown(v, before)
		digest = v.Digest()
		n.queue.SetMostCommands(mostCommands(n.w, v.Config()))
		return nil
	})
	if n.must(err, "applying an entry"); n.up {
		n.learn()
		n.w.oracle.applied(entry, outcomes, digest)
	}
	return outcomes
}

// gathered returns what has gathered since the last checkpoint.
func (n *member) gathered() engine.Gathered {
	length := n.state.applied().Index - min(n.log.First(), n.state.applied().Index)
	return engine.Gathered{Changes: n.state.pending(), LongLog: int(length) > n.c.plan.keepLog}
}

// work does the job that the engine says is next, concurrently with everything else; with flush a checkpoint if there
// is none.
func (n *member) work(flush bool) {
	if n.working {
		return
	}
	job := n.queue.NextJob()
	if job.Kind == engine.NoJob && flush {
		job = engine.Job{Kind: engine.Flush}
	}
	switch job.Kind {
	case engine.Flush:
		n.flush(job)
	case engine.Truncate:
		if n.truncate(n.state.checkpoint()); n.up {
			n.worked(job, engine.JobResult{})
		}
	}
}

func (n *member) worked(job engine.Job, r engine.JobResult) {
	n.working = false
	r.Gathered = n.gathered()
	n.queue.JobDone(job, r)
	n.propose()
	n.work(false)
}

// flush writes a checkpoint.
func (n *member) flush(job engine.Job) {
	n.working = true
	n.installed = false // the log has been reset
	n.state.beginFlush()
	n.members[n.state.frozenAt.Index] = n.core.Members()
	n.c.sameMembers(n, n.state.frozenAt.Index)
	if n.c.mutant == "log truncated before the checkpoint" {
		n.truncate(n.state.frozenAt)
	}
	state := n.state
	n.step(n.w.upTo(10*n.w.plan.syncTime), func() {
		if n.state != state {
			return // another state was installed
		}
		if n.must(n.state.endFlush(), "writing a checkpoint"); !n.up {
			return
		}
		n.c.met("checkpoints")
		n.worked(job, engine.JobResult{Covered: n.state.checkpoint().Index})
	})
}

func (n *member) truncate(at boltstore.Position) {
	if n.appending && n.log.Last().Index < at.Index {
		return
	}
	members := n.members[at.Index]
	if n.log.Truncate(segment.Checkpoint{Position: position(at), Data: members.Encode()}) != nil {
		n.crash()
		return
	}
	n.c.met("truncations")
	n.must(n.core.Truncated(n.log.First()), "truncated")
}

// crash ends the node; it comes back later.
func (n *member) crash() { n.crashFor(0) }

// crashFor ends the node, which comes back after a pause; 0 means a random one.
func (n *member) crashFor(pause int64) {
	if !n.up {
		return
	}
	n.w.faults++
	n.w.mark(13, n.id)
	power, tell := n.w.chance(2), n.w.chance(2)
	for _, number := range n.c.inOrder(n.flights) {
		if tell && !power {
			n.answer(number, nil, errLost)
		}
	}
	if n.role.Leads {
		n.c.met("leaders died")
	}
	n.up, n.serving, n.role = false, false, core.Role{}
	n.life++
	if power {
		n.c.met("power losses")
		n.disk.PowerLoss(n.w.rng)
	} else {
		n.c.met("kills")
		n.disk.Kill()
	}
	n.must(n.state.crash(n.w, power), "opening the checkpoint")
	n.damageLog()
	if pause == 0 {
		pause = n.pause()
	}
	if !n.broken {
		n.safely(pause, n.start)
	}
}

// pause draws how long a node is down.
func (n *member) pause() int64 {
	pause := n.w.upTo(400 * millisecond)
	switch n.w.rng.IntN(4) {
	case 0, 1:
		pause = n.w.upTo(5 * millisecond)
	case 2:
		pause = n.w.upTo(3 * second)
	}
	return pause
}

// send gives a message to the network, which may lose, duplicate and delay it.
func (n *member) send(m *pb.Message) {
	n.c.sent(n, m)
	copies, delay := 1, 20*microsecond+n.w.upTo(200*microsecond)
	if !n.w.calm {
		switch p := n.w.rng.IntN(1000); {
		case p < 20:
			copies = 0
			n.c.met("messages lost")
		case p < 30:
			copies = 2
			n.c.met("messages doubled")
		case p < 60:
			delay += n.w.upTo(100 * millisecond)
			n.c.met("messages delayed")
		}
	}
	if m.GetType() == pb.MsgSnap { // the sender knows only whether it could send
		arrived := n.w.calm || !n.w.chance(4)
		n.safely(delay+millisecond, func() {
			n.must(n.core.SnapshotSent(m.GetTo(), arrived), "snapshot sent")
			n.effects()
		})
	} else if copies == 0 && n.w.chance(2) {
		n.safely(delay, func() { n.must(n.core.Unreachable(m.GetTo()), "unreachable"); n.effects() })
	}
	n.c.transmit(m, copies, delay)
}

// begin starts a term: this node leads and has applied everything from earlier terms.
func (n *member) begin() {
	n.moveTime()
	if n.base == 0 {
		return // a new ledger begins in the time of a majority
	}
	n.serving = true
	if n.m.View(n.state).Index() == 0 {
		config := n.w.plan.config
		c := &command{create: &config, encoded: machine.AppendCreate(nil, ledgerID, 77, config)}
		n.queue.add([]waiting{{c, func(answer) {}}})
	}
	n.propose()
}

// learn follows the ledger time of the entries that are applied.
func (n *member) learn() {
	if now := n.m.View(n.state).Time(); now != 0 && (n.base == 0 || now > n.base+n.w.now-n.began) {
		n.base, n.began = now, n.w.now
	}
}

// moveTime moves ledger time to the clock on which a majority of the voters agrees. Without one it lags.
func (n *member) moveTime() {
	members := n.core.Members()
	voters := slices.Compact(slices.Sorted(slices.Values(slices.Concat(members.Voters, members.Outgoing))))
	if n.c.plan.wrongClocks {
		n.c.keepMinority(voters)
	}
	var clocks []time.Duration
	for _, id := range voters {
		other := n.c.node(id)
		if other.up && !n.c.cut[[2]uint64{n.id, id}] && !n.c.cut[[2]uint64{id, n.id}] {
			clocks = append(clocks, time.Duration(other.wall()-n.wall()))
		}
	}
	agreed, ok := engine.AgreedClock(clocks, len(voters))
	if n.c.mutant == ownClockBelieved {
		agreed, ok = 0, true
	}
	if n.lagging = !ok; !ok {
		n.c.met("clocks that did not agree")
		return
	}
	last := n.base
	if last != 0 {
		last += n.w.now - n.began
	}
	base, err := engine.TermBase(last, 0, time.Unix(0, n.wall()).Add(agreed), n.c.mutant == ownClockBelieved)
	n.must(err, "moving ledger time")
	n.base, n.began = base, n.w.now
}

func (n *member) wall() int64 { return n.w.now + n.c.wallOff[n.id] }

// stamp returns the time of an entry.
func (n *member) stamp() int64 {
	if n.w.bugs.wallStamp {
		return n.wall()
	}
	return n.base + n.w.now - n.began
}

// receive takes commands for the log, or forwards them to the leader, at most once.
func (n *member) receive(r request) {
	switch {
	case n.up && n.serving:
		n.take(r)
	case n.up && !n.role.Leads && n.role.Leader != 0 && n.c.node(n.role.Leader) != nil:
		leader := n.c.node(n.role.Leader)
		n.forwarded = max(n.forwarded, n.w.now+n.w.upTo(millisecond)) // in order, like their connection
		n.w.after(n.forwarded-n.w.now, func() {
			if !leader.up || !leader.serving || n.c.cut[[2]uint64{n.id, leader.id}] {
				refuse(r)
				return
			}
			n.c.met("requests forwarded")
			leader.take(r)
		})
	default:
		refuse(r)
	}
}

func refuse(r request) {
	for i := range r.commands {
		r.reply(i, answer{kind: notConnected})
	}
}

func (n *member) take(r request) {
	var commands []waiting
	for i, c := range r.commands {
		commands = append(commands, waiting{c, func(a answer) { r.reply(i, a) }})
	}
	n.queue.add(commands)
	n.propose()
}

// propose proposes the next entry from the queue. While this node does not lead, it is refused.
func (n *member) propose() {
	if n.proposing || !n.queue.MayCut() || !n.up || n.role.Leads && !n.serving {
		return
	}
	n.proposing = true
	n.step(n.w.upTo(50*microsecond), func() {
		n.proposing = false
		if n.role.Leads && !n.serving || !n.queue.MayCut() {
			return
		}
		spans, parts, frames := n.queue.cut()
		number := n.c.propose(parts)
		n.flights[number] = spans
		if err := n.offer(number, len(parts), frames); err != nil {
			if !errors.Is(err, core.ErrNotLeader) && !errors.Is(err, core.ErrNotProposed) {
				n.must(err, "proposing")
			}
			n.c.met("proposals refused")
			n.c.forget(number)
			n.answer(number, nil, errNotProposed)
			if parts[0].command.create != nil && n.serving { // no other command may be decided before it
				n.refuseAll()
				n.begin()
			}
		}
		n.effects()
		n.propose()
	})
}

// refuseAll refuses what waits. Nothing is in flight.
func (n *member) refuseAll() {
	for n.queue.MayCut() {
		spans, _, _ := n.queue.cut()
		n.queue.decide(spans, nil, errNotProposed)
		n.queue.woken()
	}
}

// offer stamps an entry and offers it to the log.
func (n *member) offer(number uint64, commands int, frames []byte) error {
	if !n.serving {
		return core.ErrNotLeader
	}
	header := n.m.Header()
	header.UnixNanos = n.stamp()
	data := machine.AppendEntryHeader(binary.BigEndian.AppendUint64(nil, number), header, commands)
	return n.core.Propose(number, append(data, frames...))
}

// readStream reads from a state that includes every write acknowledged before the call.
func (n *member) readStream(at name, answered func(got streamRead)) {
	if !n.up {
		return
	}
	number := n.c.number()
	n.reads[number] = clusterRead{asked: n.c.acked, at: at, answered: answered}
	if n.c.mutant == "a leader reads without a majority" && n.role.Leads {
		n.read(number)
		return
	}
	n.must(n.core.Read(number), "reading")
	n.effects()
}

func (n *member) read(number uint64) {
	r := n.reads[number]
	delete(n.reads, number)
	if !n.role.Leads {
		n.c.met("reads by followers")
	}
	if at := n.state.applied().Index; at < r.asked {
		n.w.fail(nil, "invariant 9: node %d reads at entry %d, and entry %d was acknowledged before", n.id, at, r.asked)
	}
	if r.key != nil {
		n.answerKey(r.key)
		return
	}
	got, err := readStream(n.m.View(n.state), r.at)
	if n.must(err, "reading a stream"); n.up {
		r.answered(got)
	}
}
