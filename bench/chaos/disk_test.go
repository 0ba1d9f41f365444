package chaos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
