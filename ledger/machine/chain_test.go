package machine

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// chainFixture is a chain of so many blocks, in which each entry has blocks of other
// scopes, too.
func chainFixture(t *testing.T, height uint64) *fixture {
	t.Helper()
	f := newFixture(t, testConfig())
	for i := range height {
		other := appendWrite("other", i+1, 0, strings.Repeat("x", int(i%5)*100))
		other.Scope = Scope{"acme", fmt.Sprint(i % 3)}
		other.ClientID = fmt.Sprint("c", i)
		other.Sequence = 1
		f.entry(AppendWrite(nil, other), AppendWrite(nil, appendWrite("c", i+1, 0, "x")))
	}
	return f
}

// A block of any height is found in at most as many reads as the height of the chain has
// bits, and in fewer the nearer it is to the end.
func TestBlockIsFoundInFewReads(t *testing.T) {
	t.Parallel()
	const height = 300
	f := chainFixture(t, height)
	for target := uint64(1); target <= height; target++ {
		c := must.Get(f.view().Chain(testScope))(t)
		counted := &countingReader{Reader: f.mem}
		header, err := NewBlocks(counted, f.view().Horizon()).BlockHeader(c, target)
		if err != nil || header.Height != target || header.Scope != testScope {
			t.Fatalf("height %d: %+v, %v", target, header, err)
		}
		most := min(bits.Len64(height), 1+bits.Len64(height-target))
		if counted.gets > most {
			t.Errorf("height %d of %d took %d reads, want at most %d", target, height, counted.gets, most)
		}
	}
}

// All blocks in order cost two reads each.
func TestBlocksInOrderTakeTwoReadsEach(t *testing.T) {
	t.Parallel()
	const height = 300
	f := chainFixture(t, height)
	for _, from := range []uint64{1, 2, 100, 255, 256, 257, height} {
		c := must.Get(f.view().Chain(testScope))(t)
		counted := &countingReader{Reader: f.mem}
		for h := from; h <= height; h++ {
			header, err := NewBlocks(counted, f.view().Horizon()).BlockHeader(c, h)
			if err != nil || header.Height != h {
				t.Fatalf("height %d: %+v, %v", h, header, err)
			}
		}
		if most := 2*int(height-from+1) + bits.Len64(height); counted.gets > most {
			t.Errorf("from %d: %d reads, want at most %d", from, counted.gets, most)
		}
	}
}

// Blocks that are asked for in any order are found, also when the chain has grown since.
func TestBlocksInAnyOrder(t *testing.T) {
	t.Parallel()
	f := chainFixture(t, 70)
	c := must.Get(f.view().Chain(testScope))(t)
	for i := range uint64(40) {
		f.commit(appendWrite("c", 71+i, 0, "later"))
	}
	rapid.Check(t, func(t *rapid.T) {
		height := rapid.Uint64Range(0, 72).Draw(t, "height")
		header, err := f.view().BlockHeader(c, height)
		if there := height >= 1 && height <= 70; there != (err == nil) || there && header.Height != height {
			t.Fatalf("height %d: %+v, %v", height, header, err)
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
	})
}

// The places of a block take a number of bytes that grows with the bits of its height, and
// fewer than two places on the average.
func TestPlacesAreFew(t *testing.T) {
	t.Parallel()
	total := 0
	for height := uint64(1); height <= 1<<16; height++ {
		n := linkCount(height)
		if n > bits.Len64(height) || height > 1 && n == 0 {
			t.Errorf("block %d has %d places", height, n)
		}
		total += n
	}
	if total >= 2<<16 {
		t.Errorf("%d blocks have %d places", 1<<16, total)
	}
	// The worst block that there can be: of 57 places, each as far away as an index allows.
	var places []place
	for k := range linkCount(1 << 57) {
		places = append(places, place{1<<58 - 1<<(k+1), noRow - 1})
	}
	if n := len(appendPlaces(nil, 1<<58-1, places)); n > 57*(9+5) {
		t.Errorf("%d places take %d bytes", len(places), n)
	}
	head := chainHead{height: 1<<58 - 1}
	for k := range 58 {
		head.places = append(head.places, place{1<<58 - 1<<k, noRow - 1})
	}
	if n := len(head.append(nil)); n > 9+32+58*(9+5) {
		t.Errorf("the head of a chain takes %d bytes", n)
	}
	var back chainHead
	if err := back.decode(head.append(nil)); err != nil || !slices.Equal(back.places, head.places) {
		t.Errorf("it reads back as %+v, %v", back, err)
	}
}

// A place that leads to another block than its own is damage, whatever the checksums say.
func TestPlaceOfAnotherBlockIsDamage(t *testing.T) {
	t.Parallel()
	f := chainFixture(t, 20)
	other := must.Get(f.view().Chain(Scope{"acme", "1"}))(t)
	for height := uint64(1); height <= 20; height++ {
		c := must.Get(f.view().Chain(testScope))(t)
		for k := range c.places {
			c.places[k] = other.places[0]
		}
		check.Is(t, check.Err(f.view().BlockHeader(c, height)), ErrCorrupt, "height %d by way of another scope's block",
			height)
	}
}
