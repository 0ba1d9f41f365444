package boltstore

import "github.com/seqledger/seqledger/ledger/machine"

// entry is a changed key as an overlay has it: a value, or a tombstone. Its
// slices are parts of the overlay's memory.
type entry struct {
	key []byte
	// buf is the value and sumSize spare bytes after it. The flush writes the
	// checksum there, so that sealing needs no copy; readers are only ever
	// given the bytes before it and so never race with the flush.
	buf     []byte
	deleted bool
}

// value returns the bytes that readers see, or nil for a tombstone.
func (e *entry) value() []byte {
	if e.deleted {
		return nil
	}
	body := len(e.buf) - sumSize
	return e.buf[:body:body]
}

// overlay holds the changes since some moment, by table. Reads may be
// concurrent with each other; changes are exclusive.
type overlay struct {
	pool   *pool                             // of its memory
	tables [machine.TableCount]*tableOverlay // nil: unchanged
}

// table returns the changes of a table, which may be none.
func (o *overlay) table(table machine.Table) *tableOverlay {
	if t := o.tables[table]; t != nil {
		return t
	}
	return &unchanged
}

// unchanged is a table without changes; never changed itself.
var unchanged tableOverlay

// get returns the entry of key, and false when this overlay does not have it.
func (o *overlay) get(table machine.Table, key []byte) (entry, bool) {
	t := o.tables[table]
	if t == nil {
		return entry{}, false
	}
	id, known := t.find(key)
	if !known {
		return entry{}, false
	}
	return t.entry(id), true
}

// put stores a copy of value.
func (o *overlay) put(table machine.Table, key, value []byte) { o.changed(table).put(key, value) }

// remove leaves a tombstone, because a lower layer may hold the key.
func (o *overlay) remove(table machine.Table, key []byte) { o.changed(table).remove(key) }

// changed returns a table that is about to change.
func (o *overlay) changed(table machine.Table) *tableOverlay {
	if o.tables[table] == nil {
		o.tables[table] = newTableOverlay(o.pool)
	}
	return o.tables[table]
}

// size adds up what the tables take, in bytes.
func (o *overlay) size() (n int64) {
	for table := range machine.Table(machine.TableCount) {
		n += o.table(table).size()
	}
	return n
}

// reuse lets changes use the memory that values have outgrown before. No reader may be left that was given one of them.
func (o *overlay) reuse() {
	for _, t := range o.tables {
		if t != nil {
			t.memory.reuse()
		}
	}
}

// release gives the memory back, and with it all changes. No reader may be left.
func (o *overlay) release() {
	var pages [][]byte
	for i, t := range o.tables {
		if t != nil {
			pages = append(pages, t.memory.release()...)
			o.tables[i] = nil
		}
	}
	o.pool.give(pages) // all at once, because the pool keeps as many as it was given last
}
