package machine

import (
	"bytes"
	"slices"

	"pgregory.net/rapid"
)

// What the tests of this package share with those outside of it, which may import
// packages that import this one.

// LongestValueInRecord is how many bytes a value may have in an entity's record.
const LongestValueInRecord = maxValueInRecord

// ReadBack is readBack.
var ReadBack = readBack

// HandedOut is a receipt that a client was given, and for what.
type HandedOut struct {
	Write   *Write
	Receipt Receipt
}

// Len returns how many keys a table has.
func (m *Memory) Len(table Table) int { return len(m.tables[table].keys) }

// Clear empties a table.
func (m *Memory) Clear(table Table) { m.tables[table] = memoryTable{values: map[string][]byte{}} }

func pick[V any](t *rapid.T, what string, from ...V) V { return rapid.SampledFrom(from).Draw(t, what) }

// Logged is one log entry of a random history.
type Logged struct {
	Time     int64
	Commands [][]byte
	SetsTime bool // the last command is an epoch that sets ledger time
}

// ReplayLog applies a log to an empty state.
func ReplayLog(t interface{ Fatal(args ...any) }, entries []Logged) (*Memory, *Machine) {
	mem := NewMemory()
	m, err := Open(mem)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := m.Apply(mem, AppendEntry(nil, e.Time, e.Commands...)); err != nil {
			t.Fatal(err)
		}
	}
	return mem, m
}

// SplitLog gives every command an entry of its own.
func SplitLog(entries []Logged) (out []Logged) {
	for _, e := range entries {
		for _, c := range e.Commands {
			out = append(out, Logged{Time: e.Time, Commands: [][]byte{c}})
		}
	}
	return out
}

// MergeLog joins neighbours with the same time.
func MergeLog(entries []Logged) (out []Logged) {
	for _, e := range entries {
		if n := len(out) - 1; n >= 0 && out[n].Time == e.Time && !out[n].SetsTime {
			out[n].Commands = append(slices.Clone(out[n].Commands), e.Commands...)
			out[n].SetsTime = e.SetsTime
			continue
		}
		out = append(out, e)
	}
	return out
}

// Receipts returns the receipts of a stream that are in the window, newest first, at most limit.
func (v View) Receipts(scope Scope, clientID string, limit int) (receipts []Receipt, err error) {
	indexes, err := v.ReceiptIndexes(scope, clientID, 0, limit)
	for i := 0; i < len(indexes) && err == nil; i++ {
		var r Receipt
		r, err = v.ReceiptAt(indexes[i])
		receipts = append(receipts, r)
	}
	return receipts, err
}

// VisitEntities is VisitEntityRefs with all values, wherever they are.
func (v View) VisitEntities(scope Scope, prefix, after string, visit func(Entity) bool) (resume string, err error) {
	var failed error
	resume, err = v.VisitEntityRefs(scope, prefix, after, func(ref EntityRef) bool {
		failed = v.ReadValue(&ref)
		return failed == nil && visit(ref.Entity)
	})
	return resume, firstErr(err, failed)
}

// Proof returns the proof for the transaction that took an index, or ErrNotFound.
func (b Blocks) Proof(index uint64) (Proof, error) {
	if err := b.horizon.check(index); err != nil {
		return Proof{}, err
	}
	l, found, err := locate(b.r, index)
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return Proof{}, err
	}
	leaves, err := l.block.leaves()
	if err != nil {
		return Proof{}, err
	}
	tree, err := NewBlockTree(l.header, leaves)
	if err != nil {
		return Proof{}, err
	}
	return tree.Proof(l.position)
}

// Difference returns the first key at which two states differ, in the order of
// keys and never of a map, so that a failing test names the same key again;
// false when they are equal.
func (m *Memory) Difference(o *Memory) (table Table, key string, differ bool) {
	for i := range m.tables {
		a, b := &m.tables[i], &o.tables[i]
		for _, k := range slices.Concat(a.keys, b.keys) {
			va, ina := a.values[k]
			if vb, inb := b.values[k]; ina != inb || !bytes.Equal(va, vb) {
				return Table(i), k, true
			}
		}
	}
	return 0, "", false
}

// ClearLeaves sets the number of leaves in the head to 0: how many blocks there are depends on how the log is cut.
func (m *Memory) ClearLeaves() error {
	b, err := m.Get(TableMeta, headKey)
	if err != nil {
		return err
	}
	h, err := decodeHead(b)
	if err != nil {
		return err
	}
	h.leaves = 0
	return m.Put(TableMeta, headKey, h.append(nil))
}
