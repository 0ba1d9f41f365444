package blockfile

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// FuzzDecoders: whatever is decoded without an error is encoded to the same bytes.
func FuzzDecoders(f *testing.F) {
	header := fileHeader{id: testID, number: 2, base: 900, after: 7}
	foot := footer{index: index{{1, int64(headerSize)}}, end: int64(headerSize) + 100, last: 3}
	mark := Mark{ID: testID, SealBytes: 400, Number: 1, Length: int64(headerSize) + 40, Last: 1}
	f.Add(header.encode())
	f.Add(foot.encode())
	f.Add(mark.Append(nil))
	f.Add(Start{Number: 2, Base: 900, After: 7}.Append(nil))
	f.Add((&recordHeader{size: 5, position: 100, last: 9}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeFileHeader(b); err == nil && !bytes.Equal(h.encode(), b[:headerSize]) {
			t.Errorf("header %+v", h)
		}
		if m, err := DecodeMark(b); err == nil && !bytes.Equal(m.Append(nil), b) {
			t.Errorf("mark %+v", m)
		}
		if s, err := DecodeStart(b); err == nil && !bytes.Equal(s.Append(nil), b) {
			t.Errorf("start %+v", s)
		}
		if len(b) >= 16 {
			h, ok := decodeRecordHeader(b, uint64(b[15]))
			if ok && !bytes.Equal(h.append(nil), b[:recordHeaderSize]) {
				t.Errorf("record %+v", h)
			}
		}
		trailer := b[max(0, len(b)-trailerSize):]
		foot, sum, err := decodeTrailer(trailer, int64(headerSize+len(b)))
		if err != nil {
			return
		}
		if foot.index, err = decodeIndex(b[:len(b)-trailerSize], sum); err == nil && !bytes.Equal(foot.encode(), b) {
			t.Errorf("footer %+v", foot)
		}
	})
}

// Names lead to numbers and back, and nothing else is the name of a file.
func TestNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Uint64Min(1).Draw(t, "number")
		if got, ok := ParseName(Name(number)); !ok || got != number {
			t.Fatalf("%s is %d, %v", Name(number), got, ok)
		}
	})
	for _, name := range []string{
		"", ".blocks", "0000000000.blocks", "1.blocks", "00000000001.blocks", "-000000001.blocks", "+000000001.blocks",
		"0000000001.block", "0000000001.blocks.new", " 000000001.blocks", "0000000001.BLOCKS",
		"99999999999999999999.blocks",
	} {
		if number, ok := ParseName(name); ok {
			t.Errorf("%q is taken for file %d", name, number)
		}
	}
}

// The index leads to a record at or before the one that is looked for, never behind it, and skips at most a
// stride of them.
func TestIndexStart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var x index
		var all []entry
		offset, last := int64(headerSize), uint64(0)
		for range rapid.IntRange(0, 60).Draw(t, "records") {
			last += rapid.Uint64Range(1, 5).Draw(t, "gap")
			x, all = x.add(last, offset), append(all, entry{last, offset})
			offset += rapid.Int64Range(recordHeaderSize, stride).Draw(t, "size")
		}
		wanted := rapid.Uint64Range(0, last+2).Draw(t, "wanted")
		at := slices.IndexFunc(all, func(e entry) bool { return e.last >= wanted })
		start := x.start(wanted)
		if !slices.ContainsFunc(all, func(e entry) bool { return e.offset == start }) && start != int64(headerSize) {
			t.Fatalf("the walk begins at %d, where no record is", start)
		}
		if at < 0 {
			return
		}
		if start > all[at].offset {
			t.Fatalf("the walk begins at %d, behind the record at %d", start, all[at].offset)
		}
		if behind := all[at].offset - start; behind > 2*stride {
			t.Fatalf("the walk passes %d bytes", behind)
		}
	})
}

// What makes no sense is refused although its length is right.
func TestImpossibleMarks(t *testing.T) {
	t.Parallel()
	good := Mark{ID: testID, SealBytes: 400, Number: 1, Length: int64(headerSize) + 40, Last: 1}
	for name, change := range map[string]func(m *Mark){
		"no length to seal at":    func(m *Mark) { m.SealBytes = 0 },
		"a negative one":          func(m *Mark) { m.SealBytes = -1 },
		"records in no file":      func(m *Mark) { m.Number = 0 },
		"a file without records":  func(m *Mark) { m.Length = int64(headerSize) },
		"a record without number": func(m *Mark) { m.Last = 0 },
		"a negative length":       func(m *Mark) { m.Length = -1 },
	} {
		m := good
		change(&m)
		if got, err := DecodeMark(m.Append(nil)); !errors.Is(err, machine.ErrCorrupt) {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	check.Equal(t, must.Get(DecodeMark(good.Append(nil)))(t), good)
	start := Start{Number: 2, Base: 900, After: 7}
	for name, change := range map[string]func(s *Start){
		"the first file":      func(s *Start) { s.Number = 1 },
		"nothing before it":   func(s *Start) { s.Base = 0 },
		"no record before it": func(s *Start) { s.After = 0 },
	} {
		s := start
		change(&s)
		if got, err := DecodeStart(s.Append(nil)); !errors.Is(err, machine.ErrCorrupt) {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}
