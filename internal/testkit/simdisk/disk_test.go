package simdisk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var errFault = errors.New("input/output error")

// create creates a durable file of zeros.
func create(t *testing.T, d segment.Disk, name string, size int64) segment.File {
	t.Helper()
	f, err := d.Create(name, size)
	must.Do(t, errors.Join(err, d.Sync()))
	return f
}

func write(t *testing.T, f segment.File, at int64, text []byte) {
	t.Helper()
	if n, err := f.WriteAt(text, at); n != len(text) || err != nil {
		t.Fatalf("%d of %d bytes were written: %v", n, len(text), err)
	}
}

// read returns the whole content of a file, as a newly started process sees it.
func read(t *testing.T, d segment.Disk, name string) []byte {
	t.Helper()
	f := must.Get(d.Open(name))(t)
	defer func() { _ = f.Close() }()
	size := must.Get(f.Size())(t)
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n != len(b) || err != nil {
		t.Fatalf("%d of %d bytes were read: %v", n, len(b), err)
	}
	return b
}

// TestADiskIsLikeTheSystems: without a fault, the operations of a log have the same effect on this disk and on a real
// directory.
func TestADiskIsLikeTheSystems(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 1))
		disks := [2]segment.Disk{simdisk.New(), segment.OpenDirectory(t.TempDir())}
		names := []string{"a", "b", "c"}
		var there []string
		for step := range 100 {
			name, to := names[random.IntN(len(names))], names[random.IntN(len(names))]
			size, at := 1+random.Int64N(2000), random.Int64N(100)
			text := bytes.Repeat([]byte{byte(step)}, random.IntN(100))
			what := random.IntN(4)
			var errs [2]error
			for i, d := range disks {
				switch {
				case what == 0:
					var f segment.File
					if f, errs[i] = d.Create(name, size); errs[i] == nil {
						errs[i] = f.Close()
					}
				case what == 1 && name != to:
					errs[i] = d.Rename(name, to)
				case what == 2 && slices.Contains(there, name):
					errs[i] = d.Remove(name)
				default:
					var f segment.File
					if f, errs[i] = d.Open(name); errs[i] == nil {
						length, err := f.Size()
						_, written := f.WriteAt(text[:max(0, min(int64(len(text)), length-at))], min(at, length))
						errs[i] = errors.Join(err, written, f.Sync(), f.Close(), d.Sync())
					}
				}
			}
			if (errs[0] == nil) != (errs[1] == nil) ||
				errors.Is(errs[0], fs.ErrNotExist) != errors.Is(errs[1], fs.ErrNotExist) {
				t.Fatalf("seed %d, step %d, kind %d: %v, and the system says %v", seed, step, what, errs[0], errs[1])
			}
			ours, err := disks[0].List()
			theirs, err2 := disks[1].List()
			slices.Sort(theirs)
			if err != nil || err2 != nil || !slices.Equal(ours, theirs) {
				t.Fatalf("seed %d, step %d: it has %v, %v, and the system %v, %v", seed, step, ours, err, theirs, err2)
			}
			there = ours
			for _, name := range there {
				if !bytes.Equal(read(t, disks[0], name), read(t, disks[1], name)) {
					t.Fatalf("seed %d, step %d: %s has another content than in the system", seed, step, name)
				}
			}
		}
	}
}

