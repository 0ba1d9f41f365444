package blockfile

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// writeWhole makes a synced file of a MemoryDisk.
func writeWhole(t *testing.T, d *MemoryDisk, name, content string) {
	t.Helper()
	f, err := d.Open(name, true)
	if err == nil {
		_, err = f.WriteAt([]byte(content), 0)
	}
	must.Do(t, errors.Join(err, f.Sync()))
}

func readWhole(t *testing.T, d *MemoryDisk, name string) string {
	t.Helper()
	f, err := d.OpenSealed(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "none"
	}
	must.Do(t, err)
	size, _ := f.Size() // memory has no errors
	b := make([]byte, size)
	must.Get(f.ReadAt(b, 0))(t)
	return string(b)
}

// TestMemoryDiskRename: what a crash leaves of a renaming is all of it or nothing, and once it was synced all of it.
func TestMemoryDiskRename(t *testing.T) {
	t.Parallel()
	met := map[string]int{}
	for seed := range uint64(64) {
		for _, synced := range []bool{false, true} {
			d := NewMemoryDisk()
			writeWhole(t, d, "INDEX", "before")
			must.Do(t, d.Sync())
			writeWhole(t, d, "INDEX.new", "after")
			must.Do(t, d.Rename("INDEX.new", "INDEX"))
			if synced {
				must.Do(t, d.Sync())
			}
			d.Crash(rand.New(rand.NewPCG(seed, 1)).IntN)
			left := readWhole(t, d, "INDEX")
			if synced && left != "after" || left != "before" && left != "after" {
				t.Errorf("seed %d, synced %v: a crash leaves %q", seed, synced, left)
			}
			check.Equal(t, readWhole(t, d, "INDEX.new"), "none",
				"seed %d, synced %v: a crash leaves the old name with %q", seed, synced)
			met[left]++
		}
	}
	if met["before"] == 0 || met["after"] <= 64 {
		t.Errorf("without a sync both must come: %v", met)
	}
	check.Is(t, NewMemoryDisk().Rename("a", "b"), fs.ErrNotExist, "a file that is not there is renamed")
}
