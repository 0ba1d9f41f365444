package blockfile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Start is where the files begin once earlier ones have been dropped: what the header of the first one says,
// so that it must be that very file. The zero Start is the first file of all.
type Start struct {
	Number   uint64            // of the first file, from 1
	Base     uint64            // how many bytes were before it
	After    uint64            // ledger index of the last record before it
	Previous [sha256.Size]byte // hash of the file before it
}

const startSize = 3*8 + sha256.Size

// Append appends the encoding of the start.
func (s Start) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, s.Number)
	dst = binary.BigEndian.AppendUint64(dst, s.Base)
	dst = binary.BigEndian.AppendUint64(dst, s.After)
	return append(dst, s.Previous[:]...)
}

// DecodeStart is the inverse of [Start.Append].
func DecodeStart(b []byte) (s Start, err error) {
	if len(b) != startSize {
		return s, fmt.Errorf("%w: start of the block files of %d bytes, expected %d",
			machine.ErrCorrupt, len(b), startSize)
	}
	s.Number, s.Base = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	s.After = binary.BigEndian.Uint64(b[16:])
	copy(s.Previous[:], b[24:])
	if s.Number < 2 || s.Base == 0 || s.After == 0 {
		return s, fmt.Errorf("%w: the start of the block files makes no sense", machine.ErrCorrupt)
	}
	return s, nil
}

// header is what the first file must begin with.
func (s Start) header(id [16]byte) fileHeader {
	return fileHeader{id: id, number: max(s.Number, 1), base: s.Base, after: s.After, previous: s.Previous}
}

// Before returns where the files would begin without those that have only records before a ledger index.
// A file that a mark does not cover as sealed is kept. ok is false if there is nothing to drop.
func (f *Files) Before(ledgerIndex uint64, m Mark) (s Start, ok bool, err error) {
	v := f.published.Load()
	n := 0
	for n < len(v.sealed) && v.sealed[n].Last < ledgerIndex && v.sealed[n].Number < m.Number {
		n++
	}
	if n == 0 {
		return s, false, nil
	}
	last := v.sealed[n-1]
	if s, err = f.StartAt(last.Number + 1); err != nil {
		return s, false, err
	}
	if s.header(f.id) != last.next(f.id) {
		return s, false, f.wrong(s.Number, errOtherHeader)
	}
	return s, true, nil
}

// StartAt returns where the files would begin with one of them, by its header. The hash in it is of all files before.
func (f *Files) StartAt(number uint64) (s Start, err error) {
	header, err := readFileHeader(f.disk, number)
	if err == nil && (header.id != f.id || header.number != number) {
		err = errOtherHeader
	}
	if err != nil {
		return s, f.wrong(number, err)
	}
	return Start{Number: number, Base: header.base, After: header.after, Previous: header.previous}, nil
}

var errOtherHeader = fmt.Errorf("%w: it has another header than it had", machine.ErrCorrupt)

func readFileHeader(d Disk, number uint64) (h fileHeader, err error) {
	file, err := d.OpenSealed(Name(number))
	if err != nil {
		return h, err
	}
	b := make([]byte, headerSize)
	if _, err = file.ReadAt(b, 0); err == nil || isEOF(err) {
		h, err = decodeFileHeader(b)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return h, err
}

// Forget makes the files begin at a start that Before has returned, once it is recorded durably. Nothing must be
// appended meanwhile. An earlier reader that reaches a removed file gets [machine.ErrDropped]. RemoveDropped removes
// the files.
func (f *Files) Forget(s Start) {
	c := &f.current
	n := 0
	for n < len(c.sealed) && c.sealed[n].Number < s.Number {
		n++
	}
	c.sealed = slices.Clone(c.sealed[n:]) // which gives the memory of the others free
	c.first = s.header(f.id)
	f.first.Store(s.Number)
	f.Publish()
	f.handles.drop(s.Number)
}

// RemoveDropped removes the files before the start, from the first on, so that a crash leaves no gap among those that
// are left. The start must be recorded durably. After Open, too, they may be there still.
func (f *Files) RemoveDropped() error {
	numbers, err := List(f.disk)
	if err != nil {
		return err
	}
	removed := false
	for _, number := range numbers {
		if number >= f.first.Load() {
			break
		}
		if err := f.disk.Remove(Name(number)); err != nil {
			return fmt.Errorf("remove block file %s, which was dropped: %w", Name(number), err)
		}
		removed = true
	}
	if !removed {
		return nil
	}
	if err := f.disk.Sync(); err != nil {
		return fmt.Errorf("sync the directory of the block files: %w", err)
	}
	return nil
}

// SealedFile is a file that does not change any more. A checkpoint records it, so that the next start need not read
// the file.
type SealedFile struct {
	Number uint64
	Last   uint64            // ledger index of its last record
	End    int64             // where its records end and its footer begins
	Size   int64             // bytes
	Hash   [sha256.Size]byte // of everything before its footer
}

const sealedSize = 3*8 + sha256.Size

// Append appends the encoding, which does not have the number.
func (s SealedFile) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, s.Last)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.End))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Size))
	return append(dst, s.Hash[:]...)
}

// DecodeSealed is the inverse of [SealedFile.Append].
func DecodeSealed(number uint64, b []byte) (s SealedFile, err error) {
	if len(b) != sealedSize {
		return s, fmt.Errorf("%w: record of block file %d of %d bytes, expected %d",
			machine.ErrCorrupt, number, len(b), sealedSize)
	}
	s.Number, s.Last = number, binary.BigEndian.Uint64(b)
	s.End, s.Size = int64(binary.BigEndian.Uint64(b[8:])), int64(binary.BigEndian.Uint64(b[16:]))
	copy(s.Hash[:], b[24:])
	if s.Number == 0 || s.Last == 0 || s.End <= int64(headerSize) || s.Size < s.End+int64(trailerSize) {
		return s, fmt.Errorf("%w: the record of block file %d makes no sense", machine.ErrCorrupt, number)
	}
	return s, nil
}

// Sealed returns the sealed files before a number, in order. It never waits.
func (f *Files) Sealed(number uint64) []SealedFile { return f.SealedFrom(0, number) }

// SealedFrom is Sealed from a number on.
func (f *Files) SealedFrom(from, number uint64) (files []SealedFile) {
	sealed := f.published.Load().sealed
	first := sort.Search(len(sealed), func(i int) bool { return sealed[i].Number >= from })
	for _, s := range sealed[first:] {
		if s.Number >= number {
			break
		}
		files = append(files, s.SealedFile)
	}
	return files
}

// SealedBefore returns the first sealed files, those that have only records before a ledger index, in order. It never
// waits.
func (f *Files) SealedBefore(ledgerIndex uint64) (files []SealedFile) {
	for _, s := range f.published.Load().sealed {
		if s.Last >= ledgerIndex {
			break
		}
		files = append(files, s.SealedFile)
	}
	return files
}
