package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"testing"
)

// olderRecord is what programs of version 1 or 2 made of the blocks of a record.
func olderRecord(t testing.TB, version byte, key string, data []byte) []byte {
	t.Helper()
	opened, err := openRecord([]byte(key), data)
	if err != nil {
		t.Fatal(err)
	}
	var blocks, rows []byte
	type row struct {
		index                   uint64
		block, position, offset int
	}
	var found []row
	prefix := []byte{version}
	if version == recordVersion2 {
		prefix = binary.BigEndian.AppendUint64(prefix, opened.first)
	}
	n := 0
	if err := opened.visitBlocks(func(place, *blockRecord) bool { n++; return true }); err != nil {
		t.Fatal(err)
	}
	prefix = binary.AppendUvarint(prefix, uint64(n))
	_ = opened.visitBlocks(func(_ place, b *blockRecord) bool {
		at := len(prefix) + len(blocks)
		header, body := b.header.append(nil), []byte(nil)
		var offsets []row
		_ = b.visit(func(position uint32, stored storedTransaction) bool {
			offsets = append(offsets, row{stored.index(), at, int(position), len(body)})
			if version == recordVersion1 {
				body = appendBytes(appendBytes(body, stored.encoded), stored.changed)
			} else {
				body = appendStored(body, stored)
			}
			return true
		})
		if version == recordVersion1 {
			blocks = binary.AppendUvarint(blocks, uint64(len(header)+len(body)))
			blocks = append(blocks, header...)
		} else {
			sealed := appendBytes(nil, header)
			sealed = binary.BigEndian.AppendUint32(sealed, uint32(len(body)))
			blocks = append(binary.BigEndian.AppendUint32(blocks, checksum(sealed)), sealed...)
		}
		for _, x := range offsets {
			x.offset += len(prefix) + len(blocks)
			found = append(found, x)
		}
		blocks = append(blocks, body...)
		return true
	})
	slices.SortFunc(found, func(a, b row) int { return int(int64(a.index) - int64(b.index)) })
	next := found[0].index
	for _, x := range found {
		if version == recordVersion1 {
			for _, number := range []int{x.block, x.position, x.offset} {
				rows = binary.BigEndian.AppendUint32(rows, uint32(number))
			}
			continue
		}
		for ; next < x.index; next++ {
			rows = binary.BigEndian.AppendUint64(rows, 1<<64-1)
		}
		rows = binary.BigEndian.AppendUint32(rows, uint32(x.offset))
		rows = binary.BigEndian.AppendUint32(rows, uint32(x.block))
		next++
	}
	count := uint32(len(found))
	if version == recordVersion2 {
		count = uint32(next - found[0].index)
	}
	return binary.BigEndian.AppendUint32(slices.Concat(prefix, blocks, rows), count)
}

// olderHead is what older programs had in the table of scopes.
func olderHead(t testing.TB, value []byte) []byte {
	t.Helper()
	var head chainHead
	if err := head.decode(value); err != nil {
		t.Fatal(err)
	}
	return append(binary.AppendUvarint(nil, head.height), head.hash[:]...)
}

// Records of older versions become what a replay of the log makes now, and so do the heads
// of the chains.
func TestRecordUpgrade(t *testing.T) {
	t.Parallel()
	states := map[string]*Memory{"level 2": mixedFixture(t).mem, "a long chain": chainFixture(t, 40).mem}
	for _, log := range logsOfLevel(t, 1) {
		states[log.name] = log.replay(t)
	}
	for name, mem := range states {
		var u RecordUpgrade
		table := &mem.tables[TableBlocks]
		for _, key := range table.keys {
			want := table.values[key]
			old := olderRecord(t, want[1], key, want) // level 1 wrote version 1, and level 2 version 2
			last, got, err := u.Convert([]byte(key), old)
			if err != nil || string(appendIndexKey(nil, last)) != key || !bytes.Equal(got, want) {
				t.Fatalf("%s: record %x becomes %d, %v:\n%x\nwant\n%x", name, key, last, err, got, want)
			}
		}
		for _, scope := range mem.tables[TableScopes].keys {
			want := mem.tables[TableScopes].values[scope]
			old := olderHead(t, want)
			if got, err := u.Head([]byte(scope), old); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: head of %x becomes %x, %v, want %x", name, scope, got, err, want)
			}
			old[len(old)-1]++
			if _, err := u.Head([]byte(scope), old); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: another head of %x: %v", name, scope, err)
			}
		}
	}
}

// A record that does not continue its chains is refused.
func TestRecordUpgradeFollowsTheChains(t *testing.T) {
	t.Parallel()
	table := &mixedFixture(t).mem.tables[TableBlocks]
	if len(table.keys) < 2 {
		t.Fatal("too few records")
	}
	key := table.keys[1]
	var u RecordUpgrade
	if _, _, err := u.Convert([]byte(key), olderRecord(t, 2, key, table.values[key])); !errors.Is(err, ErrCorrupt) {
		t.Error("the second record as the first:", err)
	}
}

// FuzzRecordUpgrade: whatever a record of an older version says, it becomes one that is read
// back as it was, or is refused.
func FuzzRecordUpgrade(f *testing.F) {
	states := []*Memory{mixedFixture(f).mem}
	for _, log := range logsOfLevel(f, 1) {
		states = append(states, log.replay(f))
	}
	for _, mem := range states {
		table := &mem.tables[TableBlocks]
		for _, key := range slices.Sorted(maps.Keys(table.values)) {
			f.Add([]byte(key), olderRecord(f, table.values[key][1], key, table.values[key]))
		}
	}
	f.Add(appendIndexKey(nil, 1), []byte{recordVersion1, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, key, data []byte) {
		var u RecordUpgrade
		last, record, err := u.Convert(key, data)
		if err != nil {
			return
		}
		again := olderRecord(t, data[0], string(appendIndexKey(nil, last)), record)
		// The rows are not read: the blocks say the same.
		rows := len(again) - 4
		opened, err := openRecord(appendIndexKey(nil, last), record)
		if err != nil {
			t.Fatal(err)
		}
		if data[0] == recordVersion1 {
			rows -= 12 * int(opened.count())
		} else {
			rows -= len(opened.rows)
		}
		if !bytes.HasPrefix(data, again[:rows]) {
			t.Errorf("%x is read as %x", data, again)
		}
	})
}
