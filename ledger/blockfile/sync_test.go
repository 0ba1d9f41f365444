package blockfile

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// hookedDisk calls a function before each write.
type hookedDisk struct {
	*MemoryDisk
	write func()
}

type hookedFile struct {
	File
	disk *hookedDisk
}

func (d *hookedDisk) Open(name string, create bool) (File, error) {
	f, err := d.MemoryDisk.Open(name, create)
	return hookedFile{f, d}, err
}

func (f hookedFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.write()
	return f.File.WriteAt(b, at)
}

// hooked returns files on a disk with a hook, past their replay.
func hooked(t *testing.T) (*Files, *hookedDisk) {
	t.Helper()
	disk := &hookedDisk{NewMemoryDisk(), func() {}}
	f := mustOpen(t, Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 1 << 20}})
	must.Equal(t, must.Get(f.Finish())(t), 0)
	return f, disk
}

// A Sync that begins while records are written leaves none to be missed by the next one.
func TestSyncBesideAWrite(t *testing.T) {
	t.Parallel()
	f, disk := hooked(t)
	records := makeRecords(rand.New(rand.NewPCG(7, 7)), 2, 60)
	mustAppend(t, f, records[:1])
	must.Get(f.Sync())(t)
	beside := make(chan error, 1)
	disk.write = func() {
		disk.write = func() {}
		go func() { _, err := f.Sync(); beside <- err }() // received below
		for i := 0; i < 1000 && len(beside) == 0; i++ {
			runtime.Gosched() // it may have to wait for the write
		}
	}
	mustAppend(t, f, records[1:])
	must.Get(f.Sync())(t)
	must.Do(t, <-beside)
	must.Get(f.Sync())(t)
	mark := f.Mark()
	disk.Crash(func(int) int { return 0 })
	mustHave(t, mustOpen(t, Options{Disk: disk, Mark: mark}), records)
}
