package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// apply makes entries up to an index, each with a record and a block.
func apply(t testing.TB, s *Store, upTo uint64) {
	t.Helper()
	for i := s.Applied().Index + 1; i <= upTo; i++ {
		must.Do(t, s.Update(Position{Index: i, Term: 1}, func(tx machine.Tx) error {
			return errors.Join(
				tx.Put(machine.TableBlocks, blockKey(i), fmt.Appendf(nil, "block %d", i)),
				tx.Put(streams, []byte("last"), fmt.Append(nil, i)),
			)
		}), "entry %d", i)
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
	must.Do(t, view(func(r machine.Reader) error {
		blocks, err := list(r, machine.TableBlocks, "")
		if err != nil {
			return err
		}
		if blocks != want.String() {
			t.Errorf("the blocks are %q, want those up to %d", blocks, upTo)
		}
		records, err := list(r, streams, "")
		check.Equal(t, records, last, "the records are %q")
		for i := uint64(1); i < 40; i++ {
			value, err := r.Get(machine.TableBlocks, blockKey(i))
			if err != nil || (value != nil) != (i <= upTo) {
				t.Errorf("block %d is %q, %v; want those up to %d", i, value, err, upTo)
			}
		}
		return err
	}))
}

func syncError(s *Store) error {
	_, err := s.SyncBlocks()
	return err
}

// crashed copies the state file and the block files as they are at this moment.
func crashed(t testing.TB, s *Store) (path string) {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.CopyFS(filepath.Join(dir, BlocksName), os.DirFS(BlocksOf(s.path))))
	b := must.Get(os.ReadFile(s.path))(t)
	path = filepath.Join(dir, "state.db")
	must.Do(t, os.WriteFile(path, b, 0o600))
	return path
}

// uncovered makes a store with a checkpoint at entry 10 and the blocks of ten more
// behind it.
func uncovered(t testing.TB) (path string) {
	t.Helper()
	s := fresh(t)
	apply(t, s, 10)
	flush(t, s)
	apply(t, s, 20)
	must.Do(t, s.Close())
	return s.path
}

// A crash at each step of a flush: what is found is the checkpoint and nothing else,
// to a store and to a verifier, and the replay leads to the same state. A log that ends
// before the last block has lost its end.
func TestCrashAroundAFlush(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	var frozen *frozenState
	freeze := func() (err error) { frozen, err = s.freeze(); return err }
	commit := func() error { return s.commit(frozen) }
	thaw := func() error { s.thaw(frozen); return nil }
	for i, moment := range []struct {
		name       string
		do         func() error
		checkpoint uint64
	}{
		{"flush frozen", freeze, 0},
		{"flush committed", commit, 2},
		{"flush over", thaw, 2},
		{"blocks synced", func() error { return syncError(s) }, 2},
		{"second flush frozen", freeze, 2},
		{"second flush committed", commit, 6},
		{"second flush over", thaw, 6},
	} {
		last := uint64(i + 2)
		apply(t, s, last)
		must.Do(t, moment.do(), "%s", moment.name)
		wantState(t, s.View, last)
		path := crashed(t, s)
		verifier, err := OpenReadOnly(path, testIdentity)
		must.Do(t, err, "%s", moment.name)
		again := func(s *Store, lost error) {
			t.Helper()
			wantState(t, s.View, moment.checkpoint)
			apply(t, s, last-1)
			if err := s.EndReplay(); last-1 >= moment.checkpoint && !errors.Is(err, lost) {
				t.Errorf("%s: a log that has lost an entry: %v", moment.name, err)
			}
		}
		again(verifier, machine.ErrCorrupt)
		apply(t, verifier, last)
		wantState(t, verifier.View, last)
		must.Do(t, errors.Join(verifier.EndReplay(), verifier.Err(), verifier.Close()))
		lost := reopen(t, path)
		again(lost, machine.ErrCorrupt)
		if err := lost.Flush(); err == nil {
			t.Errorf("%s: a checkpoint is taken although entries are lost", moment.name)
		}
		must.Do(t, lost.Close())
		whole := reopen(t, path)
		if whole.Checkpoint().Index != moment.checkpoint {
			t.Errorf("%s: the checkpoint is %v, want %d", moment.name, whole.Checkpoint(), moment.checkpoint)
		}
		apply(t, whole, last)
		must.Do(t, whole.EndReplay(), "%s", moment.name)
		wantState(t, whole.View, last)
		flush(t, whole)
		wantState(t, whole.View, last)
		if t.Failed() {
			t.Fatalf("at: %s", moment.name)
		}
	}
}

