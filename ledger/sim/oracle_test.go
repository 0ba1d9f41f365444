package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/memorytarget"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// oracle observes everything from outside. It knows every command that was ever applied, the model's result for it, and
// the answer that each client got.
type oracle struct {
	w       *world
	model   *ledgermodel.Model
	entries []oracleEntry             // entry i+1 of the log, as far as applied
	open    map[uint64]*proposedEntry // proposed and not yet applied, by log index
	acked   uint64                    // every entry up to this one was answered

	once     map[sequenceOf]uint64 // ledger index of a commit
	sessions map[name]uint64       // newest session ever opened
	apps     []*appWrite
	known    map[uint64]uint64 // creation index → sequence for which a client has a receipt
	keys     *keysOracle

	trees map[machine.LedgerID][]machine.Hash // the leaves that were seen

	termBase, termBegan int64
	decisions           int // commands applied for the first time
}

type oracleEntry struct {
	record   record
	parts    []waiting
	outcomes []machine.Outcome
	digest   machine.Hash
}

type proposedEntry struct {
	record record
	parts  []waiting
}

type sequenceOf struct{ created, sequence uint64 }

func newOracle(w *world) *oracle {
	return &oracle{
		w: w, model: ledgermodel.NewModel(), open: map[uint64]*proposedEntry{}, once: map[sequenceOf]uint64{},
		sessions: map[name]uint64{}, known: map[uint64]uint64{}, keys: newKeysOracle(w),
		trees: map[machine.LedgerID][]machine.Hash{},
	}
}

// term records the beginning of a term; the model of ledger time is kept here.
func (o *oracle) term() {
	o.termBase = max(o.model.Time, o.w.wall())
	o.termBegan = o.w.now
}

// stamped checks the time of an entry: the base of the term plus the monotonic time since.
func (o *oracle) stamped(stamp int64) {
	if want := o.termBase + o.w.now - o.termBegan; stamp != want {
		o.w.fail(nil, "time: an entry bears %d, want %d: the wall clock has jumped by %d since the term began",
			stamp, want, stamp-want)
	}
}

func (o *oracle) proposed(r record, parts []waiting) {
	o.open[r.index] = &proposedEntry{r, slices.Clone(parts)}
}

func (o *oracle) commandsOf(index uint64) []waiting {
	if p := o.open[index]; p != nil {
		return p.parts
	}
	return o.entries[index-1].parts
}

// found checks what a start has read. No applied entry is missing or changed, and there is no entry that was never
// proposed.
func (o *oracle) found(records []record, covered uint64) {
	last := covered
	for _, r := range records {
		last = max(last, r.index)
		if r.index <= uint64(len(o.entries)) {
			if e := &o.entries[r.index-1]; !bytes.Equal(e.record.data, r.data) || e.record.term != r.term {
				o.w.fail(nil, "invariant 2: entry %d is another one after the start", r.index)
			}
			continue
		}
		if p := o.open[r.index]; p == nil || !bytes.Equal(p.record.data, r.data) {
			o.w.fail(nil, "the log has an entry %d that nobody proposed", r.index)
		}
	}
	if last < o.acked {
		e := o.entries[last]
		o.w.fail(e.parts[0].command.name(), "invariant 2: entries %d to %d were acknowledged and are lost", last+1,
			o.acked)
	}
	if last < uint64(len(o.entries)) {
		o.w.fail(nil, "entries %d to %d were applied and are lost", last+1, len(o.entries))
	}
}

func (o *oracle) acknowledged(index uint64) { o.acked = max(o.acked, index) }

