package boltstore

import (
	"bytes"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// presortLeast is the least number of changes that are sorted before a View. Fewer take the View a millisecond or two.
const presortLeast = 4096

// Presort sorts the changes of a table while Updates go on. A View that reads the
// table in its order right afterwards has only the latest left to sort; without it,
// some hundred thousand changes would keep Updates waiting for a quarter of a
// second. Nothing that can be read depends on it.
func (s *Store) Presort(table machine.Table) {
	if table >= machine.TableCount || len(s.unsorted(table)) == 0 {
		return
	}
	// A second caller waits and finds it done.
	s.presorting.Lock()
	defer s.presorting.Unlock()
	for _, u := range s.unsorted(table) {
		order := u.sorted()
		s.mu.RLock()
		u.table.adopt(order)
		s.mu.RUnlock()
	}
}

// unsorted returns the changes of a table that are worth to be presorted.
func (s *Store) unsorted(table machine.Table) (found []unsorted) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range []*overlay{s.active, s.frozen} {
		if o == nil || o.tables[table] == nil {
			continue
		}
		if u, worth := o.tables[table].unsorted(); worth {
			found = append(found, u)
		}
	}
	return found
}

// unsorted has the keys of a table as of one moment. Updates continue meanwhile: they neither move nor change an
// existing key, and only append blocks of memory and of records.
type unsorted struct {
	table *tableOverlay
	keys  *tableOverlay // has keys alone, and their order as far as they were sorted
}

// unsorted returns the keys of a table, unless nearly all of them are sorted. The
// store's mu is held.
func (t *tableOverlay) unsorted() (u unsorted, worth bool) {
	t.orderMu.Lock()
	defer t.orderMu.Unlock()
	if int(t.count)-len(t.ordered) < presortLeast {
		return unsorted{}, false
	}
	keys := &tableOverlay{
		memory: arena{blocks: slices.Clip(t.memory.blocks)}, records: slices.Clip(t.records), count: t.count,
		ordered: slices.Clone(t.ordered), // the table's own is changed in place
	}
	return unsorted{t, keys}, true
}

// sorted returns all ids by key. Unlike insert it passes each once, however many
// there are in both lists.
func (u *unsorted) sorted() []uint32 {
	t := u.keys
	old, fresh := t.ordered, t.sort(uint32(len(t.ordered)))
	merged := make([]uint32, 0, t.count)
	for len(old) > 0 && len(fresh) > 0 {
		if bytes.Compare(t.key(old[0]), t.key(fresh[0])) < 0 {
			merged, old = append(merged, old[0]), old[1:]
		} else {
			merged, fresh = append(merged, fresh[0]), fresh[1:]
		}
	}
	return append(append(merged, old...), fresh...)
}

// adopt takes over an order of the first ids, unless another goroutine has sorted as many
// meanwhile. The store's mu is held.
func (t *tableOverlay) adopt(order []uint32) {
	t.orderMu.Lock()
	defer t.orderMu.Unlock()
	if len(t.ordered) < len(order) {
		t.ordered = order
	}
}
