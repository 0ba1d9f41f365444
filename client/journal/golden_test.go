package journal

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

var update = flag.Bool("update", false, "write testdata/golden.journal, whose change is a change of the format")

// golden is a journal with every kind of record. The TypeScript client reads the same file and writes the same bytes
// (client/typescript/test/filejournal.test.ts).
const golden = "testdata/golden.journal"

// goldenGroups are the records of the golden file, group by group.
func goldenGroups() [][]byte {
	till, other := uint64(1), uint64(300)
	add := func(b []byte, number uint64, records ...Record) []byte {
		for i := range records {
			b = appendRecord(b, number, &records[i])
		}
		return b
	}
	written := func(id, sequence uint64, tag string) Record {
		r := Record{Kind: KindWrite, ID: id, Sequence: sequence, Key: "0190b2d6-key", Tag: tag,
			Request: []byte("\x32\x05\x2a\x03\x0a\x01\xff")} // an append of one byte
		if tag != "" {
			r.Reserve = 1040
		}
		return r
	}
	attempt := []byte("\x00\x01\x7f\x80\xfffixed bytes")
	first := appendStream(nil, till, Name{Organization: "acme", Vault: "main", ClientID: "till ü 1"})
	first = add(first, till,
		Record{Kind: KindHead, Head: Head{Ledger: 1<<63 + 5, Attempt: attempt}},
		Record{Kind: KindHead, Head: Head{Ledger: 1<<63 + 5, Session: 1 << 40, NextSequence: 127}})
	return [][]byte{
		first,
		add(nil, till, written(0, 127, "told"), written(1, 128, ""), written(2, 129, "acknowledged €")),
		add(nil, till,
			Record{Kind: KindSettled, ID: 0, Receipt: []byte("\x0a\x04tx 0")},
			Record{Kind: KindSettled, ID: 1},
			Record{Kind: KindSettled, ID: 2, Receipt: []byte("\x0a\x04tx 2")},
			Record{Kind: KindAcknowledged, ID: 2}),
		add(nil, till, Record{Kind: kindRemembered, tag: Tag{"told", time.Unix(1_700_000_000, 0)}}),
		add(appendStream(nil, other, Name{Organization: "a/b", ClientID: "c"}), other,
			Record{Kind: KindHead,
				Head: Head{Ledger: 1, Session: 1<<64 - 1, NextID: 1 << 32, NextSequence: 1<<64 - 2}}),
		add(nil, till, written(3, 130, "refused"), written(4, 131, ""), Record{Kind: KindDropped, ID: 3}),
		add(nil, till, written(5, 130, "under way")),
	}
}

// TestGoldenFile: the bytes of the format stay, what is read from them is written as the same bytes, and they
// mean what they meant.
func TestGoldenFile(t *testing.T) {
	t.Parallel()
	content := appendHeader(nil, 0x0123456789abcdef)
	for _, records := range goldenGroups() {
		group := append(make([]byte, groupHeader), records...)
		sealGroup(group, 0x0123456789abcdef, int64(len(content)))
		content = append(content, group...)
	}
	content = append(content, make([]byte, 64)...) // allocated for groups to come
	if *update {
		must.Do(t, os.WriteFile(golden, content, 0o600))
	}
	want, err := os.ReadFile(golden)
	must.Do(t, err)
	if !bytes.Equal(content, want) {
		t.Errorf("this version writes other bytes:\n got %x\nwant %x", content, want)
	}
	kinds := map[Kind]bool{}
	again := appendHeader(nil, binary.LittleEndian.Uint64(want[12:]))
	_, err = scan(golden, want, func(offset int64, body []byte) error {
		records, err := decodeGroup(body)
		group := make([]byte, groupHeader)
		for _, r := range records {
			kinds[r.Kind] = true
			if r.Kind == kindStream {
				group = appendStream(group, r.number, r.name)
			} else {
				group = appendRecord(group, r.number, &r.Record)
			}
		}
		sealGroup(group, 0x0123456789abcdef, offset)
		again = append(again, group...)
		return err
	})
	if err != nil || !bytes.Equal(again, bytes.TrimRight(want, "\x00")) || len(kinds) != int(kindRemembered) {
		t.Errorf("of %d kinds, %x comes back as %x (%v)", len(kinds), want, again, err)
	}
	report, err := Inspect(golden)
	if err != nil || report.Damage != nil || report.Bytes != report.Good {
		t.Fatalf("%+v, %v", report, err)
	}
	at := slices.IndexFunc(report.Streams, func(s State) bool { return s.Name.Organization == "acme" })
	till := report.Streams[at]
	if len(report.Streams) != 2 || till.Head.Session != 1<<40 || till.Head.NextID != 6 ||
		till.Head.NextSequence != 131 || len(till.Entries) != 1 || till.Entries[0].Tag != "under way" ||
		till.Entries[0].Settled {
		t.Errorf("%+v", report.Streams)
	}
}
