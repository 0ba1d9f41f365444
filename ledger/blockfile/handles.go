package blockfile

import (
	"errors"
	"fmt"
	"sync"

	"github.com/seqledger/seqledger/ledger/machine"
)

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
	dropped bool   // it is closed as soon as no reader holds it
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

// acquire returns a file and holds it. It opens the file without the lock, because the
// goroutine that appends may wait for it. check fails unless the file is the right one, and returns its index.
func (hs *handles) acquire(number uint64, check func(File) (index, error)) (*handle, error) {
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
	h.loaded.Do(func() { h.failed = h.load(hs.disk, check) })
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
func (h *handle) load(disk Disk, check func(File) (index, error)) error {
	file, err := disk.OpenSealed(Name(h.number))
	if err != nil {
		return err
	}
	x, err := check(file)
	size := int64(0)
	if err == nil {
		size, err = file.Size()
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	h.file, h.index = file, x
	h.mapped, _ = file.Map(size)
	return nil
}

func (h *handle) close() error {
	var err error
	if h.mapped != nil {
		err = h.file.Unmap(h.mapped)
	}
	return errors.Join(err, h.file.Close())
}

// drop closes the files before a number as soon as no reader holds them.
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
