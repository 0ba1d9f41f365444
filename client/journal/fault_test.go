package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestJournalFaultIsFinal: after any failed step of a flush, nothing more is
// taken and nothing is called durable, and a journal opened after the power
// failed has everything that was durable and nothing half.
func TestJournalFaultIsFinal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		step  string
		short int
		err   error
	}{
		{"write", 0, errDisk},
		{"write", 7, errDisk},        // a short write
		{"write", 35, errDisk},       // more than the group's header
		{"write", 0, syscall.ENOSPC}, // disk full
		{"write", 30, syscall.ENOSPC},
		{"sync", 0, errDisk},
	} {
		t.Run(fmt.Sprint(test.step, " ", test.short, " ", test.err), func(t *testing.T) {
			t.Parallel()
			m, path := newMemory(), temporary(t)
			f := m.open(t, path, Options{})
			begin(t, f)
			add(t, f, write(0, "durable"))
			m.mu.Lock()
			m.fail = func(step, _ string) (int, error) {
				if step == test.step {
					return test.short, test.err
				}
				return 0, nil
			}
			m.mu.Unlock()
			must.Do(t, f.Append(one, write(1, "lost")))
			if err := f.Sync(); !errors.Is(err, ErrFailed) || !errors.Is(err, test.err) {
				t.Fatalf("want ErrFailed and the cause, got %v", err)
			}
			m.mu.Lock()
			m.fail = nil // the disk recovers, the journal must not
			written := m.steps["write"]
			m.mu.Unlock()
			check.Is(t, f.Sync(), ErrFailed, "a failed journal must not call anything durable")
			check.Is(t, f.Append(one, write(2, "later")), ErrFailed, "a failed journal must take nothing")
			check.Is(t, f.Close(), ErrFailed, "Close must report that something was lost")
			check.Equal(t, m.steps["write"], written, "something was written after the failure: got %v")
			for extra := range 80 {
				again := m.powerFailure(path, extra)
				f := again.open(t, path, Options{MustExist: true})
				got := tags(only(f))
				if fmt.Sprint(got) != "[durable]" && (test.step != "sync" || fmt.Sprint(got) != "[durable lost]") {
					t.Errorf("with %d bytes of the failed group: got %v", extra, got)
				}
				must.Do(t, f.Close())
			}
		})
	}
}

// TestJournalFaultWhileReplacing fails and crashes at every step of a rewrite:
// what was durable before is there afterwards, from the old file or the new.
func TestJournalFaultWhileReplacing(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"create", "write", "sync", "rename", "syncDir"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			m, path := newMemory(), temporary(t)
			f := m.open(t, path, Options{MaxBytes: minMaxBytes})
			begin(t, f)
			add(t, f, write(0, "kept"))
			m.mu.Lock()
			m.fail = func(at, p string) (int, error) {
				// The first file was made by opening; only the rewrite is to fail.
				if at == step && (m.steps["create"] > 1 || step == "syncDir") &&
					(p == path+".new" || step == "syncDir") {
					return 9, errDisk
				}
				return 0, nil
			}
			m.mu.Unlock()
			failed := error(nil)
			for id := uint64(1); id < 2000 && failed == nil; id++ {
				if failed = f.Append(one,
					Record{Kind: KindHead, Head: Head{Ledger: 7, Session: 3 + id, NextID: 1,
						NextSequence: 2}}); failed == nil {
					failed = f.Sync()
				}
			}
			if !errors.Is(failed, ErrFailed) || !errors.Is(failed, errDisk) {
				t.Fatalf("want the rewrite to fail, got %v", failed)
			}
			check.Is(t, f.Close(), ErrFailed, "want an error from Close")
			after := m.powerFailure(path, 0).open(t, path, Options{MustExist: true})
			if got := tags(only(after)); !slices.Equal(got, []string{"kept"}) {
				t.Errorf("want the durable write, got %v", got)
			}
		})
	}
}

// TestJournalFaultOpening: a file that cannot be read or written anew is not
// opened, and is left as it is.
func TestJournalFaultOpening(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"read", "create", "write", "sync", "rename", "syncDir"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			m, path := newMemory(), temporary(t)
			f := m.open(t, path, Options{})
			begin(t, f)
			add(t, f, write(0, "kept"))
			must.Do(t, f.Close())
			m.fail = func(at, _ string) (int, error) {
				if at == step {
					return 0, errDisk
				}
				return 0, nil
			}
			must.Is(t, check.Err(Open(path, Options{storage: m})), errDisk, "want the cause")
			m.fail = nil
			if got := tags(only(m.open(t, path, Options{}))); !slices.Equal(got, []string{"kept"}) {
				t.Errorf("want the write after a failed opening, got %v", got)
			}
		})
	}
}

// sample is a file of three groups, and where each begins.
func sample(t *testing.T) (content []byte, groups []int) {
	t.Helper()
	m, path := newMemory(), temporary(t)
	f := m.open(t, path, Options{})
	begin(t, f)
	for id, tag := range []string{"a", "b", "c"} {
		groups = append(groups, int(f.size))
		add(t, f, write(uint64(id), tag))
	}
	return slices.Clone(m.seen[path].written[:f.size]), groups
}

