package blockfile

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/machine"
)

// countingDisk counts the files that are opened.
type countingDisk struct {
	Disk

	opened atomic.Int64
}

func (d *countingDisk) Open(name string, create bool) (File, error) {
	d.opened.Add(1)
	return d.Disk.Open(name, create)
}

func (d *countingDisk) OpenSealed(name string) (File, error) {
	d.opened.Add(1)
	return d.Disk.OpenSealed(name)
}

// TestOpenReadsNoRecordedFile: a start opens the file that is still written, and of the others those alone that no
// checkpoint has recorded.
func TestOpenReadsNoRecordedFile(t *testing.T) {
	t.Parallel()
	disk := &countingDisk{Disk: NewMemoryDisk()}
	o := Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 200}}
	f := mustOpen(t, o)
	var records []stored
	for i := range uint64(100) {
		records = append(records, stored{i + 1, bytes.Repeat([]byte{byte(i)}, 60)})
	}
	mustAppend(t, f, records)
	o.Mark = f.Mark()
	all := f.Sealed(o.Mark.Number)
	const active = 1 + 1 // its content and its size
	for _, recorded := range []int{len(all), len(all) - 3, 1, 0} {
		o.Sealed = all[:recorded]
		disk.opened.Store(0)
		f := mustOpen(t, o)
		if n, want := disk.opened.Load(), int64(len(all)-recorded+active); n != want {
			t.Errorf("with %d of %d files recorded a start opens %d, want %d", recorded, len(all), n, want)
		}
		mustHave(t, f, records)
	}
}

// TestMissingFileIsNoticedAtOnce: a start looks for every file, whether it reads it or not, and names the one that is
// missing.
func TestMissingFileIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	x := makeImage(t, 1)
	for number := range x.mark.Number {
		name := Name(number + 1)
		disk := NewMemoryDisk()
		for n, data := range x.files {
			if n != name {
				disk.files[n] = &diskFile{disk: disk, memoryFile: memoryFile{data: data}}
			}
		}
		_, err := Open(Options{Disk: disk, Mark: x.mark, Sealed: x.sealed})
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestRecordsOfOtherFiles: what is recorded of other files leads to another header of the last one.
func TestRecordsOfOtherFiles(t *testing.T) {
	t.Parallel()
	disk := NewMemoryDisk()
	x := Options{Disk: disk, Mark: Mark{ID: testID, SealBytes: 200}}
	whole := mustOpen(t, x)
	mustAppend(t, whole, makeRecords(rand.New(rand.NewPCG(3, 3)), 30, 60))
	x.Mark = whole.Mark()
	x.Sealed = whole.Sealed(x.Mark.Number)
	last := len(x.Sealed) - 1
	for what, change := range map[string]func(s []SealedFile){
		"size":  func(s []SealedFile) { s[0].Size++ },
		"index": func(s []SealedFile) { s[last].Last++ },
		"hash":  func(s []SealedFile) { s[last].Hash[3]++ },
	} {
		sealed := append([]SealedFile{}, x.Sealed...)
		change(sealed)
		check.Is(t, check.Err(Open(Options{Disk: disk, Mark: x.Mark, Sealed: sealed})), machine.ErrCorrupt,
			"with another %s", what)
	}
	// What does not show there is found when the file is read.
	sealed := append([]SealedFile{}, x.Sealed...)
	sealed[0].Hash[3]++
	f := mustOpen(t, Options{Disk: disk, Mark: x.Mark, Sealed: sealed})
	check.Is(t, check.Err(contents(f)), machine.ErrCorrupt, "with another hash of the first file")
}
