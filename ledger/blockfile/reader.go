package blockfile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"sync"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Record is a record of blocks.
type Record struct {
	Last uint64 // the ledger index that it is found by
	// Data is part of a file's map where the system maps files. It is valid until
	// the Reader is closed, and must not be changed. Reading it faults when the disk
	// fails or the file was cut: see debug.SetPanicOnFault.
	Data []byte
	sum  uint32
}

// Check checks all of the data against its checksum.
func (r *Record) Check() error {
	if checksum(r.Data) != r.sum {
		return fmt.Errorf("%w: the checksum of the blocks up to ledger index %d is wrong; "+adviceRestore,
			machine.ErrCorrupt, r.Last)
	}
	return nil
}

// Reader reads records. It belongs to one goroutine.
type Reader struct {
	files *Files
	view  *view
	limit uint64 // the last ledger index that it finds
	held  []*handle
}

// Reader returns a reader of what is published at this moment.
func (f *Files) Reader() *Reader { return f.ReaderTo(math.MaxUint64) }

// ReaderTo is Reader of the records up to a ledger index.
func (f *Files) ReaderTo(last uint64) *Reader {
	return &Reader{files: f, view: f.published.Load(), limit: last}
}

// OwnReader returns a reader of everything that is appended, for the goroutine
// that appends.
func (f *Files) OwnReader() *Reader {
	return &Reader{files: f, view: &f.current, limit: math.MaxUint64}
}

// Close lets go of the files. The data of its records must not be used any more.
func (r *Reader) Close() {
	for _, h := range r.held {
		r.files.handles.release(h)
	}
	r.held = nil
}

// Find returns the first record at or behind a ledger index.
func (r *Reader) Find(ledgerIndex uint64) (record Record, found bool, err error) {
	err = r.Ascend(ledgerIndex, func(x Record) bool {
		record, found = x, true
		return false
	})
	return record, found, err
}

// Ascend calls visit for the records from the first at or behind a ledger index
// on, in order, until visit returns false. Its cost is a search in memory, a walk
// over at most 16 KiB of records (one may be longer), and what it visits. When it
// leaves a file behind, the data of the records in it are no longer valid.
func (r *Reader) Ascend(ledgerIndex uint64, visit func(Record) bool) error {
	v := r.view
	if ledgerIndex > v.last {
		return nil
	}
	n := len(v.sealed)
	file := sort.Search(n, func(i int) bool { return v.sealed[i].last >= ledgerIndex })
	for ; file < n || file == n && v.active != nil; file++ {
		held := len(r.held)
		more, err := r.ascendFile(file, ledgerIndex, visit)
		if err != nil || !more {
			return err
		}
		// Visit may have made this reader hold more of them, for records that it keeps.
		if len(r.held) == held+1 {
			r.files.handles.release(r.held[held])
			r.held = r.held[:held]
		}
	}
	return nil
}

// ascendFile is Ascend in one file. It reports whether visit wants more.
func (r *Reader) ascendFile(file int, ledgerIndex uint64, visit func(Record) bool) (more bool, err error) {
	v := r.view
	number, base, end, last := v.header.number, v.header.base, v.end, v.last
	if file < len(v.sealed) {
		s := v.sealed[file]
		number, base, end, last = s.number, s.base, s.end, s.last
	}
	h, err := r.hold(number)
	if err != nil {
		return false, err
	}
	x := v.index
	if file < len(v.sealed) {
		x = h.index
	}
	before := uint64(0)
	for offset := x.start(ledgerIndex); offset < end; {
		record, size, err := h.record(base, offset, end)
		if err == nil && (record.Last <= before || record.Last > last) {
			err = fmt.Errorf("%w: out of order", machine.ErrCorrupt)
		}
		if err != nil {
			return false, fmt.Errorf("block file %s, byte %d: %w; "+adviceRestore, Name(number), offset, err)
		}
		if record.Last > r.limit || record.Last >= ledgerIndex && !visit(record) {
			return false, nil
		}
		before, offset = record.Last, offset+size
	}
	if before != last {
		return false, fmt.Errorf("%w: block file %s ends with ledger index %d instead of %d; "+adviceRestore,
			machine.ErrCorrupt, Name(number), before, last)
	}
	return true, nil
}

