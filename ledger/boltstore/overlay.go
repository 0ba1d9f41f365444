package boltstore

import (
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/btree"

	"github.com/seqledger/seqledger/ledger/machine"
)

// entryOverhead is what an entry costs beside its key and value, in bytes:
// map slot, tree slot, headers. An estimate, for PendingBytes.
const entryOverhead = 128

// entry is a changed key: a value, or a tombstone.
type entry struct {
	key string
	// buf is the value and sumSize spare bytes behind it. The flush writes the
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

// size is what the entry adds to PendingBytes. It counts capacity, because a
// buffer that once held a large value keeps the memory.
func (e *entry) size() int64 {
	return int64(len(e.key) + cap(e.buf) + entryOverhead)
}

// overlay holds the changes since some moment, by table. Reads may be
// concurrent with each other; changes are exclusive.
type overlay struct {
	tables [machine.TableCount]tableOverlay
}

// tableOverlay answers Get and Put from a hash map. The order of the keys is
// built when somebody asks for it: most tables are never iterated between two
// flushes, and a tree insertion costs several times a map access.
type tableOverlay struct {
	entries map[string]*entry
	bytes   int64 // of all entries, as size counts them

	// orderMu guards the two fields below against concurrent readers: the
	// first one after a change sorts in what is new, and the tree is then
	// constant until the next change, which excludes all readers.
	orderMu   sync.Mutex
	ordered   btree.Map[string, *entry]
	unordered []*entry
}

// get returns the entry of key, or nil when this overlay does not know it.
func (o *overlay) get(table machine.Table, key []byte) *entry {
	return o.tables[table].entries[string(key)]
}

// put stores a copy of value.
func (o *overlay) put(table machine.Table, key, value []byte) {
	t, e := o.own(table, key)
	t.bytes -= e.size()
	e.deleted = false
	e.buf = slices.Grow(e.buf[:0], len(value)+sumSize)[:len(value)+sumSize]
	// copy moves correctly when value is part of this very buffer, as it is
	// when a caller stores a shortened version of what Get returned.
	copy(e.buf, value)
	t.bytes += e.size()
}

// remove leaves a tombstone, because a lower layer may hold the key.
func (o *overlay) remove(table machine.Table, key []byte) {
	t, e := o.own(table, key)
	t.bytes -= e.size()
	e.deleted = true
	e.buf = nil
	t.bytes += e.size()
}

// size adds up what the tables take, in bytes.
func (o *overlay) size() (n int64) {
	for table := range o.tables {
		n += o.tables[table].bytes
	}
	return n
}

// split moves one table to an overlay of its own.
func (o *overlay) split(table machine.Table) *overlay {
	apart := new(overlay)
	from, to := &o.tables[table], &apart.tables[table]
	to.entries, to.bytes, to.ordered, to.unordered = from.entries, from.bytes, from.ordered, from.unordered
	from.entries, from.bytes, from.ordered, from.unordered = nil, 0, btree.Map[string, *entry]{}, nil
	return apart
}

// own returns the table and the entry of key in this overlay, which it makes if
// need be.
func (o *overlay) own(table machine.Table, key []byte) (*tableOverlay, *entry) {
	t := &o.tables[table]
	if e := t.entries[string(key)]; e != nil {
		return t, e
	}
	e := &entry{key: string(key)}
	if t.entries == nil {
		t.entries = make(map[string]*entry)
	}
	t.entries[e.key] = e
	t.unordered = append(t.unordered, e)
	t.bytes += e.size()
	return t, e
}

// order returns an iterator over the table by key.
func (t *tableOverlay) order() btree.MapIter[string, *entry] {
	t.orderMu.Lock()
	defer t.orderMu.Unlock()
	for _, e := range t.unordered {
		t.ordered.Set(e.key, e)
	}
	t.unordered = nil
	return t.ordered.Iter()
}

// sorted returns every entry by key, tombstones included.
func (t *tableOverlay) sorted() []*entry {
	entries := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.key, b.key) })
	return entries
}
