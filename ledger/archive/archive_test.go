package archive_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/memorytarget"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

const ledger machine.LedgerID = 0xabc

// ledgerFiles are the block files of a ledger, of some records each.
type ledgerFiles struct {
	testing.TB
	dir    string
	sealed []blockfile.SealedFile
}

// newLedgerFiles makes 20 records, of which those from part on are of another history.
func newLedgerFiles(t testing.TB, part int) *ledgerFiles {
	t.Helper()
	l := &ledgerFiles{TB: t, dir: t.TempDir()}
	files := must.Get(blockfile.Open(blockfile.Options{
		Disk: blockfile.Directory{Path: l.dir, NoSync: true}, Mark: blockfile.Mark{ID: [16]byte{1}, SealBytes: 300},
	}))(t)
	for i := range 20 {
		record := bytes.Repeat([]byte{byte(i), 1}, 20)
		if i >= part {
			record[0] ^= 0x80
		}
		must.Do(t, files.Append(uint64(i+1), record))
	}
	files.Publish()
	l.sealed = files.Sealed(1 << 60)
	if err := files.Close(); err != nil || len(l.sealed) < 5 {
		t.Fatal(err, len(l.sealed))
	}
	return l
}

// add archives the file of a number, from 1.
func (l *ledgerFiles) add(a *archive.Archive, number int) error {
	l.Helper()
	f := must.Get(blockfile.Directory{Path: l.dir}.OpenSealed(blockfile.Name(uint64(number))))(l)
	defer func() { _ = f.Close() }()
	return a.Add(context.Background(), &l.sealed[number-1], f)
}

// addAll archives all files.
func (l *ledgerFiles) addAll(a *archive.Archive) {
	l.Helper()
	for i := range l.sealed {
		must.Do(l, l.add(a, i+1))
	}
}

// mark is the mark of an archive of an id, none for the empty one.
func mark(id string) archive.Mark {
	if id == "" {
		return archive.Mark{}
	}
	return archive.Mark{Ledger: ledger, ID: id}
}

func open(t testing.TB, target archive.Target) *archive.Archive {
	t.Helper()
	return must.Get(archive.Open(context.Background(), target, archive.Options{Ledger: ledger, Random: rand.Reader}))(t)
}

// full is an archive with all of a ledger's files.
func full(t testing.TB) (dir string, l *ledgerFiles) {
	t.Helper()
	l, dir = newLedgerFiles(t, 20), t.TempDir()
	l.addAll(open(t, archive.Directory(dir)))
	return dir, l
}

func mustBeSound(t testing.TB, target archive.Target, files int) {
	t.Helper()
	report, err := archive.Verify(context.Background(), target, ledger, nil)
	if err != nil || len(report.Problems) != 0 || report.Files != uint64(files) || len(report.Unlisted) > 0 {
		t.Errorf("verify: %+v, %v, want %d files", report, err, files)
	}
}

// paths returns the paths of the files of an archive in a directory, in order.
func paths(t testing.TB, dir string) []string {
	t.Helper()
	return must.Get(filepath.Glob(filepath.Join(dir, ledger.String(), "blocks", "*")))(t)
}

// What was added is there, byte for byte, is confirmed, and is found again by another that opens the archive.
func TestArchive(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	target := archive.Directory(dir)
	mustBeSound(t, target, len(l.sealed))
	a := open(t, target)
	last := l.sealed[len(l.sealed)-1]
	if files, size, upTo := a.Count(); int(files) != len(l.sealed) || size == 0 || upTo != last.Last {
		t.Errorf("it has %d files, %d bytes, up to %d", files, size, upTo)
	}
	for i, path := range paths(t, dir) {
		want, _ := os.ReadFile(filepath.Join(l.dir, blockfile.Name(uint64(i+1))))
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) || !a.Has(&l.sealed[i]) {
			t.Errorf("%s: %v", path, err)
		}
		must.Do(t, l.add(a, i+1), "%s again", path)
	}
	n, err := a.Confirm(t.Context(), l.sealed)
	if n != len(l.sealed) || err != nil {
		t.Errorf("%d are confirmed, %v", n, err)
	}
	next := last
	next.Number++
	if n, err := a.Confirm(t.Context(), append(slices.Clone(l.sealed), next)); n != len(l.sealed) || err == nil {
		t.Errorf("%d are confirmed, %v: one is not there", n, err)
	}
	r := must.Get(archive.NewReader(t.Context(), target, ledger))(t)
	files := must.Get(blockfile.OpenAllSealed(r, 1, last.Number))(t)
	reader, seen := files.Reader(), uint64(0)
	err = reader.Ascend(0, func(x blockfile.Record) bool { seen++; return x.Check() == nil && x.Last == seen })
	if reader.Close(); err != nil || seen != last.Last {
		t.Errorf("read %d records, %v", seen, err)
	}
	must.Do(t, files.Close())
	check.Equal(t, fmt.Sprint(must.Get(archive.Ledgers(t.Context(), target))(t)), "["+ledger.String()+"]", "ledgers")
}

