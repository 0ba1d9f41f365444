package machine

import (
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
