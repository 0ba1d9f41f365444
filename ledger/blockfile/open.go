package blockfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Options say how to open block files.
type Options struct {
	Disk Disk
	// Mark is what the checkpoint recorded; for a new directory its ID and SealBytes
	// alone.
	Mark Mark
	// Start is where the files begin; the zero Start is the first file. What lies before it was dropped; see
	// RemoveDropped.
	Start Start
	// Sealed is what earlier checkpoints recorded of sealed files, in order; some of them or all may be missing.
	Sealed []SealedFile
	// ReadOnly keeps what is appended in memory, beside a copy of the file that is
	// still written.
	ReadOnly bool
}

// Open opens the files up to a mark, and notes what follows it for the caller to append again. It reads all of the
// active file. Of the sealed files in Options.Sealed it only checks that they exist, because there may be some hundred
// thousand: each is compared with its entry at its first read, and by a scrub. Of the others it reads the header and
// the end. Damage is [machine.ErrCorrupt].
func Open(o Options) (*Files, error) {
	f := &Files{disk: o.Disk, sealBytes: o.Mark.SealBytes, id: o.Mark.ID, found: map[uint64]int64{}}
	if o.ReadOnly {
		f.disk = newScratch(o.Disk)
	}
	f.handles.init(f.disk)
	f.first.Store(max(o.Start.Number, 1))
	numbers, err := List(f.disk)
	if err == nil {
		err = f.open(numbers, o)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.Publish()
	return f, nil
}

func (f *Files) open(numbers []uint64, o Options) error {
	mark, next := o.Mark, o.Start.header(o.Mark.ID)
	f.current.first = next
	for _, number := range numbers {
		if number >= mark.Number {
			f.found[number] = 0
		}
	}
	if mark.Number > 0 && mark.Number < next.number {
		return fmt.Errorf("%w: the block files begin with number %d and end with %d; "+adviceRestore,
			machine.ErrCorrupt, next.number, mark.Number)
	}
	known := o.Sealed
	for next.number < mark.Number {
		for len(known) > 0 && known[0].Number < next.number {
			known = known[1:]
		}
		var err error
		if len(known) > 0 && known[0].Number == next.number {
			next, err = f.addKnown(numbers, next, known[0])
		} else {
			next, err = f.openSealed(next)
		}
		if err != nil {
			return f.wrong(next.number, err)
		}
	}
	if mark.Number > 0 {
		if err := f.openActive(next, mark); err != nil {
			return f.wrong(mark.Number, err)
		}
	}
	for number := range f.found {
		size, err := f.sizeOf(number)
		if err != nil {
			return err
		}
		f.found[number] = size
	}
	return nil
}

// addKnown adds a file from the record of a checkpoint, if it exists. The header of the active file proves that all
// records belong together.
func (f *Files) addKnown(numbers []uint64, header fileHeader, known SealedFile) (next fileHeader, err error) {
	if _, there := slices.BinarySearch(numbers, known.Number); !there {
		return header, fs.ErrNotExist
	}
	s := sealedFile{known, header.base}
	f.current.sealed = append(f.current.sealed, s)
	return s.next(header.id), nil
}

func (f *Files) sizeOf(number uint64) (int64, error) {
	file, err := f.disk.OpenSealed(Name(number))
	if err != nil {
		return 0, f.wrong(number, err)
	}
	size, err := file.Size()
	return size, errors.Join(err, file.Close())
}

// openSealed checks the ends of a sealed file, whose header must be want, and
// returns the header that the next file must have.
func (f *Files) openSealed(want fileHeader) (next fileHeader, err error) {
	file, err := f.disk.OpenSealed(Name(want.number))
	if err != nil {
		return want, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := checkHeader(file, want); err != nil {
		return want, err
	}
	foot, _, size, err := readTrailer(file)
	if err != nil {
		return want, err
	}
	s := sealedFile{base: want.base, SealedFile: SealedFile{
		Number: want.number, Last: foot.last, End: foot.end, Size: size, Hash: foot.hash,
	}}
	f.current.sealed = append(f.current.sealed, s)
	return s.next(want.id), nil
}

func checkHeader(file File, want fileHeader) error {
	b := make([]byte, headerSize)
	if _, err := file.ReadAt(b, 0); err != nil && !isEOF(err) {
		return err
	}
	h, err := decodeFileHeader(b)
	if err == nil && h != want {
		err = fmt.Errorf("%w: its header does not follow the file before it, or names another directory: "+
			"it is file %d behind ledger index %d", machine.ErrCorrupt, h.number, h.after)
	}
	return err
}

// readTrailer reads the end of a sealed file, and the checksum of its index.
func readTrailer(file File) (foot footer, sum uint32, size int64, err error) {
	if size, err = file.Size(); err != nil {
		return foot, 0, 0, err
	}
	b := make([]byte, trailerSize)
	if size < int64(headerSize+trailerSize) {
		return foot, 0, 0, fmt.Errorf("%w: it has only %d bytes", machine.ErrCorrupt, size)
	}
	if _, err := file.ReadAt(b, size-int64(trailerSize)); err != nil {
		return foot, 0, 0, err
	}
	foot, sum, err = decodeTrailer(b, size)
	return foot, sum, size, err
}

// openActive checks the whole file of the mark, and continues it.
func (f *Files) openActive(header fileHeader, mark Mark) error {
	file, err := f.disk.Open(Name(mark.Number), false)
	if err != nil {
		return err
	}
	f.current.active, f.current.header = f.handles.addActive(mark.Number, file, f.sealBytes), header
	if err := checkHeader(file, header); err != nil {
		return err
	}
	size, err := file.Size()
	if err != nil {
		return err
	}
	if size < mark.Length {
		return fmt.Errorf("%w: it has %d bytes and must have %d", machine.ErrCorrupt, size, mark.Length)
	}
	f.hash = sha256.New()
	_, _ = f.hash.Write(header.encode()) // never fails
	f.current.last, f.current.end = header.after, int64(headerSize)
	s := newScanner(file, mark.Length)
	for f.current.end < mark.Length {
		record, ok, err := s.next(header.base, f.current.end)
		if err != nil {
			return err
		}
		h, _ := decodeRecordHeader(record, header.base+uint64(f.current.end))
		if !ok || h.last <= f.current.last {
			return fmt.Errorf("%w: no whole record at byte %d", machine.ErrCorrupt, f.current.end)
		}
		f.took(record, h.last)
	}
	if f.current.end == mark.Length && f.current.last == mark.Last && f.sum() != mark.Hash {
		return fmt.Errorf("%w: it has other bytes than at the checkpoint: it is of another directory or time",
			machine.ErrCorrupt)
	}
	if f.current.end != mark.Length || f.current.last != mark.Last {
		return fmt.Errorf("%w: its records end at byte %d with ledger index %d, and must end at byte %d with %d",
			machine.ErrCorrupt, f.current.end, f.current.last, mark.Length, mark.Last)
	}
	return nil
}
