package sim

import (
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// stateDisk is where the state is: changes in memory over a checkpoint.
type stateDisk interface {
	update(at boltstore.Position, fn func(tx machine.Tx) error) error
	view(fn func(r machine.Reader) error) error
	applied() boltstore.Position
	checkpoint() boltstore.Position
	pending() int64 // bytes that wait for a checkpoint
	beginFlush()
	endFlush() error
	// crash drops what is in memory and opens the checkpoint again. A flush
	// that was under way has happened or not.
	crash(w *world) error
	close() error
}

// memoryDisk simulates the state file.
type memoryDisk struct {
	now, durable *machine.Memory
	dirty        map[stateKey]struct{} // changed since the last freeze
	order        []stateKey            // the same, in the order of change
	bytes        int64
	frozen       []frozenValue // what a flush is writing
	flushing     bool
	at, frozenAt boltstore.Position
	durableAt    boltstore.Position
	torn         bool // a control: position and data are not one write
}

type stateKey struct {
	table machine.Table
	key   string
}

type frozenValue struct {
	stateKey
	value []byte // nil: deleted
}

func newMemoryDisk() *memoryDisk {
	return &memoryDisk{now: machine.NewMemory(), durable: machine.NewMemory(), dirty: map[stateKey]struct{}{}}
}

// Put notes what changes; a memoryDisk is the machine.Tx of its own updates.
func (d *memoryDisk) Put(table machine.Table, key, value []byte) error {
	d.touch(table, key, len(value))
	return d.now.Put(table, key, value)
}

func (d *memoryDisk) Delete(table machine.Table, key []byte) error {
	d.touch(table, key, 0)
	return d.now.Delete(table, key)
}

func (d *memoryDisk) Get(table machine.Table, key []byte) ([]byte, error) {
	return d.now.Get(table, key)
}

func (d *memoryDisk) Ascend(table machine.Table, from []byte, visit func(k, v []byte) bool) error {
	return d.now.Ascend(table, from, visit)
}

func (d *memoryDisk) touch(table machine.Table, key []byte, size int) {
	k := stateKey{table, string(key)}
	if _, known := d.dirty[k]; !known {
		d.dirty[k] = struct{}{}
		d.order = append(d.order, k)
		d.bytes += int64(len(key) + size)
	}
}

func (d *memoryDisk) update(at boltstore.Position, fn func(tx machine.Tx) error) error {
	if at.Index <= d.at.Index {
		return fmt.Errorf("entry %d is applied twice", at.Index)
	}
	err := fn(d)
	d.at = at
	return err
}

func (d *memoryDisk) view(fn func(r machine.Reader) error) error { return fn(d.now) }
func (d *memoryDisk) applied() boltstore.Position                { return d.at }
func (d *memoryDisk) checkpoint() boltstore.Position             { return d.durableAt }
func (d *memoryDisk) pending() int64                             { return d.bytes }
func (d *memoryDisk) close() error                               { return nil }

func (d *memoryDisk) beginFlush() {
	d.frozen = d.frozen[:0]
	for _, k := range d.order {
		value, _ := d.now.Get(k.table, []byte(k.key)) // it has no error to give
		d.frozen = append(d.frozen, frozenValue{k, value})
	}
	d.frozenAt, d.flushing = d.at, true
	clear(d.dirty)
	d.order, d.bytes = d.order[:0], 0
}

func (d *memoryDisk) endFlush() error {
	d.writeFrozen()
	d.durableAt, d.flushing = d.frozenAt, false
	d.frozen = d.frozen[:0]
	return nil
}

func (d *memoryDisk) writeFrozen() {
	for _, f := range d.frozen {
		_ = restore(d.durable, f.stateKey, f.value) // memory has no errors
	}
}

func restore(m *machine.Memory, k stateKey, value []byte) error {
	if value == nil {
		return m.Delete(k.table, []byte(k.key))
	}
	return m.Put(k.table, []byte(k.key), value)
}

func (d *memoryDisk) crash(w *world) error {
	keys := slices.Clone(d.order)
	if d.flushing {
		for _, f := range d.frozen {
			keys = append(keys, f.stateKey)
		}
		switch {
		case d.torn:
			d.writeFrozen()
		case w.chance(2): // the page that switches had reached the disk
			if err := d.endFlush(); err != nil {
				return err
			}
		}
	}
	for _, k := range keys {
		value, err := d.durable.Get(k.table, []byte(k.key))
		if err != nil {
			return err
		}
		if err := restore(d.now, k, value); err != nil {
			return err
		}
	}
	clear(d.dirty)
	d.order, d.bytes, d.flushing, d.frozen = d.order[:0], 0, false, d.frozen[:0]
	d.at = d.durableAt
	return nil
}

// fileDisk is the real store, in a file.
type fileDisk struct {
	*boltstore.Store
	path string
}

var fileIdentity = []byte("a simulated one.")

func openFile(path string) (*fileDisk, error) {
	store, err := boltstore.Open(path, boltstore.Options{Create: true, Identity: fileIdentity, NoSync: true})
	return &fileDisk{store, path}, err
}

func (d *fileDisk) update(at boltstore.Position, fn func(tx machine.Tx) error) error {
	return d.Update(at, fn)
}
func (d *fileDisk) view(fn func(r machine.Reader) error) error { return d.View(fn) }
func (d *fileDisk) applied() boltstore.Position                { return d.Applied() }
func (d *fileDisk) checkpoint() boltstore.Position             { return d.Checkpoint() }
func (d *fileDisk) pending() int64                             { return d.PendingBytes() }
func (d *fileDisk) beginFlush()                                {}
func (d *fileDisk) endFlush() error                            { return d.Flush() }
func (d *fileDisk) close() error                               { return d.Close() }

func (d *fileDisk) crash(w *world) error {
	if err := d.Close(); err != nil {
		return err
	}
	again, err := openFile(d.path)
	if err == nil {
		*d = *again
	}
	return err
}
