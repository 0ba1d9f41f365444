package boltstore

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// The changes of a table against a map: values that grow, shrink, vanish and
// come back, enough of them that everything in it grows, and the order asked
// for in between.
func TestTableOverlay(t *testing.T) {
	t.Parallel()
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	o, want := new(overlay), map[string]string{} // "-" is a tombstone
	for step := range 60_000 {
		// Two tenants, and keys of which one is the beginning of another.
		key := fmt.Sprintf("%s/%d", []string{"key", "key", "another tenant"}[rng.IntN(3)], rng.IntN(10_000))
		if rng.IntN(10) == 0 {
			key += strings.Repeat("\x00", 1+rng.IntN(9))
		}
		switch rng.IntN(4) {
		case 0:
			o.remove(streams, []byte(key))
			want[key] = "-"
		default:
			size := rng.IntN(40)
			if rng.IntN(1_000) == 0 {
				size = rng.IntN(2 * largestBlock)
			}
			value := bytes.Repeat([]byte{byte('a' + step%26)}, size)
			o.put(streams, []byte(key), value)
			want[key] = string(value)
			clear(value) // what is stored is a copy
		}
		if step%5_000 == 0 {
			compareOverlay(t, o, want, o.table(streams).order())
		}
	}
	compareOverlay(t, o, want, o.table(streams).order())
	compareOverlay(t, o, want, o.table(streams).sorted().ids)
	if _, known := o.get(streams, []byte("key/")); known {
		t.Error("a key is known that was never changed")
	}
}

func compareOverlay(t *testing.T, o *overlay, want map[string]string, order []uint32) {
	t.Helper()
	table := o.table(streams)
	keys := slices.Sorted(maps.Keys(want))
	if len(order) != len(keys) {
		t.Fatalf("%d entries, want %d", len(order), len(keys))
	}
	for i, id := range order {
		e, known := o.get(streams, []byte(keys[i]))
		if !known || !bytes.Equal(table.key(id), []byte(keys[i])) || e.deleted != (want[keys[i]] == "-") ||
			!e.deleted && string(e.value()) != want[keys[i]] || e.deleted && e.value() != nil {
			t.Fatalf("entry %d is %q = %q (known %v), want %q = %q", i, table.key(id), e.value(), known, keys[i],
				want[keys[i]])
		}
	}
}

// What a reader was given stays what it was while other keys change, and the
// spare bytes behind a value are not his.
func TestOverlayValuesStay(t *testing.T) {
	t.Parallel()
	var o overlay
	o.put(streams, []byte("k"), []byte("value"))
	e, _ := o.get(streams, []byte("k"))
	value := e.value()
	for i := range 10_000 {
		o.put(streams, fmt.Appendf(nil, "other %d", i), []byte("another"))
	}
	seal(streams, e.key, e.buf)
	if string(value) != "value" || cap(value) != len(value) {
		t.Errorf("%q with room for %d", value, cap(value))
	}
}

// A value that Get has returned may be stored again, shortened, under its key.
func TestOverlayStoresPartOfItself(t *testing.T) {
	t.Parallel()
	var o overlay
	o.put(streams, []byte("k"), []byte("abcdef"))
	e, _ := o.get(streams, []byte("k"))
	o.put(streams, []byte("k"), e.value()[2:])
	if e, _ := o.get(streams, []byte("k")); string(e.value()) != "cdef" {
		t.Errorf("%q", e.value())
	}
}

// What an overlay says that it takes is what it takes, whatever size its values
// have: checkpoints and the limits of memory go by it.
func TestOverlayMemoryIsCounted(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, 1 << 10, 20 << 10, 100 << 10, 131 << 10, 257 << 10, 512 << 10} {
		o := newTableOverlay()
		for i := range uint64(2<<23/uint64(size+60) + 1) {
			o.put(blockKey(i), make([]byte, size))
		}
		taken := int64(0)
		for _, b := range o.memory.blocks {
			taken += int64(cap(b))
		}
		if taken > o.size()+o.size()/4 {
			t.Errorf("values of %d bytes: %d bytes are taken, and %d counted", size, taken, o.size())
		}
	}
}

// An overlay without changes answers everything and takes nothing.
func TestEmptyOverlay(t *testing.T) {
	t.Parallel()
	var o overlay
	for table := range machine.Table(machine.TableCount) {
		if _, known := o.get(table, []byte("k")); known || o.table(table).sorted().len() != 0 {
			t.Errorf("table %d has something", table)
		}
	}
	if o.size() != 0 || unchanged.count != 0 {
		t.Error("nothing takes memory")
	}
}

func BenchmarkOverlayPut(b *testing.B) {
	var key [24]byte
	value := make([]byte, 60)
	o := new(overlay)
	b.ReportAllocs()
	for i := range b.N {
		if i%500_000 == 0 {
			o = new(overlay) // as after a flush
		}
		copy(key[:], fmt.Appendf(key[:0], "scope/account/%010d", (i*7919)%1_000_000))
		o.put(streams, key[:], value)
	}
}
