package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// FuzzJournalFile reads any bytes as a journal. It must not panic, must give a
// place in the file with every damage, and what it accepts must survive being
// written anew.
func FuzzJournalFile(f *testing.F) {
	m, path := newMemory(), f.TempDir()+"/journal"
	j := m.open(f, path, Options{})
	begin(f, j)
	add(f, j, write(0, "a"), write(1, ""), Record{Kind: KindSettled, ID: 0, Receipt: []byte("r")})
	add(f, j, Record{Kind: KindDropped, ID: 1}, Record{Kind: KindAcknowledged, ID: 0})
	f.Add(m.seen[path].written)
	content := must.Get(os.ReadFile(golden))(f)
	f.Add(content)
	f.Fuzz(func(t *testing.T, content []byte) {
		streams := make(map[Name]*stream)
		good, err := replay("journal", content, streams)
		if errors.Is(err, ErrVersion) {
			return
		}
		if err != nil {
			if damage, ok := errors.AsType[*DamageError](err); !ok || damage.Offset < 0 ||
				damage.Offset > int64(len(content)) {
				t.Fatalf("want damage with its place, got %v", err)
			}
			return
		}
		if good < headerBytes || good > int64(len(content)) {
			t.Fatalf("%d good bytes of %d", good, len(content))
		}
		again := &File{streams: streams}
		written := again.snapshot()
		reread := make(map[Name]*stream)
		if good, err := replay("journal", written, reread); err != nil || good != int64(len(written)) {
			t.Fatalf("what was read cannot be written: %d of %d, %v", good, len(written), err)
		}
		before, after := states(streams), states(reread)
		if len(before) != len(after) {
			t.Fatalf("%d streams became %d", len(before), len(after))
		}
		for i := range before {
			if !equal(before[i], after[i]) || fmt.Sprint(before[i].Remembered) != fmt.Sprint(after[i].Remembered) {
				t.Fatalf("%+v became %+v", before[i], after[i])
			}
		}
	})
}

// FuzzJournalRecord reads any bytes as the records of a group, whose checksum
// would stop them otherwise. What is accepted has one encoding.
func FuzzJournalRecord(f *testing.F) {
	f.Add(appendStream(nil, 1, one))
	for _, r := range []Record{write(5, "tag"),
		{Kind: KindHead, Head: Head{Ledger: 1 << 63, Session: 300, NextID: 2,
			NextSequence: 3, Attempt: make([]byte, attemptBytes)}},
		{Kind: KindSettled, ID: 1, Receipt: []byte("r")}, {Kind: KindAcknowledged, ID: 128}, {Kind: KindDropped},
		{Kind: kindRemembered, tag: Tag{"tag", time.Unix(300, 0)}}} {
		f.Add(appendRecord(nil, 1, &r))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		records, err := decodeGroup(body)
		if err != nil {
			return
		}
		var again []byte
		streams := map[uint64]*stream{}
		for i := range records {
			r := &records[i]
			if r.Kind == kindStream {
				again = appendStream(again, r.number, r.name)
				streams[r.number] = newStream(r.name, r.number)
				continue
			}
			again = appendRecord(again, r.number, &r.Record)
			if s := streams[r.number]; s != nil {
				_ = s.apply(&r.Record) // must not panic
			}
		}
		if !bytes.Equal(again, body) {
			t.Fatalf("%x was read and is written as %x", body, again)
		}
	})
}
