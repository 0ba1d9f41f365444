package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// appWrite is one write that an application wants executed exactly once. Everything else exists so that the checks on
// it hold.
type appWrite struct {
	id          uint64
	stream      name
	withSession bool
	state       appState
	commits     []commitOf
	index       uint64 // of the receipt that the application has; 0: none
}

type commitOf struct{ created, sequence, index uint64 }

type appState uint8

const (
	appOpen        appState = iota // in progress
	appDone                        // reported as committed
	appNotExecuted                 // reported as never executed
	appUnsettled                   // handed back with an unknown outcome
)

func (w *world) newApp(stream name, withSession bool) *appWrite {
	a := &appWrite{id: uint64(len(w.oracle.apps)), stream: stream, withSession: withSession}
	w.oracle.apps = append(w.oracle.apps, a)
	return a
}

// commit is called at every commit, whoever learns of it.
func (a *appWrite) commit(w *world, out *machine.Outcome) {
	a.commits = append(a.commits, commitOf{out.CreatedIndex, out.Receipt.Sequence, out.Receipt.Index})
	if a.state == appNotExecuted {
		w.fail(&a.stream, "write %d was reported as not executed and has committed at ledger index %d", a.id,
			out.Receipt.Index)
	}
	if len(a.commits) == 1 {
		return
	}
	// A request without a session that arrives after its stream was evicted finds an empty stream. This is the
	// documented limit of the TTL.
	last := a.commits[len(a.commits)-2]
	if a.withSession || last.created == out.CreatedIndex {
		w.fail(&a.stream, "invariant 1: write %d committed more than once: %v", a.id, a.commits)
	}
	w.counted["ran again after its stream was evicted, without a session"]++
}

// done reports the write as committed. Without a receipt, the client infers the commit only from the stream's last
// sequence.
func (a *appWrite) done(w *world, out *machine.Outcome) {
	if len(a.commits) == 0 {
		w.fail(&a.stream, "invariant 2: write %d was reported as committed and is not", a.id)
	}
	if out != nil && out.Receipt.Index != 0 {
		if a.index != 0 && a.withSession && a.index != out.Receipt.Index {
			w.fail(&a.stream, "invariant 2: write %d has receipts of ledger index %d and %d", a.id, a.index,
				out.Receipt.Index)
		}
		a.index = out.Receipt.Index
	}
	a.state = appDone
	w.counted["writes done"]++
}

func (a *appWrite) notExecuted(w *world) {
	if len(a.commits) != 0 {
		w.fail(&a.stream, "write %d is reported as not executed and has committed: %v", a.id, a.commits)
	}
	a.state = appNotExecuted
	w.counted["writes not executed"]++
}

func (a *appWrite) unsettled(w *world) {
	a.state = appUnsettled
	w.counted["writes unsettled"]++
}

var sharedKeys = []string{"stock/a", "stock/b", "stock/c", "stock/d"}

// operations returns what an application might write: its payload, its own counter and, if the write may be refused, a
// conditional operation.
func (w *world) operations(a *appWrite, conditional bool) []machine.Operation {
	id := binary.BigEndian.AppendUint64(nil, a.id)
	ops := []machine.Operation{{Kind: machine.OpAppend, Value: id}}
	switch w.rng.IntN(6) {
	case 0:
		ops = append(ops, machine.Operation{Kind: machine.OpSetEntity, Key: ownKey(a.stream), Value: a.value()})
	case 1:
		ops = append(ops, machine.Operation{
			Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "mortal/%d", w.rng.IntN(40)), Value: a.value(),
			ExpiresAt: max(w.oracle.model.Time, epochStart) + w.upTo(4*second) - second,
		})
	case 2:
		ops = append(ops, machine.Operation{
			Kind: pick(w, machine.OpCreateRelationship, machine.OpDeleteRelationship),
			Key:  []byte("doc"), Relation: []byte("reader"), Subject: fmt.Appendf(nil, "%d", w.rng.IntN(9)),
		})
	}
	if conditional && w.chance(4) {
		key := []byte(pick(w, sharedKeys...))
		condition := machine.Condition{Kind: pick(w, machine.ConditionNotExists, machine.ConditionMustExist)}
		if e := w.oracle.model.Entities[name{Scope: a.stream.Scope, ID: string(key)}]; w.chance(3) && e.Version > 0 {
			condition = machine.Condition{Kind: machine.ConditionVersion, Version: e.Version}
			if w.chance(2) {
				condition = machine.Condition{Kind: machine.ConditionValueEquals, Value: []byte(e.Value)}
			}
		}
		kind := pick(w, machine.OpSetEntity, machine.OpDeleteEntity)
		op := machine.Operation{Kind: kind, Key: key, Condition: condition}
		if kind == machine.OpSetEntity {
			op.Value = a.value()
		}
		ops = append(ops, op)
	}
	return ops
}

// value returns the value that the write gives an entity. Every other value is too large for the entity's record.
func (a *appWrite) value() []byte {
	value := binary.BigEndian.AppendUint64(nil, a.id)
	if a.id%2 == 1 {
		value = append(value, make([]byte, 40)...)
	}
	return value
}

// ownKey is an entity that no other client writes or deletes.
func ownKey(n name) []byte { return []byte("own/" + n.ID) }

var scopes = []machine.Scope{{Organization: "acme"}, {Organization: "acme", Vault: "v"}, {Organization: "other"}}
