package blockfile

import (
	"bytes"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

// MemoryDisk is a [Disk] in memory, for tests and simulations: a crash may lose
// what was not synced.
type MemoryDisk struct {
	mu    sync.Mutex
	files map[string]*diskFile
	// durable are the names that survive.
	durable map[string]*diskFile
	left    int   // writes until the disk fails; negative for never
	failure error // of the write after them
}

// NewMemoryDisk returns an empty disk.
func NewMemoryDisk() *MemoryDisk {
	return &MemoryDisk{files: map[string]*diskFile{}, durable: map[string]*diskFile{}, left: -1}
}

// FailAfter lets every write after the next n fail half done; a negative n ends that.
func (d *MemoryDisk) FailAfter(n int, failure error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.failure = n, failure
}

// diskFile is a file of a MemoryDisk.
type diskFile struct {
	memoryFile
	disk    *MemoryDisk
	synced  []byte
	renamed bool // since the names were synced
}

// Open implements [Disk].
func (d *MemoryDisk) Open(name string, create bool) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[name]
	if f == nil && create {
		f = &diskFile{disk: d}
		d.files[name] = f
	}
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// OpenSealed implements [Disk].
func (d *MemoryDisk) OpenSealed(name string) (File, error) { return d.Open(name, false) }

// List implements [Disk].
func (d *MemoryDisk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files)), nil
}

// Remove implements [Disk].
func (d *MemoryDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, name)
	return nil
}

// Rename gives a file another name, in place of the file that has it.
func (d *MemoryDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[from]
	if f == nil {
		return fs.ErrNotExist
	}
	delete(d.files, from)
	d.files[to], f.renamed = f, true
	return nil
}

// Sync implements [Disk].
func (d *MemoryDisk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.durable = maps.Clone(d.files)
	for _, f := range d.files {
		f.renamed = false
	}
	return nil
}

// WriteAt implements [File].
func (f *diskFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.left == 0 {
		half := len(b) / 2
		_, _ = f.memoryFile.WriteAt(b[:half], at) // it has no errors
		return half, f.disk.failure
	}
	f.disk.left--
	return f.memoryFile.WriteAt(b, at)
}

// Sync implements [File].
func (f *diskFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = bytes.Clone(f.data)
	return nil
}

// Crash is a loss of power: any part of what was not synced survives, in pieces of a few bytes, in any order. Names
// that were not synced exist, do not exist, or lead to their earlier file. intN draws a number below n.
func (d *MemoryDisk) Crash(intN func(n int) int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = -1
	// In a fixed order, so that one seed is one crash.
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[name]
		if d.durable[name] == nil && intN(2) == 0 {
			delete(d.files, name)
			continue
		}
		if before := d.durable[name]; f.renamed && before != nil && intN(2) == 0 { // the renaming was not synced
			f = before
			d.files[name] = f
		}
		f.crash(intN)
	}
	for name, f := range d.durable { // a removal that was not synced
		if d.files[name] == nil {
			f.data = bytes.Clone(f.synced)
			d.files[name] = f
		}
	}
}

// Durable returns a disk with what a loss of power leaves for sure.
func (d *MemoryDisk) Durable() *MemoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := NewMemoryDisk()
	for name, f := range d.durable {
		left.files[name] = &diskFile{disk: left, memoryFile: memoryFile{data: bytes.Clone(f.synced)}}
	}
	return left
}

func (f *diskFile) crash(intN func(n int) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	size := len(f.synced)
	if len(f.data) > size {
		size += intN(len(f.data) - size + 1)
	}
	after := make([]byte, size)
	copy(after, f.synced)
	piece := 1 << intN(8)
	for at := 0; at < size; at += piece {
		if same := at+piece <= len(f.synced) && at+piece <= len(f.data) &&
			bytes.Equal(f.synced[at:at+piece], f.data[at:at+piece]); same {
			continue
		}
		if intN(3) > 0 && at < len(f.data) {
			copy(after[at:min(at+piece, size)], f.data[at:min(at+piece, len(f.data))])
		}
	}
	f.data = after
}