// Another archive, another history, a gap and a target without an archive are refused, and change nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	l, other, late := newLedgerFiles(t, 20), newLedgerFiles(t, 0), newLedgerFiles(t, 8)
	dir := t.TempDir()
	target := archive.Directory(dir)
	a := open(t, target)
	for number := 1; number <= 3; number++ {
		must.Do(t, l.add(a, number))
	}
	ctx := t.Context()
	opened := func(target archive.Target, id string) error {
		_, err := archive.Open(ctx, target, archive.Options{Ledger: ledger, Mark: mark(id), Random: rand.Reader})
		return err
	}
	for what, err := range map[string]error{
		"a gap":                  l.add(a, 5),
		"a file of another":      other.add(a, 4),
		"another history":        late.add(a, 4),
		"a confirmed one of it":  other.add(a, 2),
		"an archive of other id": opened(target, strings.Repeat("00", 16)),
	} {
		if !errors.Is(err, archive.ErrOther) {
			t.Errorf("%s: %v, want ErrOther", what, err)
		}
	}
	n, err := a.Confirm(ctx, other.sealed[:2])
	if n != 0 || !errors.Is(err, archive.ErrOther) {
		t.Errorf("%d files of another history are confirmed: %v", n, err)
	}
	absent := archive.Directory(filepath.Join(dir, "absent"))
	check.Is(t, opened(archive.Directory(t.TempDir()), a.Mark().ID), archive.ErrNone, "an empty directory")
	check.Is(t, opened(absent, ""), fs.ErrNotExist, "no directory")
	check.Is(t, check.Err(os.Stat(absent.String())), fs.ErrNotExist, "the directory was made")
	if _, err := archive.Open(ctx, archive.Directory(t.TempDir()), archive.Options{
		Ledger: ledger, Random: strings.NewReader("short"),
	}); err == nil {
		t.Error("it has an id of too few bytes")
	}
	mustBeSound(t, target, 3)
	// One that goes away confirms nothing.
	name := filepath.Join(dir, ledger.String(), "FORMAT")
	must.Do(t, os.Rename(name, name+".away"))
	for what, err := range map[string]error{"check": a.Check(ctx), "confirm": check.Err(a.Confirm(ctx, l.sealed[:1]))} {
		check.Is(t, err, archive.ErrNone, "%s", what)
	}
}

// A copy that the target has lost, or that was cut, is not confirmed, nor is what comes after it. A lost one is copied
// again, a cut one when it was removed.
func TestConfirmedIsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	a := open(t, archive.Directory(dir))
	confirmed := func(want int, says string) {
		t.Helper()
		n, err := a.Confirm(t.Context(), l.sealed)
		if n != want || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%d files are confirmed, want %d: %v", n, want, err)
		}
	}
	path := paths(t, dir)[2]
	must.Do(t, os.Truncate(path, 10))
	confirmed(2, "has 10 bytes and must have")
	if err := l.add(a, 3); err == nil {
		t.Error("a copy that was cut is taken for the file")
	}
	must.Do(t, os.Remove(path))
	confirmed(2, "is not in")
	n, err := a.Confirm(t.Context(), l.sealed[3:]) // the one that is missing was dropped
	if n != 0 || err == nil || !strings.Contains(err.Error(), "is missing in") {
		t.Errorf("%d files behind a gap are confirmed: %v", n, err)
	}
	must.Do(t, l.add(a, 3))
	if n, err := a.Confirm(t.Context(), l.sealed); n != len(l.sealed) || err != nil {
		t.Errorf("%d files are confirmed: %v", n, err)
	}
}