// applied is called for every entry that the machine has decided.
func (o *oracle) applied(r record, outcomes []machine.Outcome, digest machine.Hash) {
	o.w.mark(3, r.index, uint64(digest[0])|uint64(digest[1])<<8|uint64(digest[2])<<16)
	if r.index <= uint64(len(o.entries)) {
		o.again(r, outcomes, digest)
		return
	}
	p := o.open[r.index]
	delete(o.open, r.index)
	e := oracleEntry{r, p.parts, outcomes, digest}
	o.entries = append(o.entries, e)
	header, _, err := machine.DecodeEntry(r.data)
	o.w.must(err, "decoding an entry")
	o.model.Begin(header.UnixNanos)
	for i := range p.parts {
		c := p.parts[i].command
		o.decided(c, &outcomes[i]) // before the model is asked, because these checks do not need it
		if c.keyID() != nil {
			o.keys.decided(c, &outcomes[i], o.model.Time, r.term)
		}
		want := o.model.Apply(c.forModel())
		if difference := ledgermodel.Differ(&outcomes[i], &want); difference != "" {
			o.w.failCommand(c, "the decision at ledger index %d is not the model's: %s\ncommand: %s",
				outcomes[i].Index, difference, describe(c))
		}
	}
}

// grown compares the leaves of receipts' trees that an entry has added after a ledger index with those that it has
// added on another node, or before a restart: so a checkpoint of any moment agrees with all that were signed before.
func (o *oracle) grown(v machine.View, after uint64) {
	now := v.Tree()
	seen := func(id machine.LedgerID, at uint64, leaf machine.Hash) {
		tree := o.trees[id]
		if at == uint64(len(tree)) {
			o.trees[id] = append(tree, leaf)
		} else if at > uint64(len(tree)) || tree[at] != leaf {
			o.w.fail(nil, "leaf %d of %d of the tree of %s is %s, or another one was seen", at, len(tree), id, leaf)
		}
	}
	seen(now.ID, 0, now.Origin)
	o.w.must(v.VisitLeaves(after+1, func(l machine.RecordLeaves) bool {
		id, _ := v.TxIDAt(l.Index).Parts()
		for i, leaf := range l.Blocks {
			seen(id, l.First+uint64(i), leaf)
		}
		return true
	}), "reading the leaves of an entry")
	if now.Leaves > uint64(len(o.trees[now.ID])) {
		o.w.fail(nil, "the head counts %d leaves of %s, there are %d", now.Leaves, now.ID, len(o.trees[now.ID]))
	}
}

// again checks a replay: the same outcomes and the same digest (invariant 8).
func (o *oracle) again(r record, outcomes []machine.Outcome, digest machine.Hash) {
	e := &o.entries[r.index-1]
	for i := range outcomes {
		if difference := ledgermodel.Differ(&outcomes[i], &e.outcomes[i]); difference != "" {
			c := e.parts[i].command
			o.w.failCommand(c, "invariant 8: the replay of entry %d: %s\ncommand: %s", r.index, difference, describe(c))
		}
	}
	if digest != e.digest {
		o.w.fail(nil, "invariant 8: the replay of entry %d gives digest %s, it was %s", r.index, digest, e.digest)
	}
}

// removing is called with the block files that are about to be removed. Whatever the node considers confirmed, the
// archive must have them, also after a loss of power.
func (o *oracle) removing(files []blockfile.SealedFile) {
	if o.w.archive == nil {
		return
	}
	durable := archive.OnDisk(&memorytarget.Disk{MemoryDisk: o.w.archive.own.Durable()})
	mark := o.w.archiveMark
	a, err := archive.Open(context.Background(), durable, archive.Options{Ledger: mark.Ledger, Mark: mark})
	for i := range files {
		if err != nil || !a.Has(&files[i]) {
			o.w.fail(nil, "block file %d is removed, and the archive does not have it (%v)", files[i].Number, err)
		}
	}
}

// decided checks the invariants that commits alone can violate, without the model.
func (o *oracle) decided(c *command, out *machine.Outcome) {
	o.decisions++
	w := o.w
	w.mark(uint64(out.Code), out.Index, out.Receipt.Index)
	switch {
	case c.open != nil && out.Code == machine.Committed:
		o.sessions[*c.name()] = max(o.sessions[*c.name()], out.Session)
	case c.write != nil && out.Code == machine.Committed:
		at := sequenceOf{out.CreatedIndex, c.write.Sequence}
		if before, twice := o.once[at]; twice {
			w.fail(c.name(), "invariant 1: sequence %d committed at ledger index %d and %d", at.sequence, before,
				out.Index)
		}
		if _, dense := o.once[sequenceOf{at.created, at.sequence - 1}]; at.sequence > 1 && !dense {
			w.fail(c.name(), "invariant 3: sequence %d committed without the one before", at.sequence)
		}
		if newest := o.sessions[*c.name()]; c.write.Session != 0 && c.write.Session != newest {
			w.fail(c.name(), "invariant 7: session %d committed after session %d was opened", c.write.Session, newest)
		}
		o.once[at] = out.Index
		if c.app != nil {
			c.app.commit(w, out)
		}
	}
}

