package archive

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// ledgerFiles are the block files of a ledger, of some records each.
type ledgerFiles struct {
	testing.TB
	dir    string
	sealed []blockfile.SealedFile
}

func newLedgerFiles(t testing.TB, id byte) *ledgerFiles {
	t.Helper()
	l := &ledgerFiles{TB: t, dir: t.TempDir()}
	files := must.Get(blockfile.Open(blockfile.Options{
		Disk: blockfile.Directory{Path: l.dir, NoSync: true}, Mark: blockfile.Mark{ID: [16]byte{id}, SealBytes: 300},
	}))(t)
	for i := range uint64(20) {
		must.Do(t, files.Append(i+1, bytes.Repeat([]byte{byte(i), id}, 20)))
	}
	files.Publish()
	l.sealed = files.Sealed(1 << 60)
	if err := files.Close(); err != nil || len(l.sealed) < 5 {
		t.Fatal(err, len(l.sealed))
	}
	return l
}

func (l *ledgerFiles) add(a *Archive, number uint64) error {
	l.Helper()
	f := must.Get(blockfile.Directory{Path: l.dir}.OpenSealed(blockfile.Name(number)))(l)
	defer func() { _ = f.Close() }()
	return a.Add(context.Background(), number, f)
}

func newArchive(t testing.TB) (dir string, a *Archive) {
	t.Helper()
	dir = t.TempDir()
	id := must.Get(Create(Directory(dir), rand.Reader))(t)
	a = must.Get(Open(Directory(dir), id))(t)
	return dir, a
}

// full is an archive with all of a ledger's files.
func full(t testing.TB) (dir string, l *ledgerFiles) {
	t.Helper()
	l = newLedgerFiles(t, 1)
	dir, a := newArchive(t)
	for _, f := range l.sealed {
		must.Do(t, l.add(a, f.Number))
	}
	return dir, l
}

func mustBeSound(t testing.TB, dir string, files int) {
	t.Helper()
	report, err := Verify(context.Background(), Directory(dir), nil)
	if err != nil || len(report.Problems) != 0 || report.Files != uint64(files) {
		t.Errorf("verify: %+v, %v, want %d files", report, err, files)
	}
}

// What was added is there, byte for byte, is confirmed, and is found again by another that opens the archive.
func TestArchive(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	mustBeSound(t, dir, len(l.sealed))
	a, err := Open(Directory(dir), "")
	if err != nil || len(a.Entries()) != len(l.sealed) {
		t.Fatal(a, err)
	}
	for i, f := range l.sealed {
		name := blockfile.Name(f.Number)
		want, _ := os.ReadFile(filepath.Join(l.dir, name))
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) || a.Entries()[i].Last != f.Last || a.Confirmed(f.Number) != nil {
			t.Errorf("%s: %v, %v", name, err, a.Confirmed(f.Number))
		}
		must.Do(t, l.add(a, f.Number), "%s again", name)
	}
	if err := a.Confirmed(l.sealed[len(l.sealed)-1].Number + 1); err == nil {
		t.Error("a file that is not there is confirmed")
	}
	files := must.Get(blockfile.OpenAllSealed(a.Disk(), 1, uint64(len(l.sealed))))(t)
	r, n := files.Reader(), uint64(0)
	err = r.Ascend(0, func(x blockfile.Record) bool { n++; return x.Check() == nil && x.Last == n })
	if r.Close(); err != nil || n != l.sealed[len(l.sealed)-1].Last {
		t.Errorf("read %d records, %v", n, err)
	}
	must.Do(t, files.Close())
}

// Another archive, another ledger, a gap and a directory without an index are refused, and change nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	l, other := newLedgerFiles(t, 1), newLedgerFiles(t, 2)
	dir, a := newArchive(t)
	for number := uint64(1); number <= 2; number++ {
		must.Do(t, l.add(a, number))
	}
	for what, err := range map[string]error{
		"a gap":                 l.add(a, 4),
		"a file of another":     other.add(a, 3),
		"a confirmed one of it": other.add(a, 2),
		"an archive of other id": func() error {
			_, err := Open(Directory(dir), strings.Repeat("00", 16))
			return err
		}(),
	} {
		if !errors.Is(err, ErrOther) {
			t.Errorf("%s: %v, want ErrOther", what, err)
		}
	}
	if _, err := Open(Directory(t.TempDir()), ""); !errors.Is(err, ErrNone) {
		t.Errorf("an empty directory: %v, want ErrNone", err)
	}
	if _, err := Create(Directory(dir), rand.Reader); err == nil {
		t.Error("an archive was made over another")
	}
	mustBeSound(t, dir, 2)
	// One that goes away confirms nothing.
	must.Do(t, os.Rename(filepath.Join(dir, IndexName), filepath.Join(dir, "away")))
	check.Is(t, a.Confirmed(1), ErrNone, "away")
}

