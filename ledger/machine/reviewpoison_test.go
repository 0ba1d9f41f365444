package machine

import (
	"bytes"
	"fmt"
	"testing"
)

// dueTx has n expired entities with the longest keys, which it makes up.
type dueTx struct {
	*Memory
	n, next int
}

func (d *dueTx) key(i int) []byte {
	k := appendExpiryKey(nil, expiryEntity, testStart-1, appendScopeKey(nil, testScope))
	return append(append(k, fmt.Sprintf("%08d", i)...), bytes.Repeat([]byte{'k'}, MaxKeyBytes-8)...)
}

func (d *dueTx) Ascend(table Table, from []byte, visit func(k, v []byte) bool) error {
	if table != TableExpiry || from[0] != expiryEntity {
		return d.Memory.Ascend(table, from, visit)
	}
	for d.next < d.n {
		d.next++
		if !visit(d.key(d.next-1), nil) {
			return nil
		}
	}
	return nil
}

func (d *dueTx) Get(table Table, key []byte) ([]byte, error) {
	if table == TableEntities {
		return []byte{entityWithValue, 1, 1}, nil
	}
	return d.Memory.Get(table, key)
}

func (d *dueTx) Delete(table Table, key []byte) error { return nil }

// TestReviewEntryThatStopsTheNodeForGood: 1.1 million expired entities and twelve commands.
func TestReviewEntryThatStopsTheNodeForGood(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	tx := &dueTx{Memory: f.mem, n: 1_100_000}
	commands := [][]byte{AppendUpdateConfig(nil, &ConfigUpdate{EvictionInterval: new(uint64(1)), EvictionLimit: new(uint64(100_000))}, "a")}
	for i := range 11 {
		commands = append(commands, AppendWrite(nil, appendWrite("c", uint64(i)+1, 0, "x")))
	}
	if _, err := f.m.Apply(tx, AppendEntry(nil, f.now, commands...)); err != nil {
		t.Errorf("a committed entry of %d commands cannot be applied, now and after every restart: %v", len(commands), err)
	}
}
