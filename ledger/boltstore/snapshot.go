package boltstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
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
	mark  blockfile.Mark // where its blocks end
	first uint64
	at    Position
}

// Applied returns the position of the log up to which the snapshot has everything.
func (sn *Snapshot) Applied() Position { return sn.at }

// FirstBlocks returns the number of the first block file of the snapshot. No block file may be dropped while it
// is open.
func (sn *Snapshot) FirstBlocks() uint64 { return sn.first }

// LastBlocks returns the number of the last block file of the snapshot; 0 for none.
func (sn *Snapshot) LastBlocks() uint64 { return sn.mark.Number }

// HashBefore returns the hash of the block file before one of the snapshot's, which proves all files before that one.
// It is zero before the first file of all.
func (sn *Snapshot) HashBefore(number uint64) (machine.Hash, error) {
	start, err := sn.store.blocks.StartAt(number)
	return start.Previous, err
}

// Snapshot opens a snapshot of the last flush, and waits for the end of one that is
// under way: a file in the middle of a flush may have a journal, and then programs of
// before do not open it. The store must not be closed before it: Close would wait for it.
func (s *Store) Snapshot() (*Snapshot, error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if err := s.usable(); err != nil { // else finish would write after a failed sync
		return nil, err
	}
	if !s.readOnly {
		if err := s.finish(); err != nil {
			return nil, err
		}
	}
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
	if c.journal { // which a store that is only read cannot finish
		return nil, errors.Join(ErrReadOnly, tx.Rollback())
	}
	return &Snapshot{s, tx, c.mark, max(c.start.Number, 1), c.applied}, nil
}

// Close gives the pages free.
func (sn *Snapshot) Close() error { return sn.tx.Rollback() }

// SnapshotFile is a file of a snapshot.
type SnapshotFile struct {
	Name   string // relative to the data directory, with slashes
	Number uint64 // of a block file; 0 for the state file
	Size   int64  // bytes
	CopyTo func(w io.Writer) error
}

// Files returns what makes up the snapshot: the state file first, then the block
// files in order. The copy of any of them ends with [ErrNoRoom] before the snapshot would delay a flush.
func (sn *Snapshot) Files() []SnapshotFile {
	files := []SnapshotFile{{filepath.Base(sn.store.path), 0, sn.tx.Size(), sn.copyState}}
	for _, part := range sn.store.blocks.Parts(sn.mark) {
		copyTo := func(w io.Writer) error { return part.CopyTo(&roomyWriter{store: sn.store, w: w}) }
		files = append(files, SnapshotFile{BlocksName + "/" + part.Name, part.Number, part.Size, copyTo})
	}
	return files
}

// View lets fn read the snapshot. The error is that of fn or of the storage; a panic of fn is not caught.
func (sn *Snapshot) View(fn func(r machine.Reader) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	r := &reader{
		store: sn.store, active: new(overlay), tx: sn.tx, armed: true, blocks: sn.store.blocks.ReaderTo(sn.mark.Last),
	}
	defer func() {
		r.blocks.Close()
		if p := r.takeFault(recover()); p != nil {
			panic(p)
		}
		if r.failure != nil {
			err = r.failure
		}
	}()
	return fn(r)
}

// copyState writes the state of the snapshot to w as a bbolt file, in small chunks. It reads the file, not the map. It
// returns [ErrNoRoom] before it would delay a flush, and otherwise the error of w.
func (sn *Snapshot) copyState(w io.Writer) error {
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
func Adopt(path string, identity []byte) error {
	_, err := adopt(path, identity, func(tx *bbolt.Tx) error { return putApplied(tx, Position{}) })
	return err
}

// AdoptAt is Adopt for a node of the same ledger, whose log continues after the applied position of the file. It
// returns that position.
func AdoptAt(path string, identity []byte) (Position, error) {
	return adopt(path, identity, func(*bbolt.Tx) error { return nil })
}

func adopt(path string, identity []byte, more func(*bbolt.Tx) error) (at Position, err error) {
	if _, err := checkFile(path); err != nil {
		return at, err
	}
	s := &Store{path: path, active: new(overlay)}
	if err := s.openBolt(Options{}); err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.checkPages(nil); err != nil {
		return at, err
	}
	// The checksums of its pages go with the identity that it had: the next Open makes them anew.
	if err := os.Remove(SumsPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return at, fmt.Errorf("remove the page checksums: %w", err)
	}
	err = s.change(func(tx *bbolt.Tx) error {
		c, err := readControl(tx, nil)
		if err != nil {
			return err
		}
		at = c.applied
		return errors.Join(putControl(tx, keyIdentity, identity), more(tx))
	})
	if err != nil {
		return at, fmt.Errorf("%s: %w", path, err)
	}
	return at, nil
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
