package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// The blocks of a scope are a skip list: a block has the place of the one before it, and where
// its height is a multiple of 2^k also that of the one 2^k below it. The head of the chain has
// for each k the place of the last block whose height is a multiple of 2^k. So any height is
// found in at most as many reads as the height of the chain has bits, and no table has a row
// for each block. A block has fewer than two places on the average, and at most one for each
// bit of its height; the head has one for each bit.

// place is where a block is.
type place struct {
	record uint64 // the key of its record
	offset uint32 // of the block in the record
}

// linkCount returns how many places the block of a height has: of the blocks 1, 2, 4, …
// below it, as long as these divide the height.
func linkCount(height uint64) int {
	n := bits.TrailingZeros64(height)
	if height>>n > 1 {
		n++
	}
	return n
}

// appendPlaces appends the places of a block whose record begins at a ledger index. Each is
// farther back than the one before.
func appendPlaces(dst []byte, first uint64, places []place) []byte {
	for _, p := range places {
		dst = binary.AppendUvarint(dst, first-p.record)
		dst = binary.AppendUvarint(dst, uint64(p.offset))
		first = p.record
	}
	return dst
}

// places reads the places of the block of a height and hands them to visit.
func (d *decoder) places(first, height uint64, visit func(place)) {
	for range linkCount(height) {
		back, offset := d.uvarint(), d.uvarint()
		if back == 0 || back >= first || offset >= noRow {
			d.fail()
			return
		}
		first -= back
		visit(place{first, uint32(offset)})
	}
}

// chainHead is what the state has of a scope: where its chain of blocks ends.
type chainHead struct {
	height uint64
	hash   Hash
	places []place // [k]: of the last block whose height is a multiple of 1<<k
}

func (c *chainHead) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, c.height)
	dst = append(dst, c.hash[:]...)
	before := uint64(0)
	for _, p := range slices.Backward(c.places) {
		dst = binary.AppendUvarint(dst, p.record-before)
		dst = binary.AppendUvarint(dst, uint64(p.offset))
		before = p.record
	}
	return dst
}

// decode reads the record of a scope; none is a chain without blocks.
func (c *chainHead) decode(b []byte) error {
	*c = chainHead{places: c.places[:0]}
	if b == nil {
		return nil
	}
	d := decoder{rest: b}
	c.height, c.hash = d.uvarint(), d.hash()
	before := uint64(0)
	for range bits.Len64(c.height) {
		record, offset := before+d.uvarint(), d.uvarint()
		if record == 0 || record < before || offset >= noRow {
			d.fail()
			break
		}
		c.places = append(c.places, place{record, uint32(offset)})
		before = record
	}
	if c.height == 0 {
		d.fail()
	}
	slices.Reverse(c.places)
	return d.done("chain head")
}

// read reads the head of the chain of a scope.
func (c *chainHead) read(r Reader, scopeKey []byte) error {
	b, err := r.Get(TableScopes, scopeKey)
	if err != nil {
		return err
	}
	return c.decode(b)
}

// links returns the places that the next block has.
func (c *chainHead) links() []place { return c.places[:linkCount(c.height+1)] }

// add makes a block the last one of the chain.
func (c *chainHead) add(hash Hash, p place) {
	c.height, c.hash = c.height+1, hash
	for k := range bits.TrailingZeros64(c.height) + 1 {
		if k == len(c.places) {
			c.places = append(c.places, p)
		}
		c.places[k] = p
	}
}

// Chain leads to the blocks of a scope up to the last one that there was when it was read.
// It stays valid. It belongs to one goroutine: it remembers the way to the block that was
// asked for last, so that the blocks in order cost two reads each.
type Chain struct {
	Scope  Scope
	Height uint64 // of the last block, 0 for none
	Hash   Hash   // of the last block, zeros for none

	places []place
	way    []step // each below the one before
}

// step is a block on the way to another.
type step struct {
	height uint64
	place  place
	links  []place // empty until it is read
}

