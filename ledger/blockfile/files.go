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

	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

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
	// found has the lengths, by number, of the files from the mark on as Open found them; nil once Finish has cut them.
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
	first  fileHeader // of the first file
	sealed []sealedFile
	active *handle // nil before the first record
	header fileHeader
	end    int64 // the length of the active file
	last   uint64
	index  index // of the active file
}

// sealedFile is a sealed file as it is in memory.
type sealedFile struct {
	SealedFile

	base uint64 // the bytes of all files before
}

// sealedHeader returns the header that a sealed file must have.
func (v *view) sealedHeader(file int) fileHeader {
	if file == 0 {
		return v.first
	}
	return v.sealed[file-1].next(v.first.id)
}

// next returns the header of the next file.
func (s *sealedFile) next(id [16]byte) fileHeader {
	return fileHeader{id: id, number: s.Number + 1, base: s.base + uint64(s.Size), after: s.Last, previous: s.Hash}
}

// nameDigits is how many digits the name of a file has at least.
const nameDigits = 10

// Name returns the name of a file.
func Name(number uint64) string { return fmt.Sprintf("%0*d.blocks", nameDigits, number) }

// ParseName is the inverse of [Name]. A start calls it for each file.
func ParseName(name string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".blocks")
	if !ok || len(digits) < nameDigits || len(digits) > nameDigits && digits[0] == '0' {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil && number > 0
}

// List returns the numbers of the files, in ascending order.
func List(d Disk) ([]uint64, error) {
	names, err := d.List()
	if err != nil {
		return nil, fmt.Errorf("list the block files: %w", err)
	}
	var numbers []uint64
	for _, name := range names {
		if number, ok := ParseName(name); ok {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
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
		return fmt.Errorf("append blocks up to ledger index %d (%d bytes) after index %d: out of order or too long",
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
	next := f.current.first
	if c := &f.current; c.active != nil {
		foot := footer{index: c.index, end: c.end, last: c.last, hash: f.sum()}
		encoded := foot.encode()
		if err := f.put(c.end, encoded); err != nil {
			return err
		}
		sealed := sealedFile{base: c.header.base, SealedFile: SealedFile{
			Number: c.header.number, Last: c.last, End: c.end, Size: c.end + int64(len(encoded)), Hash: foot.hash,
		}}
		// Behind what published views see of the same array.
		c.sealed = append(c.sealed, sealed)
		f.handles.seal(c.active, c.index)
		next = sealed.next(f.id)
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
// the same, or torn. The same bytes are written once more, because after an fsync
// that failed they may be in the cache alone, marked as written.
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
	if _, err := h.file.WriteAt(b, offset); err != nil {
		return fmt.Errorf("write block file %s: %w", Name(number), err)
	}
	// Not before the write: a Sync in between would clear the mark, and the next one would leave the file out.
	f.markDirty(h)
	f.unsynced.Add(int64(len(b)))
	return nil
}

// mustBeTorn returns an error when a whole header or record lies at an offset of
// the active file where the replay gives something else.
func (f *Files) mustBeTorn(offset int64) error {
	c := &f.current
	if offset == 0 {
		err := checkHeader(c.active.file, c.header)
		if errors.Is(err, format.ErrVersion) {
			return f.wrong(c.header.number, err)
		}
		if err == nil || !isWholeHeader(c.active.file) {
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
	// A copy, because readers keep a published view, which never changes, while current does.
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
	// The syncs come without the lock, so that Append does not wait for the disk.
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
	// Not set to 0, because more may have been appended since n was read.
	f.unsynced.Add(-n)
	return n, err
}

// Finish ends the appending of existing records. If a whole record follows the last one appended, it removes nothing
// and returns the ledger index of the last such record. Otherwise it cuts off what follows and returns 0.
func (f *Files) Finish() (uncovered uint64, err error) {
	if uncovered, err = f.LastUncovered(); err != nil || uncovered > 0 {
		return uncovered, err
	}
	return 0, f.cut()
}

// LastUncovered returns the ledger index of the last existing whole record after the last one appended; 0 for none.
func (f *Files) LastUncovered() (uncovered uint64, err error) {
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
		uncovered = max(uncovered, last)
	}
	return uncovered, nil
}

// cut removes what follows the last record.
func (f *Files) cut() error {
	active := f.current.header.number
	// From the last one on, so that a crash leaves no gap between two numbers.
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(f.found))) {
		size := f.found[number]
		switch {
		case number == active && f.current.active != nil && size > f.current.end:
			if err := f.current.active.file.Truncate(f.current.end); err != nil {
				return fmt.Errorf("cut block file %s: %w", Name(number), err)
			}
			f.markDirty(f.current.active)
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

// Parts returns the files up to an earlier mark, in order.
func (f *Files) Parts(m Mark) []Part {
	v := f.published.Load()
	var parts []Part
	for _, s := range v.sealed {
		if s.Number < m.Number {
			parts = append(parts, Part{s.Number, Name(s.Number), s.Size, f.disk})
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
		return fileError(p.disk, p.Number, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Not by the file's own ReadFrom or WriteTo, so that w gets it in small pieces.
	n, err := io.CopyBuffer(w, struct{ io.Reader }{io.NewSectionReader(file, 0, p.Size)}, make([]byte, 64<<10))
	if err == nil && n != p.Size {
		err = fileError(p.disk, p.Number,
			fmt.Errorf("%w: it has %d bytes and must have %d", machine.ErrCorrupt, n, p.Size))
	}
	return err
}

// Close closes the files that are open. No reader may be left, and no Sync.
func (f *Files) Close() error { return f.handles.close() }
