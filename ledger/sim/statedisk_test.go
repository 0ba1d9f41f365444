package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// stateDisk stores the state: changes in memory on top of a checkpoint.
type stateDisk interface {
	update(at boltstore.Position, fn func(tx machine.Tx) error) error
	view(fn func(r machine.Reader) error) error
	applied() boltstore.Position
	checkpoint() boltstore.Position
	pending() int64 // bytes not yet in a checkpoint
	beginFlush()
	endFlush() error
	// syncBlocks makes blocks durable between two checkpoints, never during a flush.
	syncBlocks() error
	// endReplay returns an error if there are blocks that the log has not recreated.
	endReplay() error
	// amend changes tables that are local to this node.
	amend(fn func(tx machine.Tx) error) error
	// sealed returns the sealed block files that the checkpoint covers; droppable returns those before a ledger index.
	sealed() []blockfile.SealedFile
	droppable(ledgerIndex uint64) []blockfile.SealedFile
	sealedFile(number uint64) (blockfile.File, error)
	// recordStart durably records that the files before a ledger index are dropped; removeFiles removes them.
	recordStart(ledgerIndex uint64) error
	removeFiles() error
	// began returns the ledger index after which the block files begin.
	began() uint64
	// whole reads the state together with the block files of an archive (nil for none). Everything must be in the
	// checkpoint.
	whole(archived *archive.Reader, fn func(r machine.Reader) error) error
	// crash drops the state in memory and opens the checkpoint again; with power, it also drops unsynced data. A flush
	// in progress either took effect or did not.
	crash(w *world, power bool) error
	close() error
}

// memoryDisk simulates the state file. Its block files are the real ones, on a simulated disk.
type memoryDisk struct {
	now, durable *machine.Memory
	dirty        map[stateKey]int64 // bytes changed since the last freeze
	order        []stateKey         // the same keys, in the order of change
	bytes        int64
	frozen       []frozenValue // what a flush is writing
	flushing     bool
	at, frozenAt boltstore.Position
	durableAt    boltstore.Position
	torn         bool // a control: position and data are written separately

	disk       *blockfile.MemoryDisk
	blocks     *blockfile.Files
	frozenMark blockfile.Mark
	mark       blockfile.Mark // of the checkpoint
	start      blockfile.Start
	noSync     bool // a control: a checkpoint does not wait for its blocks

	full    bool // nothing can be written
	rot     *rot // nil: no bit has flipped
	blind   bool // a control: what is read is not checked
	unaware bool // a control: a checkpoint that failed counts as written
}

// rot is a bit of the state file that has flipped, in a page with other rows. Every read of what this page has, or
// would have, finds it, and so does a write of the page.
type rot struct{ page uint32 }

// statePages is how many pages a simulated state file has.
const statePages = 256

func (k stateKey) page() uint32 {
	h := fnv.New32a()
	h.Write([]byte{byte(k.table)})
	h.Write([]byte(k.key))
	return h.Sum32() % statePages
}

var errRotten = fmt.Errorf("%w: a page of the state file has rotted", machine.ErrCorrupt)

// setFull leaves no space for the state file and its block files, or ends that.
func (d *memoryDisk) setFull(full bool) {
	d.full = full
	if full {
		d.disk.FailAfter(0, syscall.ENOSPC)
	} else {
		d.disk.FailAfter(-1, nil)
	}
}

// flip flips a bit of a row of the file. What memory has of the row is newer, if anything.
func (d *memoryDisk) flip(k stateKey, bit int) {
	d.rot = &rot{k.page()}
	for _, m := range []*machine.Memory{d.durable, d.now} {
		value, _ := m.Get(k.table, []byte(k.key)) // it never returns an error
		if len(value) == 0 || m == d.now && d.inMemory(k) {
			continue
		}
		value = bytes.Clone(value)
		value[bit/8%len(value)] ^= 1 << (bit % 8)
		_ = restore(m, k, value)
	}
}

// inMemory reports whether a row has changed since the checkpoint.
func (d *memoryDisk) inMemory(k stateKey) bool {
	_, changed := d.dirty[k]
	return changed || slices.ContainsFunc(d.frozen, func(f frozenValue) bool { return f.stateKey == k })
}

