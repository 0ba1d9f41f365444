package boltstore

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// keySorter sorts ids by their keys, which all differ. Clients choose most of a
// key, so the cost must not depend on what keys have in common: however they are
// chosen, each id is looked up an expected O(log n) times, and of all keys together
// hardly more bytes are read than it takes to tell them apart.
type keySorter struct{ key func(id uint32) []byte }

// sortItem is an id and what it is sorted by in one pass.
type sortItem struct {
	digits uint64 // the eight bytes after those shared with the pivot, zeros where the key is shorter
	branch uint32 // see branch; in the low bits, how many of the digits the key has
	id     uint32
}

// fewKeys is how many keys are sorted by comparing them.
const fewKeys = 16

// sort sorts ids of keys that agree in their first bytes. room has as many items as ids.
//
// A pass compares each key with one of them, the pivot, and sorts by where and to which side the key branches off and
// by the next eight bytes. Keys that are equal in both are sorted by the next pass, from those bytes on. The pivot is
// random: a set of keys that is hard for one choice is easy for most others.
func (s keySorter) sort(ids []uint32, room []sortItem, agreed int) {
	if len(ids) < fewKeys {
		slices.SortFunc(ids, func(a, b uint32) int { return bytes.Compare(s.key(a)[agreed:], s.key(b)[agreed:]) })
		return
	}
	items, pivot := room[:len(ids)], s.key(ids[rand.IntN(len(ids))])[agreed:]
	for i, id := range ids {
		key := s.key(id)[agreed:]
		shared := commonPrefix(key, pivot)
		digits, count := leadingDigits(key[shared:])
		items[i] = sortItem{digits, branch(key, pivot, shared)<<4 | count, id}
	}
	slices.SortFunc(items, compareItems)
	for i := range items {
		ids[i] = items[i].id
	}
	for from := 0; from < len(ids); {
		to := from + 1
		for to < len(ids) && compareItems(items[to], items[from]) == 0 {
			to++
		}
		if to-from > 1 { // all of the digits are the keys' own, or the keys would be equal
			shared := commonPrefix(s.key(ids[from])[agreed:], pivot)
			s.sort(ids[from:to], room[from:to], agreed+shared+8)
		}
		from = to
	}
}

// branch returns a number that grows with the key among keys that share their
// first bytes with the pivot, some more of them and some fewer: a smaller key that
// branches off earlier is smaller, a greater one is greater.
func branch(key, pivot []byte, shared int) uint32 {
	switch {
	case len(key) == shared && len(pivot) == shared: // the pivot itself
		return 1 << 17
	case len(key) == shared || len(pivot) > shared && key[shared] < pivot[shared]:
		return uint32(shared)
	default:
		return 2<<17 - uint32(shared)
	}
}

func compareItems(a, b sortItem) int {
	switch {
	case a.branch>>4 != b.branch>>4:
		return int(a.branch>>4) - int(b.branch>>4)
	case a.digits < b.digits:
		return -1
	case a.digits > b.digits:
		return 1
	default: // a key that ends here comes before one that continues with zeros
		return int(a.branch&15) - int(b.branch&15)
	}
}

// commonPrefix returns how many bytes a and b begin with together.
func commonPrefix(a, b []byte) int {
	n, least := 0, min(len(a), len(b))
	for ; n+8 <= least; n += 8 {
		if differ := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); differ != 0 {
			return n + bits.TrailingZeros64(differ)/8
		}
	}
	for n < least && a[n] == b[n] {
		n++
	}
	return n
}

// leadingDigits reads the first eight bytes as one number, and returns how many of
// them there are. The rest counts as zeros.
func leadingDigits(key []byte) (digits uint64, count uint32) {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key), 8
	}
	var filled [8]byte
	count = uint32(copy(filled[:], key))
	return binary.BigEndian.Uint64(filled[:]), count
}
