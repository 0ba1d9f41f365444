package blockfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seqledger/seqledger/ledger/machine"
)

const adviceRestore = "restore the data directory from a backup"

// Options say how to open block files.
type Options struct {
	Disk Disk
	// Mark is what the checkpoint recorded; for a new directory its ID and SealBytes
	// alone.
	Mark Mark
	// Start is where the files begin; the zero Start is the first file. What lies before it was dropped, and
	// is removed.
	Start Start
	// ReadOnly keeps what is appended in memory, beside a copy of the file that is
	// still written.
	ReadOnly bool
}

// Files are the block files of a ledger. One goroutine calls Append, Publish and
// Finish; the other methods are safe for concurrent use. After an error of
// Append, Sync or Finish nothing may be appended or synced any more.
type Files struct {
	disk      Disk
	sealBytes int64
	id        [16]byte

	// What follows belongs to the goroutine that appends.
	current view      // with what is not published yet
	hash    hash.Hash // of the active file up to current.end
	frame   []byte    // scratch: a record
	there   []byte    // scratch: what a file has already
	// found is how long the files were that Open found at and behind the mark, by
	// number; nil once Finish has cut them.
	found map[uint64]int64

	published atomic.Pointer[view]
	unsynced  atomic.Int64  // bytes
	first     atomic.Uint64 // number of the first file

	handles handles

	dirtyMu sync.Mutex
	dirty   []*handle // with bytes that are not synced; each is held
	names   bool      // there are names that are not synced
}

// view is the files at one moment. It does not change.
type view struct {
	sealed []sealedFile
	active *handle // nil before the first record
	header fileHeader
	end    int64 // the length of the active file
	last   uint64
	index  index // of the active file
}

// sealedFile is what is in memory of a sealed file.
type sealedFile struct {
	number, base, last uint64
	end                int64 // where its footer begins
	size               int64 // with the footer
}

// Name returns the name of a file.
func Name(number uint64) string { return fmt.Sprintf("%010d.blocks", number) }

// parseName is the inverse of Name.
func parseName(name string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".blocks")
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil && number > 0 && Name(number) == name
}

