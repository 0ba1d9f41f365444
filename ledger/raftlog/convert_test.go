package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var errKilled = errors.New("killed")

// fuse interrupts a conversion at a given file system step.
type fuse struct{ left int }

func (f *fuse) burn() error {
	if f.left--; f.left < 0 {
		return errKilled
	}
	return nil
}

// fusedDisk is a disk on which every change is a step.
type fusedDisk struct {
	segment.Disk
	fuse *fuse
}

func (d fusedDisk) Create(name string, size int64) (segment.File, error) {
	if err := d.fuse.burn(); err != nil {
		return nil, err
	}
	f, err := d.Disk.Create(name, size)
	return fusedFile{f, d.fuse}, err
}

func (d fusedDisk) Open(name string) (segment.File, error) {
	f, err := d.Disk.Open(name)
	return fusedFile{f, d.fuse}, err
}

func (d fusedDisk) Rename(from, to string) error {
	return errors.Join(d.fuse.burn(), onlyIf(d.fuse, func() error { return d.Disk.Rename(from, to) }))
}

func (d fusedDisk) Sync() error { return errors.Join(d.fuse.burn(), d.Disk.Sync()) }

func onlyIf(f *fuse, do func() error) error {
	if f.left < 0 {
		return nil
	}
	return do()
}

type fusedFile struct {
	segment.File
	fuse *fuse
}

func (f fusedFile) WriteAt(b []byte, at int64) (int, error) {
	if f.fuse.burn() != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], at) // a torn write
		return n, errKilled
	}
	return f.File.WriteAt(b, at)
}

func (f fusedFile) Sync() error { return errors.Join(f.fuse.burn(), f.File.Sync()) }

// convert converts the log in dir as a start does, that is, unless the mark exists already.
func convert(o Options, mark string, step func() error) error {
	o.step = step
	if _, err := os.Stat(mark); err == nil {
		return RemoveOld(o.Dir)
	}
	return Convert(o, func() error { return os.WriteFile(mark, nil, 0o600) })
}

// wantConverted opens a converted log twice, and wants every entry in it and new entries accepted.
func wantConverted(t *testing.T, dir string, want *oldLog) {
	t.Helper()
	texts := []string{}
	for _, e := range want.Entries {
		texts = append(texts, e.Text)
	}
	m := &recorder{durable: want.Checkpoint}
	l := open(t, options(dir, m))
	if m.texts() != fmt.Sprint(texts) {
		t.Fatalf("the log has %s, want %v", m.texts(), texts)
	}
	for i, at := range m.applied {
		if at != want.Entries[i].Position {
			t.Fatalf("entry %s was at %s", at, want.Entries[i].Position)
		}
	}
	if term := l.Role().Term; term <= want.Term {
		t.Errorf("the term is %d, behind %d", term, want.Term)
	}
	write(t, l, "more")
	closeLog(t, l)
	m = &recorder{durable: want.Checkpoint}
	closeLog(t, open(t, options(dir, m)))
	if m.texts() != fmt.Sprint(append(texts, "more")) {
		t.Fatalf("after a restart the log has %s, want %v and more", m.texts(), texts)
	}
	for _, name := range []string{"wal", "snapshots", "wal.tmp", oldCopyDir, newSegmentsDir} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestConvertSurvivesKills interrupts a conversion at each of its steps, and interrupts the retry as well. Until the
// mark is set the old log is intact; in the end every entry is in the new one.
func TestConvertSurvivesKills(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"new", "clean", "killed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps, before, after := 0, 0, 0
			for done := false; !done; steps++ {
				dir, want := unpackOld(t, name)
				mark := filepath.Join(t.TempDir(), "mark")
				// What a killed copy may leave behind.
				if err := errors.Join(os.Mkdir(filepath.Join(dir, oldCopyDir), 0o700),
					os.WriteFile(filepath.Join(dir, oldCopyDir, "half"), []byte("x"), 0o600)); err != nil {
					t.Fatal(err)
				}
				f := &fuse{left: steps}
				o := options(dir, &recorder{durable: want.Checkpoint})
				o.disk = func(path string) segment.Disk { return fusedDisk{segment.OpenDirectory(path), f} }
				err := convert(o, mark, f.burn)
				if done = err == nil; !done && !errors.Is(err, errKilled) {
					t.Fatalf("step %d: %v", steps, err)
				}
				if _, err := os.Stat(mark); err == nil {
					after++
				} else {
					before++
					readOldAgain(t, dir, want)
				}
				f.left = steps / 2 // and again at another step
				if err := convert(o, mark, f.burn); err != nil && !errors.Is(err, errKilled) {
					t.Fatalf("again after step %d: %v", steps, err)
				}
				o.disk = nil
				if err := convert(o, mark, nil); err != nil {
					t.Fatalf("after step %d: %v", steps, err)
				}
				wantConverted(t, dir, want)
			}
			if before < 8 || after < 2 {
				t.Errorf("%d steps before the mark and %d behind it: the test tested too little", before, after)
			}
		})
	}
}

// readOldAgain wants an old log to be unchanged.
func readOldAgain(t *testing.T, dir string, want *oldLog) {
	t.Helper()
	i := 0
	o := Options{Dir: dir, Identity: testIdentity, Checkpoint: want.Checkpoint}
	err := ReadOld(o, func(at Position, entry []byte, _ bool) error {
		if at != want.Entries[i].Position || string(entry) != want.Entries[i].Text {
			t.Errorf("entry %d is %q at %s", i, entry, at)
		}
		i++
		return nil
	})
	if err != nil || i != len(want.Entries) {
		t.Fatalf("the old log has %d entries, want %d: %v", i, len(want.Entries), err)
	}
}

// TestConvertRefusesDamage: a damaged old log, or one of another state store, is refused on every attempt, stays
// unchanged, and is converted once it is intact again.
func TestConvertRefusesDamage(t *testing.T) {
	t.Parallel()
	dir, want := unpackOld(t, "killed")
	o := options(dir, &recorder{durable: want.Checkpoint})
	never := func() error { t.Error("a damaged log was converted"); return nil }
	segments, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(segments) < 1 {
		t.Fatal(segments, err)
	}
	content, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), content...)
	flipped[len(flipped)/16] ^= 1
	for range 2 {
		if err := os.WriteFile(segments[0], flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		wantDamage(t, Convert(o, never), "")
		if now, err := os.ReadFile(segments[0]); err != nil || string(now) != string(flipped) {
			t.Errorf("the damaged segment was changed: %v", err)
		}
	}
	if err := os.WriteFile(segments[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		with  func(*Options)
		found string
	}{
		{func(o *Options) { o.Identity = []byte("ledger-2") }, "another data directory"},
		{func(o *Options) { o.Checkpoint.Index += 1 << 20 }, "before the state store"},
		{func(o *Options) { o.Checkpoint.Index -= 10 }, "gap"},
		{func(o *Options) { o.Dir = filepath.Join(dir, "none") }, "cannot be found"},
	} {
		other := o
		change.with(&other)
		wantDamage(t, Convert(other, never), change.found)
	}
	mark := filepath.Join(t.TempDir(), "mark")
	if err := convert(o, mark, nil); err != nil {
		t.Fatal(err)
	}
	wantConverted(t, dir, want)
}
