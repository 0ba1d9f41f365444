// Package simdisk is an in-memory disk for tests. Driven by a seed, it loses unsynced data, tears writes at sectors,
// forgets names whose directory was not synced, fails, fills up and suffers bit rot. It implements [segment.Disk].
package simdisk

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// SectorBytes is the unit that a power loss keeps or loses as a whole.
const SectorBytes = 512

// ErrCrashed is returned by every call to a disk whose process has ended.
var ErrCrashed = errors.New("simdisk: the process has ended")

// Disk is a simulated directory. Its methods may be called from any goroutine.
type Disk struct {
	mu      sync.Mutex
	names   map[string]*content // as the process sees them
	durable map[string]*content // as of the last Sync
	life    int                 // files opened in an earlier life fail
	steps   int                 // changes so far: writes, syncs and changes of names
	fuse    int                 // the step that fails; 0 for none
	fault   error
	arrives int        // bytes that arrive of a failing write; negative for half of them
	free    int64      // bytes that Create may still use; negative for no bound
	rot     *rand.Rand // source of the next read's damage; nil for none
	rotted  bool       // a read since the process began was damaged
}

// content is a file: the bytes that the process reads, and the writes that are not synced.
type content struct {
	bytes   []byte
	durable []byte
	loose   []write
}

type write struct {
	offset int64
	bytes  []byte
}

// New returns an empty disk.
func New() *Disk {
	return &Disk{names: map[string]*content{}, durable: map[string]*content{}, free: -1}
}

// FailAt makes a step, counted from 1 for the next one, and all later steps fail with err. A failing write arrives in
// part; a failing sync leaves the data in the cache only.
func (d *Disk) FailAt(step int, err error) { d.TearAt(step, -1, err) }

// TearAt is like FailAt, and sets how many bytes of a failing write arrive; negative for half of them.
func (d *Disk) TearAt(step, arrives int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fuse, d.fault, d.arrives = d.steps+step, err, arrives
}

// Steps returns the number of changes made so far.
func (d *Disk) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// SetFree bounds the bytes that new files may use; a negative value removes the bound.
func (d *Disk) SetFree(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = bytes
}

// RotRead flips a bit of the next read's result. The file stays unchanged.
func (d *Disk) RotRead(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rot = rng
}

// Rotted reports whether a read has returned damaged bytes since the process began.
func (d *Disk) Rotted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rotted
}

// endLife ends the process. The caller holds mu.
func (d *Disk) endLife() {
	d.life++
	d.fuse, d.fault, d.rot, d.rotted = 0, nil, nil, false
}

// step counts a change and returns the fault that is due, if any.
func (d *Disk) step() error {
	d.steps++
	if d.fuse > 0 && d.steps >= d.fuse {
		return d.fault
	}
	return nil
}

// Kill ends the process. Its writes stay in the system's cache.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLife()
}

// PowerLoss ends the process. Of the unsynced data it keeps what rng decides: any sectors of the writes, and a prefix
// of the name changes.
func (d *Disk) PowerLoss(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLife()
	if rng.IntN(2) == 0 {
		d.names = maps.Clone(d.durable)
	}
	// Sorted, because the order of a map would make one seed two different losses.
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		d.names[name].lose(rng)
	}
	d.durable = maps.Clone(d.names)
}

func (c *content) lose(rng *rand.Rand) {
	keep := rng.IntN(4) // 0: nothing, 1: everything, else: any part
	for _, w := range c.loose {
		for from := 0; from < len(w.bytes); {
			// A sector ends where the next sector of the file begins.
			to := min(len(w.bytes), from+SectorBytes-int((w.offset+int64(from))%SectorBytes))
			if keep == 1 || keep > 1 && rng.IntN(2) == 0 {
				copy(c.durable[w.offset+int64(from):], w.bytes[from:to])
			}
			from = to
		}
	}
	c.loose = nil
	c.bytes = slices.Clone(c.durable)
}

// Bytes returns the content of a file, or nil if the file does not exist. A caller may modify the result to damage the
// file at rest.
func (d *Disk) Bytes(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.names[name]; c != nil {
		return c.bytes
	}
	return nil
}

// SetBytes durably replaces the content of a file.
func (d *Disk) SetBytes(name string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &content{bytes: slices.Clone(b), durable: slices.Clone(b)}
	d.names[name], d.durable[name] = c, c
}

// Clone returns a disk with the same files, all of them durable.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New()
	for name, from := range d.names {
		c.names[name] = &content{bytes: slices.Clone(from.bytes), durable: slices.Clone(from.bytes)}
	}
	c.durable = maps.Clone(c.names)
	return c
}

// List implements segment.Disk.
func (d *Disk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names)), nil
}

// Create implements segment.Disk.
func (d *Disk) Create(name string, size int64) (segment.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return nil, err
	}
	if d.free >= 0 && size > d.free {
		return nil, syscall.ENOSPC
	}
	if d.free >= 0 {
		d.free -= size
	}
	c := &content{bytes: make([]byte, size), durable: make([]byte, size)}
	d.names[name] = c
	return &file{d, c, d.life}, nil
}

// Open implements segment.Disk.
func (d *Disk) Open(name string) (segment.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.names[name]
	if c == nil {
		return nil, fs.ErrNotExist
	}
	return &file{d, c, d.life}, nil
}

// Rename implements segment.Disk.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	c := d.names[from]
	if c == nil {
		return fs.ErrNotExist
	}
	delete(d.names, from)
	d.names[to] = c
	return nil
}

// Remove implements segment.Disk.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	if c := d.names[name]; c != nil && d.free >= 0 {
		d.free += int64(len(c.bytes))
	}
	delete(d.names, name)
	return nil
}

// Sync implements segment.Disk.
func (d *Disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	d.durable = maps.Clone(d.names)
	return nil
}

type file struct {
	disk *Disk
	*content
	life int
}

func (f *file) ReadAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.life != f.disk.life {
		return 0, ErrCrashed
	}
	n := copy(b, f.bytes[min(at, int64(len(f.bytes))):])
	if n < len(b) {
		return n, errors.New("simdisk: read behind the end")
	}
	if d := f.disk; d.rot != nil && n > 0 {
		b[d.rot.IntN(n)] ^= 1 << d.rot.IntN(8)
		d.rot, d.rotted = nil, true
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.life != f.disk.life {
		return 0, ErrCrashed
	}
	if at+int64(len(b)) > int64(len(f.bytes)) {
		return 0, errors.New("simdisk: write behind the end")
	}
	err := f.disk.step()
	if err != nil && f.disk.arrives < 0 {
		b = b[:len(b)/2]
	} else if err != nil {
		b = b[:min(len(b), f.disk.arrives)]
	}
	copy(f.bytes[at:], b)
	f.loose = append(f.loose, write{at, slices.Clone(b)})
	return len(b), err
}

func (f *file) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.life != f.disk.life {
		return ErrCrashed
	}
	err := f.disk.step()
	if err == nil {
		for _, w := range f.loose {
			copy(f.durable[w.offset:], w.bytes)
		}
	}
	// The system marks the pages clean even after a failed sync.
	f.loose = nil
	return err
}

func (f *file) Size() (int64, error) { return int64(len(f.bytes)), nil }

func (f *file) Close() error { return nil }
