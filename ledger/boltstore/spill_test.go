package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// apply makes entries up to an index, each with a record and a block.
func apply(t testing.TB, s *Store, upTo uint64) {
	t.Helper()
	for i := s.Applied().Index + 1; i <= upTo; i++ {
		err := s.Update(Position{Index: i, Term: 1}, func(tx machine.Tx) error {
			return errors.Join(
				tx.Put(machine.TableBlocks, blockKey(i), fmt.Appendf(nil, "block %d", i)),
				tx.Put(streams, []byte("last"), fmt.Append(nil, i)),
			)
		})
		if err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}

// wantState expects what apply has made of the entries up to an index, and
// nothing of later ones.
func wantState(t testing.TB, view func(func(machine.Reader) error) error, upTo uint64) {
	t.Helper()
	var want strings.Builder
	for i := uint64(1); i <= upTo; i++ {
		fmt.Fprintf(&want, "%s=block %d ", blockKey(i), i)
	}
	last := ""
	if upTo > 0 {
		last = fmt.Sprintf("last=%d ", upTo)
	}
	err := view(func(r machine.Reader) error {
		blocks, err := list(r, machine.TableBlocks, "")
		if err != nil {
			return err
		}
		if blocks != want.String() {
			t.Errorf("the blocks are %q, want those up to %d", blocks, upTo)
		}
		records, err := list(r, streams, "")
		if records != last {
			t.Errorf("the records are %q, want %q", records, last)
		}
		for i := uint64(1); i < 40; i++ {
			value, err := r.Get(machine.TableBlocks, blockKey(i))
			if err != nil || (value != nil) != (i <= upTo) {
				t.Errorf("block %d is %q, %v; want those up to %d", i, value, err, upTo)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// blocksInFile counts the blocks in the file, seen or not.
func blocksInFile(t testing.TB, s *Store) (n int) {
	t.Helper()
	err := s.bolt.View(func(tx *bbolt.Tx) error {
		n = tx.Bucket(bucketName(machine.TableBlocks)).Stats().KeyN
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// crashed copies the file as it is at this moment.
func crashed(t testing.TB, s *Store) (path string) {
	t.Helper()
	b, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// leftovers makes a file with a checkpoint at entry 10 and the blocks of ten
// more ahead of it.
func leftovers(t testing.TB) (path string) {
	t.Helper()
	s := fresh(t)
	apply(t, s, 10)
	flush(t, s)
	apply(t, s, 15)
	spill(t, s)
	apply(t, s, 20)
	spill(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s.path
}

// A crash at each step between two checkpoints with spills between them: the
// file holds the checkpoint and nothing else, to a store and to a verifier, and
// the replay leads to the same state.
func TestCrashAroundASpill(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	var frozen *frozenState
	step := func(freeze func() (*frozenState, error)) func() error {
		return func() (err error) { frozen, err = freeze(); return err }
	}
	commit := func() error { return s.commit(frozen) }
	thaw := func() error { s.thaw(frozen); return nil }
	for i, moment := range []struct {
		name               string
		do                 func() error
		checkpoint, proven uint64
	}{
		{"first spill frozen", step(s.freezeBlocks), 0, 0},
		{"first spill committed", commit, 0, 2},
		{"first spill over", thaw, 0, 2},
		{"flush frozen", step(s.freeze), 0, 2},
		{"flush committed", commit, 5, 0},
		{"flush over", thaw, 5, 0},
		{"second spill frozen", step(s.freezeBlocks), 5, 0},
		{"second spill committed", commit, 5, 8},
		{"second spill over", thaw, 5, 8},
		{"third spill", func() error { return spillError(s) }, 5, 11},
		{"flush of the rest frozen", step(s.freeze), 5, 11},
		{"flush of the rest committed", commit, 12, 0},
		{"flush of the rest over", thaw, 12, 0},
	} {
		apply(t, s, uint64(i+2))
		if err := moment.do(); err != nil {
			t.Fatalf("%s: %v", moment.name, err)
		}
		wantState(t, s.View, uint64(i+2))
		path := crashed(t, s)
		verifier, err := OpenReadOnly(path, testIdentity)
		if err != nil {
			t.Fatalf("%s: %v", moment.name, err)
		}
		wantState(t, verifier.View, moment.checkpoint)
		apply(t, verifier, uint64(i+2))
		wantState(t, verifier.View, uint64(i+2))
		if err := verifier.Close(); err != nil {
			t.Fatal(err)
		}
		again := reopen(t, path)
		proven := []byte(nil)
		if moment.proven > 0 {
			proven = blockKey(moment.proven)
		}
		if again.Checkpoint().Index != moment.checkpoint || !bytes.Equal(again.Proven(), proven) {
			t.Errorf("%s: the checkpoint is %v and block %x is proven, want %d and %x",
				moment.name, again.Checkpoint(), again.Proven(), moment.checkpoint, proven)
		}
		wantState(t, again.View, moment.checkpoint)
		apply(t, again, uint64(i+2))
		wantState(t, again.View, uint64(i+2))
		flush(t, again)
		wantState(t, again.View, uint64(i+2))
		if t.Failed() {
			t.Fatalf("at: %s", moment.name)
		}
	}
}

// A checkpoint in the middle of a replay covers some leftovers. The others stay
// hidden, and stay a proof: also for a start that finds the log cut there.
func TestCheckpointAmidLeftovers(t *testing.T) {
	t.Parallel()
	for _, spillFirst := range []bool{false, true} {
		path := leftovers(t)
		s := reopen(t, path)
		flush(t, s) // nothing to write
		apply(t, s, 13)
		if spillFirst {
			before := transaction(t, s)
			spill(t, s)
			if transaction(t, s) != before {
				t.Error("blocks that are in the file were written again")
			}
			wantState(t, s.View, 13)
		}
		flush(t, s)
		wantState(t, s.View, 13)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, path)
		if !bytes.Equal(s.Proven(), blockKey(20)) || s.Checkpoint().Index != 13 {
			t.Errorf("at %v block %x is proven, want 20", s.Checkpoint(), s.Proven())
		}
		wantState(t, s.View, 13)
		apply(t, s, 25) // beyond what was spilled
		spill(t, s)
		wantState(t, s.View, 25)
		flush(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, path)
		wantState(t, s.View, 25)
		if s.Proven() != nil {
			t.Errorf("a checkpoint covers everything, and block %x is proven", s.Proven())
		}
	}
}

// A log that gives other blocks than those that are in the file stops the store.
func TestLeftoversMustComeAgain(t *testing.T) {
	t.Parallel()
	for name, blocks := range map[string]map[uint64]string{
		"other bytes":     {11: "block 11", 12: "another"},
		"one is missing":  {11: "block 11", 13: "block 13"},
		"another key":     {11: "block 11", 13: "block 12"},
		"one more":        {10: "block 10", 11: "block 11"},
		"none but a late": {21: "block 21"},
	} {
		for way, write := range map[string]func(s *Store) error{"spill": spillError, "flush": (*Store).Flush} {
			s := reopen(t, leftovers(t))
			err := s.Update(next(s), func(tx machine.Tx) (err error) {
				for key, value := range blocks {
					err = errors.Join(err, tx.Put(machine.TableBlocks, blockKey(key), []byte(value)))
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := write(s); !errors.Is(err, machine.ErrCorrupt) || !errors.Is(s.Err(), machine.ErrCorrupt) ||
				!strings.Contains(err.Error(), adviceRestore) {
				t.Errorf("%s, %s: %v", name, way, err)
			}
		}
	}
}

// What a spill relies on is not taken for granted.
func TestBlocksAreOnlyAppended(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(tx machine.Tx) error{
		"changed": func(tx machine.Tx) error {
			return tx.Put(machine.TableBlocks, blockKey(10),
				[]byte("x"))
		},
		"before the last one": func(tx machine.Tx) error {
			return tx.Put(machine.TableBlocks, blockKey(9),
				[]byte("block 9"))
		},
		"deleted": func(tx machine.Tx) error { return tx.Delete(machine.TableBlocks, blockKey(11)) },
	} {
		s := fresh(t)
		apply(t, s, 10)
		flush(t, s)
		if err := s.Update(next(s), change); err != nil {
			t.Fatal(err)
		}
		if err := spillError(s); err == nil || s.Err() == nil {
			t.Errorf("%s: the spill went well", name)
		}
	}
}

// The copy of a snapshot has what was spilled after the flush. Neither a reader
// of the snapshot nor one of the copy sees it, and it is gone when a directory
// adopts the copy, whose log will never make it again.
func TestSnapshotAfterASpill(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 10)
	flush(t, s)
	apply(t, s, 20)
	spill(t, s)
	sn, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sn.View, 10)
	path := copied(t, sn)
	if err := sn.Close(); err != nil {
		t.Fatal(err)
	}
	verifier, err := OpenReadOnly(path, testIdentity)
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, verifier.View, 10)
	if err := verifier.Close(); err != nil {
		t.Fatal(err)
	}
	other := []byte("another identity")
	if err := Adopt(path, other); err != nil {
		t.Fatal(err)
	}
	adopted, err := Open(path, Options{Identity: other, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = adopted.Close() }() // its file is thrown away
	wantState(t, adopted.View, 10)
	if n := blocksInFile(t, adopted); n != 10 || adopted.Proven() != nil {
		t.Errorf("an adopted file has %d blocks, and %x is proven", n, adopted.Proven())
	}
	put(t, adopted, machine.TableBlocks, string(blockKey(15)), "of another history")
	spill(t, adopted)
}

// A record "ahead" that names what is not there, and a damaged last leftover.
func TestOpenRefusesDamagedLeftovers(t *testing.T) {
	t.Parallel()
	// Behind all of them, and between two: then one would pass for history.
	for _, absent := range [][]byte{blockKey(9_999), append(blockKey(11), 0)} {
		path := leftovers(t)
		rewriteControl(t, path, keyAhead, absent)
		refused(t, path, testIdentity, machine.ErrCorrupt, adviceRestore)
		if err := Adopt(path, testIdentity); !errors.Is(err, machine.ErrCorrupt) {
			t.Errorf("adopted: %v", err)
		}
	}
	path := leftovers(t)
	edit(t, path, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("block 20"), []byte("block 21")) })
	refused(t, path, testIdentity, machine.ErrCorrupt, adviceRestore)

	path = leftovers(t)
	edit(t, path, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("block 12"), []byte("block 13")) })
	s := reopen(t, path)
	apply(t, s, 20)
	if err := s.Flush(); !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("a damaged leftover was taken over: %v", err)
	}
}

func TestFailedSpillIsSticky(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 10)
	flush(t, s)
	s.bolt.MaxSize = 1
	put(t, s, machine.TableBlocks, string(blockKey(11)), strings.Repeat("x", 1<<20))
	if spillError(s) == nil {
		t.Fatal("a spill succeeded without space")
	}
	if s.Err() == nil || s.Flush() == nil || spillError(s) == nil {
		t.Error("the store goes on after a failed spill")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s.path)
	wantState(t, s.View, 10)
}

// A spill frees the memory of the blocks alone, moves no position, and tells
// nothing of what a checkpoint costs.
func TestSpillTakesBlocksAlone(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	if written, err := s.Spill(); written != 0 || err != nil {
		t.Errorf("without blocks: %d, %v", written, err)
	}
	apply(t, s, 10)
	flush(t, s)
	if s.SpillableBytes() != 0 {
		t.Errorf("after a flush %d bytes can be spilled", s.SpillableBytes())
	}
	size := s.LastFlush()
	put(t, s, streams, "record", strings.Repeat("x", 1000))
	records := s.PendingBytes()
	put(t, s, machine.TableBlocks, string(blockKey(11)), strings.Repeat("x", 1000))
	pending, spillable := s.PendingBytes(), s.SpillableBytes()
	if spillable < 1000 || pending != records+spillable {
		t.Errorf("%d bytes pending, %d of them to be spilled, %d of records", pending, spillable, records)
	}
	written, err := s.Spill()
	if err != nil || written != spillable || s.PendingBytes() != records || s.SpillableBytes() != 0 {
		t.Errorf("%d bytes written (%v), %d pending, %d to be spilled", written, err, s.PendingBytes(),
			s.SpillableBytes())
	}
	if s.Checkpoint().Index != 10 || s.LastFlush() != size {
		t.Errorf("a spill moved the checkpoint to %v, or the size of the last flush to %v", s.Checkpoint(),
			s.LastFlush())
	}
	before := transaction(t, s)
	if written, err := s.Spill(); written != 0 || err != nil || transaction(t, s) != before {
		t.Errorf("with nothing to write: %d bytes, %v", written, err)
	}
}

func TestReadOnlyStoreDoesNotSpill(t *testing.T) {
	t.Parallel()
	s, err := OpenReadOnly(leftovers(t), testIdentity)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }() // it has written nothing
	apply(t, s, 12)
	if err := spillError(s); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Spill = %v", err)
	}
	wantState(t, s.View, 12)
}

// How long the list of free pages is, which each spill writes, is known from the
// start on.
func TestFreeListBytes(t *testing.T) {
	t.Parallel()
	const n = 20_000
	s := fresh(t)
	change := func(what func(tx machine.Tx, key []byte) error) int64 {
		t.Helper()
		err := s.Update(next(s), func(tx machine.Tx) error {
			for i := range n {
				if err := what(tx, recordKey(i)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		flush(t, s)
		return s.FreeListBytes()
	}
	if size := change(func(tx machine.Tx, key []byte) error {
		return tx.Put(streams, key,
			make([]byte, 2_000))
	}); size != testPageSize {
		t.Errorf("a list of nearly nothing takes %d bytes", size)
	}
	size := change(func(tx machine.Tx, key []byte) error { return tx.Delete(streams, key) })
	if pages := int64(n / 2); size < 8*pages || size > 8*3*pages {
		t.Errorf("a list of more than %d pages takes %d bytes", pages, size)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if again := reopen(t, s.path).FreeListBytes(); again != size {
		t.Errorf("after a start it takes %d bytes, before it took %d", again, size)
	}
}