var errDisk = errors.New("the disk of the archive is away")

// brokenDisk fails one of its operations, counted from 1; 0: none. It keeps nothing that was not synced.
type brokenDisk struct {
	*memorytarget.Disk

	fail, count int
	failed      string // the operation
}

func (d *brokenDisk) next(what string) error {
	if d.count++; d.count != d.fail {
		return nil
	}
	d.failed = what
	return fmt.Errorf("%s: %w", what, errDisk)
}

func (d *brokenDisk) Create(object string) (archive.Writer, string, error) {
	if err := d.next("create"); err != nil {
		return nil, "", err
	}
	w, name, err := d.Disk.Create(object)
	return brokenWriter{w, d}, name, err
}

func (d *brokenDisk) Publish(from, to string) error {
	if err := d.next("publish"); err != nil {
		return err
	}
	return d.Disk.Publish(from, to)
}

func (d *brokenDisk) Open(name string) (blockfile.File, error) {
	if err := d.next("open"); err != nil {
		return nil, err
	}
	return d.Disk.Open(name)
}

func (d *brokenDisk) List(folder string) ([]archive.Object, error) {
	if err := d.next("list"); err != nil {
		return nil, err
	}
	return d.Disk.List(folder)
}

func (d *brokenDisk) Remove(name string) error {
	if err := d.next("remove"); err != nil {
		return err
	}
	return d.Disk.Remove(name)
}

func (d *brokenDisk) Sync(folder string) error {
	if err := d.next("sync"); err != nil {
		return err
	}
	return d.Disk.Sync(folder)
}

type brokenWriter struct {
	archive.Writer

	d *brokenDisk
}

func (w brokenWriter) Write(b []byte) (int, error) {
	if err := w.d.next("write"); err != nil {
		return 0, err
	}
	return w.Writer.Write(b)
}

func (w brokenWriter) Sync() error  { return errors.Join(w.d.next("sync file"), w.Writer.Sync()) }
func (w brokenWriter) Close() error { return errors.Join(w.Writer.Close(), w.d.next("close")) }

// TestEveryOperationMayFail: whatever fails while an archive is made and a file is added, what was confirmed stays so
// after a loss of power, nothing is confirmed that a loss of power takes back, and everything goes on once the disk is
// back, in the same process and in the next one.
func TestEveryOperationMayFail(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 20)
	failed, ctx := map[string]bool{}, t.Context()
	for i := 2; ; i++ {
		fail, power := i/2, i%2 == 1
		d := &brokenDisk{Disk: memorytarget.New(), fail: fail}
		target := archive.OnDisk(d)
		o := archive.Options{Ledger: ledger, Random: rand.Reader}
		a, err := archive.Open(ctx, target, o)
		if err == nil {
			o.Mark = a.Mark()
			err = errors.Join(l.add(a, 1), l.add(a, 2))
		}
		if err == nil {
			_, err = a.Confirm(ctx, l.sealed[:2])
		}
		if d.failed == "" {
			must.Do(t, err, "nothing has failed")
			break
		}
		failed[d.failed] = true
		other := errors.Is(err, machine.ErrCorrupt) || errors.Is(err, archive.ErrOther)
		if other || err != nil && !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", d.failed, err)
		}
		confirmed := 0
		if a != nil {
			confirmed, _ = a.Confirm(ctx, l.sealed[:2])
			for n := range confirmed {
				durable := archive.OnDisk(&memorytarget.Disk{MemoryDisk: d.Durable()})
				found := must.Get(archive.Open(ctx, durable, o))(t)
				check.Equal(t, found.Has(&l.sealed[n]), true, "%s: file %d is confirmed and not durable", d.failed, n+1)
			}
		}
		if power {
			d.Crash(mathrand.New(mathrand.NewPCG(uint64(i), 1)).IntN)
			a = nil
		}
		if a == nil {
			a = must.Get(archive.Open(ctx, target, o))(t)
		}
		if n, _ := a.Confirm(ctx, l.sealed[:2]); n < confirmed {
			t.Errorf("%s: %d files were confirmed, and %d are", d.failed, confirmed, n)
		}
		for number := 1; number <= 3; number++ {
			must.Do(t, l.add(a, number), "%s, and then file %d", d.failed, number)
		}
		report := must.Get(archive.Verify(ctx, target, ledger, nil))(t)
		if len(report.Problems) > 0 || report.Files != 3 {
			t.Errorf("%s: %+v", d.failed, report)
		}
	}
	for _, want := range []string{"create", "write", "sync file", "close", "open", "publish", "sync", "list"} {
		check.Equal(t, failed[want], true, "%s has failed", want)
	}
}

