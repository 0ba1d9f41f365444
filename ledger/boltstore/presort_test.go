package boltstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// scattered returns keys of which successive ones lie apart.
func scattered(first, n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = binary.BigEndian.AppendUint64([]byte("scope/"), uint64(first+i)*0x9e3779b97f4a7c15)
	}
	return keys
}

// putAll applies one entry that stores every key under itself.
func putAll(t testing.TB, s *Store, keys [][]byte) {
	t.Helper()
	must.Do(t, s.Update(next(s), func(tx machine.Tx) error {
		for _, key := range keys {
			if err := tx.Put(machine.TableEntities, key, key); err != nil {
				return err
			}
		}
		return nil
	}))
}

// inOrder reads the table and returns how many keys it has, or an error if their
// order or a value is not right.
func inOrder(s *Store) (n int, err error) {
	var last []byte
	wrong := ""
	err = s.View(func(r machine.Reader) error {
		return r.Ascend(machine.TableEntities, nil, func(key, value []byte) bool {
			if bytes.Compare(last, key) >= 0 || !bytes.Equal(key, value) {
				wrong = fmt.Sprintf("%x = %x behind %x", key, value, last)
				return false
			}
			last = bytes.Clone(key)
			n++
			return true
		})
	})
	if wrong != "" {
		err = fmt.Errorf("%s", wrong)
	}
	return n, err
}

// TestPresort leaves nothing to sort to the View that follows, in all layers, and
// changes nothing that it reads.
func TestPresort(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	s.Presort(machine.TableEntities) // of a table without changes
	s.Presort(machine.TableCount)    // of none
	want := 0
	for _, n := range []int{presortLeast - 1, 1, 3 * presortLeast, 5, 2 * presortLeast, presortLeast} {
		putAll(t, s, scattered(want, n))
		want += n
		s.Presort(machine.TableEntities)
		table := s.active.table(machine.TableEntities)
		if left := int(table.count) - len(table.ordered); left >= presortLeast || n >= presortLeast && left != 0 {
			t.Errorf("%d of %d changes are left to sort after %d more", left, table.count, n)
		}
		check.Equal(t, must.Get(inOrder(s))(t), want, "%d keys")
	}
	// What a flush is about to write is read, too.
	putAll(t, s, scattered(want, presortLeast))
	want += presortLeast
	s.mu.Lock()
	s.frozen, s.active = s.active, new(overlay)
	s.mu.Unlock()
	putAll(t, s, scattered(want, presortLeast))
	want += presortLeast
	s.Presort(machine.TableEntities)
	for name, o := range map[string]*overlay{"frozen": s.frozen, "active": s.active} {
		if table := o.table(machine.TableEntities); int(table.count) != len(table.ordered) {
			t.Errorf("the %s changes: %d of %d are sorted", name, len(table.ordered), table.count)
		}
	}
	check.Equal(t, must.Get(inOrder(s))(t), want, "%d keys")
}

// TestPresortIsOvertaken by Updates and by a View that sorts itself, where the order
// is that Presort has begun with.
func TestPresortIsOvertaken(t *testing.T) {
	t.Parallel()
	for _, viewed := range []bool{false, true} {
		s := fresh(t)
		putAll(t, s, scattered(0, presortLeast))
		must.Get(inOrder(s))(t)
		table := s.active.table(machine.TableEntities)
		table.ordered = slices.Grow(table.ordered, 4*presortLeast) // so that it changes in place
		putAll(t, s, scattered(presortLeast, presortLeast))
		found := s.unsorted(machine.TableEntities)
		if len(found) != 1 || found[0].table != table {
			t.Fatal("nothing to sort")
		}
		putAll(t, s, scattered(2*presortLeast, 2*presortLeast)) // would wait for whoever sorts under the lock
		known := presortLeast
		if viewed {
			known = 4 * presortLeast
			check.Equal(t, must.Get(inOrder(s))(t), known, "%d keys")
		}
		order := found[0].sorted()
		if len(order) != 2*presortLeast || !slices.IsSortedFunc(order, func(a, b uint32) int {
			return cmp.Or(bytes.Compare(table.key(a), table.key(b)), -1) // none twice
		}) {
			t.Errorf("viewed before %v: %d keys in a wrong order, or not all %d", viewed, len(order), 2*presortLeast)
		}
		table.adopt(order)
		check.Equal(t, len(table.ordered), max(known, len(order)), "viewed before %v: %d are sorted", viewed)
		check.Equal(t, must.Get(inOrder(s))(t), 4*presortLeast, "viewed before %v: %d keys", viewed)
	}
}

// TestPresortBesideEverything: Updates that change and add keys, Views, Flushes and
// Presorts at once, for the race detector and for whoever reads.
func TestPresortBesideEverything(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	seed := uint64(time.Now().UnixNano())
	groups := 12
	if testing.Short() {
		groups = 4
	}
	keys := scattered(0, groups*presortLeast)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var written atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	beside := func(call func() error) {
		wg.Go(func() { // ends with the updates; joined below
			for !stop.Load() {
				if err := call(); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
			}
		})
	}
	for range 2 {
		beside(func() error { s.Presort(machine.TableEntities); return nil })
		beside(func() error {
			s.Presort(machine.TableEntities)
			least := int(written.Load())
			n, err := inOrder(s)
			if err == nil && n < least {
				err = fmt.Errorf("%d keys, and %d had been written", n, least)
			}
			return err
		})
	}
	beside(func() error { _, err := inOrder(s); return err })
	beside(s.Flush)
	for group := range slices.Chunk(keys, presortLeast/3) {
		putAll(t, s, group)
		putAll(t, s, group[:len(group)/2]) // changes them where they are
		written.Add(int64(len(group)))
	}
	stop.Store(true)
	wg.Wait()
	check.Equal(t, must.Get(inOrder(s))(t), len(keys), "seed %d: %d keys", seed)
}

// A flush does not take away the memory of what is being sorted.
func TestPresortBesideFlush(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	const keys = 40_000 // they take several pages of the pool
	putAll(t, s, scattered(0, keys))
	s.presorting.Lock() // as Presort does
	found := s.unsorted(machine.TableEntities)
	flushed := make(chan error, 1)
	go func() { flushed <- s.Flush() }()
	for s.LastFlush() == (FlushSize{}) && s.Err() == nil {
		runtime.Gosched()
	}
	for range 10_000 { // what it does next is to drop what it has written
		runtime.Gosched()
	}
	select {
	case err := <-flushed:
		t.Errorf("the flush has ended (%v)", err)
		flushed <- err
	default:
		order := found[0].sorted()
		for i := range order[1:] {
			if bytes.Compare(found[0].keys.key(order[i]), found[0].keys.key(order[i+1])) >= 0 {
				t.Fatalf("keys %d and %d are in the wrong order", i, i+1)
			}
		}
	}
	s.presorting.Unlock()
	must.Do(t, <-flushed)
}
