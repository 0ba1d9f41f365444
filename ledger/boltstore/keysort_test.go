package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// hardKeys are sets of keys that share much, each from a first key on.
var hardKeys = map[string]func(i, n int) []byte{
	"scattered": func(i, _ int) []byte {
		return binary.BigEndian.AppendUint64([]byte("scope/"), uint64(i)*0x9e3779b97f4a7c15)
	},
	"one long prefix": func(i, _ int) []byte {
		return fmt.Appendf(bytes.Repeat([]byte("k"), 1_016), "%08d", i)
	},
	"combed": func(i, _ int) []byte { // every eight bytes one key more branches off
		key := fmt.Appendf(bytes.Repeat([]byte("k"), 1_016), "%08d", i)
		if i < 126 {
			copy(key[8*(i+1):], "zzzzzzzz")
		}
		return key
	},
	"combed at each byte, to both sides": func(i, _ int) []byte {
		key := fmt.Appendf(bytes.Repeat([]byte("k"), 1_016), "%08d", i)
		if i < 1_000 {
			key[i] += byte(2*(i%2)) - 1
		}
		return key
	},
	"halved at every ninth byte": func(i, _ int) []byte {
		key := bytes.Repeat([]byte("k"), 16*9)
		for bit := range 16 {
			key[9*bit] += byte(i >> bit & 1)
		}
		return key
	},
	"prefixes of each other": func(i, n int) []byte { return bytes.Repeat([]byte{0}, n-i) },
	"zeros and ends": func(i, _ int) []byte {
		return []byte(strings.Repeat("k", 500) + strings.Repeat("\x00", i%97) + strings.Repeat("\x01", i/97))
	},
	"random of two letters": func(i, _ int) []byte {
		random := rand.New(rand.NewPCG(uint64(i), 0))
		key := make([]byte, random.IntN(40))
		for j := range key {
			key[j] = byte(random.IntN(2))
		}
		return binary.BigEndian.AppendUint32(key, uint32(i))
	},
}

// Keys are sorted at a cost that does not depend on what they have in common.
func TestSortOfHardKeys(t *testing.T) {
	t.Parallel()
	const n = 5_000
	for name, make1 := range hardKeys {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = make1(i, n)
			}
			rand.New(rand.NewPCG(seed, 0)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			ids, lookups := make([]uint32, n), 0
			for i := range ids {
				ids[i] = uint32(i)
			}
			keySorter{func(id uint32) []byte { lookups++; return keys[id] }}.sort(ids, make([]sortItem, n), 0)
			if !slices.IsSortedFunc(ids, func(a, b uint32) int { return bytes.Compare(keys[a], keys[b]) }) {
				t.Errorf("seed %d: not sorted", seed)
			}
			if sorted := slices.Sorted(slices.Values(ids)); slices.Compact(sorted)[n-1] != n-1 ||
				len(slices.Compact(sorted)) != n {
				t.Errorf("seed %d: some ids are missing", seed)
			}
			if most := 3 * n * int(math.Log2(n)); lookups > most {
				t.Errorf("seed %d: %d keys were looked up %d times, more than %d", seed, n, lookups, most)
			}
		})
	}
}

// TestCommonPrefix at and around the borders of the words that it compares.
func TestCommonPrefix(t *testing.T) {
	t.Parallel()
	for length := range 40 {
		for shared := range length + 1 {
			a := bytes.Repeat([]byte("k"), length)
			b := append(bytes.Clone(a[:shared]), bytes.Repeat([]byte("l"), 5)...)
			if got := commonPrefix(a, b); got != shared || commonPrefix(b, a) != shared {
				t.Errorf("%q and %q: %d", a, b, got)
			}
			if got := commonPrefix(a, a[:shared]); got != shared {
				t.Errorf("%q and its first %d: %d", a, shared, got)
			}
		}
	}
}