// TestWhatIsSyncedStays: synced data survives any power loss; each other sector is kept or lost as a whole.
func TestWhatIsSyncedStays(t *testing.T) {
	t.Parallel()
	const sectors = 8
	kept, lost := 0, 0
	for seed := range uint64(64) {
		d, random := simdisk.New(), rand.New(rand.NewPCG(seed, 2))
		f := create(t, d, "log", sectors*simdisk.SectorBytes)
		before := bytes.Repeat([]byte{1}, sectors*simdisk.SectorBytes)
		write(t, f, 0, before)
		must.Do(t, f.Sync())
		// Unaligned, and across several sectors.
		from, to := 1+random.IntN(600), 2000+random.IntN(2000)
		write(t, f, int64(from), bytes.Repeat([]byte{2}, to-from))
		d.PowerLoss(random)
		after := read(t, d, "log")
		if !bytes.Equal(after[:from], before[:from]) || !bytes.Equal(after[to:], before[to:]) {
			t.Fatalf("seed %d: what was synced and not written since has changed", seed)
		}
		for at := 0; at < len(after); at += simdisk.SectorBytes {
			changed := after[max(at, min(from, at+simdisk.SectorBytes)):max(at, min(to, at+simdisk.SectorBytes))]
			switch n := bytes.Count(changed, []byte{2}); {
			case len(changed) == 0:
			case n == len(changed):
				kept++
			case n == 0:
				lost++
			default:
				t.Fatalf("seed %d: %d of %d bytes of the sector at %d are new", seed, n, len(changed), at)
			}
		}
	}
	if kept == 0 || lost == 0 {
		t.Errorf("%d sectors were kept and %d lost: it never loses, or never keeps", kept, lost)
	}
}

// TestNamesNeedASync: before the directory is synced, a power loss may undo name changes; afterwards it cannot.
func TestNamesNeedASync(t *testing.T) {
	t.Parallel()
	for _, synced := range []bool{false, true} {
		seen := map[string]bool{}
		for seed := range uint64(32) {
			d := simdisk.New()
			create(t, d, "old", 10)
			create(t, d, "gone", 10)
			_, err := d.Create("new", 10)
			must.Do(t, errors.Join(err, d.Rename("old", "renamed"), d.Remove("gone")))
			if synced {
				must.Do(t, d.Sync())
			}
			d.PowerLoss(rand.New(rand.NewPCG(seed, 3)))
			names := must.Get(d.List())(t)
			seen[fmt.Sprint(names)] = true
		}
		if before, after := seen["[gone old]"], seen["[new renamed]"]; !after || before == synced || len(seen) > 2 {
			t.Errorf("synced %v: the names were %v", synced, seen)
		}
	}
}

// TestAKillLosesNothing: a kill loses nothing that was written. Files opened by the old process are unusable in the
// next.
func TestAKillLosesNothing(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	f := create(t, d, "log", 10)
	write(t, f, 2, []byte("abc"))
	d.FailAt(1, errFault)
	d.Kill()
	check.Equal(t, string(read(t, d, "log")), "\x00\x00abc\x00\x00\x00\x00\x00", "after the kill it is %q")
	_, readErr := f.ReadAt(make([]byte, 1), 0)
	_, writeErr := f.WriteAt([]byte("x"), 0)
	for what, err := range map[string]error{"read": readErr, "write": writeErr, "sync": f.Sync()} {
		check.Is(t, err, simdisk.ErrCrashed, "a %s of the process that was killed", what)
	}
	must.Do(t, d.Sync(), "the fault has outlived its process")
}

// TestFaults: every change from the fuse on fails, and none before it; half of the failing write arrives.
func TestFaults(t *testing.T) {
	t.Parallel()
	// Steps of the process below: create, sync of names, write, sync, rename, remove.
	for at := 1; at <= 7; at++ {
		d := simdisk.New()
		d.FailAt(at, errFault)
		f, err := d.Create("log", 8)
		errs := []error{err, d.Sync()}
		if f != nil {
			_, err = f.WriteAt([]byte("abcd"), 0)
			errs = append(errs, err, f.Sync(), d.Rename("log", "moved"), d.Remove("moved"))
			if d.Steps() != len(errs) {
				t.Errorf("%d steps are counted as %d", len(errs), d.Steps())
			}
		}
		for i, err := range errs {
			check.Equal(t, errors.Is(err, errFault), i+1 >= at, "the fault is due at step %d, and step %d says %v: %v",
				at, i+1, err)
		}
		want := map[int]string{2: "ab\x00\x00", 3: "ab\x00\x00", 4: "abcd", 5: "abcd"}
		if text, due := want[at]; due && string(d.Bytes("log")[:4]) != text {
			t.Errorf("the fault is due at step %d, and the file is %q", at, d.Bytes("log"))
		}
	}
}