// check returns an error if the file has rotted where a row is, or would be.
func (d *memoryDisk) check(table machine.Table, key []byte) error {
	if d.rot == nil || d.blind {
		return nil
	}
	if k := (stateKey{table, string(key)}); k.page() == d.rot.page && !d.inMemory(k) {
		return errRotten
	}
	return nil
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
	d := &memoryDisk{
		now: machine.NewMemory(), durable: machine.NewMemory(), dirty: map[stateKey]int64{},
		disk: blockfile.NewMemoryDisk(), mark: blockfile.Mark{SealBytes: 20_000},
	}
	if err := d.openBlocks(); err != nil {
		panic(err) // an empty disk cannot fail
	}
	return d
}

func (d *memoryDisk) openBlocks() error {
	blocks, err := blockfile.Open(blockfile.Options{Disk: d.disk, Mark: d.mark, Start: d.start})
	if err != nil {
		return err
	}
	d.blocks = blocks
	return d.removeFiles()
}

// Put records the change; a memoryDisk is the machine.Tx of its own updates.
func (d *memoryDisk) Put(table machine.Table, key, value []byte) error {
	if table == machine.TableBlocks {
		return d.blocks.Append(binary.BigEndian.Uint64(key), value)
	}
	d.touch(table, key, len(value))
	return d.now.Put(table, key, value)
}

func (d *memoryDisk) Delete(table machine.Table, key []byte) error {
	d.touch(table, key, 0)
	return d.now.Delete(table, key)
}

func (d *memoryDisk) Get(table machine.Table, key []byte) (value []byte, err error) {
	if table != machine.TableBlocks {
		if err := d.check(table, key); err != nil {
			return nil, err
		}
		return d.now.Get(table, key)
	}
	return getBlocks(d, key)
}

func (d *memoryDisk) Ascend(table machine.Table, from []byte, visit func(k, v []byte) bool) error {
	if table != machine.TableBlocks {
		var failed error
		err := d.now.Ascend(table, from, func(k, v []byte) bool {
			failed = d.check(table, k)
			return failed == nil && visit(k, v)
		})
		return errors.Join(err, failed)
	}
	return ascendBlocks(d.blocks.OwnReader(), from, visit)
}

