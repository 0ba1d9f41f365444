package legacy

import (
	"errors"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"
)

// untouchable is a disk that must not be called.
type untouchable struct{ diskStore }

// After the first error no call reaches the disk. Where Raft would panic, the
// calling goroutine ends.
func TestStickyError(t *testing.T) {
	t.Parallel()
	s := &guardedStore{
		disk: untouchable{}, failed: func() error { return errDisk }, // a call would be of a nil interface
		fail: func(err error) { t.Errorf("a second failure: %v", err) },
	}
	entry := &raft.Log{Index: 1}
	for name, call := range map[string]func() error{
		"StoreLog":    func() error { return s.StoreLog(entry) },
		"StoreLogs":   func() error { return s.StoreLogs([]*raft.Log{entry}) },
		"DeleteRange": func() error { return s.DeleteRange(1, 2) },
		"FirstIndex":  func() error { _, err := s.FirstIndex(); return err },
		"LastIndex":   func() error { _, err := s.LastIndex(); return err },
		"Get":         func() error { _, err := s.Get(nil); return err },
		"GetUint64":   func() error { _, err := s.GetUint64(nil); return err },
	} {
		if err := call(); !errors.Is(err, errDisk) {
			t.Errorf("%s: %v, want the first error", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"GetLog":    func() error { return s.GetLog(1, entry) },
		"Set":       func() error { return s.Set(nil, nil) },
		"SetUint64": func() error { return s.SetUint64(nil, 1) },
	} {
		returned := false
		var caller sync.WaitGroup
		// Ends in the call; waited for right below.
		caller.Go(func() { _ = call(); returned = true })
		caller.Wait()
		if returned {
			t.Errorf("%s returned to Raft, which would panic or try again", name)
		}
	}
}

// A log of another data directory is refused even when it is as long.
func TestForeignLogIsRefused(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	closeLogAfter(t, dir, m, "one")
	o := options(dir, m.restarted())
	o.Identity = []byte("ledger-2")
	_, err := Open(o)
	wantDamage(t, err, `belongs to another data directory ("ledger-1", want "ledger-2")`)
}

// Whatever the bytes, reading them ends, stays inside them, and what is whole
// stays whole when something is behind it.
func FuzzReadBatches(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add(make([]byte, segmentHeader), []byte{segment.FrameCommit, 0, 0, 0, 1, 2, 3, 4})
	f.Add(make([]byte, segmentHeader+8), []byte{segment.FrameEntry, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, content, more []byte) {
		whole := readBatches(content)
		if whole.end > len(content) || whole.entries < 0 || whole.index > whole.end {
			t.Fatalf("read %+v from %d bytes", whole, len(content))
		}
		if longer := readBatches(append(content[:len(content):len(content)], more...)); longer.end < whole.end {
			t.Fatalf("bytes behind it shortened %+v to %+v", whole, longer)
		}
	})
}

// FuzzDecodeSnapshot: what decodes encodes to the same bytes.
func FuzzDecodeSnapshot(f *testing.F) {
	f.Add(snapshotPayload{identity: []byte("ledger-1"), covered: Position{7, 2}}.encode())
	f.Add([]byte("seqlogs"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeSnapshot(b)
		if err == nil && string(p.encode()) != string(b) {
			t.Fatalf("%q became %q", b, p.encode())
		}
	})
}