// Scrub compares about n bytes of what the reader sees with their checksums, from a position
// that it has returned, or 0, on: the records, and the ends of sealed files. It returns the
// position behind them, 0 at the end, and how many bytes it has compared. A record is compared
// as a whole, however long it is.
func (r *Reader) Scrub(from uint64, n int) (next uint64, compared int, err error) {
	v := r.view
	file := sort.Search(len(v.sealed), func(i int) bool { return v.sealed[i].base+uint64(v.sealed[i].size) > from })
	if v.active == nil || file == len(v.sealed) && from >= v.header.base+uint64(v.end) {
		return 0, 0, nil
	}
	number, base, end := v.header.number, v.header.base, v.end
	if file < len(v.sealed) {
		number, base, end = v.sealed[file].number, v.sealed[file].base, v.sealed[file].end
	}
	h, err := r.hold(number)
	if err != nil {
		return 0, 0, err
	}
	from = max(from, base) // what was there has been dropped
	offset := int64(from - base)
	if offset == 0 {
		if err := h.checkEnds(number, base, file < len(v.sealed)); err != nil {
			return 0, 0, fmt.Errorf("block file %s: %w; "+adviceRestore, Name(number), err)
		}
		offset = int64(headerSize)
	}
	for begun := offset; offset < end && offset-begun < int64(n); {
		record, size, err := h.record(base, offset, end)
		if err == nil {
			err = record.Check()
		}
		if err != nil {
			return 0, 0, fmt.Errorf("block file %s, byte %d: %w; "+adviceRestore, Name(number), offset, err)
		}
		offset += size
	}
	compared = int(offset - int64(from-base))
	switch {
	case offset < end:
		return base + uint64(offset), compared, nil
	case file < len(v.sealed):
		return base + uint64(v.sealed[file].size), compared, nil
	}
	return 0, compared, nil
}

// checkEnds checks the header of a file, and what it is sealed with.
func (h *handle) checkEnds(number, base uint64, sealed bool) error {
	b := make([]byte, headerSize)
	if _, err := h.file.ReadAt(b, 0); err != nil && !isEOF(err) {
		return err
	}
	header, err := decodeFileHeader(b)
	if err == nil && (header.number != number || header.base != base) {
		err = fmt.Errorf("%w: it has the header of file %d", machine.ErrCorrupt, header.number)
	}
	if err != nil || !sealed {
		return err
	}
	_, _, err = readFooter(h.file)
	return err
}

// hold returns a file that stays open until the reader is closed.
func (r *Reader) hold(number uint64) (*handle, error) {
	for _, h := range r.held {
		if h.number == number {
			return h, nil
		}
	}
	h, err := r.files.handles.acquire(number)
	if err != nil && number < r.files.first.Load() {
		return nil, machine.ErrDropped
	}
	if err != nil {
		return nil, fmt.Errorf("block file %s: %w; "+adviceRestore, Name(number), err)
	}
	r.held = append(r.held, h)
	return h, nil
}

// handle is an open file.
type handle struct {
	number uint64

	loaded sync.Once // a sealed file
	failed error     // to load
	file   File
	mapped []byte // nil where the system does not map files
	index  index  // of a sealed file; set when it is sealed

	// Under the lock of handles.
	holders int
	used    uint64 // by handles.clock
	dropped bool   // it is closed as soon as nobody holds it
}

// slice returns n bytes from an offset on.
func (h *handle) slice(offset, n int64) ([]byte, error) {
	if n == 0 {
		return []byte{}, nil
	}
	if offset+n <= int64(len(h.mapped)) {
		return h.mapped[offset : offset+n : offset+n], nil
	}
	b := make([]byte, n)
	_, err := h.file.ReadAt(b, offset)
	return b, err
}