// A crash at any step leaves what is confirmed as it was, and the file is added after it.
func TestCrashAtEachStep(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 1)
	steps := []string{"copy", "check", "rename", "index", "index written", "done"}
	for _, crash := range steps {
		dir, a := newArchive(t)
		must.Do(t, l.add(a, 1))
		func() {
			defer func() { _ = recover() }()
			a.step = func(step string) {
				if step == crash {
					panic(crash)
				}
			}
			_ = l.add(a, 2)
			t.Errorf("step %q was not come to", crash)
		}()
		again := must.Get(Open(Directory(dir), ""))(t)
		confirmed := 1
		if crash == "done" {
			confirmed = 2
		}
		mustBeSound(t, dir, confirmed)
		for number := uint64(2); number <= 3; number++ {
			must.Do(t, l.add(again, number), "after a crash at %q", crash)
		}
		mustBeSound(t, dir, 3)
	}
}

// A file of the ledger that is damaged is not archived, and one that was cut neither.
func TestDamagedSourceIsNotArchived(t *testing.T) {
	t.Parallel()
	l := newLedgerFiles(t, 1)
	path := filepath.Join(l.dir, blockfile.Name(1))
	sound := must.Get(os.ReadFile(path))(t)
	_, a := newArchive(t)
	step := 1
	if testing.Short() {
		step = 9
	}
	for at := 0; at < len(sound); at += step {
		damaged := slices.Clone(sound)
		damaged[at] ^= 1
		must.Do(t, os.WriteFile(path, damaged, 0o600))
		if err := l.add(a, 1); !errors.Is(err, machine.ErrCorrupt) || len(a.Entries()) != 0 {
			t.Fatalf("byte %d of the source changed: %v", at, err)
		}
	}
}

// Verify finds a flipped bit in any byte of every file and of the index, cuts, and what is missing or exchanged.
// SEQLEDGER_DAMAGE_ALL=1 tries every bit.
func TestDamage_Archive(t *testing.T) {
	t.Parallel()
	dir, _ := full(t)
	names := must.Get(os.ReadDir(dir))(t)
	names = slices.DeleteFunc(names, func(n os.DirEntry) bool { return n.Name() == lockName }) // it holds nothing
	found := func(what string) {
		t.Helper()
		report, err := Verify(context.Background(), Directory(dir), nil)
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
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		sound := must.Get(os.ReadFile(path))(t)
		write := func(b []byte) {
			must.Do(t, os.WriteFile(path, b, 0o600))
		}
		for bit := 0; bit < 8*len(sound); bit += step {
			damaged := slices.Clone(sound)
			damaged[bit/8] ^= 1 << (bit % 8)
			write(damaged)
			found(fmt.Sprintf("%s: bit %d of byte %d flipped", n.Name(), bit%8, bit/8))
			flipped++
		}
		for size := 0; size < len(sound); size += cut {
			if size == len(sound) || n.Name() == IndexName && sound[max(size-1, 0)] == '\n' && size > 60 {
				continue // whole lines of the index are an older index: see TestOlderIndex
			}
			write(sound[:size])
			found(fmt.Sprintf("%s: cut to %d bytes", n.Name(), size))
		}
		if before != nil {
			write(before)
			found(n.Name() + ": exchanged with the one before")
		}
		must.Do(t, os.Remove(path))
		found(n.Name() + ": missing")
		write(sound)
		before = sound
	}
	mustBeSound(t, dir, len(names)-1)
	t.Logf("damaged archive: %d flipped bits, all found", flipped)
}

// An index that has lost its end confirms less, never more.
func TestOlderIndex(t *testing.T) {
	t.Parallel()
	dir, l := full(t)
	a := must.Get(Open(Directory(dir), ""))(t)
	path := filepath.Join(dir, IndexName)
	b, _ := os.ReadFile(path)
	lines := bytes.SplitAfter(b, []byte("\n"))
	older := bytes.Join(lines[:len(lines)-2], nil)
	must.Do(t, os.WriteFile(path, older, 0o600))
	check.Is(t, a.Confirmed(1), ErrOther, "with an older index")
	again, err := Open(Directory(dir), "")
	if err != nil || len(again.Entries()) != len(l.sealed)-1 {
		t.Fatal(again, err)
	}
	must.Do(t, l.add(again, uint64(len(l.sealed))))
	mustBeSound(t, dir, len(l.sealed))
}

// FuzzIndex: what is read as an index is written in the same way.
func FuzzIndex(f *testing.F) {
	x := (&index{id: strings.Repeat("0a", 16)}).add(Entry{Number: 3, Last: 4, Size: 5})
	f.Add((&index{id: strings.Repeat("0a", 16)}).encode())
	f.Add(x.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decodeIndex(b)
		if err == nil && !bytes.Equal(x.encode(), b) {
			t.Errorf("%q reads as another index", b)
		}
	})
}
