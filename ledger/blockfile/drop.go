package blockfile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

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

// Before returns where the files would begin without those of which every record lies before a ledger index.
// A file that a mark does not cover as sealed is kept. ok is false if there is nothing to drop.
func (f *Files) Before(ledgerIndex uint64, m Mark) (s Start, ok bool, err error) {
	v := f.published.Load()
	n := 0
	for n < len(v.sealed) && v.sealed[n].last < ledgerIndex && v.sealed[n].number < m.Number {
		n++
	}
	if n == 0 {
		return s, false, nil
	}
	last := v.sealed[n-1]
	if s, err = f.StartAt(last.number + 1); err != nil {
		return s, false, err
	}
	if s.After != last.last || s.Base != last.base+uint64(last.size) {
		return s, false, otherHeader(s.Number)
	}
	return s, true, nil
}

// StartAt returns where the files would begin with one of them, by its header. The hash in it is of all files before.
func (f *Files) StartAt(number uint64) (s Start, err error) {
	header, err := readFileHeader(f.disk, number)
	if err != nil {
		return s, fmt.Errorf("block file %s: %w; "+adviceRestore, Name(number), err)
	}
	if header.id != f.id || header.number != number {
		return s, otherHeader(number)
	}
	return Start{Number: number, Base: header.base, After: header.after, Previous: header.previous}, nil
}

func otherHeader(number uint64) error {
	return fmt.Errorf("%w: block file %s has another header than it had; "+adviceRestore,
		machine.ErrCorrupt, Name(number))
}

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

// Forget makes the files begin at a start that Before has returned, once it is recorded durably. Nothing must
// be appended meanwhile. A reader from before that comes to a file which is no longer there gets
// [machine.ErrDropped]. RemoveDropped removes the files.
func (f *Files) Forget(s Start) {
	c := &f.current
	n := 0
	for n < len(c.sealed) && c.sealed[n].number < s.Number {
		n++
	}
	c.sealed = slices.Clone(c.sealed[n:]) // a published view has the old one
	f.first.Store(s.Number)
	f.Publish()
	f.handles.drop(s.Number)
}

// RemoveDropped removes the files before the start, from the first on, so that a crash leaves no gap among
// those that are left.
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

// SealedFile is a file that does not change any more.
type SealedFile struct {
	Number uint64
	Last   uint64 // ledger index of its last record
	Size   int64  // bytes
}

// Sealed returns the sealed files before a number, in order. It never waits.
func (f *Files) Sealed(number uint64) (files []SealedFile) {
	for _, s := range f.published.Load().sealed {
		if s.number >= number {
			break
		}
		files = append(files, SealedFile{Number: s.number, Last: s.last, Size: s.size})
	}
	return files
}
