package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// older returns the state as the program had it that wrote the log, whose records of blocks
// and heads of chains were others, and which had an index of heights.
func (l *oldLog) older(t testing.TB, mem *Memory) *Memory {
	t.Helper()
	older := mem.Clone()
	older.Clear(TableBlocks)
	put := func(table Table, key, value []byte) {
		if err := older.Put(table, key, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range mem.tables[TableBlocks].keys {
		record := mem.tables[TableBlocks].values[key]
		opened, err := openRecord([]byte(key), record)
		if err != nil {
			t.Fatal(err)
		}
		i, _ := slices.BinarySearch(l.ends, opened.last)
		last := appendIndexKey(nil, l.ends[i])
		put(TableBlocks, last, olderRecord(t, recordVersion1, key, record))
		number := uint64(0)
		_ = opened.visitBlocks(func(_ place, b *blockRecord) bool {
			height := binary.BigEndian.AppendUint64(appendScopeKey(nil, b.header.Scope), b.header.Height)
			put(TableBlocks+1, height, binary.AppendUvarint(bytes.Clone(last), number))
			number++
			return true
		})
	}
	for _, key := range mem.tables[TableScopes].keys {
		put(TableScopes, []byte(key), olderHead(t, mem.tables[TableScopes].values[key]))
	}
	return older
}

// A log of level 1 gives the digest, and every record, that it gave to the
// program that wrote it.
func TestLogsOfLevel1(t *testing.T) {
	t.Parallel()
	for _, log := range logsOfLevel(t, 1) {
		mem := log.replay(t)
		older := log.older(t, mem)
		for table := range mem.tables {
			if Table(table) == TableMeta {
				continue // the head has got more fields since
			}
			h := sha256.New()
			for _, key := range older.tables[table].keys {
				value := older.tables[table].values[key]
				h.Write(appendBytes(appendBytes(nil, key), value))
			}
			name := fmt.Sprintf("table %d", table)
			if log.want[name] == "" && len(older.tables[table].keys) == 0 {
				continue // a table that level 1 did not have
			}
			if got := hex.EncodeToString(h.Sum(nil)); got != log.want[name] {
				t.Errorf("%s: %s is not what it was", log.name, name)
			}
		}
		m, err := Open(mem)
		if err != nil {
			t.Fatal(err)
		}
		if problems := audit(t, m, mem); len(problems) != 0 {
			t.Errorf("%s: %v", log.name, problems)
		}
	}
}

// A ledger of level 1 goes on at level 2: what it has is read, changed and
// evicted as before.
func TestLedgerOfLevel1GoesOn(t *testing.T) {
	t.Parallel()
	for _, log := range logsOfLevel(t, 1) {
		mem := log.replay(t)
		m, err := Open(mem)
		if err != nil {
			t.Fatal(err)
		}
		f := &fixture{TB: t, mem: mem, m: m, now: m.head.time}
		if out := f.one(AppendRaiseLevel(nil, Level)); out.Code != Committed || f.m.head.level != Level {
			t.Fatalf("%s: raising the level gave %v, it is %d", log.name, out.Code, f.m.head.level)
		}
		if out := f.one(AppendRaiseLevel(nil, Level)); out.Code != InvalidArgument {
			t.Errorf("%s: raising the level again gave %v", log.name, out.Code)
		}
		f.configure(ConfigUpdate{MaxStreams: new(uint64(1_000))})
		var streams []NamedStream
		if _, err := f.view().VisitStreams(nil, nil, func(_ []byte, s NamedStream) bool {
			streams = append(streams, s)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		for _, s := range streams {
			w := appendWrite(s.ClientID, s.Last+1, 0, "level 2")
			w.Scope, w.Session = s.Scope, s.Session
			if s.Session < f.m.head.epochStart() && s.Session != 0 {
				f.refuse(w, SessionExpired)
				continue
			}
			f.commit(w)
			f.refuse(w, Replayed)
		}
		f.commit(operations("new", 1, 0, set("k", longValue), set("k1", longValue)))
		f.commit(operations("new", 2, 0,
			provided(set("k", "x"), Condition{Kind: ConditionValueEquals, Value: []byte(longValue)})))
		f.now += m.head.config.ClientTTL + second
		f.configure(ConfigUpdate{EvictionLimit: new(uint64(1_000))})
		f.round()
		if n := f.view().Streams(); n != 0 {
			t.Errorf("%s: %d streams are left", log.name, n)
		}
		if err := readBack(f.mem, nil); err != nil {
			t.Errorf("%s: %v", log.name, err)
		}
		if problems := audit(t, f.m, f.mem); len(problems) != 0 {
			t.Errorf("%s: %v", log.name, problems)
		}
	}
}

// What was stored under level 1 has encodings of its own, which are still read.
func TestGoldenLevel1BytesDecode(t *testing.T) {
	t.Parallel()
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join("testdata", "level1", name+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	h, err := decodeHead(read("head"))
	if err != nil || h.level != 1 || h.index != 1<<40+8 || h.streams != 3 || len(h.epochs) != 2 ||
		h.epochs[1].id != 0xfeed {
		t.Errorf("the head reads back as %+v, %v", h, err)
	}
	header, commands, err := DecodeEntry(read("entry"))
	if err != nil || header != (EntryHeader{UnixNanos: testStart}) || len(commands) != 2 {
		t.Errorf("the entry reads back as %+v with %d commands, %v", header, len(commands), err)
	}
	e, err := decodeEntity(read("record_entity_long"))
	if err != nil || e.inBlock != entityInBlockLevel1 || e.at != 999 {
		t.Errorf("the entity reads back as %+v, %v", e, err)
	}
	if b, err := decodeEntity([]byte{entityInBlockLevel1, 1, 0, 0xe8, 0x07}); err == nil {
		t.Errorf("operation 1,000 of a write reads back as %+v", b)
	}
}
