package segment_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// watchedDisk counts how often a file is written where it never was, and fails a test when a write changes anything
// but zeros.
type watchedDisk struct {
	segment.Disk
	t     *testing.T
	fresh int // writes beyond all before
	bytes int64
	sizes []int64 // of new files
}

func (d *watchedDisk) Create(name string, size int64) (segment.File, error) {
	d.sizes = append(d.sizes, size)
	f, err := d.Disk.Create(name, size)
	return &watchedFile{File: f, disk: d}, err
}

func (d *watchedDisk) Open(name string) (segment.File, error) {
	f, err := d.Disk.Open(name)
	return &watchedFile{File: f, disk: d}, err
}

type watchedFile struct {
	segment.File
	disk    *watchedDisk
	written int64 // up to here
}

func (f *watchedFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.t.Helper()
	before := make([]byte, len(b))
	_, err := f.ReadAt(before, at)
	if err != nil || bytes.Count(before, []byte{0}) != len(before) && !bytes.Equal(before, b) {
		f.disk.t.Errorf("%d bytes at %d overwrite other ones, or are behind the end (%v)", len(b), at, err)
	}
	if end := at + int64(len(b)); end > f.written {
		f.disk.fresh++
		f.written = end
	}
	f.disk.bytes += int64(len(b))
	return f.File.WriteAt(b, at)
}

// Most writes go where the file was written before, which makes their syncs cheaper, and none changes what is there. A
// long write brings no zeros.
func TestWritesAhead(t *testing.T) {
	t.Parallel()
	const segmentBytes, entryBytes, ahead = 8 << 20, 5_000, 512 << 10
	o := options(simdisk.New())
	d := &watchedDisk{Disk: o.Disk, t: t}
	o.Disk, o.SegmentBytes = d, segmentBytes
	must.Do(t, segment.Create(o, segment.Checkpoint{}, segment.State{}))
	l, err := segment.Open(o)
	must.Do(t, err)
	index, total := uint64(0), int64(0)
	add := func(size int) {
		index++
		write(t, l, nil, entries(index, index, 1, size))
		total += int64(size)
	}
	for total < 2*segmentBytes+ahead/2 {
		add(entryBytes)
	}
	if want := []int64{1 << 20, segmentBytes, segmentBytes}; !slices.Equal(d.sizes, want) {
		t.Errorf("the files have %v bytes, want %v", d.sizes, want)
	}
	// The first file has sixteen parts. Each file has a header and a seal.
	if most := int(total/ahead) + 16 + 3*4; d.fresh > most {
		t.Errorf("%d writes of %d reach what was never written, want at most %d", d.fresh, index, most)
	}
	before := d.bytes
	add(ahead) // begins within the zeros that are there
	if got := d.bytes - before; got > ahead+1000 {
		t.Errorf("an entry of %d bytes wrote %d", ahead, got)
	}
	// A crash leaves what was synced, and the log goes on.
	must.Do(t, l.Close())
	if l, err = segment.Open(o); err != nil || l.Last().Index != index {
		t.Fatalf("%d of %d entries (%v)", l.Last().Index, index, err)
	}
	add(entryBytes)
	must.Do(t, l.Close())
}