// TestJournalFaultTornTail cuts a file at every byte. What is before the group
// that was cut is there; a file without its header never was one.
func TestJournalFaultTornTail(t *testing.T) {
	t.Parallel()
	content, groups := sample(t)
	for length := range 2 * len(content) {
		// Once the file ends there, and once with the zeros that were written
		// ahead behind it.
		length, room := length/2, make([]byte, length%2*64)
		path := temporary(t)
		m := newMemory().set(path, append(slices.Clone(content[:length]), room...))
		f, err := Open(path, Options{storage: m})
		if length < headerBytes &&
			!bytes.Equal(append(content[:length:length], room...)[:min(headerBytes, length+len(room))],
				content[:headerBytes]) {
			if damage, ok := errors.AsType[*DamageError](err); !ok || damage.Offset != 0 {
				t.Errorf("%d bytes: want damage at 0, got %v", length, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%d bytes: %v", length, err)
			continue
		}
		want, begins := []string(nil), headerBytes
		for i := range groups {
			end := len(content)
			if i+1 < len(groups) {
				end = groups[i+1]
			}
			if length >= end {
				want, begins = append(want, string(rune('a'+i))), end
			}
		}
		torn := max(0, written(content[:length])-begins)
		if got := tags(only(f)); !slices.Equal(got, want) || f.Torn() != int64(torn) {
			t.Errorf("%d bytes: want %v and %d torn, got %v and %d", length, want, torn, got, f.Torn())
		}
		// The truncation is on disk before the test continues.
		kept := m.powerFailure(path, 0).seen[path].written
		if good, err := replay(path, kept, map[Name]*stream{}); err != nil || good < int64(written(kept)) {
			t.Errorf("%d bytes: the file after opening has %d good bytes of %d, %v", length, good, len(kept), err)
		}
		must.Do(t, f.Close())
	}
}

// TestJournalFaultFlippedBit flips a bit in every byte. Before the last group
// that is damage, at the offset of its group; in the last group it looks as if
// that had been torn, and no write of it appears.
func TestJournalFaultFlippedBit(t *testing.T) {
	t.Parallel()
	content, groups := sample(t)
	starts := append([]int{0}, groups...)
	last := groups[len(groups)-1]
	for at := range content {
		for _, bit := range []byte{1, 0x80} {
			flipped := slices.Clone(content)
			flipped[at] ^= bit
			streams := make(map[Name]*stream)
			good, err := replay("journal", flipped, streams)
			if at >= last {
				if err != nil || good != int64(last) {
					t.Errorf("byte %d: want the last group left out, got %d, %v", at, good, err)
				}
				check.EqualSlices(t, tags(states(streams)[0]), []string{"a", "b"}, "byte %d: got %v", at)
				continue
			}
			begins := 0
			for _, start := range starts {
				if start <= at && start != groups[0] || start <= at && at >= groups[0] {
					begins = start
				}
			}
			damage, ok := errors.AsType[*DamageError](err)
			if !ok || damage.Offset != int64(begins) || damage.Path != "journal" {
				t.Errorf("byte %d: want damage at %d, got %v", at, begins, err)
			}
		}
	}
}

// TestJournalFaultMovedGroup: a group in another place or another file is none.
func TestJournalFaultMovedGroup(t *testing.T) {
	t.Parallel()
	content, groups := sample(t)
	other, _ := sample(t)
	twice := append(slices.Clone(content), content[groups[2]:]...)
	if good, err := replay("journal", twice, map[Name]*stream{}); err != nil || good != int64(len(content)) {
		t.Errorf("a group that is there twice must count once, got %d of %d, %v", good, len(content), err)
	}
	mixed := append(slices.Clone(content[:groups[2]]), other[groups[2]:]...)
	if good, err := replay("journal", mixed, map[Name]*stream{}); err != nil || good != int64(groups[2]) {
		t.Errorf("a group of another file must not count, got %d, %v", good, err)
	}
	// A journal inside a torn payload is not a following group.
	m, path := newMemory(), temporary(t)
	f := m.open(t, path, Options{})
	begin(t, f)
	add(t, f, Record{Kind: KindWrite, Sequence: 1, Key: "k", Request: append(other, make([]byte, 50)...)})
	torn := m.seen[path].written[:f.size]
	check.Is(t, check.Err(replay("journal", torn[:len(torn)-10], map[Name]*stream{})), nil, "want a torn tail")
}

// TestJournalFaultFileSystem is about what the file system says.
func TestJournalFaultFileSystem(t *testing.T) {
	t.Parallel()
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		check.Is(t, check.Err(Open(temporary(t), Options{MustExist: true})), ErrMissing)
	})
	t.Run("empty", func(t *testing.T) {
		t.Parallel()
		path := temporary(t)
		must.Do(t, os.WriteFile(path, nil, 0o600))
		if _, err := Open(path, Options{}); errors.As(err, new(*DamageError)) == false {
			t.Errorf("an empty file is damage, got %v", err)
		}
	})
	t.Run("locked", func(t *testing.T) {
		t.Parallel()
		path := temporary(t)
		f, err := Open(path, Options{})
		must.Do(t, err)
		check.Is(t, check.Err(Open(path, Options{})), ErrLocked)
		must.Do(t, f.Close())
		if f, err = Open(path, Options{}); err != nil {
			t.Fatalf("after Close the lock must be free, got %v", err)
		}
		must.Do(t, f.Close())
	})
	t.Run("read-only directory", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() == 0 {
			t.Skip("root may write anywhere; the fault layer has the same case as a failed create")
		}
		dir := t.TempDir()
		must.Do(t, os.Chmod(dir, 0o500))
		if _, err := Open(filepath.Join(dir, "journal"), Options{}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("want a permission error, got %v", err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		t.Parallel()
		if _, err := Open(filepath.Join(t.TempDir(), "no", "journal"), Options{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("want the file system's error, got %v", err)
		}
	})
}
