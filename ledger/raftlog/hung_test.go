package raftlog

import (
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// hangingDisk is a disk whose file syncs block while a gate is set.
type hangingDisk struct {
	segment.Disk
	gate *atomic.Pointer[chan struct{}]
}

type hangingFile struct {
	segment.File
	gate *atomic.Pointer[chan struct{}]
}

func (d hangingDisk) Create(name string, size int64) (segment.File, error) {
	f, err := d.Disk.Create(name, size)
	return hangingFile{f, d.gate}, err
}

func (d hangingDisk) Open(name string) (segment.File, error) {
	f, err := d.Disk.Open(name)
	return hangingFile{f, d.gate}, err
}

func (f hangingFile) Sync() error {
	if gate := f.gate.Load(); gate != nil {
		<-*gate
	}
	return f.File.Sync()
}

// TestHungDiskIsVisible: while a sync hangs, Writing returns for how long, and nothing is acknowledged.
func TestHungDiskIsVisible(t *testing.T) {
	t.Parallel()
	var gate atomic.Pointer[chan struct{}]
	o := options(filepath.Join(t.TempDir(), "log"), &recorder{})
	o.Create = true
	o.disk = func(path string) segment.Disk { return hangingDisk{segment.OpenDirectory(path), &gate} }
	l := open(t, o)
	write(t, l, "one")
	for l.Writing() != 0 && t.Context().Err() == nil { // the write of the term's first entry has ended, or is about to
		runtime.Gosched()
	}
	closed := make(chan struct{})
	gate.Store(&closed)
	p := l.ProposeIn(l.Role().Term, []byte("two"))
	for before := l.Writing(); before == 0 || l.Writing() <= before; before = l.Writing() {
		if t.Context().Err() != nil {
			t.Fatal("a write that hangs is not seen")
		}
		runtime.Gosched()
	}
	select {
	case <-p.Done():
		t.Error("acknowledged before it was durable")
	default:
	}
	gate.Store(nil)
	close(closed)
	must.Get(p.Wait())(t)
	for l.Writing() != 0 { // ends, because no write is in progress any more
		if t.Context().Err() != nil {
			t.Fatal("the write has ended and is still seen")
		}
		runtime.Gosched()
	}
}