// Chain returns the chain of a scope.
func (v View) Chain(scope Scope) (*Chain, error) {
	var head chainHead
	err := head.read(v.r, appendScopeKey(nil, scope))
	return &Chain{Scope: scope, Height: head.height, Hash: head.hash, places: head.places}, err
}

// Scopes returns the scopes that have blocks, in the order of their keys. It is for a check of a ledger that is not
// open, because it takes as long as there are scopes.
func (v View) Scopes() (scopes []Scope, err error) {
	var failed error
	err = v.r.Ascend(TableScopes, nil, func(key, _ []byte) bool {
		var scope Scope
		scope, _, failed = splitScope(key)
		scopes = append(scopes, scope)
		return failed == nil
	})
	return scopes, firstErr(err, failed)
}

// find returns the block of a height, ErrNotFound, or a *GoneError.
func (b Blocks) find(c *Chain, height uint64) (found blockRecord, err error) {
	if height == 0 || height > c.Height {
		return found, ErrNotFound
	}
	found, err = c.find(b.r, b.horizon.index, height)
	if !errors.Is(err, errBeforeHorizon) {
		return found, err
	}
	first, err := b.FirstHeight(c)
	if err != nil {
		return found, err
	}
	return found, &GoneError{Horizon: b.horizon.index, Scope: c.Scope, FirstHeight: first}
}

// errBeforeHorizon says that a block lies before the horizon.
var errBeforeHorizon = errors.New("before the horizon")

// FirstHeight returns the height of the first block of a chain that is kept: the first whose record has a transaction
// at or after the horizon. It is one more than the chain's height if there is none. It takes about twice as many reads
// as the height has bits.
func (b Blocks) FirstHeight(c *Chain) (uint64, error) {
	kept := func(p place) bool { return p.record >= b.horizon.index }
	if c.Height == 0 || b.horizon.index == 0 {
		return 1, nil
	}
	at := step{}
	for k, p := range c.places { // from the nearest to the farthest
		if kept(p) {
			at = step{height: c.Height >> k << k, place: p}
		}
	}
	if at.height == 0 {
		return c.Height + 1, nil
	}
	for at.height > 1 {
		if _, err := c.readStep(b.r, &at); err != nil {
			return 0, err
		}
		next := step{}
		for k, p := range at.links {
			if kept(p) {
				next = step{height: at.height - 1<<k, place: p}
			}
		}
		if next.height == 0 {
			break
		}
		at = next
	}
	return at.height, nil
}

// find returns the block of a height, which the chain has. It reads no block of which the record ends
// before the horizon.
func (c *Chain) find(r Reader, horizon, height uint64) (b blockRecord, err error) {
	for len(c.way) > 0 && c.way[len(c.way)-1].height < height {
		c.way = c.way[:len(c.way)-1]
	}
	if len(c.way) == 0 {
		k := len(c.places) - 1
		for c.Height>>k<<k < height {
			k--
		}
		c.way = append(c.way, step{height: c.Height >> k << k, place: c.places[k]})
	}
	for {
		s := &c.way[len(c.way)-1]
		if s.links == nil || s.height == height {
			if s.place.record < horizon {
				return b, errBeforeHorizon
			}
			if b, err = c.readStep(r, s); err != nil {
				return b, err
			}
		}
		if s.height == height {
			return b, nil
		}
		k := min(len(s.links), bits.Len64(s.height-height)) - 1
		c.way = append(c.way, step{height: s.height - 1<<k, place: s.links[k]})
	}
}

// readStep reads a block on the way, and its places.
func (c *Chain) readStep(r Reader, s *step) (b blockRecord, err error) {
	key := appendIndexKey(nil, s.place.record)
	data, err := r.Get(TableBlocks, key)
	if err != nil {
		return b, err
	}
	record, err := openRecord(key, data)
	if err != nil {
		return b, err
	}
	if b, err = record.blockAt(s.place.offset); err != nil {
		return b, err
	}
	if b.header.Height != s.height || b.header.Scope != c.Scope {
		return b, fmt.Errorf("%w: block %d of %s is not where the blocks behind it say", ErrCorrupt, s.height, c.Scope)
	}
	s.links = b.places()
	return b, nil
}
