package sim

import (
	"bytes"
	"encoding/binary"
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
	// A spill writes blocks ahead of the checkpoint, never beside a flush.
	beginSpill()
	endSpill() error
	// proven is the last ledger index whose block a start found ahead of the
	// checkpoint; 0 for none.
	proven() uint64
	// crash drops what is in memory and opens the checkpoint again. A flush
	// that was under way has happened or not.
	crash(w *world) error
	close() error
}

// memoryDisk simulates the state file.
type memoryDisk struct {
	now, durable *machine.Memory
	dirty        map[stateKey]int64 // bytes changed since the last freeze
	order        []stateKey         // the same, in the order of change
	bytes        int64
	frozen       []frozenValue // what a flush or spill is writing
	flushing     bool
	spilling     bool
	ahead        map[stateKey]struct{} // blocks in durable that its position does not cover
	stillAhead   map[stateKey]struct{} // what ahead is when the flush has ended
	provenIndex  uint64
	believe      bool // a control: a start takes what is ahead for history
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
	return &memoryDisk{now: machine.NewMemory(), durable: machine.NewMemory(), dirty: map[stateKey]int64{}}
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
		d.dirty[k] = int64(len(key) + size)
		d.order = append(d.order, k)
		d.bytes += d.dirty[k]
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

func (d *memoryDisk) proven() uint64 { return d.provenIndex }

// freeze sets aside what has changed in some tables.
func (d *memoryDisk) freeze(wanted func(machine.Table) bool) {
	d.frozen = d.frozen[:0]
	kept := d.order[:0]
	for _, k := range d.order {
		if !wanted(k.table) {
			kept = append(kept, k)
			continue
		}
		value, _ := d.now.Get(k.table, []byte(k.key)) // it has no error to give
		d.frozen = append(d.frozen, frozenValue{k, value})
		d.bytes -= d.dirty[k]
		delete(d.dirty, k)
	}
	d.order = kept
}

func (d *memoryDisk) beginFlush() {
	d.freeze(func(machine.Table) bool { return true })
	d.frozenAt, d.flushing = d.at, true
	// What the replay has not made again yet is not covered by the flush.
	d.stillAhead = map[stateKey]struct{}{}
	for k := range d.ahead {
		if value, _ := d.now.Get(k.table, []byte(k.key)); value == nil {
			d.stillAhead[k] = struct{}{}
		}
	}
}

func (d *memoryDisk) endFlush() error {
	err := d.writeFrozen()
	d.durableAt, d.flushing, d.ahead = d.frozenAt, false, d.stillAhead
	return err
}

func (d *memoryDisk) beginSpill() {
	d.freeze(func(t machine.Table) bool { return t == machine.TableBlocks })
	d.spilling = true
}

func (d *memoryDisk) endSpill() error {
	d.spilling = false
	if d.ahead == nil {
		d.ahead = map[stateKey]struct{}{}
	}
	keys := d.frozen
	err := d.writeFrozen()
	for _, f := range keys {
		d.ahead[f.stateKey] = struct{}{}
	}
	return err
}

// writeFrozen makes durable what is frozen. A block that is ahead may only be
// written again as it is.
func (d *memoryDisk) writeFrozen() error {
	for _, f := range d.frozen {
		if _, leftover := d.ahead[f.stateKey]; leftover {
			if old, _ := d.durable.Get(f.table, []byte(f.key)); !bytes.Equal(old, f.value) {
				return fmt.Errorf("invariant 8: a replay gives another block at key %x", f.key)
			}
		}
		_ = restore(d.durable, f.stateKey, f.value) // memory has no errors
	}
	d.frozen = d.frozen[:0]
	return nil
}

func restore(m *machine.Memory, k stateKey, value []byte) error {
	if value == nil {
		return m.Delete(k.table, []byte(k.key))
	}
	return m.Put(k.table, []byte(k.key), value)
}

func (d *memoryDisk) crash(w *world) error {
	keys := slices.Clone(d.order)
	for _, f := range d.frozen {
		keys = append(keys, f.stateKey)
	}
	if err := d.interrupt(w); err != nil {
		return err
	}
	d.provenIndex = 0
	for k := range d.ahead {
		keys = append(keys, k)
		d.provenIndex = max(d.provenIndex, binary.BigEndian.Uint64([]byte(k.key)))
	}
	for _, k := range keys {
		value, err := d.durable.Get(k.table, []byte(k.key))
		if err != nil {
			return err
		}
		if _, leftover := d.ahead[k]; leftover && !d.believe {
			value = nil
		}
		if err := restore(d.now, k, value); err != nil {
			return err
		}
	}
	clear(d.dirty)
	d.order, d.bytes, d.frozen = d.order[:0], 0, d.frozen[:0]
	d.at = d.durableAt
	return nil
}

// interrupt ends what is being written, done or not: the page that switches had
// reached the disk, or it had not.
func (d *memoryDisk) interrupt(w *world) error {
	flushing, spilling := d.flushing, d.spilling
	d.flushing, d.spilling = false, false
	switch {
	case flushing && d.torn:
		return d.writeFrozen()
	case flushing && w.chance(2):
		return d.endFlush()
	case spilling && w.chance(2):
		return d.endSpill()
	}
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
func (d *fileDisk) beginSpill()                                {}
func (d *fileDisk) endSpill() error                            { _, err := d.Spill(); return err }

func (d *fileDisk) proven() uint64 {
	if key := d.Proven(); key != nil {
		return binary.BigEndian.Uint64(key)
	}
	return 0
}

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