func ascendBlocks(r *blockfile.Reader, from []byte, visit func(k, v []byte) bool) error {
	var key [8]byte
	copy(key[:], from)
	defer r.Close()
	return r.Ascend(binary.BigEndian.Uint64(key[:]), func(x blockfile.Record) bool {
		return visit(binary.BigEndian.AppendUint64(nil, x.Last), x.Data)
	})
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

func (d *memoryDisk) view(fn func(r machine.Reader) error) error { return fn(d) }
func (d *memoryDisk) applied() boltstore.Position                { return d.at }
func (d *memoryDisk) checkpoint() boltstore.Position             { return d.durableAt }
func (d *memoryDisk) pending() int64                             { return d.bytes }
func (d *memoryDisk) close() error                               { return d.blocks.Close() }

func (d *memoryDisk) syncBlocks() error {
	_, err := d.blocks.Sync()
	return err
}

func (d *memoryDisk) endReplay() error {
	behind, err := d.blocks.Finish()
	if err == nil && behind > 0 {
		err = fmt.Errorf("invariant 2: there is a block of ledger index %d, and the log ends before it", behind)
	}
	return err
}

func (d *memoryDisk) amend(fn func(tx machine.Tx) error) error { return fn(d) }

func (d *memoryDisk) sealed() []blockfile.SealedFile {
	d.blocks.Publish()
	return d.blocks.Sealed(d.mark.Number)
}

func (d *memoryDisk) droppable(ledgerIndex uint64) []blockfile.SealedFile {
	d.blocks.Publish()
	return before(d.blocks.Sealed(math.MaxUint64), ledgerIndex)
}

// before returns the files in which every record is before a ledger index.
func before(files []blockfile.SealedFile, ledgerIndex uint64) []blockfile.SealedFile {
	n := 0
	for n < len(files) && files[n].Last < ledgerIndex {
		n++
	}
	return files[:n]
}

func (d *memoryDisk) sealedFile(number uint64) (blockfile.File, error) {
	return d.disk.OpenSealed(blockfile.Name(number))
}

func (d *memoryDisk) recordStart(ledgerIndex uint64) error {
	start, some, err := d.blocks.Before(ledgerIndex, d.mark)
	if err == nil && some {
		d.start = start // a separate transaction of the state file
		d.blocks.Forget(start)
	}
	return err
}

func (d *memoryDisk) removeFiles() error { return d.blocks.RemoveDropped() }
func (d *memoryDisk) began() uint64      { return d.start.After }

func (d *memoryDisk) whole(archived *archive.Reader, fn func(r machine.Reader) error) error {
	options := blockfile.Options{Disk: d.disk, Mark: d.mark, Start: d.start, ReadOnly: true}
	if archived != nil {
		options.Disk, options.Start = archived.With(d.disk), blockfile.Start{}
	}
	blocks, err := blockfile.Open(options)
	if err != nil {
		return err
	}
	return errors.Join(fn(withBlocks{d.now, blocks}), blocks.Close())
}

// withBlocks is a state with block files of its own.
type withBlocks struct {
	machine.Reader
	blocks *blockfile.Files
}

// Ascend implements machine.Reader.
func (r withBlocks) Ascend(table machine.Table, from []byte, visit func(k, v []byte) bool) error {
	if table != machine.TableBlocks {
		return r.Reader.Ascend(table, from, visit)
	}
	return ascendBlocks(r.blocks.Reader(), from, visit)
}

// Get implements machine.Reader.
func (r withBlocks) Get(table machine.Table, key []byte) (value []byte, err error) {
	if table != machine.TableBlocks {
		return r.Reader.Get(table, key)
	}
	return getBlocks(r, key)
}

func getBlocks(r machine.Reader, key []byte) (value []byte, err error) {
	err = r.Ascend(machine.TableBlocks, key, func(k, v []byte) bool {
		if bytes.Equal(k, key) {
			value = v
		}
		return false
	})
	return value, err
}

func (d *memoryDisk) beginFlush() {
	d.frozen = d.frozen[:0]
	for _, k := range d.order {
		value, _ := d.now.Get(k.table, []byte(k.key)) // it never returns an error
		d.frozen = append(d.frozen, frozenValue{k, value})
	}
	clear(d.dirty)
	d.order, d.bytes = d.order[:0], 0
	d.frozenAt, d.frozenMark, d.flushing = d.at, d.blocks.Mark(), true
}

func (d *memoryDisk) endFlush() error {
	if !d.noSync {
		if _, err := d.blocks.Sync(); err != nil {
			return err
		}
	}
	if d.rot != nil && !d.blind &&
		slices.ContainsFunc(d.frozen, func(f frozenValue) bool { return f.page() == d.rot.page }) {
		return errRotten
	}
	if d.full && !d.unaware {
		return syscall.ENOSPC
	}
	if !d.full {
		d.writeFrozen()
	}
	d.durableAt, d.mark, d.flushing = d.frozenAt, d.frozenMark, false
	return nil
}

func (d *memoryDisk) writeFrozen() {
	for _, f := range d.frozen {
		_ = restore(d.durable, f.stateKey, f.value) // memory has no errors
	}
	d.frozen = d.frozen[:0]
}

func restore(m *machine.Memory, k stateKey, value []byte) error {
	if value == nil {
		return m.Delete(k.table, []byte(k.key))
	}
	return m.Put(k.table, []byte(k.key), value)
}

func (d *memoryDisk) crash(w *world, power bool) error {
	keys := slices.Clone(d.order)
	for _, f := range d.frozen {
		keys = append(keys, f.stateKey)
	}
	if err := d.interrupt(w); err != nil {
		return err
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
	d.order, d.bytes, d.frozen = d.order[:0], 0, d.frozen[:0]
	d.at = d.durableAt
	if d.blocks.Mark() != d.mark {
		w.counted["blocks behind a checkpoint"]++
	}
	if err := d.blocks.Close(); err != nil {
		return err
	}
	if power {
		d.disk.Crash(w.rng.IntN)
	}
	return d.openBlocks()
}

// interrupt ends the write in progress. It either took effect or did not, depending on whether the page that switches
// over had reached the disk.
func (d *memoryDisk) interrupt(w *world) error {
	flushing := d.flushing
	d.flushing = false
	switch {
	case flushing && d.torn:
		d.writeFrozen()
	case flushing && w.chance(2) && !d.full && d.rot == nil:
		return d.endFlush()
	}
	return nil
}

// fileDisk is the real store, in a file.
type fileDisk struct {
	*boltstore.Store
	path string

	flushes, rests int    // rests are those of the last flush
	meta           []byte // the pages that say what the file has, when that began
	// between has the state file and its checksums as they were between two steps of the last flush; nil for not known.
	between *[2][]byte
	begun   bool // the file has a checkpoint that a process before has begun
}

var fileIdentity = []byte("a simulated one.")

func openFile(path string) (*fileDisk, error) {
	d := &fileDisk{path: path}
	return d, d.open()
}

func (d *fileDisk) open() (err error) {
	d.Store, err = boltstore.Open(d.path, boltstore.Options{
		Create: true, Identity: fileIdentity, NoSync: true, SealBytes: 20_000, StepBytes: 80_000, Yield: d.rest,
	})
	return err
}

// rest is called by a flush after each of its steps, and on a slow machine before it has written anything. It keeps the
// files as they are after one of the steps: from the first one on they have the whole checkpoint.
func (d *fileDisk) rest(time.Duration) {
	state, err := os.ReadFile(d.path)
	if err == nil && bytes.Equal(d.metaOf(state), d.meta) {
		return
	}
	if d.rests++; d.begun || d.rests != 1+d.flushes%5 {
		return
	}
	sums, err2 := os.ReadFile(boltstore.SumsPath(d.path))
	if errors.Join(err, err2) == nil { // else the next crash is an ordinary one
		d.between = &[2][]byte{state, sums}
	}
}

func (d *fileDisk) endFlush() error {
	d.flushes++
	d.rests, d.between = 0, nil
	state, err := os.ReadFile(d.path)
	if err != nil {
		return err
	}
	d.meta = bytes.Clone(d.metaOf(state))
	err = d.Flush()
	d.begun = false
	return err
}

// metaOf returns the two pages that bbolt switches between with each transaction.
func (d *fileDisk) metaOf(state []byte) []byte { return state[:min(len(state), 2*d.PageSize())] }

func (d *fileDisk) update(at boltstore.Position, fn func(tx machine.Tx) error) error {
	return d.Update(at, fn)
}
func (d *fileDisk) view(fn func(r machine.Reader) error) error { return d.View(fn) }
func (d *fileDisk) applied() boltstore.Position                { return d.Applied() }
func (d *fileDisk) checkpoint() boltstore.Position             { return d.Checkpoint() }
func (d *fileDisk) pending() int64                             { return d.PendingBytes() }
func (d *fileDisk) beginFlush()                                {}
func (d *fileDisk) close() error                               { return d.Close() }
func (d *fileDisk) syncBlocks() error                          { _, err := d.SyncBlocks(); return err }
func (d *fileDisk) endReplay() error                           { return d.EndReplay() }
func (d *fileDisk) amend(fn func(tx machine.Tx) error) error   { return d.Amend(fn) }
func (d *fileDisk) sealed() []blockfile.SealedFile             { return d.SealedBlocks() }
func (d *fileDisk) removeFiles() error                         { return nil }
func (d *fileDisk) began() uint64                              { return 0 } // the store does not expose it

func (d *fileDisk) droppable(ledgerIndex uint64) []blockfile.SealedFile {
	return d.Droppable(ledgerIndex)
}

func (d *fileDisk) sealedFile(number uint64) (blockfile.File, error) {
	return d.SealedBlockFile(number)
}

// recordStart also removes the files.
func (d *fileDisk) recordStart(ledgerIndex uint64) error {
	d.between = nil
	_, err := d.DropBlocks(ledgerIndex)
	return err
}

func (d *fileDisk) whole(archived *archive.Reader, fn func(r machine.Reader) error) error {
	if archived == nil {
		return d.View(fn)
	}
	if err := d.Close(); err != nil {
		return err
	}
	store, err := boltstore.OpenWithArchive(d.path, fileIdentity, archived.With)
	if err != nil {
		return err
	}
	if err := errors.Join(store.View(fn), store.Close()); err != nil {
		return err
	}
	return d.crash(nil, false) // opens it again
}

// crash loses what is in memory. Mostly it comes before the last flush has put all of its checkpoint into the
// tables, if nothing was written to the file since.
func (d *fileDisk) crash(w *world, _ bool) error {
	if err := d.Close(); err != nil && !errors.Is(err, boltstore.ErrClosed) {
		return err
	}
	if w != nil && !w.chance(4) && d.between != nil {
		err := os.WriteFile(d.path, d.between[0], 0o600)
		if err := errors.Join(err, os.WriteFile(boltstore.SumsPath(d.path), d.between[1], 0o600)); err != nil {
			return err
		}
		d.begun = true
		w.counted["kills between the steps of a checkpoint"]++
	}
	d.between = nil
	return d.open()
}
