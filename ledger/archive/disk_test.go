package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

var errDisk = errors.New("the disk of the archive is away")

// brokenDisk fails one of its operations, counted from 1; 0: none.
type brokenDisk struct {
	Directory

	fail, count int
	failed      string // the operation
	unsynced    bool   // a loss of power takes the last index back
}

func (d *brokenDisk) next(what string) error {
	if d.count++; d.count != d.fail {
		return nil
	}
	d.failed = what
	return fmt.Errorf("%s: %w", what, errDisk)
}

func (d *brokenDisk) Lock() (func() error, error) {
	if err := d.next("lock"); err != nil {
		return nil, err
	}
	unlock, err := d.Directory.Lock()
	return func() error { return errors.Join(unlock(), d.next("unlock")) }, err
}

func (d *brokenDisk) OpenSealed(name string) (blockfile.File, error) {
	if err := d.next("open " + name); err != nil {
		return nil, err
	}
	return d.Directory.OpenSealed(name)
}

func (d *brokenDisk) Create(name string) (Writer, error) {
	if err := d.next("create " + name); err != nil {
		return nil, err
	}
	w, err := d.Directory.Create(name)
	return brokenWriter{w, d, name}, err
}

func (d *brokenDisk) Rename(from, to string) error {
	if err := d.next("rename " + from); err != nil {
		return err
	}
	d.unsynced = to == IndexName
	return d.Directory.Rename(from, to)
}

func (d *brokenDisk) Sync() error {
	err := errors.Join(d.next("sync"), d.Directory.Sync())
	d.unsynced = d.unsynced && err != nil
	return err
}

type brokenWriter struct {
	Writer

	d    *brokenDisk
	name string
}

func (w brokenWriter) Write(b []byte) (int, error) {
	if err := w.d.next("write " + w.name); err != nil {
		return 0, err
	}
	return w.Writer.Write(b)
}

func (w brokenWriter) Sync() error {
	return errors.Join(w.d.next("sync "+w.name), w.Writer.Sync())
}

func (w brokenWriter) Close() error {
	return errors.Join(w.Writer.Close(), w.d.next("close "+w.name))
}

// TestEveryOperationMayFail: whatever fails while a file is added is told, what was confirmed stays so, also after a
// loss of power, and the file is added once the disk is back, by the same process and by the next one.
func TestEveryOperationMayFail(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 1)
	failed := map[string]bool{}
	for i := 2; ; i++ {
		fail, nextProcess := i/2, i%2 == 1
		dir, sound := newArchive(t)
		must.Do(t, l.add(sound, 1))
		d := &brokenDisk{Directory: Directory(dir)}
		a, err := Open(d, sound.ID())
		if err != nil {
			t.Fatal(err)
		}
		d.count, d.fail = 0, fail
		err = l.add(a, 2)
		if d.failed == "" {
			must.Do(t, err, "nothing has failed")
			break
		}
		failed[d.failed] = true
		if !errors.Is(err, errDisk) || errors.Is(err, machine.ErrCorrupt) || errors.Is(err, ErrOther) {
			t.Errorf("%s: %v", d.failed, err)
		}
		if nextProcess {
			a = must.Get(Open(d, sound.ID()))(t)
		}
		must.Do(t, a.Confirmed(1), "%s, and file 1", d.failed)
		if a.Confirmed(2) == nil && d.unsynced {
			t.Errorf("%s, and file 2 is confirmed by an index that is in the cache alone", d.failed)
		}
		for number := uint64(2); number <= 3; number++ {
			must.Do(t, l.add(a, number), "%s, and then file %d", d.failed, number)
		}
		mustBeSound(t, dir, 3)
	}
	for _, want := range []string{"lock", "unlock", "sync", "create INDEX.new", "rename INDEX.new", "write INDEX.new",
		"sync INDEX.new", "close INDEX.new"} {
		if !failed[strings.ReplaceAll(want, "INDEX", IndexName)] {
			t.Errorf("%s has not failed: %v", want, failed)
		}
	}
}

// TestFailedCopyIsRemoved: a full archive needs the bytes of a copy that was not finished.
func TestFailedCopyIsRemoved(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 1)
	dir, a := newArchive(t)
	before, _ := os.ReadDir(dir)
	f := must.Get(blockfile.Directory{Path: l.dir}.OpenSealed(blockfile.Name(1)))(t)
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the ledger stops")
	cancel(why)
	check.Is(t, a.Add(ctx, 1, f), why, "the context has ended")
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("there was %v, and is %v: %v", before, after, err)
	}
	must.Do(t, a.Add(t.Context(), 1, f))
}

