package boltstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sort"
	"sync"
)

// tableOverlay is the changes of one table. Some hundred thousand changes gather
// before a flush, and the garbage collector would look at each of them again
// and again: so keys and values lie in large blocks of memory, and what finds
// them there has no pointers.
type tableOverlay struct {
	memory  arena
	records [][]record        // blocks of recordBlock, so that growing copies none
	count   uint32            // of records
	deleted uint32            // of them
	index   map[uint32]uint32 // links to records by the hashes of their keys

	// orderMu guards the field below against concurrent readers: the first one
	// after a change sorts in what is new, and it is then constant until the next
	// change, which excludes all readers.
	orderMu sync.Mutex
	ordered []uint32 // ids, by key; those from len(ordered) on are missing
}

// record is an entry in the memory of its table.
type record struct {
	key     place
	value   place
	keySize uint16 // at most maxKeySize
	deleted bool
	grown   bool   // the value has outgrown a room
	size    uint32 // of the value and its checksum
	room    uint32 // for them
	next    uint32 // link to another record whose key has the same hash: its id and one, or 0
}

// recordOverhead is what an entry takes beside its key and value, in bytes: its
// record, its place in the index, which is up to half empty, and its place in the
// order. Slices that have just grown take more for a moment.
const recordOverhead = 32 + 16 + 4

// recordBlock is how many records are made room for at once.
const recordBlock = 1 << 10

// maxRecords keeps ids within 32 bits.
const maxRecords = 1<<32 - 2

func newTableOverlay(p *pool) *tableOverlay {
	return &tableOverlay{memory: arena{pool: p}, index: map[uint32]uint32{}}
}

// size is about how much memory the changes take, in bytes. The rooms that values have
// outgrown count, too.
func (t *tableOverlay) size() int64 { return t.memory.used + int64(t.count)*recordOverhead }

// entry returns the entry of an id.
func (t *tableOverlay) entry(id uint32) entry {
	r := t.record(id)
	e := entry{key: t.key(id), deleted: r.deleted}
	if !r.deleted {
		e.buf = t.memory.at(r.value, r.size)
	}
	return e
}

func (t *tableOverlay) record(id uint32) *record { return &t.records[id/recordBlock][id%recordBlock] }

func (t *tableOverlay) key(id uint32) []byte {
	r := t.record(id)
	return t.memory.at(r.key, uint32(r.keySize))
}

// find returns the id of a key.
func (t *tableOverlay) find(key []byte) (id uint32, known bool) {
	return t.findFrom(t.index[hashOf(key)], key)
}

// hashOf hashes a key. The seed is new with every process, so that no client can choose keys that collide.
func hashOf(key []byte) uint32 { return uint32(maphash.Bytes(hashSeed, key)) }

var hashSeed = maphash.MakeSeed()

// findFrom is find with the link that the index has for the hash of the key.
func (t *tableOverlay) findFrom(link uint32, key []byte) (id uint32, known bool) {
	for ; link != 0; link = t.record(link - 1).next {
		if bytes.Equal(t.key(link-1), key) {
			return link - 1, true
		}
	}
	return 0, false
}

// own returns the record of a key, which it makes if need be.
func (t *tableOverlay) own(key []byte) *record {
	hash := hashOf(key)
	link := t.index[hash]
	if id, known := t.findFrom(link, key); known {
		return t.record(id)
	}
	if t.count == maxRecords {
		panic("overlay: too many changes") // some hundred GiB before that
	}
	if t.count%recordBlock == 0 {
		t.records = append(t.records, make([]record, recordBlock))
	}
	id := t.count
	t.count++
	r := t.record(id)
	r.key, r.keySize = t.memory.take(uint32(len(key))), uint16(len(key))
	copy(t.key(id), key)
	r.next, t.index[hash] = link, id+1
	return r
}

func (t *tableOverlay) put(key, value []byte) {
	r := t.own(key)
	size := uint32(len(value) + sumSize)
	if size > r.room {
		want := size
		if r.room > 0 {
			if t.memory.leave(room{r.value, r.room}); r.grown { // perhaps again
				want += size / 2
			}
			r.grown = true
		}
		got := t.memory.takeRoom(want)
		r.value, r.room = got.at, got.size
	}
	if r.deleted {
		t.deleted--
	}
	r.size, r.deleted = size, false
	// copy moves correctly when value is part of this very buffer, as it is when
	// a caller stores a shortened version of what Get returned.
	copy(t.memory.at(r.value, size), value)
}