// TestFailedCopyIsRemoved: a full disk needs the bytes of a copy that was not finished, and those that a killed process
// left are removed with the next copy.
func TestFailedCopyIsRemoved(t *testing.T) {
	t.Parallel()
	l, dir := newLedgerFiles(t, 20), t.TempDir()
	target := archive.Directory(dir)
	a := open(t, target)
	f := must.Get(blockfile.Directory{Path: l.dir}.OpenSealed(blockfile.Name(1)))(t)
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the ledger stops")
	cancel(why)
	check.Is(t, a.Add(ctx, &l.sealed[0], f), why, "the context has ended")
	check.Equal(t, len(paths(t, dir)), 0, "files are left")
	must.Do(t, l.add(a, 1))
	left := filepath.Join(dir, ledger.String(), "new", "blocks_"+filepath.Base(paths(t, dir)[0])+".new-7")
	must.Do(t, os.WriteFile(left, nil, 0o600))
	report, err := archive.Verify(t.Context(), target, ledger, nil)
	if err != nil || len(report.Unlisted) != 1 || !strings.HasSuffix(left, filepath.FromSlash(report.Unlisted[0])) {
		t.Errorf("a copy that was interrupted: %+v, %v", report, err)
	}
	must.Do(t, os.Remove(paths(t, dir)[0]))
	must.Do(t, l.add(open(t, target), 1))
	mustBeSound(t, target, 1)
}

// TestTwoAtOnce: two processes that make one archive and add the same files have made one archive.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	l, dir := newLedgerFiles(t, 20), t.TempDir()
	ids := make([]string, 4)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			a := open(t, archive.Directory(dir))
			l.addAll(a)
			ids[i] = a.Mark().ID
		})
	}
	group.Wait()
	check.Equal(t, len(slices.Compact(ids)), 1, "the processes have archives of the ids %v", ids)
	mustBeSound(t, archive.Directory(dir), len(l.sealed))
}

// TestForkIsFound: files that two copies of one ledger have added at the same moment are no archive any more, for the
// ledger and for verify.
func TestForkIsFound(t *testing.T) {
	t.Parallel()
	l, late, target := newLedgerFiles(t, 20), newLedgerFiles(t, 0), archive.Directory(t.TempDir())
	a, b := open(t, target), open(t, target)
	must.Do(t, l.add(a, 1))
	must.Do(t, late.add(b, 1))
	n, err := a.Confirm(t.Context(), l.sealed[:1])
	if n != 0 || !errors.Is(err, archive.ErrOther) {
		t.Errorf("%d are confirmed: %v", n, err)
	}
	check.Is(t, a.Check(t.Context()), archive.ErrOther, "the next pass")
	report, err := archive.Verify(t.Context(), target, ledger, nil)
	if err != nil || len(report.Problems) != 1 {
		t.Errorf("verify: %+v, %v", report, err)
	}
}

// A file of the ledger that is damaged is not archived, and one that was cut neither.
func TestDamagedSourceIsNotArchived(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 20)
	path := filepath.Join(l.dir, blockfile.Name(1))
	sound := must.Get(os.ReadFile(path))(t)
	dir := t.TempDir()
	a := open(t, archive.Directory(dir))
	step := 1
	if testing.Short() {
		step = 9
	}
	for at := 0; at < len(sound); at += step {
		damaged := slices.Clone(sound)
		damaged[at] ^= 1
		must.Do(t, os.WriteFile(path, damaged, 0o600))
		if err := l.add(a, 1); !errors.Is(err, machine.ErrCorrupt) || len(paths(t, dir)) != 0 {
			t.Fatalf("byte %d of the source changed: %v", at, err)
		}
	}
}