// TestCreateRefusals: an archive is not made twice, nor where nothing is.
func TestCreateRefusals(t *testing.T) {
	t.Parallel()
	dir, a := newArchive(t)
	if _, err := Create(Directory(dir), rand.Reader); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("twice: %v", err)
	}
	check.Equal(t, len(must.Get(Open(Directory(dir), a.ID()))(t).Entries()), 0, "the first one: %v")
	absent := Directory(filepath.Join(dir, "absent"))
	if _, err := Create(absent, rand.Reader); err == nil {
		t.Error("it was made where nothing is")
	}
	check.Is(t, check.Err(os.Stat(string(absent))), fs.ErrNotExist, "the directory was made")
	empty := Directory(t.TempDir())
	if _, err := Create(empty, strings.NewReader("too short")); err == nil {
		t.Error("it has an id of too few bytes")
	}
	check.Is(t, check.Err(Open(empty, "")), ErrNone, "what failed has left an archive")
	check.Is(t, check.Err(Open(Directory(dir), strings.Repeat("0", 32))), ErrOther, "another id")
	for what, err := range map[string]error{
		"list": second(absent.List()), "sync": absent.Sync(), "verify": second(Verify(t.Context(), absent, nil)),
		"remove": absent.Remove("x"), "create": second(absent.Create("x")),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s where nothing is: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestConfirmedIsWhatIsThere: a file that is gone or was cut is not confirmed, whatever the index says.
func TestConfirmedIsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir, _ := full(t)
	d := &brokenDisk{Directory: Directory(dir)}
	a := must.Get(Open(d, ""))(t)
	d.count = 0
	n := 0
	err := a.Confirm([]uint64{1, 2, 3, 1000, 4}, func() bool { n++; return true })
	if n != 3 || d.count != 4 || err == nil {
		t.Errorf("%d files are confirmed with %d openings, 1 of the index and 3 of files wanted: %v", n, d.count, err)
	}
	second := filepath.Join(dir, blockfile.Name(2))
	must.Do(t, os.Truncate(second, 10))
	if err := a.Confirmed(2); err == nil || !strings.Contains(err.Error(), "has 10 bytes and must have") {
		t.Errorf("cut: %v", err)
	}
	must.Do(t, Directory(dir).Remove(blockfile.Name(2)))
	check.Is(t, a.Confirmed(2), fs.ErrNotExist, "gone")
	must.Do(t, errors.Join(a.Confirmed(1), a.Confirmed(3)), "the others")
	must.Do(t, os.Remove(filepath.Join(dir, IndexName)))
	check.Is(t, a.Confirmed(1), ErrNone, "without the index")
}

// TestWith: a file is read from the ledger if that has it, and an error says which of the two lacks it.
func TestWith(t *testing.T) {
	t.Parallel()
	own, archived := t.TempDir(), t.TempDir()
	name, both, none := blockfile.Name(1), blockfile.Name(2), blockfile.Name(3)
	for path, content := range map[string]string{
		filepath.Join(archived, name): "dropped", filepath.Join(archived, both): "a copy",
		filepath.Join(own, both): "the original", filepath.Join(archived, "state.db"): "no block file",
	} {
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	}
	d := With(blockfile.Directory{Path: own}, Directory(archived))
	placer, is := d.(blockfile.Placer)
	if !is {
		t.Fatal("it does not tell the place of a file")
	}
	for _, test := range []struct {
		name, want string
		err        error
		archived   bool
	}{
		{name: name, want: "dropped", archived: true},
		{name: both, want: "the original"},
		{name: none, err: fs.ErrNotExist, archived: true},
		{name: "state.db", err: fs.ErrNotExist, archived: true},
	} {
		f, err := d.OpenSealed(test.name)
		check.Is(t, err, test.err, "%s", test.name)
		if err == nil {
			b := make([]byte, 100)
			n, _ := f.ReadAt(b, 0)
			check.Equal(t, string(b[:n]), test.want, "%s: %q", test.name)
			_ = f.Close()
		}
		p := placer.Place(test.name)
		if inArchive := strings.Contains(p.Where, archived); inArchive != test.archived ||
			inArchive != strings.Contains(p.Advice, "seqledger archive verify "+archived) {
			t.Errorf("%s is %+v", test.name, p)
		}
	}
}

// TestArchiveIsNoLedger: an archive has blocks alone, and says so instead of finding nothing.
func TestArchiveIsNoLedger(t *testing.T) {
	t.Parallel()
	dir, _ := full(t)
	files := must.Get(blockfile.OpenAllSealed(Directory(dir), 1, 2))(t)
	defer func() { _ = files.Close() }()
	r := blocksReader{files.Reader()}
	defer r.Close()
	if _, err := r.Get(machine.TableBlocks, nil); err == nil {
		t.Error("a row was read")
	}
	for table := range machine.Table(8) {
		visited := 0
		err := r.Ascend(table, nil, func(_, _ []byte) bool { visited++; return visited < 2 })
		if blocks := table == machine.TableBlocks; (err == nil) != blocks || blocks != (visited == 2) {
			t.Errorf("table %d: %d rows, %v", table, visited, err)
		}
	}
	nothing := func(machine.BlockHeader, []machine.Transaction) bool { t.Error("a block"); return false }
	empty, _ := newArchive(t)
	must.Do(t, VisitScope(Directory(empty), machine.Scope{Organization: "acme"}, 1, nothing),
		"an archive without files")
	check.Is(t, VisitScope(Directory(t.TempDir()), machine.Scope{}, 1, nothing), ErrNone, "no archive")
	must.Do(t, Directory(dir).Remove(blockfile.Name(2)))
	if err := VisitScope(Directory(dir), machine.Scope{}, 1, nothing); err == nil {
		t.Error("a file is missing, and no error says so")
	}
}

// TestVerifyEnds with its context, and tells how far it has come after each file.
func TestVerifyEnds(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	seen := 0
	report, err := Verify(ctx, Directory(dir), func(r Report) {
		if seen++; seen == 2 {
			cancel(why)
		}
		if r.Files != uint64(len(l.sealed)) || r.First != 1 || r.Last != l.sealed[seen-1].Last {
			t.Errorf("after %d files: %+v", seen, r)
		}
	})
	if !errors.Is(err, why) || seen != 2 || len(report.Problems) > 0 {
		t.Errorf("after %d files: %+v, %v", seen, report, err)
	}
}
