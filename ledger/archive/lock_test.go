package archive

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/blockfile"
)

// TestTwoWritersAreLockedOut: a second ledger is refused at every step of the first one's copy, and after it, too,
// because the index is no longer the one that it read. The archive stays whole.
func TestTwoWritersAreLockedOut(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 1)
	dir, first := newArchive(t)
	second := must.Get(Open(Directory(dir), first.ID()))(t)
	steps := 0
	first.step = func(name string) {
		steps++
		want := ErrBusy
		if name == "done" { // the new index shows first
			want = ErrOther
		}
		if err := l.add(second, l.sealed[0].Number); !errors.Is(err, want) {
			t.Errorf("at step %q: want %v, got %v", name, want, err)
		}
		if _, err := Create(Directory(dir), rand.Reader); !errors.Is(err, ErrBusy) {
			t.Errorf("at step %q: want no archive made, got %v", name, err)
		}
	}
	if err := l.add(first, l.sealed[0].Number); err != nil || steps < 5 {
		t.Fatalf("%v after %d steps", err, steps)
	}
	if err := l.add(second, l.sealed[0].Number); !errors.Is(err, ErrOther) {
		t.Errorf("want the changed index noticed, got %v", err)
	}
	if err := second.Confirmed(l.sealed[0].Number); !errors.Is(err, ErrOther) {
		t.Errorf("want nothing confirmed by a changed index, got %v", err)
	}
	first.step = nil
	must.Do(t, l.add(first, l.sealed[1].Number), "the first goes on")
	mustBeSound(t, dir, 2)
}

// TestIndexThatChangesDuringACopy: where a file system has no locks, the index that another one wrote meanwhile is
// not written over.
func TestIndexThatChangesDuringACopy(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 1)
	dir, a := newArchive(t)
	other := must.Get(readIndex(Directory(dir)))(t)
	file := must.Get(blockfile.Directory{Path: l.dir}.OpenSealed(blockfile.Name(l.sealed[0].Number)))(t)
	info, err := blockfile.CheckSealed(file)
	must.Do(t, errors.Join(err, file.Close()))
	changed := other.add(Entry{Number: info.Number, Last: info.Last, Size: info.Size, SHA256: info.SHA256}).encode()
	a.step = func(name string) {
		if name != "rename" {
			return
		}
		if err := os.WriteFile(filepath.Join(dir, IndexName), changed, 0o600); err != nil {
			t.Error(err)
		}
	}
	if err := l.add(a, l.sealed[0].Number); !errors.Is(err, ErrOther) {
		t.Errorf("want the changed index noticed, got %v", err)
	}
	check.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, IndexName)))(t)), string(changed),
		"the other's index was written over: %q")
}

// TestFileSystemsWithoutLocks: what says that there are no locks is told from what says that this one cannot be had.
func TestFileSystemsWithoutLocks(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		nil: false, syscall.ENOSYS: true, syscall.EOPNOTSUPP: true, syscall.ENOLCK: true,
		&os.PathError{Op: "flock", Err: syscall.ENOLCK}: true,
		syscall.EROFS: false, syscall.EACCES: false, syscall.EIO: false, ErrBusy: false,
		fmt.Errorf("flock: %w", syscall.ENOSYS): true,
	} {
		if got := withoutLocks(err); got != want {
			t.Errorf("%v: want %v, got %v", err, want, got)
		}
	}
}