// changingFile is a file whose content changes once it was checked.
type changingFile struct {
	blockfile.File

	starts int // how often the first byte was read
}

func (f *changingFile) ReadAt(b []byte, at int64) (int, error) {
	n, err := f.File.ReadAt(b, at)
	if at == 0 {
		if f.starts++; f.starts == 2 { // the check, and then the copy
			b[0] ^= 1
		}
	}
	return n, err
}

// TestSourceThatChanges: what is copied is what was checked.
func TestSourceThatChanges(t *testing.T) {
	t.Parallel()
	l, dir := newLedgerFiles(t, 20), t.TempDir()
	a := open(t, archive.Directory(dir))
	f := must.Get(blockfile.Directory{Path: l.dir}.OpenSealed(blockfile.Name(1)))(t)
	defer func() { _ = f.Close() }()
	err := a.Add(t.Context(), &l.sealed[0], &changingFile{File: f})
	if err == nil || errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("it was archived: %v", err)
	}
	check.Equal(t, len(paths(t, dir)), 0, "files are left")
}

// Verify finds a flipped bit in any byte of every file and of FORMAT, cuts, and what is missing or exchanged.
// SEQLEDGER_DAMAGE_ALL=1 tries every bit.
func TestDamage_Archive(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	target := archive.Directory(dir)
	all := append(paths(t, dir), filepath.Join(dir, ledger.String(), "FORMAT"))
	found := func(what string) {
		t.Helper()
		report, err := archive.Verify(context.Background(), target, ledger, nil)
		if err == nil && len(report.Problems) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
	step, cut := 9, 17 // one bit in eight of nine bytes, another one in each
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		step = 1
	} else if testing.Short() {
		step, cut = 239, 101
	}
	flipped := 0
	var before []byte
	for i, path := range all {
		sound := must.Get(os.ReadFile(path))(t)
		write := func(b []byte) { must.Do(t, os.WriteFile(path, b, 0o600)) }
		for bit := 0; bit < 8*len(sound); bit += step {
			damaged := slices.Clone(sound)
			damaged[bit/8] ^= 1 << (bit % 8)
			write(damaged)
			found(fmt.Sprintf("%s: bit %d of byte %d flipped", path, bit%8, bit/8))
			flipped++
		}
		for size := 0; size < len(sound); size += cut {
			write(sound[:size])
			found(fmt.Sprintf("%s: cut to %d bytes", path, size))
		}
		if before != nil {
			write(before)
			found(path + ": exchanged with the one before")
		}
		must.Do(t, os.Remove(path))
		if last := i == len(l.sealed)-1; i > 0 && !last { // without the ends it is a shorter archive
			found(path + ": missing")
		}
		write(sound)
		before = sound
	}
	mustBeSound(t, target, len(l.sealed))
	t.Logf("damaged archive: %d flipped bits, all found", flipped)
}

// TestRestoredLedger: a restored ledger has files of its own from some number on, and reads those before from the
// archive of the one that it was restored from.
func TestRestoredLedger(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	target, restored := archive.Directory(dir), newLedgerFiles(t, 12)
	child := archive.Options{
		Ledger: 0xdef, Parents: []machine.LedgerID{0x999, ledger}, Mark: mark(strings.Repeat("0", 32)),
		Random: rand.Reader,
	}
	// A target without the archive that the ledger had before is the wrong one.
	check.Is(t, check.Err(archive.Open(t.Context(), target, child)), archive.ErrOther, "another archive")
	child.Mark = open(t, target).Mark()
	none := archive.Directory(t.TempDir())
	check.Is(t, check.Err(archive.Open(t.Context(), none, child)), archive.ErrNone, "no archive")
	a := must.Get(archive.Open(t.Context(), target, child))(t)
	const from = 3
	for number := from; number <= len(restored.sealed); number++ {
		must.Do(t, restored.add(a, number))
	}
	r := must.Get(archive.NewReader(t.Context(), target, child.Ledger))(t)
	for number := 1; number <= len(restored.sealed); number++ {
		name := blockfile.Name(uint64(number))
		f := must.Get(r.OpenSealed(name))(t)
		size := must.Get(f.Size())(t)
		got := must.Get(io.ReadAll(io.NewSectionReader(f, 0, size)))(t)
		want := must.Get(os.ReadFile(filepath.Join(restored.dir, name)))(t)
		check.Equal(t, bytes.Equal(got, want), true, "%s is the ledger's own", name)
		must.Do(t, f.Close())
	}
	must.Do(t, errors.Join(check.Err(archive.Verify(t.Context(), target, child.Ledger, nil))))
	mustBeSound(t, target, len(l.sealed))
	check.Equal(t, len(must.Get(archive.Ledgers(t.Context(), target))(t)), 2, "ledgers: %v")
}