// A checkpoint in the middle of a replay covers some of the blocks that are there. The
// others are no history, and stay a proof.
func TestCheckpointAmidAReplay(t *testing.T) {
	t.Parallel()
	path := uncovered(t)
	s := reopen(t, path)
	flush(t, s) // nothing to write
	apply(t, s, 13)
	flush(t, s)
	wantState(t, s.View, 13)
	must.Do(t, s.Close())
	s = reopen(t, path)
	wantState(t, s.View, 13)
	err := s.EndReplay()
	if s.Checkpoint().Index != 13 || !errors.Is(err, machine.ErrCorrupt) ||
		!strings.Contains(err.Error(), "index 20 ") ||
		!strings.Contains(err.Error(), "index 13,") {
		t.Errorf("at %v: %v", s.Checkpoint(), err)
	}
	must.Do(t, s.Close())
	s = reopen(t, path)
	apply(t, s, 25) // beyond what was there
	must.Do(t, s.EndReplay())
	wantState(t, s.View, 25)
	flush(t, s)
	must.Do(t, s.Close())
	s = reopen(t, path)
	wantState(t, s.View, 25)
}

// A log that gives other blocks than those that are there stops the store at once.
func TestBlocksMustComeAgain(t *testing.T) {
	t.Parallel()
	for name, blocks := range map[string]map[uint64]string{
		"other bytes":    {11: "block 1x"},
		"one is missing": {12: "block 12"},
		"another key":    {12: "block 11"},
		"a longer one":   {11: "block 11 and more"},
	} {
		s := reopen(t, uncovered(t))
		err := s.Update(next(s), func(tx machine.Tx) (err error) {
			for key, value := range blocks {
				err = errors.Join(err, tx.Put(machine.TableBlocks, blockKey(key), []byte(value)))
			}
			return err
		})
		if !errors.Is(err, machine.ErrCorrupt) || !errors.Is(s.Err(), machine.ErrCorrupt) ||
			!strings.Contains(err.Error(), adviceRestore) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBlocksAreOnlyAppended(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(tx machine.Tx) error{
		"changed": func(tx machine.Tx) error {
			return tx.Put(machine.TableBlocks, blockKey(10),
				[]byte("x"))
		},
		"before the last one": func(tx machine.Tx) error { return tx.Put(machine.TableBlocks, blockKey(9), nil) },
		"under another key":   func(tx machine.Tx) error { return tx.Put(machine.TableBlocks, []byte("key"), nil) },
		"deleted":             func(tx machine.Tx) error { return tx.Delete(machine.TableBlocks, blockKey(10)) },
	} {
		s := fresh(t)
		apply(t, s, 10)
		if err := s.Update(next(s), change); err == nil || s.Err() == nil {
			t.Errorf("%s: the store goes on", name)
		}
	}
}

// A snapshot has no blocks of later entries, and its files belong to the directory
// that adopts them.
func TestSnapshotBeforeMoreBlocks(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	apply(t, s, 10)
	flush(t, s)
	apply(t, s, 20)
	sn := snapshot(t, s)
	wantState(t, sn.View, 10)
	dir := t.TempDir()
	copySnapshot(t, sn, dir)
	path := filepath.Join(dir, "state.db")
	verifier := must.Get(OpenReadOnly(path, testIdentity))(t)
	wantState(t, verifier.View, 10)
	must.Do(t, errors.Join(verifier.EndReplay(), verifier.Close()))
	other := []byte("another identity")
	must.Do(t, Adopt(path, other))
	adopted := must.Get(Open(path, Options{Identity: other, NoSync: true}))(t)
	defer func() { _ = adopted.Close() }() // its file is thrown away
	wantState(t, adopted.View, 10)
	put(t, adopted, machine.TableBlocks, string(blockKey(15)), "of another history")
	must.Do(t, adopted.EndReplay())
	flush(t, adopted)
}

// Damage in the block files is refused at the start, or when it is read; blocks that the
// checkpoint does not cover are made again.
func TestDamagedBlocks(t *testing.T) {
	t.Parallel()
	damage := func(number int, text string) (path string) {
		path = uncovered(t)
		file := filepath.Join(BlocksOf(path), fmt.Sprintf("%010d.blocks", number))
		edit(t, file, func(b []byte) []byte {
			at := strings.Index(string(b), text)
			if at < 0 {
				t.Fatalf("%s does not have %q", file, text)
			}
			b[at] ^= 1
			return b
		})
		return path
	}
	s := reopen(t, damage(1, "block 2")) // in a sealed file
	err := s.View(func(r machine.Reader) error {
		_, err := r.Get(machine.TableBlocks, blockKey(2))
		return err
	})
	if !errors.Is(err, machine.ErrCorrupt) || s.Err() == nil {
		t.Errorf("a damaged block is read: %v", err)
	}
	refused(t, damage(2, "block 10"), testIdentity, machine.ErrCorrupt, adviceRestore)
	s = reopen(t, damage(2, "block 11"))
	apply(t, s, 20)
	must.Do(t, s.EndReplay())
	wantState(t, s.View, 20)
	path := uncovered(t)
	must.Do(t, os.Remove(filepath.Join(BlocksOf(path), "0000000001.blocks")))
	refused(t, path, testIdentity, os.ErrNotExist, adviceRestore)
}

// A failure of the block files stops the store, and nothing that it has is recorded.
func TestFailedBlocksAreSticky(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	must.Do(t, os.WriteFile(BlocksOf(s.path), nil, 0o600)) // no directory can be made
	err := s.Update(next(s), func(tx machine.Tx) error { return tx.Put(machine.TableBlocks, blockKey(1), nil) })
	if err == nil || s.Err() == nil || s.Flush() == nil || syncError(s) == nil {
		t.Errorf("the store goes on: %v", err)
	}
}

// SyncBlocks moves no checkpoint, and tells what it has synced.
func TestSyncBlocksAlone(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	if written, err := s.SyncBlocks(); written != 0 || err != nil {
		t.Errorf("without blocks: %d, %v", written, err)
	}
	apply(t, s, 10)
	flush(t, s)
	check.Equal(t, s.UnsyncedBlocks(), 0, "after a flush %d bytes are not synced")
	size, pending := s.LastFlush(), s.PendingBytes()
	put(t, s, machine.TableBlocks, string(blockKey(11)), strings.Repeat("x", 1000))
	check.Equal(t, s.PendingBytes(), pending, "blocks take memory: %v")
	if written, err := s.SyncBlocks(); err != nil || written < 1000 || s.UnsyncedBlocks() != 0 {
		t.Errorf("%d bytes written (%v), %d left", written, err, s.UnsyncedBlocks())
	}
	if s.Checkpoint().Index != 10 || s.LastFlush() != size {
		t.Errorf("a sync moved the checkpoint to %v, or the size of the last flush to %v", s.Checkpoint(),
			s.LastFlush())
	}
	readOnly := must.Get(OpenReadOnly(uncovered(t), testIdentity))(t)
	defer func() { _ = readOnly.Close() }() // it has written nothing
	check.Is(t, syncError(readOnly), ErrReadOnly, "SyncBlocks of a read-only store =")
}

// copySnapshot writes a snapshot to a directory.
func copySnapshot(t testing.TB, sn *Snapshot, dir string) {
	t.Helper()
	for _, f := range sn.Files() {
		out, err := os.Create(filepath.Join(dir, "out"))
		if err == nil {
			err = errors.Join(f.CopyTo(out), out.Close())
		}
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		must.Do(t, errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.Rename(out.Name(), path)))
		if info, err := os.Stat(path); err != nil || info.Size() != f.Size {
			t.Errorf("%s has %d bytes (%v), announced were %d", f.Name, info.Size(), err, f.Size)
		}
	}
}