func (t *tableOverlay) remove(key []byte) {
	if r := t.own(key); !r.deleted {
		r.deleted = true
		t.deleted++
	}
}

// orderEagerly sorts what is new once it is so much that a reader would have to
// wait for it.
func (t *tableOverlay) orderEagerly() {
	if t.count-uint32(len(t.ordered)) >= orderedInReserve {
		t.order()
	}
}

// orderedInReserve is how many new keys of a table that the applier reads in
// order are left to be sorted by the next reader.
const orderedInReserve = 4096

// order returns the ids of all entries by key. See Presort for many at once.
func (t *tableOverlay) order() []uint32 {
	t.orderMu.Lock()
	defer t.orderMu.Unlock()
	if n := uint32(len(t.ordered)); n < t.count {
		t.insert(t.sort(n))
	}
	return t.ordered
}

// insert merges sorted ids into the order, from the back, so that each entry moves once.
func (t *tableOverlay) insert(fresh []uint32) {
	rest := len(t.ordered) // not yet in their last place
	t.ordered = append(t.ordered, fresh...)
	for i := len(fresh) - 1; i >= 0; i-- {
		at := t.search(t.ordered[:rest], t.key(fresh[i]))
		copy(t.ordered[at+i+1:], t.ordered[at:rest])
		t.ordered[at+i] = fresh[i]
		rest = at
	}
}

// search returns how many of the sorted ids have keys below key.
func (t *tableOverlay) search(ids []uint32, key []byte) int {
	if n := len(ids); n > 0 && bytes.Compare(t.key(ids[n-1]), key) < 0 {
		return n // most tables that are read in order grow at their end
	}
	return sort.Search(len(ids), func(i int) bool { return bytes.Compare(t.key(ids[i]), key) >= 0 })
}

// sort returns the ids from a first one on by key.
func (t *tableOverlay) sort(first uint32) []uint32 {
	ids := make([]uint32, 0, t.count-first)
	for id := first; id < t.count; id++ {
		ids = append(ids, id)
	}
	t.sortIDs(ids, make([]sortItem, len(ids)), sortPasses)
	return ids
}

// sortItem is an id and what it is sorted by in one pass.
type sortItem struct {
	digits uint64
	id     uint32
}

// The most passes of a sort, so that keys that a client has made to share much cost no more than comparing them; and
// how many keys are compared in any case.
const (
	sortPasses = 8
	fewKeys    = 16
)

// sortIDs sorts ids by their keys. To compare two keys takes several looks at memory that is in no cache. So a pass
// sorts by the eight bytes after those that all keys share, and another one what is equal in them. room has as many
// items as ids.
func (t *tableOverlay) sortIDs(ids []uint32, room []sortItem, passes int) {
	if len(ids) < fewKeys || passes == 0 {
		slices.SortFunc(ids, func(a, b uint32) int { return bytes.Compare(t.key(a), t.key(b)) })
		return
	}
	shared := t.key(ids[0])
	for _, id := range ids {
		for key := t.key(id); !bytes.HasPrefix(key, shared); {
			shared = shared[:len(shared)-1]
		}
	}
	for i, id := range ids {
		var digits [8]byte // zeros where the key is shorter
		copy(digits[:], t.key(id)[len(shared):])
		room[i] = sortItem{binary.BigEndian.Uint64(digits[:]), id}
	}
	slices.SortFunc(room, func(a, b sortItem) int { return cmp.Compare(a.digits, b.digits) })
	for i := range room {
		ids[i] = room[i].id
	}
	for from, to := 0, 0; from < len(ids); from = to {
		for to < len(ids) && room[to].digits == room[from].digits {
			to++
		}
		t.sortIDs(ids[from:to], room[from:to], passes-1)
	}
}

// sorted returns every entry by key, tombstones included. Unlike order it keeps
// no reader waiting while it sorts.
func (t *tableOverlay) sorted() entries { return entries{t, t.sort(0)} }

// entries is a list of entries of a table.
type entries struct {
	table *tableOverlay
	ids   []uint32
}

func (e entries) len() int { return len(e.ids) }

func (e entries) at(i int) entry { return e.table.entry(e.ids[i]) }

// from leaves the first ones out.
func (e entries) from(first int) entries { return entries{e.table, e.ids[first:]} }