// List returns the numbers of the files that are there, in ascending order.
func List(d Disk) ([]uint64, error) {
	names, err := d.List()
	if err != nil {
		return nil, fmt.Errorf("list the block files: %w", err)
	}
	var numbers []uint64
	for _, name := range names {
		if number, ok := parseName(name); ok {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// Open opens the files up to a mark, and notes what lies behind it for the caller
// to append again. It checks the header and the end of each sealed file, and all
// of the file that is still written. Damage is [machine.ErrCorrupt].
func Open(o Options) (*Files, error) {
	f := &Files{disk: o.Disk, sealBytes: o.Mark.SealBytes, id: o.Mark.ID, found: map[uint64]int64{}}
	if o.ReadOnly {
		f.disk = newScratch(o.Disk)
	}
	f.handles.init(f.disk)
	f.first.Store(max(o.Start.Number, 1))
	if err := f.open(o.Mark, o.Start); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !o.ReadOnly {
		if err := f.RemoveDropped(); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	f.Publish()
	return f, nil
}

func (f *Files) open(mark Mark, start Start) error {
	numbers, err := List(f.disk)
	if err != nil {
		return err
	}
	for _, number := range numbers {
		if number >= mark.Number {
			f.found[number] = 0
		}
	}
	next := start.header(mark.ID)
	if mark.Number > 0 && mark.Number < next.number {
		return fmt.Errorf("%w: the block files begin with number %d and end with %d; "+adviceRestore,
			machine.ErrCorrupt, next.number, mark.Number)
	}
	for next.number < mark.Number {
		if next, err = f.openSealed(next); err != nil {
			return fmt.Errorf("block file %s: %w; "+adviceRestore, Name(next.number), err)
		}
	}
	if mark.Number > 0 {
		if err := f.openActive(next, mark); err != nil {
			return fmt.Errorf("block file %s: %w; "+adviceRestore, Name(mark.Number), err)
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

func (f *Files) sizeOf(number uint64) (int64, error) {
	file, err := f.disk.OpenSealed(Name(number))
	if err != nil {
		return 0, fmt.Errorf("block file %s: %w", Name(number), err)
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
	f.current.sealed = append(f.current.sealed,
		sealedFile{number: want.number, base: want.base, last: foot.last, end: foot.end, size: size})
	return fileHeader{
		id: want.id, number: want.number + 1, base: want.base + uint64(size), after: foot.last, previous: foot.hash,
	}, nil
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

// openActive checks the whole file that the mark is in, and goes on there.
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

// took counts a record in that the active file has.
func (f *Files) took(record []byte, last uint64) {
	_, _ = f.hash.Write(record) // never fails
	f.current.index = f.current.index.add(last, f.current.end)
	f.current.end += int64(len(record))
	f.current.last = last
}

// Append adds a record, which is found by the ledger index last. That must be
// above the one before. The record is not durable before Sync, and no reader but
// that of the appending goroutine sees it before Publish.
func (f *Files) Append(last uint64, data []byte) error {
	if last <= f.current.last || len(data) > MaxRecord {
		return fmt.Errorf("append blocks up to ledger index %d (%d bytes) behind index %d: out of order or too long",
			last, len(data), f.current.last)
	}
	if f.current.active == nil || f.current.end >= f.sealBytes {
		if err := f.roll(); err != nil {
			return err
		}
	}
	h := recordHeader{
		size: uint32(len(data)), position: f.current.header.base + uint64(f.current.end), last: last,
		sum: checksum(data),
	}
	f.frame = append(h.append(f.frame[:0]), data...)
	if err := f.put(f.current.end, f.frame); err != nil {
		return err
	}
	f.took(f.frame, last)
	if cap(f.frame) > maxScratch {
		f.frame, f.there = nil, nil
	}
	return nil
}

// maxScratch bounds the buffers between two records, in bytes.
const maxScratch = 4 << 20

// roll seals the active file, if there is one, and begins the next.
func (f *Files) roll() error {
	next := fileHeader{id: f.id, number: 1}
	if c := &f.current; c.active != nil {
		foot := footer{index: c.index, end: c.end, last: c.last, hash: f.sum()}
		encoded := foot.encode()
		if err := f.put(c.end, encoded); err != nil {
			return err
		}
		sealed := sealedFile{
			number: c.header.number, base: c.header.base, last: c.last, end: c.end, size: c.end + int64(len(encoded)),
		}
		c.sealed = append(slices.Clip(c.sealed), sealed) // a published view has the old one
		f.handles.seal(c.active, c.index)
		next = fileHeader{
			id: f.id, number: c.header.number + 1, base: c.header.base + uint64(c.end) + uint64(len(encoded)),
			after: c.last, previous: foot.hash,
		}
	}
	file, err := f.disk.Open(Name(next.number), true)
	if err != nil {
		return fmt.Errorf("make block file %s: %w", Name(next.number), err)
	}
	c := &f.current
	c.active, c.header, c.index, c.end = f.handles.addActive(next.number, file, f.sealBytes), next, nil, 0
	f.dirtyMu.Lock()
	f.names = true
	f.dirtyMu.Unlock()
	f.hash = sha256.New()
	encoded := next.encode()
	_, _ = f.hash.Write(encoded) // never fails
	if err := f.put(0, encoded); err != nil {
		return err
	}
	c.end = int64(headerSize)
	return nil
}

// put writes b at an offset of the active file. What a crash has left there must be
// the same, or torn. The same bytes are written once more: after an fsync that
// failed they may be in the cache alone, marked as written.
func (f *Files) put(offset int64, b []byte) error {
	h, number := f.current.active, f.current.header.number
	if offset < f.found[number] {
		f.there = append(f.there[:0], make([]byte, len(b))...)
		n, err := h.file.ReadAt(f.there, offset)
		if err != nil && !isEOF(err) {
			return fmt.Errorf("read block file %s: %w", Name(number), err)
		}
		if !bytes.Equal(f.there[:n], b) {
			if err := f.mustBeTorn(offset); err != nil {
				return err
			}
		}
	}
	f.markDirty(h)
	if _, err := h.file.WriteAt(b, offset); err != nil {
		return fmt.Errorf("write block file %s: %w", Name(number), err)
	}
	f.unsynced.Add(int64(len(b)))
	return nil
}

// mustBeTorn returns an error when a whole header or record lies at an offset of
// the active file where the replay gives something else.
func (f *Files) mustBeTorn(offset int64) error {
	c := &f.current
	if offset == 0 {
		if err := checkHeader(c.active.file, c.header); err == nil || !isWholeHeader(c.active.file) {
			return nil
		}
		return fmt.Errorf("%w: block file %s has another header than the log now gives it: the log or the file is "+
			"of another directory, or this program decides otherwise; "+adviceRestore,
			machine.ErrCorrupt, Name(c.header.number))
	}
	record, ok, err := newScanner(c.active.file, f.found[c.header.number]).next(c.header.base, offset)
	if err != nil || !ok {
		return err
	}
	h, _ := decodeRecordHeader(record, c.header.base+uint64(offset))
	return fmt.Errorf("%w: block file %s has the blocks up to ledger index %d at byte %d, and the log now gives "+
		"others: the log is not the one that was applied, or this program decides otherwise; "+adviceRestore,
		machine.ErrCorrupt, Name(c.header.number), h.last, offset)
}

func isWholeHeader(file File) bool {
	b := make([]byte, headerSize)
	_, _ = file.ReadAt(b, 0) // what cannot be read does not decode
	_, err := decodeFileHeader(b)
	return err == nil
}

// markDirty notes that a file has bytes to sync.
func (f *Files) markDirty(h *handle) {
	f.dirtyMu.Lock()
	defer f.dirtyMu.Unlock()
	if !slices.Contains(f.dirty, h) {
		f.handles.hold(h)
		f.dirty = append(f.dirty, h)
	}
}

// Publish lets readers see what has been appended.
func (f *Files) Publish() {
	v := f.current
	f.published.Store(&v)
}

// Mark returns where the records end. Nothing must be appended meanwhile.
func (f *Files) Mark() Mark {
	m, c := Mark{ID: f.id, SealBytes: f.sealBytes}, &f.current
	if c.active != nil {
		m.Number, m.Length, m.Last, m.Hash = c.header.number, c.end, c.last, f.sum()
	}
	return m
}

// sum returns the hash of the active file.
func (f *Files) sum() (hash [sha256.Size]byte) {
	f.hash.Sum(hash[:0])
	return hash
}

// Bytes returns how long all files are together. It never waits.
func (f *Files) Bytes() int64 {
	v := f.published.Load()
	return int64(v.header.base-v.base()) + v.end
}

// Base returns the position of the first file: how many bytes were dropped before it. It never waits.
func (f *Files) Base() uint64 { return f.published.Load().base() }

// base returns the position of the first file.
func (v *view) base() uint64 {
	if len(v.sealed) > 0 {
		return v.sealed[0].base
	}
	return v.header.base
}

// Unsynced returns how many bytes a Sync would make durable. It never waits.
func (f *Files) Unsynced() int64 { return f.unsynced.Load() }

// Sync makes durable what was appended before the call, and returns how many bytes
// that were.
func (f *Files) Sync() (int64, error) {
	f.dirtyMu.Lock()
	dirty, names, n := f.dirty, f.names, f.unsynced.Load()
	f.dirty, f.names = nil, false
	f.dirtyMu.Unlock()
	var err error
	for _, h := range dirty {
		if failed := h.file.Sync(); failed != nil && err == nil {
			err = fmt.Errorf("sync block file %s: %w", Name(h.number), failed)
		}
		f.handles.release(h)
	}
	if names && err == nil {
		if err = f.disk.Sync(); err != nil {
			err = fmt.Errorf("sync the directory of the block files: %w", err)
		}
	}
	f.unsynced.Add(-n)
	return n, err
}

// Finish ends the appending of what was there already. It returns an error if a
// whole record lies behind the last one appended, and otherwise cuts off what lies
// there. Behind is then 0; else it is the ledger index of that record.
func (f *Files) Finish() (behind uint64, err error) {
	for number, size := range f.found {
		from, base := int64(0), uint64(0)
		if number < f.current.header.number {
			continue // the replay has been through it
		}
		if number == f.current.header.number {
			from, base = f.current.end, f.current.header.base
		}
		last, err := f.lastRecord(number, from, size, base)
		if err != nil {
			return 0, err
		}
		behind = max(behind, last)
	}
	if behind > 0 {
		return behind, nil
	}
	return 0, f.cut()
}

// cut removes what lies behind the last record.
func (f *Files) cut() error {
	active := f.current.header.number
	// From the last one on, so that a crash leaves no gap between two numbers.
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(f.found))) {
		size := f.found[number]
		switch {
		case number == active && f.current.active != nil && size > f.current.end:
			f.markDirty(f.current.active)
			if err := f.current.active.file.Truncate(f.current.end); err != nil {
				return fmt.Errorf("cut block file %s: %w", Name(number), err)
			}
		case number > active:
			if err := f.disk.Remove(Name(number)); err != nil {
				return fmt.Errorf("remove block file %s: %w", Name(number), err)
			}
			f.dirtyMu.Lock()
			f.names = true
			f.dirtyMu.Unlock()
		}
	}
	f.found = nil
	return nil
}

// Part is a file up to a mark, whose bytes do not change any more.
type Part struct {
	Number uint64
	Name   string
	Size   int64 // bytes
	disk   Disk
}

// Parts returns the files up to a mark of before, in order.
func (f *Files) Parts(m Mark) []Part {
	v := f.published.Load()
	var parts []Part
	for _, s := range v.sealed {
		if s.number < m.Number {
			parts = append(parts, Part{s.number, Name(s.number), s.size, f.disk})
		}
	}
	if m.Number > 0 {
		parts = append(parts, Part{m.Number, Name(m.Number), m.Length, f.disk})
	}
	return parts
}

// CopyTo writes the bytes of the part to w.
func (p Part) CopyTo(w io.Writer) (err error) {
	file, err := p.disk.OpenSealed(p.Name)
	if err != nil {
		return fmt.Errorf("block file %s: %w", p.Name, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Not by the file's own ReadFrom or WriteTo, so that w gets it in small pieces.
	n, err := io.CopyBuffer(w, struct{ io.Reader }{io.NewSectionReader(file, 0, p.Size)}, make([]byte, 64<<10))
	if err == nil && n != p.Size {
		err = fmt.Errorf("block file %s: %w: it has %d bytes and must have %d; "+adviceRestore,
			p.Name, machine.ErrCorrupt, n, p.Size)
	}
	return err
}

// Close closes the files that are open. No reader may be left, and no Sync.
func (f *Files) Close() error { return f.handles.close() }
