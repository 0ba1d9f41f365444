package boltstore

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// blockIndexes returns the ledger indexes of the records of blocks that a view has.
func blockIndexes(t testing.TB, view func(func(machine.Reader) error) error) (indexes []uint64) {
	t.Helper()
	must.Do(t, view(func(r machine.Reader) error {
		return r.Ascend(machine.TableBlocks, nil, func(key, value []byte) bool {
			index := binary.BigEndian.Uint64(key)
			check.Equal(t, string(value), fmt.Sprintf("block %d", index), "block %d is %q", index)
			indexes = append(indexes, index)
			return true
		})
	}))
	return indexes
}

func fileNumbers(t testing.TB, path string) []uint64 {
	t.Helper()
	numbers := must.Get(blockfile.List(blockfile.Directory{Path: BlocksOf(path)}))(t)
	return numbers
}

// Whole files before an index are dropped, no other ones, and that stays so: after a reopening, for a verifier,
// and with the files that a crash has left.
func TestDropBlocks(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 40)
	if n, err := s.DropBlocks(41); n != 0 || err != nil {
		t.Fatalf("dropped %d bytes that no checkpoint covers, %v", n, err)
	}
	flush(t, s)
	apply(t, s, 60)
	all, before := fileNumbers(t, s.path), s.BlockBytes()
	old := map[string][]byte{}
	for _, number := range all {
		b := must.Get(os.ReadFile(filepath.Join(BlocksOf(s.path), blockfile.Name(number))))(t)
		old[blockfile.Name(number)] = b
	}
	droppable := s.Droppable(20)
	n, err := s.DropBlocks(20)
	if err != nil || n == 0 || s.BlockBytes() != before-n || s.BlockBase() != uint64(n) {
		t.Fatalf("dropped %d bytes of %d, %d are left, %v", n, before, s.BlockBytes(), err)
	}
	kept := fileNumbers(t, s.path)
	if !slices.Equal(kept, all[len(droppable):]) {
		t.Errorf("the files are %v, they were %v, and %d could be dropped", kept, all, len(droppable))
	}
	if again, err := s.DropBlocks(20); again != 0 || err != nil {
		t.Errorf("dropping again: %d, %v", again, err)
	}
	first := droppable[len(droppable)-1].Last + 1
	check := func(what string, view func(func(machine.Reader) error) error, last uint64) {
		t.Helper()
		got := blockIndexes(t, view)
		if len(got) == 0 || got[0] != first || got[len(got)-1] != last || uint64(len(got)) != last-first+1 {
			t.Errorf("%s: the blocks are %v, want %d to %d", what, got, first, last)
		}
	}
	check("at once", s.View, 60)
	flush(t, s)
	must.Do(t, s.Close())
	for _, left := range []int{0, 1, len(droppable)} { // what a crash leaves: they are removed from the first on
		for _, number := range all[len(droppable)-left : len(droppable)] {
			name := filepath.Join(BlocksOf(s.path), blockfile.Name(number))
			must.Do(t, os.WriteFile(name, old[blockfile.Name(number)], 0o600))
		}
		verifier := must.Get(OpenReadOnly(s.path, testIdentity))(t)
		check("a verifier", verifier.View, 60)
		must.Do(t, verifier.Close())
		again := reopen(t, s.path)
		check("reopened", again.View, 60)
		if numbers := fileNumbers(t, s.path); !slices.Equal(numbers[:len(kept)], kept) {
			t.Errorf("with %d files left by a crash there are %v, want %v", left, numbers, kept)
		}
		apply(t, again, again.Applied().Index+1)
		must.Do(t, again.Close()) // without a flush, so that the next one finds the same
	}
}

