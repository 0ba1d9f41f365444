package machine

import (
	"bytes"
	"math/bits"
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

// Receipts returns the receipts of a stream that are in the window, newest
// first, at most limit.
func (v View) Receipts(scope Scope, clientID string, limit int) ([]Receipt, error) {
	s, found, err := v.stream(scope, clientID)
	if err != nil || !found {
		return nil, err
	}
	var receipts []Receipt
	for i := range s.visible(v.head.config.ReceiptWindow) {
		slot := s.window.slot(i)
		if len(receipts) == limit || slot.index < v.head.retention.horizon {
			break
		}
		r, err := readWindowReceipt(v.r, &s, slot, s.last-i)
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, r)
	}
	return receipts, nil
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

// Proof returns the proof for the transaction that took an index, or
// ErrNotFound.
func (b Blocks) Proof(index uint64) (Proof, error) {
	if err := b.horizon.check(index); err != nil {
		return Proof{}, err
	}
	l, found, err := locate(b.r, index)
	if err != nil {
		return Proof{}, err
	}
	if !found {
		return Proof{}, ErrNotFound
	}
	leaves, err := l.block.leaves()
	if err != nil {
		return Proof{}, err
	}
	return Proof{Header: l.header, LeafIndex: uint64(l.position), Path: merklePath(leaves, int(l.position))}, nil
}

// merklePath returns the inclusion path of leaf i, from its sibling upwards. It
// overwrites leaves. NewBlockTree makes the same in another way.
func merklePath(leaves []Hash, i int) []Hash {
	path := make([]Hash, 0, bits.Len(uint(len(leaves))))
	for n := len(leaves); n > 1; n = (n + 1) / 2 {
		if sibling := i ^ 1; sibling < n {
			path = append(path, leaves[sibling])
		}
		for j := 0; j < n/2; j++ {
			leaves[j] = hashNode(&leaves[2*j], &leaves[2*j+1])
		}
		if n%2 == 1 {
			leaves[n/2] = leaves[n-1]
		}
		i /= 2
	}
	return path
}

// Difference returns the first key at which two states differ, in the order of
// keys and never of a map, so that a failing test names the same key again;
// false when they are equal.
func (m *Memory) Difference(o *Memory) (table Table, key string, differ bool) {
	for i := range m.tables {
		a, b := &m.tables[i], &o.tables[i]
		for _, keys := range [][]string{a.keys, b.keys} {
			for _, k := range keys {
				va, ina := a.values[k]
				vb, inb := b.values[k]
				if ina != inb || !bytes.Equal(va, vb) {
					return Table(i), k, true
				}
			}
		}
	}
	return 0, "", false
}