// TestWith: a file is read from the ledger if that has it, and an error says which of the two lacks it.
func TestWith(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	own := t.TempDir()
	name, both, none := blockfile.Name(1), blockfile.Name(2), blockfile.Name(1000)
	must.Do(t, os.WriteFile(filepath.Join(own, both), []byte("the original"), 0o600))
	r := must.Get(archive.NewReader(t.Context(), archive.Directory(dir), ledger))(t)
	d := r.With(blockfile.Directory{Path: own})
	placer, is := d.(blockfile.Placer)
	if !is {
		t.Fatal("it does not tell the place of a file")
	}
	for _, test := range []struct {
		name     string
		size     int64
		err      error
		archived bool
	}{
		{name: name, size: l.sealed[0].Size, archived: true},
		{name: both, size: 12},
		{name: none, err: fs.ErrNotExist, archived: true},
		{name: "state.db", err: fs.ErrNotExist, archived: true},
	} {
		f, err := d.OpenSealed(test.name)
		check.Is(t, err, test.err, "%s", test.name)
		if err == nil {
			check.Equal(t, must.Get(f.Size())(t), test.size, "%s has %d bytes", test.name)
			_ = f.Close()
		}
		p := placer.Place(test.name)
		if inArchive := strings.Contains(p.Where, dir); inArchive != test.archived ||
			inArchive != strings.Contains(p.Advice, "seqledger archive verify "+dir) {
			t.Errorf("%s is %+v", test.name, p)
		}
	}
}

// TestVisitEmpty: an archive without files has no blocks, and a target without an archive is an error.
func TestVisitEmpty(t *testing.T) {
	t.Parallel()
	target := archive.Directory(t.TempDir())
	check.Is(t, check.Err(archive.NewReader(t.Context(), target, ledger)), archive.ErrNone, "no archive")
	open(t, target)
	r := must.Get(archive.NewReader(t.Context(), target, ledger))(t)
	must.Do(t, r.VisitScope(machine.Scope{Organization: "acme"}, 1,
		func(machine.BlockHeader, []machine.Transaction) bool { t.Error("a block"); return false }))
	for what, err := range map[string]error{
		"open": check.Err(r.Open("x", true)), "remove": r.Remove("x"), "sync": r.Sync(),
	} {
		if err == nil {
			t.Errorf("%s of a reader succeeds", what)
		}
	}
}

