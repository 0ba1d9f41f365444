package core_test

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"slices"

	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// node is a host of one core. Instead of driver goroutines it has chains of events.
type node struct {
	w         *world
	id        uint64
	life      int
	up        bool
	disk      *simdisk.Disk
	log       *segment.Log
	core      *core.Node
	state     state // in memory
	durable   state // what remains after a crash
	appends   []core.Append
	writing   []core.Append // taken from appends, and possibly not in the log yet
	appending bool
	applies   []core.Committed
	applying  bool
	heldUntil int64 // the applier is paused until then
	leads     bool
}

// start opens the log and state on the disk.
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
	n.w.after(tick*9/10+n.w.upTo(tick/5), n, n.tick) // clocks run at different rates
	n.effects()
}

func (n *node) must(err error) {
	if err != nil {
		n.w.failf("node %d: %v", n.id, err)
	}
}

// effects performs or starts what the core asks for.
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
	// A leader has every committed entry.
	for i := max(n.log.First(), 2); i <= n.w.last; i++ {
		if term, err := n.term(i); err != nil || term != n.w.history[i].Term {
			n.w.failf("node %d leads in term %d with entry %d of term %d (%v), and %d was committed",
				n.id, r.Term, i, term, err, n.w.history[i].Term)
		}
	}
}

// term returns the term of an entry as the consensus sees the log. A node may be elected with entries that it holds
// only in memory. It counts its own acknowledgement only once they are durable, and if it dies before that, its term
// ends with it.
func (n *node) term(index uint64) (uint64, error) {
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

// note checks that two logs with the same index and term have the same entry, and the same entry before it.
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

// write writes all waiting appends to the disk, and syncs it.
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
			// The applier finishes before its state is replaced.
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

// forget implements two of the mutants: part of Raft's state is not stored.
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

// install makes the state of a snapshot durable, and then resets the log.
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
		return errors.New("crash") // between the two steps
	}
	return n.reset(at, st)
}

// reset makes the log start after a state.
func (n *node) reset(at state, st segment.State) error {
	st.Term = max(st.Term, at.Term)
	return n.log.Reset(segment.Checkpoint{Position: at.Position, Data: at.members.Encode()}, st)
}

// apply applies committed entries in parts.
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
		return // a snapshot covers it
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

// checkpoint makes the state durable from time to time, and truncates the log.
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

// setDurable makes the current state durable, together with its members.
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
