package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The changes of a table against a map: values that grow, shrink, vanish and
// come back, enough of them that everything in it grows, and the order asked
// for in between.
func TestTableOverlay(t *testing.T) {
	t.Parallel()
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	o, want := &overlay{pool: newPool()}, map[string]string{} // "-" is a tombstone
	for step := range 60_000 {
		if step%50 == 0 {
			o.reuse() // the next Update
		}
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
			switch rng.IntN(1_000) {
			case 0:
				size = rng.IntN(2 * largestBlock)
			case 1, 2, 3, 4, 5, 6, 7, 8, 9:
				size = rng.IntN(mostSpare + 100)
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

// TestKeysOfTheSameHash are told apart.
func TestKeysOfTheSameHash(t *testing.T) {
	t.Parallel()
	o, a, b := newTableOverlay(nil), []byte("a"), []byte("b")
	o.put(a, a)
	o.index[hashOf(b)] = o.index[hashOf(a)]
	o.put(b, b)
	o.index[hashOf(a)] = o.index[hashOf(b)]
	for want, key := range [][]byte{a, b} {
		if id, known := o.find(key); !known || id != uint32(want) {
			t.Errorf("%s is record %d (known %v), want %d", key, id, known, want)
		}
	}
	if o.put(a, b); o.count != 2 {
		t.Errorf("%d records of two keys", o.count)
	}
}

// TestOrderOfHardKeys: keys that share much, or of which some are the beginnings of others.
func TestOrderOfHardKeys(t *testing.T) {
	t.Parallel()
	const n = 2_000
	for name, key := range map[string]func(i int) []byte{
		"combed": func(i int) []byte { // every eight bytes one key more branches off
			key := fmt.Appendf(bytes.Repeat([]byte("k"), 1_016), "%08d", i)
			copy(key[min(8*(i+1), len(key)):], "zzzzzzzz")
			return key
		},
		"prefixes of each other": func(i int) []byte { return make([]byte, n-i) },
		"zeros and ends": func(i int) []byte {
			return []byte(strings.Repeat("k", 500) + strings.Repeat("\x00", i%97) + strings.Repeat("\x01", i/97))
		},
		"random of two letters": func(i int) []byte {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			key := make([]byte, random.IntN(40))
			for j := range key {
				key[j] = byte(random.IntN(2))
			}
			return binary.BigEndian.AppendUint32(key, uint32(i))
		},
	} {
		o, keys := newTableOverlay(nil), map[string]bool{}
		for i := range n {
			o.put(key(i), nil)
			keys[string(key(i))] = true
		}
		order := o.sort(0)
		for i, id := range order {
			if delete(keys, string(o.key(id))); i > 0 && bytes.Compare(o.key(order[i-1]), o.key(id)) >= 0 {
				t.Errorf("%s: key %d comes before key %d", name, order[i-1], id)
			}
		}
		if len(keys) > 0 {
			t.Errorf("%s: %d keys are missing", name, len(keys))
		}
	}
}

func compareOverlay(t *testing.T, o *overlay, want map[string]string, order []uint32) {
	t.Helper()
	table := o.table(streams)
	keys := slices.Sorted(maps.Keys(want))
	must.Equal(t, len(order), len(keys), "%d entries")
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

// What a reader was given stays what it was also when its value has outgrown its room, until the next Update.
func TestOutgrownRoomsAreUsedAgain(t *testing.T) {
	t.Parallel()
	o := new(overlay)
	put := func(key string, size int, fill byte) {
		o.put(streams, []byte(key), bytes.Repeat([]byte{fill}, size))
	}
	put("a", 200, 'a')
	before, _ := o.get(streams, []byte("a"))
	given := before.value()
	put("a", 300, 'A')
	put("b", 200, 'b') // fits where a was
	if want := strings.Repeat("a", 200); string(given) != want {
		t.Errorf("it was %q and is %q", want, given)
	}
	taken := o.size()
	o.reuse()
	put("c", 200, 'c')
	if got := o.size() - taken; got > 1+recordOverhead {
		t.Errorf("%d bytes were taken where a room was free", got)
	}
	for key, want := range map[string]string{
		"a": strings.Repeat("A", 300), "b": strings.Repeat("b", 200), "c": strings.Repeat("c", 200),
	} {
		if e, _ := o.get(streams, []byte(key)); string(e.value()) != want {
			t.Errorf("%s is %q", key, e.value())
		}
	}
}

// Records that grow once, as those of keys do when their work is done, take the memory of what they are in the end.
func TestRecordsThatGrowOnce(t *testing.T) {
	t.Parallel()
	const keys, first, last = 10_000, 150, 330
	o := new(overlay)
	for i := range uint64(keys) {
		o.reuse()
		o.put(streams, blockKey(i), make([]byte, first))
		if i >= 8 {
			o.put(streams, blockKey(i-8), make([]byte, last))
		}
	}
	if got, most := o.size()/keys, int64(last+8+sumSize+spareUnit+recordOverhead); got > most {
		t.Errorf("a record takes %d bytes, want at most %d", got, most)
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
		o := newTableOverlay(nil)
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