// TestVerifyEnds with its context, and tells how far it has come after each file.
func TestVerifyEnds(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	seen := 0
	report, err := archive.Verify(ctx, archive.Directory(dir), ledger, func(r archive.Report) {
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

// TestGapThatIsFilled: an archive that lacked a file takes the next ones once another node, or an operator, has put it
// there, without a restart.
func TestGapThatIsFilled(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	target, all := archive.Directory(dir), paths(t, dir)
	last := len(all)
	must.Do(t, errors.Join(os.Rename(all[1], all[1]+".away"), os.Remove(all[last-1])))
	a := open(t, target)
	check.Is(t, l.add(a, last), archive.ErrOther, "a file behind a gap")
	must.Do(t, os.Rename(all[1]+".away", all[1]))
	must.Do(t, a.Check(t.Context()), "the next pass")
	must.Do(t, l.add(a, last), "the gap is filled")
	mustBeSound(t, target, last)
}

// latePublish is a disk on which another process publishes an object while it is listed.
type latePublish struct {
	*memorytarget.Disk

	name string
}

func (d *latePublish) List(folder string) ([]archive.Object, error) {
	w, temporary, err := d.Create(d.name)
	if err == nil {
		_, err = w.Write([]byte("x"))
	}
	if err == nil {
		err = errors.Join(w.Sync(), d.Publish(temporary, d.name))
	}
	if err != nil {
		return nil, err
	}
	return d.Disk.List(folder)
}

// TestListIsDurable: an object that another process publishes while a directory is listed is not lost with the power
// once the list is there.
func TestListIsDurable(t *testing.T) {
	t.Parallel()
	d := &latePublish{memorytarget.New(), "a/b"}
	listed := must.Get(archive.OnDisk(d).List(t.Context(), "a/"))(t)
	durable := must.Get((&memorytarget.Disk{MemoryDisk: d.Durable()}).List("a/"))(t)
	check.Equal(t, fmt.Sprint(durable), fmt.Sprint(listed), "after a loss of power: %v")
}

// TestForeignNamesStay: a copy removes what an interrupted copy of the same object left, and nothing of the operator's.
func TestForeignNamesStay(t *testing.T) {
	t.Parallel()
	l, dir := newLedgerFiles(t, 20), t.TempDir()
	kept := filepath.Join(dir, ledger.String(), "FORMAT.kept")
	left := filepath.Join(dir, ledger.String(), "new", "FORMAT.new-1")
	must.Do(t, os.MkdirAll(filepath.Dir(left), 0o700))
	must.Do(t, errors.Join(os.WriteFile(kept, nil, 0o600), os.WriteFile(left, nil, 0o600)))
	a := open(t, archive.Directory(dir))
	must.Do(t, l.add(a, 1))
	must.Do(t, check.Err(os.Stat(kept)))
	check.Is(t, check.Err(os.Stat(left)), fs.ErrNotExist, "a copy that was interrupted")
}

// TestForkIsNotRead: of two files of one number no reader takes one for the ledger's.
func TestForkIsNotRead(t *testing.T) {
	t.Parallel()
	l, late, target := newLedgerFiles(t, 20), newLedgerFiles(t, 0), archive.Directory(t.TempDir())
	a, b := open(t, target), open(t, target)
	must.Do(t, errors.Join(l.add(a, 1), late.add(b, 1)))
	r := must.Get(archive.NewReader(t.Context(), target, ledger))(t)
	check.Is(t, check.Err(r.OpenSealed(blockfile.Name(1))), archive.ErrOther, "a file that is there twice")
	err := r.VisitScope(machine.Scope{Organization: "acme"}, 1,
		func(machine.BlockHeader, []machine.Transaction) bool { return true })
	check.Is(t, err, archive.ErrOther, "its blocks")
}

// endingTarget ends a check while it opens the last file.
type endingTarget struct {
	archive.Target

	last string
	end  func()
}

func (e endingTarget) Open(ctx context.Context, name string) (blockfile.File, error) {
	if strings.Contains(name, e.last) {
		e.end()
		return nil, context.Cause(ctx)
	}
	return e.Target.Open(ctx, name)
}

// TestVerifyEndsInTheLastFile: a check that was ended tells no problem.
func TestVerifyEndsInTheLastFile(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	ctx, cancel := context.WithCancel(t.Context())
	target := endingTarget{archive.Directory(dir), fmt.Sprintf("/%010d-", len(l.sealed)), cancel}
	report, err := archive.Verify(ctx, target, ledger, nil)
	if !errors.Is(err, context.Canceled) || len(report.Problems) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestDamagedFormat: whatever has become of FORMAT, it is told with the way out, and that way leads to the same files.
func TestDamagedFormat(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	target, path := archive.Directory(dir), filepath.Join(dir, ledger.String(), "FORMAT")
	a := open(t, target)
	o := archive.Options{Ledger: ledger, Mark: a.Mark(), Random: rand.Reader}
	for _, content := range []string{"", "seqledger archive 1\n", strings.Repeat("x", 2<<20)} {
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
		for what, err := range map[string]error{
			"check": a.Check(t.Context()), "open": check.Err(archive.Open(t.Context(), target, o)),
			"read": check.Err(archive.NewReader(t.Context(), target, ledger)),
		} {
			if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), "remove this object and ARCHIVE") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	must.Do(t, os.Remove(path))
	o.Mark = archive.Mark{}
	again := must.Get(archive.Open(t.Context(), target, o))(t)
	check.Equal(t, must.Get(again.Confirm(t.Context(), l.sealed))(t), len(l.sealed), "%d files are confirmed")
	mustBeSound(t, target, len(l.sealed))
}
