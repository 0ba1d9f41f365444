package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// spoilBlocks changes the values of blocks in a file, not their keys, and leaves
// their checksums as they are.
func spoilBlocks(t testing.TB, path string, blocks ...uint64) {
	t.Helper()
	edit(t, path, func(b []byte) []byte {
		for _, i := range blocks {
			sound := append(blockKey(i), fmt.Sprintf("block %d", i)...)
			spoilt := bytes.Replace(sound, []byte("block"), []byte("clock"), 1)
			if !bytes.Contains(b, sound) {
				t.Fatalf("block %d is not in the file", i)
			}
			b = bytes.ReplaceAll(b, sound, spoilt)
		}
		return b
	})
}

// mending opens a store that notes what it mends.
func mending(t testing.TB, path string) (s *Store, mended *[]string) {
	t.Helper()
	mended = new([]string)
	s, err := Open(path, Options{Identity: testIdentity, NoSync: true, Mended: func(blocks int, first error) {
		if !errors.Is(first, machine.ErrCorrupt) {
			t.Errorf("mended: %v", first)
		}
		key, _, _ := strings.Cut(strings.TrimPrefix(first.Error(), "table 5 key "), ":")
		*mended = append(*mended, fmt.Sprintf("%d from %s on", blocks, key))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // what it has written is looked at before
	return s, mended
}

// A damaged leftover is a copy of what the log makes again: that is written over
// it, at once, durably, and not in silence.
func TestDamagedLeftoversAreMadeAnew(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]struct {
		blocks []uint64
		want   string
	}{
		"the first":           {[]uint64{11}, "[1 from 000000000000000b on]"},
		"one":                 {[]uint64{15}, "[1 from 000000000000000f on]"},
		"the last but one":    {[]uint64{19}, "[1 from 0000000000000013 on]"},
		"several":             {[]uint64{12, 13, 17}, "[3 from 000000000000000c on]"},
		"all but the last":    {[]uint64{11, 12, 13, 14, 15, 16, 17, 18, 19}, "[9 from 000000000000000b on]"},
		"none, to compare to": {nil, "[]"},
	} {
		for way, write := range map[string]func(s *Store) error{"spill": spillError, "flush": (*Store).Flush} {
			for _, upTo := range []uint64{20, 25} { // just what was there, and more
				path := leftovers(t)
				spoilBlocks(t, path, damage.blocks...)
				s, mended := mending(t, path)
				wantState(t, s.View, 10)
				apply(t, s, upTo)
				wantState(t, s.View, upTo)
				if err := write(s); err != nil {
					t.Fatalf("%s, %s: %v", name, way, err)
				}
				wantState(t, s.View, upTo)
				if fmt.Sprint(*mended) != damage.want {
					t.Errorf("%s, %s: mended %v, want %s", name, way, *mended, damage.want)
				}
				// A crash right behind it, and another replay: nothing is damaged now.
				again, mended := mending(t, crashed(t, s))
				if again.Checkpoint().Index < upTo {
					wantState(t, again.View, 10)
				}
				apply(t, again, upTo)
				if err := again.CheckAhead(); err != nil {
					t.Errorf("%s, %s: still damaged: %v", name, way, err)
				}
				flush(t, again)
				wantState(t, again.View, upTo)
				if n := blocksInFile(t, again); len(*mended) != 0 || uint64(n) != upTo {
					t.Errorf("%s, %s: mended %v the second time, %d blocks in the file, want %d", name, way, *mended, n, upTo)
				}
			}
		}
	}
}

// A verifier reports what a start would mend, and mends nothing.
func TestCheckAheadReportsDamagedLeftovers(t *testing.T) {
	t.Parallel()
	path := leftovers(t)
	spoilBlocks(t, path, 12, 17)
	s, err := OpenReadOnly(path, testIdentity)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }() // only read from
	apply(t, s, 20)
	if err := s.CheckAhead(); !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), "000000000000000c") {
		t.Errorf("CheckAhead = %v, want the key of block 12", err)
	}
}

// A log that has lost its end is still found out: what is mended on the way to
// that end leaves the last block, which proves the loss, where it is.
func TestMendingLeavesTheProof(t *testing.T) {
	t.Parallel()
	for way, write := range map[string]func(s *Store) error{"spill": spillError, "flush": (*Store).Flush} {
		path := leftovers(t)
		spoilBlocks(t, path, 12, 18)
		for start := range 3 { // each finds a log that ends at 15
			s, mended := mending(t, path)
			if !bytes.Equal(s.Proven(), blockKey(20)) {
				t.Fatalf("%s, start %d: block %x is proven, want 20", way, start, s.Proven())
			}
			apply(t, s, 15)
			if err := write(s); err != nil {
				t.Fatalf("%s, start %d: %v", way, start, err)
			}
			if want := start == 0; (len(*mended) == 1) != want {
				t.Errorf("%s, start %d: mended %v", way, start, *mended)
			}
			wantState(t, s.View, 15)
			if n := blocksInFile(t, s); n != 20 {
				t.Errorf("%s, start %d: %d blocks in the file, want all 20", way, start, n)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s, mended := mending(t, path) // and the whole log
		apply(t, s, 20)
		flush(t, s)
		if fmt.Sprint(*mended) != "[1 from 0000000000000012 on]" {
			t.Errorf("%s: mended %v", way, *mended)
		}
		wantState(t, s.View, 20)
	}
}

// Nothing else is mended: not what writing over it would leave where it is, nor
// what has no other copy. See TestOpenRefusesDamagedLeftovers for the last one.
func TestWhatIsNotMended(t *testing.T) {
	t.Parallel()
	otherKey := func(from, to uint64) func(b []byte) []byte {
		value := fmt.Sprintf("block %d", from)
		return func(b []byte) []byte {
			return bytes.ReplaceAll(b, append(blockKey(from), value...), append(blockKey(to), value...))
		}
	}
	for name, damage := range map[string]func(b []byte) []byte{
		"key, now a higher one":           otherKey(15, 31),
		"key, now the one behind it":      otherKey(15, 16),
		"key, now the one before it":      otherKey(15, 14),
		"key of the last but one, higher": otherKey(19, 27),
	} {
		for way, write := range map[string]func(s *Store) error{"spill": spillError, "flush": (*Store).Flush} {
			path := leftovers(t)
			edit(t, path, damage)
			s, mended := mending(t, path)
			apply(t, s, 20)
			if err := write(s); !errors.Is(err, machine.ErrCorrupt) || s.Err() == nil || len(*mended) != 0 {
				t.Errorf("%s, %s: %v, mended %v", name, way, err, *mended)
			}
		}
	}
	covered := fresh(t)
	apply(t, covered, 10)
	flush(t, covered)
	if err := covered.Close(); err != nil {
		t.Fatal(err)
	}
	spoilBlocks(t, covered.path, 10)
	s, mended := mending(t, covered.path)
	put(t, s, machine.TableBlocks, string(blockKey(10)), "block 10")
	if err := spillError(s); !errors.Is(err, machine.ErrCorrupt) || len(*mended) != 0 {
		t.Errorf("a block that the checkpoint covers: %v, mended %v", err, *mended)
	}
}
