package boltstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// ErrNoRoom means that the file has nearly outgrown the address space that was
// reserved for it at Open. Mapping a larger file waits for every reader to
// end, so that a long one would hold up the flushes. Open it anew.
var ErrNoRoom = errors.New("the state file has nearly outgrown the address space that was reserved when it was " +
	"opened; stop and start the process that has it open, which reserves more")

// Snapshot is the file as one flush left it, whatever is flushed meanwhile. As
// long as it is open, pages that flushes replace are not used again, so that
// the file grows by what they write: close it soon. It belongs to one goroutine.
type Snapshot struct {
	store *Store
	tx    *bbolt.Tx
	ahead []byte // the first block that was spilled after the flush; nil for none
}

// Snapshot opens a snapshot of the last flush. The store must not be closed
// before it: Close would wait for it.
func (s *Store) Snapshot() (*Snapshot, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	tx, err := s.begin(false)
	if err != nil {
		return nil, err
	}
	c, err := readControl(tx, nil)
	if err != nil {
		return nil, errors.Join(s.fail(err), tx.Rollback())
	}
	return &Snapshot{s, tx, c.ahead}, nil
}

// Close gives the pages free.
func (sn *Snapshot) Close() error { return sn.tx.Rollback() }

// Size returns how many bytes CopyTo writes.
func (sn *Snapshot) Size() int64 { return sn.tx.Size() }

// View lets fn read the snapshot. The error is fn's own or the storage's; a panic
// of fn goes on.
func (sn *Snapshot) View(fn func(r machine.Reader) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	r := &reader{store: sn.store, active: new(overlay), tx: sn.tx, hidden: sn.ahead}
	defer func() {
		if p := r.takeFault(recover()); p != nil {
			panic(p)
		}
		if r.failure != nil {
			err = r.failure
		}
	}()
	return fn(r)
}

// CopyTo writes the snapshot to w as a bbolt file, with the blocks of a [Store.Spill]
// that came between the flush and the snapshot, which [Adopt] removes, of which w gets some tens of
// KiB at a time. It reads the file, not the map. It ends with [ErrNoRoom]
// before it would get into the way of a flush, and otherwise with the error of w.
func (sn *Snapshot) CopyTo(w io.Writer) error {
	out := &roomyWriter{store: sn.store, w: w}
	_, err := sn.tx.WriteTo(out)
	if out.err != nil {
		return out.err // bbolt keeps the text of some errors alone
	}
	return err
}

// roomyWriter fails when the file gets near the end of its map.
type roomyWriter struct {
	store *Store
	w     io.Writer
	err   error // the first
}

// Write implements io.Writer.
func (w *roomyWriter) Write(b []byte) (n int, err error) {
	if err = w.store.checkRoom(); err == nil {
		n, err = w.w.Write(b)
	}
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// checkRoom returns ErrNoRoom when less than a quarter of the map is left,
// which is far more than one flush takes.
func (s *Store) checkRoom() error {
	if s.mapped == 0 {
		return nil // nothing was reserved on this system: see mapSize
	}
	info, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("size of the state file: %w", err)
	}
	if info.Size() > s.mapped/4*3 {
		return ErrNoRoom
	}
	return nil
}

// Adopt gives the state file of another data directory, which no process has open,
// to the directory with this identity. Its log begins anew: the file says that
// nothing of it has been applied. That is durable when Adopt returns.
func Adopt(path string, identity []byte) (err error) {
	if _, err := checkFile(path); err != nil {
		return err
	}
	s := &Store{path: path, active: new(overlay)}
	if err := s.openBolt(Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.checkPages(nil); err != nil {
		return err
	}
	// The checksums of its pages go with the identity that it had: the next Open makes them anew.
	if err := os.Remove(SumsPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the page checksums: %w", err)
	}
	if err := s.adopt(identity); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (s *Store) adopt(identity []byte) error {
	return s.change(func(tx *bbolt.Tx) error {
		c, err := readControl(tx, nil)
		if err == nil {
			// The log that would make them again stays behind.
			err = s.removeLeftovers(tx, c.ahead)
		}
		if err == nil && c.tables < machine.TableCount {
			err = putTables(tx, c.tables)
		}
		if err != nil {
			return err
		}
		return errors.Join(putControl(tx, keyIdentity, identity), putApplied(tx, Position{}),
			putControl(tx, keyAhead, nil))
	})
}

// reserve is how much of the address space the map of a file takes: room to
// grow fourfold.
func reserve(path string, least int) (int, error) {
	info, err := os.Stat(path)
	if err != nil || least == 0 {
		return 0, err
	}
	return max(least, int(4*info.Size())), nil
}
