package legacy

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestStored: whoever asked is told of each write of entries, with their size.
func TestStored(t *testing.T) {
	t.Parallel()
	var writes, bytes atomic.Int64
	o := options(t.TempDir(), &recorder{})
	o.Create = true
	o.Stored = func(n int, took time.Duration) {
		if took <= 0 {
			t.Errorf("a write took %s", took)
		}
		writes.Add(1)
		bytes.Add(int64(n))
	}
	l := open(t, o)
	before, size := writes.Load(), bytes.Load()
	write(t, l, "a text of some length")
	if writes.Load() == before || bytes.Load() < size+int64(len("a text of some length")) {
		t.Errorf("%d writes with %d bytes before, %d with %d after", before, size, writes.Load(), bytes.Load())
	}
}

// failingDisk stores nothing.
type failingDisk struct{ diskStore }

func (failingDisk) StoreLogs([]*raft.Log) error { return errDisk }

// TestStoredIsNotToldOfFailures: a failed write is no fast fsync.
func TestStoredIsNotToldOfFailures(t *testing.T) {
	t.Parallel()
	s := &guardedStore{
		disk: failingDisk{}, failed: func() error { return nil }, fail: func(error) {},
		stored: func(int, time.Duration) { t.Error("told of a write that failed") },
	}
	if err := s.StoreLogs([]*raft.Log{{Index: 1}}); !errors.Is(err, errDisk) {
		t.Error(err)
	}
}
