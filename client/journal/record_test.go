package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// everyRecord has a record of each kind, with all its fields set.
func everyRecord() map[string][]byte {
	w := write(0, "tag")
	w.Key, w.Sequence, w.Reserve = "key", 1, 300
	records := map[string][]byte{"stream": appendStream(nil, 1, one)}
	for name, r := range map[string]Record{
		"head": {Kind: KindHead, Head: Head{Ledger: 1 << 63, Session: 300, NextID: 0, NextSequence: 1,
			Attempt: make([]byte, attemptBytes)}},
		"write":        w,
		"settled":      {Kind: KindSettled, ID: 0, Receipt: []byte("r")},
		"acknowledged": {Kind: KindAcknowledged, ID: 300},
		"dropped":      {Kind: KindDropped, ID: 300},
		"remembered":   {Kind: kindRemembered, tag: Tag{"tag", time.Unix(300, 0)}},
	} {
		records[name] = appendRecord(nil, 1, &r)
	}
	return records
}

// A record that is cut off is refused at each byte, but for the payloads at the ends of writes and
// receipts, which are as long as the record is. One that is too long is refused where it has no payload.
func TestCutRecordsAreRefused(t *testing.T) {
	t.Parallel()
	for name, whole := range everyRecord() {
		body := whole[lengthBytes:]
		payload := map[string]int{"write": len(write(0, "tag").Request), "settled": 1}[name]
		for n := range body {
			_, err := decodeRecord(body[:n])
			if accepted := n >= len(body)-payload; (err == nil) != accepted {
				t.Errorf("%s: %d of %d bytes, of which %d are payload: %v", name, n, len(body), payload, err)
			}
			// The length before it says more than there is.
			if _, err := decodeGroup(whole[:lengthBytes+n]); !errors.Is(err, errShort) {
				t.Errorf("%s in a group of %d bytes of %d: %v", name, n, len(body), err)
			}
		}
		longer, err := decodeRecord(append(bytes.Clone(body), 'x'))
		if payload == 0 && (err == nil || !strings.Contains(err.Error(), "1 bytes too many")) {
			t.Errorf("%s and a byte: %+v, %v", name, longer, err)
		}
		for n := 1; n < lengthBytes; n++ {
			check.Is(t, check.Err(decodeGroup(append(bytes.Clone(whole), make([]byte, n)...))), errShort,
				"%s and %d bytes of a length", name, n)
		}
	}
}

// Each value that appendRecord would not write is refused, and named.
func TestRecordsNoJournalWrites(t *testing.T) {
	t.Parallel()
	number := func(kind Kind, fields ...any) (b []byte) {
		b = append(b, byte(kind), 1)
		for _, f := range fields {
			switch f := f.(type) {
			case int:
				b = binary.AppendUvarint(b, uint64(f))
			case string:
				b = appendText(b, f)
			case []byte:
				b = append(b, f...)
			}
		}
		return b
	}
	for want, body := range map[string][]byte{
		"unknown kind 99":                    number(99, 1),
		"a number with leading zeros":        number(KindDropped, []byte{0x81, 0x00}),
		"an attempt_id of 15 bytes, want 16": number(KindHead, 1, 1, strings.Repeat("a", 15), 1, 1),
		"a write that reserves 1048577 bytes": number(KindWrite, 1, 1, maxReserve+1, "key", "tag",
			[]byte("request")),
		"a remembered tag of 0 bytes":  number(kindRemembered, 300, ""),
		"acknowledged at second 10995": number(kindRemembered, maxSeconds+1, "tag"),
		errShort.Error(): number(KindDropped, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
			0x80, 0x80}), // more than 64 bits
		"ends in the middle": number(kindStream, "acme", 1<<40),
	} {
		if r, err := decodeRecord(body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %+v, %v", want, r, err)
		}
	}
}

// A file whose checksums are right, but whose records cannot follow one another, is damaged at the group
// that cannot be, and keeps what precedes it: a checksum shows no fault of the program that made it.
func TestRecordsThatCannotFollow(t *testing.T) {
	t.Parallel()
	two := Name{Organization: "acme", ClientID: "two"}
	head := func(h Head) []byte { return appendRecord(nil, 1, &Record{Kind: KindHead, Head: h}) }
	record := func(number uint64, r Record) []byte { return appendRecord(nil, number, &r) }
	written := func(id, sequence uint64, tag string) []byte {
		w := write(id, tag)
		w.Sequence = sequence
		return record(1, w)
	}
	begun := [][]byte{appendStream(nil, 1, one), head(Head{Ledger: 1, Session: 1, NextSequence: 1}),
		written(0, 1, "a"), written(1, 2, "")}
	for want, last := range map[string][]byte{
		"stream 1 is named twice":                  appendStream(nil, 1, two),
		"stream 2 is named twice":                  appendStream(nil, 2, one),
		"a record of stream 3, which has no name":  record(3, Record{Kind: KindDropped}),
		"the next sequence becomes 9 instead of 3": head(Head{NextID: 2, NextSequence: 9}),
		ErrTagInUse.Error():                        written(2, 3, "a"),
	} {
		content := appendHeader(nil, 7)
		place := int64(0)
		for _, records := range append(begun[:len(begun):len(begun)], last) {
			place = int64(len(content))
			group := append(make([]byte, groupHeader), records...)
			sealGroup(group, 7, place)
			content = append(content, group...)
		}
		streams := map[Name]*stream{}
		good, err := replay("journal", content, streams)
		damage, ok := errors.AsType[*DamageError](err)
		if !ok || damage.Offset != place || good != place || !strings.Contains(damage.Reason, want) {
			t.Errorf("want %q at byte %d, got %v with %d good bytes", want, place, err, good)
			continue
		}
		if s := streams[one]; s == nil || len(s.open()) != 2 || s.head.NextID != 2 {
			t.Errorf("%s: what precedes it is %+v", want, s)
		}
		if text := damage.Error(); !strings.Contains(text, "journal") || !strings.Contains(text, damage.Reason) {
			t.Errorf("%q", text)
		}
	}
}

// A header with the right checksum may be of a program to come. Such a file is not called damaged.
func TestHeadersOfOtherVersions(t *testing.T) {
	t.Parallel()
	for v, want := range map[uint32]string{
		0:       "x has format version 0, and this program reads version 1; keep it and use the program that wrote it",
		version: "", version + 1: "x has format version 2",
	} {
		b := appendHeader(nil, 7)
		binary.LittleEndian.PutUint32(b[len(magic):], v)
		binary.LittleEndian.PutUint32(b[headerBytes-4:], crc32.Checksum(b[:headerBytes-4], castagnoli))
		salt, err := parseHeader("x", b)
		if want == "" {
			if err != nil || salt != 7 {
				t.Errorf("version %d: salt %d, %v", v, salt, err)
			}
		} else if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: %v, want %q", v, err, want)
		}
	}
	other := filepath.Join("testdata", "version2.journal")
	check.Is(t, check.Err(Inspect(other)), ErrVersion, "inspecting")
	content, _ := os.ReadFile(other)
	path := temporary(t)
	check.Is(t, check.Err(Open(path, Options{storage: newMemory().set(path, content)})), ErrVersion, "opening")
}
