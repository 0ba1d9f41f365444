package blockfile

import (
	"fmt"
	"math"
	"sort"

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

// Ascend calls visit for the records from the first at or after a ledger index on, in order, until visit returns
// false. It costs a search in memory, a walk over at most 16 KiB of records (one may be longer), and what it visits.
// The data of a record are valid until it moves to the next file.
func (r *Reader) Ascend(ledgerIndex uint64, visit func(Record) bool) error {
	v := r.view
	if ledgerIndex > v.last {
		return nil
	}
	n := len(v.sealed)
	file := sort.Search(n, func(i int) bool { return v.sealed[i].Last >= ledgerIndex })
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

// at says of a file, by its place in the view, which it is, and where its records begin among all and end.
func (v *view) at(file int) (number, base uint64, end int64, last uint64) {
	if file < len(v.sealed) {
		s := &v.sealed[file]
		return s.Number, s.base, s.End, s.Last
	}
	return v.header.number, v.header.base, v.end, v.last
}

// ascendFile is Ascend in one file. It reports whether visit wants more.
func (r *Reader) ascendFile(file int, ledgerIndex uint64, visit func(Record) bool) (more bool, err error) {
	v := r.view
	number, base, end, last := v.at(file)
	h, err := r.hold(file)
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
			return false, r.files.wrongAt(number, offset, err)
		}
		if record.Last > r.limit || record.Last >= ledgerIndex && !visit(record) {
			return false, nil
		}
		before, offset = record.Last, offset+size
	}
	if before != last {
		err := fmt.Errorf("%w: it ends with ledger index %d instead of %d", machine.ErrCorrupt, before, last)
		return false, r.files.wrong(number, err)
	}
	return true, nil
}

// Scrub compares about n bytes of what the reader sees with their checksums, from 0 or a position that it has returned:
// the records, and the ends of sealed files. It returns the next position, 0 at the end, and how many bytes it has
// compared. It always compares whole records.
func (r *Reader) Scrub(from uint64, n int) (next uint64, compared int, err error) {
	v := r.view
	file := sort.Search(len(v.sealed), func(i int) bool { return v.sealed[i].base+uint64(v.sealed[i].Size) > from })
	if v.active == nil || file == len(v.sealed) && from >= v.header.base+uint64(v.end) {
		return 0, 0, nil
	}
	number, base, end, _ := v.at(file)
	h, err := r.hold(file)
	if err != nil {
		return 0, 0, err
	}
	from = max(from, base) // what was there has been dropped
	offset := int64(from - base)
	if offset == 0 {
		if err := r.checkEnds(h, file); err != nil {
			return 0, 0, r.files.wrong(number, err)
		}
		offset = int64(headerSize)
	}
	for begun := offset; offset < end && offset-begun < int64(n); {
		record, size, err := h.record(base, offset, end)
		if err == nil {
			err = record.Check()
		}
		if err != nil {
			return 0, 0, r.files.wrongAt(number, offset, err)
		}
		offset += size
	}
	compared = int(offset - int64(from-base))
	switch {
	case offset < end:
		return base + uint64(offset), compared, nil
	case file < len(v.sealed):
		return base + uint64(v.sealed[file].Size), compared, nil
	}
	return 0, compared, nil
}

// checkEnds checks the header of a file, and what it is sealed with.
func (r *Reader) checkEnds(h *handle, file int) error {
	if file == len(r.view.sealed) {
		return checkHeader(h.file, r.view.header)
	}
	_, err := r.load(h.file, file)
	return err
}

// load checks that an open file is the one at a place in the view, and returns its index.
func (r *Reader) load(f File, file int) (index, error) {
	if file < len(r.view.sealed) {
		return checkSealedEnds(f, r.view.sealedHeader(file), &r.view.sealed[file].SealedFile)
	}
	// The file that is appended to is open, so this one has been sealed since the view was published.
	if err := checkHeader(f, r.view.header); err != nil {
		return nil, err
	}
	_, x, err := readFooter(f)
	return x, err
}

// hold returns a file, by its place in the view, that stays open until the reader is closed.
func (r *Reader) hold(file int) (*handle, error) {
	number, _, _, _ := r.view.at(file)
	for _, h := range r.held {
		if h.number == number {
			return h, nil
		}
	}
	h, err := r.files.handles.acquire(number, func(f File) (index, error) { return r.load(f, file) })
	if err != nil && number < r.files.first.Load() {
		return nil, machine.ErrDropped
	}
	if err != nil {
		return nil, r.files.wrong(number, err)
	}
	r.held = append(r.held, h)
	return h, nil
}
