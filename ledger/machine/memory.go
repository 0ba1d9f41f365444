package machine

import (
	"bytes"
	"slices"
	"sort"
)

// Memory is a Tx in memory, for tests, for the simulator, and for tools that
// recompute a state. It never fails. It is not safe for concurrent use.
type Memory struct {
	tables [TableCount]memoryTable
}

type memoryTable struct {
	values map[string][]byte
	keys   []string // sorted
}

// NewMemory returns an empty state.
func NewMemory() *Memory {
	m := &Memory{}
	for i := range m.tables {
		m.tables[i].values = map[string][]byte{}
	}
	return m
}

// Get implements Reader.
func (m *Memory) Get(table Table, key []byte) ([]byte, error) {
	return m.tables[table].values[string(key)], nil
}

// Ascend implements Reader.
func (m *Memory) Ascend(table Table, from []byte, visit func(key, value []byte) bool) error {
	t := &m.tables[table]
	for _, k := range t.keys[sort.SearchStrings(t.keys, string(from)):] {
		if !visit([]byte(k), t.values[k]) {
			return nil
		}
	}
	return nil
}

// Put implements Tx.
func (m *Memory) Put(table Table, key, value []byte) error {
	t := &m.tables[table]
	if _, there := t.values[string(key)]; !there {
		i := sort.SearchStrings(t.keys, string(key))
		t.keys = slices.Insert(t.keys, i, string(key))
	}
	t.values[string(key)] = append([]byte{}, value...) // never nil: nil means absent
	return nil
}

// Delete implements Tx.
func (m *Memory) Delete(table Table, key []byte) error {
	t := &m.tables[table]
	if _, there := t.values[string(key)]; there {
		delete(t.values, string(key))
		i := sort.SearchStrings(t.keys, string(key))
		t.keys = slices.Delete(t.keys, i, i+1)
	}
	return nil
}

// Clone returns a copy.
func (m *Memory) Clone() *Memory {
	c := NewMemory()
	for i := range m.tables {
		c.tables[i].keys = slices.Clone(m.tables[i].keys)
		for k, v := range m.tables[i].values {
			c.tables[i].values[k] = bytes.Clone(v)
		}
	}
	return c
}
