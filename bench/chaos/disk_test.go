package chaos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// testDisks mounts disks below a directory, or says why there are none.
func testDisks(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	unmount, why := mountDisks(t.Context(), dir, n, 32<<20)
	if why != "" {
		t.Skip("there can be no disks: ", why)
	}
	t.Cleanup(func() {
		check.Is(t, unmount(), nil)
	})
	return dir
}

// A filled disk takes no byte more until the file is gone, and another one is not full.
func TestFill(t *testing.T) {
	t.Parallel()
	dir := testDisks(t, 2)
	path := diskOf(dir, 1)
	filler, other := filepath.Join(path, "filler"), filepath.Join(path, "other")
	must.Do(t, fill(t.Context(), filler))
	check.Is(t, os.WriteFile(other, []byte("x"), 0o600), syscall.ENOSPC, "a byte more")
	must.Do(t, os.WriteFile(filepath.Join(diskOf(dir, 2), "other"), []byte("x"), 0o600), "on the other disk")
	must.Do(t, os.Remove(filler))
	// A file system with a journal frees the blocks of a removed file when it commits.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := os.WriteFile(other, []byte("x"), 0o600)
	for errors.Is(err, syscall.ENOSPC) && ctx.Err() == nil {
		syscall.Sync()
		err = os.WriteFile(other, []byte("x"), 0o600)
	}
	must.Do(t, err, "with room again")
}

// What is written to a disk that hangs waits until it does not any more.
func TestHang(t *testing.T) {
	t.Parallel()
	const hangs = 200 * time.Millisecond
	path := diskOf(testDisks(t, 1), 1)
	over, end := context.WithCancel(t.Context())
	longest := make(chan time.Duration)
	go func() { // ends with over
		var most time.Duration
		for over.Err() == nil {
			began := time.Now()
			check.Is(t, os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o600), nil)
			most = max(most, time.Since(began))
		}
		longest <- most
	}()
	d := &node{dir: filepath.Join(path, "data")}
	must.Do(t, new(adversary).hang(t.Context(), d, hangs))
	end()
	if took := <-longest; took < hangs/2 {
		t.Errorf("a write took %s at most while the disk hung for %s", took, hangs)
	}
}

// What happens to disks and cables can happen only where there are any, and everything else anywhere.
func TestFaultsThatThereCanBe(t *testing.T) {
	t.Parallel()
	without := &adversary{c: &cluster{network: nil}}
	with := &adversary{c: &cluster{network: &namespaces{}, disks: true}}
	check.Equal(t, len(without.faults()), len(faults), "%d faults without disks and namespaces")
	var names []string
	for _, f := range with.faults() {
		if f.weight < 1 || f.do == nil {
			t.Errorf("%q with weight %d cannot be drawn", f.name, f.weight)
		}
		names = append(names, f.name)
	}
	for _, name := range []string{"a disk is full", "the leader's disk hangs", "a node is unplugged"} {
		if !strings.Contains(strings.Join(names, "\n"), name) {
			t.Errorf("%q is not among %q", name, names)
		}
	}
}

// What cannot be filled, mounted or frozen is an error.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	check.Is(t, fill(t.Context(), filepath.Join(t.TempDir(), "absent", "filler")), os.ErrNotExist,
		"fill in a directory that is not there")
	if _, why := mountDisks(t.Context(), filepath.Join(t.TempDir(), "absent"), 1, 1<<20); why == "" {
		t.Error("disks in a directory that is not there")
	}
	d := &node{dir: filepath.Join(t.TempDir(), "absent", "data")}
	check.ErrorContains(t, new(adversary).hang(t.Context(), d, 0), "fsfreeze", "hang of what is no disk")
}