// TestASyncThatFailsForgets: the system marks the pages clean after a failed sync, so a later sync does not write them.
func TestASyncThatFailsForgets(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	f := create(t, d, "log", 4)
	write(t, f, 0, []byte("abcd"))
	d.FailAt(1, errFault)
	must.Is(t, f.Sync(), errFault)
	d.FailAt(1000, nil)
	if err := f.Sync(); err != nil || string(d.Bytes("log")) != "abcd" {
		t.Errorf("the cache has %q, %v", d.Bytes("log"), err)
	}
	d.PowerLoss(rand.New(rand.NewPCG(1, 4)))
	check.Equal(t, string(read(t, d, "log")), "\x00\x00\x00\x00", "the disk has %q, which no sync has written")
}

// TestAFullDisk: a full disk refuses new files only, until a file is removed.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	d.SetFree(100)
	f := create(t, d, "a", 60)
	check.Is(t, check.Err(d.Create("b", 41)), syscall.ENOSPC, "a file of 41 bytes where 40 are free")
	if names, _ := d.List(); !slices.Equal(names, []string{"a"}) {
		t.Errorf("the file that did not fit is there: %v", names)
	}
	write(t, f, 0, []byte("its blocks are allocated"))
	create(t, d, "b", 40)
	must.Do(t, d.Remove("a"))
	create(t, d, "c", 60)
	d.SetFree(-1)
	create(t, d, "d", 1<<20)
}

// TestRotRead: one read differs in one bit, and the file is unchanged.
func TestRotRead(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	f := create(t, d, "log", 4)
	write(t, f, 0, []byte("abcd"))
	d.RotRead(rand.New(rand.NewPCG(1, 6)))
	b := make([]byte, 4)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) == "abcd" || !d.Rotted() {
		t.Errorf("the read was not damaged: %q, %v", b, err)
	}
	check.Equal(t, string(read(t, d, "log")), "abcd", "the next read is damaged: %q")
	if d.Kill(); d.Rotted() {
		t.Error("the damage outlives the process")
	}
}

// TestClonesAndDamage: a clone shares nothing with its disk, and damage at rest is durable.
func TestClonesAndDamage(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	write(t, create(t, d, "log", 4), 0, []byte("abcd")) // not synced
	c := d.Clone()
	c.PowerLoss(rand.New(rand.NewPCG(1, 5)))
	check.Equal(t, string(read(t, c, "log")), "abcd", "a clone has lost what its disk had in the cache: %q")
	c.SetBytes("log", []byte("damaged"))
	c.SetBytes("other", []byte("new"))
	c.PowerLoss(rand.New(rand.NewPCG(2, 5)))
	if string(c.Bytes("log")) != "damaged" || string(c.Bytes("other")) != "new" {
		t.Errorf("damage at rest is gone: %q, %q", c.Bytes("log"), c.Bytes("other"))
	}
	if string(d.Bytes("log")) != "abcd" || d.Bytes("other") != nil {
		t.Errorf("the disk was damaged with its clone: %q, %q", d.Bytes("log"), d.Bytes("other"))
	}
}

// TestBounds: reading or writing beyond the end of a file fails. A log that does so is faulty and must not get zeros.
func TestBounds(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	f := create(t, d, "log", 4)
	for _, at := range []int64{1, 4, 100} {
		if _, err := f.ReadAt(make([]byte, 4), at); err == nil {
			t.Errorf("4 bytes at %d of 4 were read", at)
		}
		if _, err := f.WriteAt(make([]byte, 4), at); err == nil {
			t.Errorf("4 bytes at %d of 4 were written", at)
		}
	}
	check.Is(t, check.Err(d.Open("none")), fs.ErrNotExist, "a file that is not there")
	check.Is(t, d.Rename("none", "some"), fs.ErrNotExist, "a name that is not there")
}