// answeredFromState checks an answer that bypassed the log: it is what the log would say now.
func (o *oracle) answeredFromState(c *command, out *machine.Outcome) {
	want := o.model.Retry(c.write)
	got := out.Receipt
	if want.Code != machine.Replayed || !ledgermodel.SameReceipt(&got, &want.Receipt) {
		o.w.fail(c.name(), "answered from the state with %s\nreceipt %+v\nthe log would say %s %+v",
			out.Code, got, want.Code, want.Receipt)
	}
}

// received is called for every receipt that reaches a client (invariant 2).
func (o *oracle) received(c *command, out *machine.Outcome) {
	r := out.Receipt
	x := o.model.Transactions[r.Index]
	if x == nil {
		o.w.fail(c.name(), "invariant 2: a receipt of ledger index %d, where nothing was committed", r.Index)
	}
	want := x.Receipt
	want.Replayed = out.Code == machine.Replayed
	if !ledgermodel.SameReceipt(&r, &want) {
		o.w.fail(c.name(), "invariant 2: the receipt is\n%+v\nand was\n%+v", r, want)
	}
	o.known[x.Created] = max(o.known[x.Created], r.Sequence)
}

func describe(c *command) string {
	switch {
	case c.write != nil:
		w := c.write
		text := fmt.Sprintf("write session %d sequence %d key %x", w.Session, w.Sequence, w.Key.UUID[:4])
		for i := range w.Operations {
			op := &w.Operations[i]
			text += fmt.Sprintf(", operation %d %q = %x condition %d", op.Kind, op.Key, op.Value, op.Condition.Kind)
		}
		return text
	case c.keyed != nil:
		k := c.keyed
		return fmt.Sprintf("keyed command %d attempt %x token %d policy %d lease %d ttl %d until %d response %.40q",
			k.Kind, k.AttemptID[:4], k.Token, k.Policy, k.Lease, k.TTL, k.ValidUntil, k.Response)
	case c.job != nil:
		return fmt.Sprintf("keyed write %q ttl %d", c.job.Operations[0].Value, c.job.TTL)
	case c.open != nil:
		return fmt.Sprintf("open attempt %x expected %d", c.open.AttemptID[:4], c.open.ExpectedSession)
	case c.update != nil:
		text, err := json.Marshal(c.update)
		return fmt.Sprintf("configuration %s (%v)", text, err)
	case c.tick:
		return "tick"
	case c.create != nil:
		return fmt.Sprintf("create %+v", *c.create)
	}
	return fmt.Sprintf("epoch %s", c.epoch)
}

// history returns the last events of a stream, or of a key.
func (o *oracle) history(n *name, key *machine.KeyedID) (lines []string) {
	for i := range o.entries {
		e := &o.entries[i]
		for j := range e.parts {
			c := e.parts[j].command
			out := &e.outcomes[j]
			if at := c.keyID(); key != nil && at != nil && *at == *key {
				lines = append(lines, fmt.Sprintf("entry %d term %d index %d: %s → %s %+v", e.record.index,
					e.record.term, out.Index, describe(c), out.Code, recordOf(out)))
			}
			if at := c.name(); n != nil && (at == nil && c.keyID() == nil || at != nil && *at == *n) {
				lines = append(lines, fmt.Sprintf("entry %d index %d: %s → %s last %d session %d receipt of %d",
					e.record.index, out.Index, describe(c), out.Code, out.Last, out.Session, out.Receipt.Index))
			}
		}
	}
	const most = 15
	return lines[max(0, len(lines)-most):]
}