// A start removes dropped files once it is settled where they begin: what it has read may be in the system's cache
// alone, and after a loss of power the files would begin before those that are left.
func TestFilesStayUntilTheirStartIsSettled(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 40)
	flush(t, s)
	all, old := fileNumbers(t, s.path), map[string][]byte{}
	for _, number := range all {
		name := filepath.Join(BlocksOf(s.path), blockfile.Name(number))
		old[name] = must.Get(os.ReadFile(name))(t)
	}
	must.Get(s.DropBlocks(20))(t)
	must.Do(t, s.Close())
	for name, b := range old { // it was killed before it removed any
		must.Do(t, os.WriteFile(name, b, 0o600))
	}
	begun := &Store{path: s.path, memory: newPool(), active: new(overlay), advanced: func() {}}
	must.Do(t, begun.openBolt(Options{}))
	must.Get(begun.checkPages(nil))(t)
	must.Do(t, begun.load(Options{Identity: testIdentity}))
	must.Equal(t, len(fileNumbers(t, s.path)), len(all), "%d files before it is settled")
	must.Do(t, begun.Close())
	s = reopen(t, s.path)
	if left := fileNumbers(t, s.path); len(left) == len(all) {
		t.Errorf("%d files are left of %d", len(left), len(all))
	}
}

// A file that must be there is missed, though others before it have been dropped.
func TestMissingFileBehindTheStart(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 60)
	flush(t, s)
	must.Get(s.DropBlocks(20))(t)
	must.Do(t, s.Close())
	for _, number := range fileNumbers(t, s.path) {
		name := filepath.Join(BlocksOf(s.path), blockfile.Name(number))
		must.Do(t, os.Rename(name, name+".away"))
		if _, err := Open(s.path, Options{Identity: testIdentity, NoSync: true}); err == nil {
			t.Errorf("opened without %s", name)
		}
		must.Do(t, os.Rename(name+".away", name))
	}
}

// A reader from before that comes to a file which is gone is told so, and nothing stops.
func TestReaderMeetsDroppedBlocks(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 60)
	flush(t, s)
	err := s.ViewBlocks(func(r machine.Reader) error {
		if _, err := r.Get(machine.TableBlocks, blockKey(59)); err != nil {
			return err
		}
		if _, err := s.DropBlocks(30); err != nil {
			return err
		}
		value, err := r.Get(machine.TableBlocks, blockKey(2))
		check.Is(t, err, machine.ErrDropped, "a dropped block is %q", value)
		_, err = r.Get(machine.TableBlocks, blockKey(58))
		return err
	})
	if err != nil || s.Err() != nil {
		t.Errorf("%v, and the store: %v", err, s.Err())
	}
	for from, round := uint64(0), 0; round == 0 || from != 0; round++ {
		if from, _, err = s.ScrubBlocks(from, 100); err != nil || round > 1_000 {
			t.Fatalf("scrub after the drop: %v", err)
		}
	}
	apply(t, s, 70)
	if got := blockIndexes(t, s.View); got[len(got)-1] != 70 {
		t.Errorf("the blocks end with %d", got[len(got)-1])
	}
}

const carried = machine.TableCarried

// An Amend changes local tables beside the log, and is durable with the next flush.
func TestAmend(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 3)
	flush(t, s)
	at := s.Applied()
	put := func(key string) {
		t.Helper()
		must.Do(t, s.Amend(func(tx machine.Tx) error { return tx.Put(carried, []byte(key), []byte("value")) }))
	}
	put("a")
	flush(t, s)
	put("b")
	for _, view := range []func(func(machine.Reader) error) error{s.View, s.ViewBlocks} {
		must.Do(t, view(func(r machine.Reader) error {
			for _, key := range []string{"a", "b"} {
				if value, err := r.Get(carried, []byte(key)); string(value) != "value" || err != nil {
					t.Errorf("%s is %q, %v", key, value, err)
				}
			}
			return nil
		}))
	}
	if s.Applied() != at || s.Checkpoint() != at {
		t.Errorf("the position is %v, the checkpoint %v, they were %v", s.Applied(), s.Checkpoint(), at)
	}
	must.Do(t, s.Close())
	again := reopen(t, s.path)
	if a, b := get(t, again, carried, "a"), get(t, again, carried, "b"); a != "value" || b != "<absent>" {
		t.Errorf("after a crash a is %q and b %q, want a alone, which was flushed", a, b)
	}
	err := again.Amend(func(tx machine.Tx) error { return tx.Put(streams, []byte("k"), []byte("v")) })
	if err == nil || again.Err() == nil {
		t.Error("an Amend has changed a replicated table")
	}
}