// record returns the record at an offset, and how many bytes it takes. end is
// where the records of the file end.
func (h *handle) record(base uint64, offset, end int64) (r Record, size int64, err error) {
	if end-offset < recordHeaderSize {
		return r, 0, fmt.Errorf("%w: no whole record", machine.ErrCorrupt)
	}
	b, err := h.slice(offset, recordHeaderSize)
	if err != nil {
		return r, 0, err
	}
	header, ok := decodeRecordHeader(b, base+uint64(offset))
	size = recordHeaderSize + int64(header.size)
	if !ok || size > end-offset {
		return r, 0, fmt.Errorf("%w: no whole record", machine.ErrCorrupt)
	}
	r.Last, r.sum = header.last, header.sum
	r.Data, err = h.slice(offset+recordHeaderSize, int64(header.size))
	return r, size, err
}

// maxHandles bounds how many files are open that no reader holds.
const maxHandles = 64

// handles are the open files, by number. One that is held stays open.
type handles struct {
	disk  Disk
	mu    sync.Mutex
	open  map[uint64]*handle
	clock uint64 // counts acquisitions
	first uint64 // files before this number are dropped
}

func (hs *handles) init(disk Disk) { hs.disk, hs.open = disk, map[uint64]*handle{} }

// addActive takes a file over that is appended to, and holds it.
func (hs *handles) addActive(number uint64, file File, sealBytes int64) *handle {
	h := &handle{number: number, file: file, holders: 1}
	h.loaded.Do(func() {})
	// A record that reaches beyond the map is read instead. So is everything where
	// no address space is left.
	h.mapped, _ = file.Map(sealBytes + 2<<20)
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.open[number] = h
	return h
}

// seal turns the active file into one like the others.
func (hs *handles) seal(h *handle, x index) {
	hs.mu.Lock()
	h.index = x
	hs.mu.Unlock()
	hs.release(h)
}

func (hs *handles) hold(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.holders++
}

// release lets go of a file, and closes one that has not been used for long if
// too many are open.
func (hs *handles) release(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.holders--
	if h.dropped && h.holders == 0 {
		delete(hs.open, h.number)
		_ = h.close() // it was read
		return
	}
	if len(hs.open) <= maxHandles {
		return
	}
	var oldest *handle
	for _, h := range hs.open {
		if h.holders == 0 && (oldest == nil || h.used < oldest.used) {
			oldest = h
		}
	}
	if oldest != nil {
		delete(hs.open, oldest.number)
		_ = oldest.close() // it was read, or written and synced
	}
}

// acquire returns a file and holds it. It opens the file without the lock, for which
// the goroutine that appends may wait.
func (hs *handles) acquire(number uint64) (*handle, error) {
	hs.mu.Lock()
	h := hs.open[number]
	if h == nil {
		h = &handle{number: number, dropped: number < hs.first}
		hs.open[number] = h
	}
	hs.clock++
	h.used = hs.clock
	h.holders++
	hs.mu.Unlock()
	h.loaded.Do(func() { h.failed = h.load(hs.disk) })
	if h.failed == nil {
		return h, nil
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.open[number] == h { // so that the next one tries again
		delete(hs.open, number)
	}
	return nil, h.failed
}

// load opens a sealed file and reads its index.
func (h *handle) load(disk Disk) error {
	file, err := disk.OpenSealed(Name(h.number))
	if err != nil {
		return err
	}
	foot, x, err := readFooter(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	h.file, h.index = file, x
	h.mapped, _ = file.Map(foot.end)
	return nil
}

// readFooter reads the end of a sealed file.
func readFooter(file File) (foot footer, x index, err error) {
	foot, sum, size, err := readTrailer(file)
	if err != nil {
		return foot, nil, err
	}
	b := make([]byte, size-int64(trailerSize)-foot.end)
	if _, err = file.ReadAt(b, foot.end); err == nil {
		x, err = decodeIndex(b, sum)
	}
	return foot, x, err
}

func (h *handle) close() error {
	var err error
	if h.mapped != nil {
		err = h.file.Unmap(h.mapped)
	}
	return errors.Join(err, h.file.Close())
}

// drop closes the files before a number as soon as nobody holds them.
func (hs *handles) drop(first uint64) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.first = first
	for number, h := range hs.open {
		if number >= first {
			continue
		}
		if h.dropped = true; h.holders == 0 {
			delete(hs.open, number)
			_ = h.close() // it was read
		}
	}
}

func (hs *handles) close() error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	var err error
	for _, h := range hs.open {
		err = errors.Join(err, h.close())
	}
	clear(hs.open)
	return err
}

