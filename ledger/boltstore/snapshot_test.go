package boltstore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// copied writes a snapshot to a directory and returns the path of the state file.
func copied(t *testing.T, sn *Snapshot) string {
	t.Helper()
	dir := t.TempDir()
	copySnapshot(t, sn, dir)
	return filepath.Join(dir, "state.db")
}

// A snapshot holds what was flushed before it, whatever comes after, and the
// copy of it belongs to whoever adopts it.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, machine.TableStreams, "kept", "1")
	put(t, s, machine.TableStreams, "changed", "old")
	flush(t, s)
	put(t, s, machine.TableStreams, "unflushed", "2")
	sn, err := s.Snapshot()
	must.Do(t, err)
	// Many flushes, which would use the old pages again if they might.
	for range 20 {
		put(t, s, machine.TableStreams, "changed", "new")
		remove(t, s, machine.TableStreams, "kept")
		flush(t, s)
	}
	const want = "changed=old kept=1 "
	must.Do(t, sn.View(func(r machine.Reader) error {
		got, err := list(r, machine.TableStreams, "")
		check.Equal(t, got, want, "the snapshot has %q")
		return err
	}))
	path := copied(t, sn)
	must.Do(t, sn.Close())
	other := []byte("another identity")
	must.Do(t, Adopt(path, other))
	check.Is(t, check.Err(Open(path, Options{Identity: testIdentity})), ErrForeign, "opened under its old identity")
	adopted := must.Get(Open(path, Options{Identity: other}))(t)
	defer func() { _ = adopted.Close() }() // only read from
	if adopted.Applied() != (Position{}) || adopted.Checkpoint() != (Position{}) {
		t.Errorf("an adopted file is at %v, want the beginning of a log", adopted.Applied())
	}
	must.Do(t, adopted.View(func(r machine.Reader) error {
		got, err := list(r, machine.TableStreams, "")
		check.Equal(t, got, want, "the copy has %q")
		return err
	}))
}

// snapshot opens a snapshot for a test.
func snapshot(t *testing.T, s *Store) *Snapshot {
	t.Helper()
	sn := must.Get(s.Snapshot())(t)
	t.Cleanup(func() { _ = sn.Close() }) // only read from
	return sn
}

// A panic of whoever reads a snapshot is a bug of theirs and no damage.
func TestSnapshotViewPassesPanicsOn(t *testing.T) {
	t.Parallel()
	sn := snapshot(t, reopen(t, filled(t, 10)))
	var nobody *Snapshot
	for name, bug := range map[string]func(){
		"text":        func() { panic("boom") },
		"error":       func() { panic(machine.ErrCorrupt) },
		"nil pointer": func() { _ = nobody.store },
		"index":       func() { _ = testIdentity[len(testIdentity):][0] },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic did not reach its caller", name)
				}
			}()
			err := sn.View(func(r machine.Reader) error {
				_, _ = r.Get(streams, recordKey(1)) // the value does not matter
				bug()
				return nil
			})
			t.Errorf("%s: View = %v", name, err)
		}()
	}
	cause := errors.New("no")
	if err := sn.View(func(machine.Reader) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("View = %v, want fn's error itself", err)
	}
	check.Equal(t, get(t, sn.store, streams, string(recordKey(1))), string(recordValue(1)), "afterwards record 1 is %q")
}

// What a cut file does to bbolt, and to a value that somebody is reading, is
// damage, and must not kill the process.
func TestSnapshotOfACutFile(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(r machine.Reader, cut func() error) error{
		"in bbolt": func(r machine.Reader, cut func() error) error {
			err := cut()
			_ = r.Ascend(streams, nil, func(_, _ []byte) bool { return true }) // View tells it, too
			return err
		},
		"in a value": func(r machine.Reader, cut func() error) error {
			value, err := r.Get(streams, recordKey(15000))
			if err := errors.Join(err, cut()); err != nil {
				return err
			}
			t.Errorf("read %q from a file that is gone", bytes.ToUpper(value))
			return nil
		},
	} {
		sn := snapshot(t, reopen(t, filled(t, 20000)))
		err := sn.View(func(r machine.Reader) error {
			return read(r, func() error { return os.Truncate(sn.store.path, 2*testPageSize) })
		})
		if !errors.Is(err, machine.ErrCorrupt) {
			t.Errorf("%s: View = %v, want ErrCorrupt", name, err)
		}
	}
}

// A copy of any part ends before the file gets near the end of its map, where a flush would have to wait for it.
func TestSnapshotGivesWay(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, machine.TableBlocks, string(blockKey(1)), "blocks")
	flush(t, s)
	sn := must.Get(s.Snapshot())(t)
	files := sn.Files()
	must.Equal(t, len(files), 2)
	for _, f := range files {
		s.mapped = sn.tx.Size()
		check.Is(t, f.CopyTo(new(bytes.Buffer)), ErrNoRoom, "%s: a file as large as its map", f.Name)
		s.mapped = 4 * sn.tx.Size()
		must.Do(t, f.CopyTo(new(bytes.Buffer)), "%s: a file of a quarter of its map", f.Name)
	}
	must.Do(t, sn.Close())
}

// The map is reserved for a file that grows fourfold.
func TestReserve(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "large")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	must.Do(t, os.Truncate(path, 1<<20)) // a hole
	for least, want := range map[int]int{0: 0, 1 << 10: 4 << 20, 1 << 30: 1 << 30} {
		check.Equal(t, must.Get(reserve(path, least))(t), want, "at least %d: %d", least)
	}
}

func TestAdoptRefusesOtherFiles(t *testing.T) {
	t.Parallel()
	letter := filepath.Join(t.TempDir(), "letter")
	must.Do(t, os.WriteFile(letter, bytes.Repeat([]byte("dear "), 5000), 0o600))
	check.Is(t, Adopt(letter, testIdentity), ErrForeign, "a letter")
	cut := filled(t, 5000)
	edit(t, cut, func(b []byte) []byte { return b[:4*os.Getpagesize()] })
	check.Is(t, Adopt(cut, testIdentity), machine.ErrCorrupt, "a file that is cut")
	sealed := filled(t, 1)
	edit(t, sealed, func(b []byte) []byte { return bytes.ReplaceAll(b, testIdentity, []byte("0123456789abcdeX")) })
	check.Is(t, Adopt(sealed, testIdentity), machine.ErrCorrupt, "a changed control record")
}
