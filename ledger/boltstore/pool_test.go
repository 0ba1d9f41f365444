package boltstore

import (
	"bytes"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Pages are used again, and as many are kept as were given back last.
func TestPool(t *testing.T) {
	t.Parallel()
	p := newPool()
	var pages [][]byte
	for i := range 5 {
		page := p.take()
		must.Equal(t, len(page), hugePage, "a page has %d bytes")
		page[0], page[hugePage-1] = byte(i), byte(i)
		pages = append(pages, page)
	}
	for i, page := range pages {
		if page[0] != byte(i) || page[hugePage-1] != byte(i) {
			t.Errorf("page %d is another one, too", i)
		}
	}
	mapped := len(p.mapped)
	p.give(pages[:3])
	if again := p.take(); &again[0] != &pages[2][0] || len(p.free) != 2 {
		t.Errorf("another page was taken, with %d free", len(p.free))
	}
	p.give(pages[3:4])
	check.Equal(t, len(p.free), 1, "%d pages are kept where one was given back")
	if mapped > 0 && len(p.mapped) != mapped-2 {
		t.Errorf("%d pages are the pool's, of %d, and 2 were too many", len(p.mapped), mapped)
	}
	p.close()
	if len(p.mapped) != 0 || len(p.free) != 0 {
		t.Errorf("%d pages and %d free ones are left", len(p.mapped), len(p.free))
	}
}

// The memory of a store's changes is that of two overlays, however many flushes there were, and a small flush
// behind a large one gives back what the large one needed.
func TestFlushesShareMemory(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	pages := func() int {
		n := len(s.memory.free)
		if mapped := len(s.memory.mapped); mapped > 0 { // none where the race detector looks at them
			return mapped
		}
		for _, o := range []*overlay{s.active, s.frozen} {
			for table := range machine.Table(machine.TableCount) {
				if o != nil {
					n += len(o.table(table).memory.pages)
				}
			}
		}
		return n
	}
	value := bytes.Repeat([]byte{1}, 1_000)
	put := func(values int) {
		err := s.Update(next(s), func(tx machine.Tx) error {
			// A small table behind the large one, which needs no page.
			if err := tx.Put(machine.TablePrincipals, blockKey(1), value[:8]); err != nil {
				return err
			}
			for i := range uint64(values) {
				if err := tx.Put(machine.TableEntities, blockKey(i), value); err != nil {
					return err
				}
			}
			return nil
		})
		check.Is(t, err, nil)
	}
	const large, each = 10_000, 10_000*1_000/hugePage + 1
	for range 5 {
		put(large)
		must.Do(t, s.Flush())
	}
	if got := pages(); got < each || got > 2*each || len(s.memory.free) < each {
		t.Errorf("%d pages for changes of %d, of which %d are free", got, each, len(s.memory.free))
	}
	put(10)
	must.Do(t, s.Flush())
	check.Equal(t, pages(), 0, "%d pages are kept for changes of 10 KB")
	put(large)
	if err := s.Close(); err != nil || len(s.memory.mapped) != 0 {
		t.Errorf("%d pages are mapped after Close (%v)", len(s.memory.mapped), err)
	}
}

// An Update uses the rooms that values have outgrown in the one before.
func TestUpdatesReuseRooms(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put := func(key uint64, size int) {
		must.Do(t, s.Update(next(s), func(tx machine.Tx) error {
			return tx.Put(machine.TableEntities, blockKey(key), make([]byte, size))
		}))
	}
	put(1, 200)
	put(1, 300)
	before := s.PendingBytes()
	put(2, 200)
	if got := s.PendingBytes() - before; got > 100 {
		t.Errorf("%d bytes were taken where a room was free", got)
	}
}