// scanner reads records one after another, from the file and not from its map.
type scanner struct {
	file   File
	end    int64
	at     int64
	in     *bufio.Reader
	record []byte
}

func newScanner(file File, end int64) *scanner { return &scanner{file: file, end: end, at: -1} }

// next returns the bytes of the record at an offset, valid until the next call, and
// whether it is whole.
func (s *scanner) next(base uint64, offset int64) (record []byte, ok bool, err error) {
	if s.at != offset {
		left := s.end - offset
		s.in = bufio.NewReaderSize(io.NewSectionReader(s.file, offset, left), int(min(left, 1<<20)))
		s.at = offset
	}
	s.record = append(s.record[:0], make([]byte, recordHeaderSize)...)
	n, err := io.ReadFull(s.in, s.record)
	s.at += int64(n)
	if isEOF(err) {
		return s.record, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	h, ok := decodeRecordHeader(s.record, base+uint64(offset))
	if !ok || int64(h.size) > s.end-s.at {
		return s.record, false, nil
	}
	s.record = append(s.record, make([]byte, h.size)...)
	n, err = io.ReadFull(s.in, s.record[recordHeaderSize:])
	s.at += int64(n)
	if err != nil {
		return nil, false, err
	}
	return s.record, checksum(s.record[recordHeaderSize:]) == h.sum, nil
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// lastRecord returns the ledger index of the last whole record between two offsets
// of a file, wherever it begins; 0 for none. From 0 it takes the base from the file's
// header, and finds nothing in a file that has none.
func (f *Files) lastRecord(number uint64, from, end int64, base uint64) (last uint64, err error) {
	file, err := f.disk.OpenSealed(Name(number))
	if err != nil {
		return 0, fmt.Errorf("block file %s: %w", Name(number), err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if from == 0 {
		b := make([]byte, headerSize)
		if _, err := file.ReadAt(b, 0); err != nil && !isEOF(err) {
			return 0, err
		}
		h, err := decodeFileHeader(b)
		if err != nil {
			return 0, nil //nolint:nilerr // A torn header: what follows was never complete.
		}
		base = h.base
	}
	return lastRecordIn(file, from, end, base)
}

// lastRecordIn is lastRecord in an open file.
func lastRecordIn(file File, from, end int64, base uint64) (last uint64, err error) {
	b := make([]byte, min(1<<20, max(0, end-from)))
	for at := from; end-at >= recordHeaderSize; {
		n, err := file.ReadAt(b[:min(int64(len(b)), end-at)], at)
		if err != nil && !isEOF(err) {
			return 0, err
		}
		if n < recordHeaderSize {
			break
		}
		i, found := findHeader(b[:n], base+uint64(at))
		at += int64(i)
		if !found {
			continue
		}
		record, ok, err := newScanner(file, end).next(base, at)
		if err != nil {
			return 0, err
		}
		if !ok {
			at++
			continue
		}
		h, _ := decodeRecordHeader(record, base+uint64(at))
		last = max(last, h.last)
		at += int64(len(record))
	}
	return last, nil
}

// findHeader returns where the first header of a record is in b, which stands at a
// position, or from where on to look for it. What a client has written may look
// like the beginning of any number of headers, so each costs no more than its bytes.
func findHeader(b []byte, position uint64) (at int, found bool) {
	magic := binary.BigEndian.AppendUint32(nil, recordMagic)
	last := len(b) - recordHeaderSize
	for at <= last {
		i := bytes.Index(b[at:], magic)
		if i < 0 {
			return last + 1, false
		}
		if at += i; at > last {
			return at, false
		}
		if _, ok := decodeRecordHeader(b[at:], position+uint64(at)); ok {
			return at, true
		}
		at++
	}
	return at, false
}
