// Package simdisk is a disk in memory for tests: it loses what was not synced,
// tears writes at sectors, forgets names whose directory was not synced, fails,
// fills up and rots, as a seed decides. It implements [segment.Disk].
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

// ErrCrashed answers every call to a disk whose process has ended.
var ErrCrashed = errors.New("simdisk: the process has ended")

// Disk is a simulated directory. Its methods may be called from any goroutine.
type Disk struct {
	mu      sync.Mutex
	names   map[string]*content // as the process sees them
	durable map[string]*content // as of the last Sync
	life    int                 // files opened in an earlier life fail
	steps   int                 // changes so far: writes, syncs, changes of names
	fuse    int                 // the step that fails, 0 for none
	fault   error
	arrives int        // bytes of a write that fails; negative for half of them
	free    int64      // bytes that Create may still take; negative for any number
	rot     *rand.Rand // of the next read; nil for none
	rotted  bool       // a read of this life was damaged
}

// content is a file: what the process reads, and the writes that are not synced.
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

// FailAt makes the step with this number, counted from 1 for the next one, and
// all later ones fail with err. A write that fails has arrived in part; a sync that
// fails leaves what it should have written to the cache alone.
func (d *Disk) FailAt(step int, err error) { d.TearAt(step, -1, err) }

// TearAt is FailAt, and says how many bytes arrive of a write that fails; negative for half of them.
func (d *Disk) TearAt(step, arrives int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fuse, d.fault, d.arrives = d.steps+step, err, arrives
}

// Steps returns how many changes were made.
func (d *Disk) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// SetFree bounds the bytes that new files may take; negative lifts the bound.
func (d *Disk) SetFree(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = bytes
}

// RotRead flips a bit of what the next read returns. The file stays as it is.
func (d *Disk) RotRead(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rot = rng
}

// Rotted reports whether a read has returned something else than what was written, since the process began.
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

// step counts a change and returns the fault that is due.
func (d *Disk) step() error {
	d.steps++
	if d.fuse > 0 && d.steps >= d.fuse {
		return d.fault
	}
	return nil
}

// Kill ends the process: what it wrote stays in the system's cache.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLife()
}

// PowerLoss ends the process and keeps, of what was not synced, what rng says:
// any sectors of the writes, and the first of the changes of names.
func (d *Disk) PowerLoss(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLife()
	if rng.IntN(2) == 0 {
		d.names = maps.Clone(d.durable)
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		d.names[name].lose(rng)
	}
	d.durable = maps.Clone(d.names)
}

func (c *content) lose(rng *rand.Rand) {
	keep := rng.IntN(4) // 0: nothing, 1: everything, else: any part
	for _, w := range c.loose {
		for from := 0; from < len(w.bytes); {
			// A sector ends where the next one of the file begins.
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

// Bytes returns the content of a file; nil when it is not there. A caller may
// change it to damage the file at rest.
func (d *Disk) Bytes(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.names[name]; c != nil {
		return c.bytes
	}
	return nil
}

// SetBytes replaces the content of a file, durably.
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
	// The system takes the pages for clean after a failed sync, too.
	f.loose = nil
	return err
}

func (f *file) Size() (int64, error) { return int64(len(f.bytes)), nil }

func (f *file) Close() error { return nil }
