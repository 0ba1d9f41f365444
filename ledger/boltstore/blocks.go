package boltstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// BlocksName is the name of the directory of the block files, beside the state file.
const BlocksName = "blocks"

// BlocksOf returns the directory of the block files that belong to a state file.
func BlocksOf(path string) string { return filepath.Join(filepath.Dir(path), BlocksName) }

// firstMark is what a new state records of its blocks. The files bear the identity
// of the directory in which the first of them was made, wherever they are restored to.
func firstMark(o Options) blockfile.Mark {
	m := blockfile.Mark{SealBytes: cmp.Or(o.SealBytes, blockfile.DefaultSealBytes)}
	copy(m.ID[:], o.Identity)
	return m
}

// openBlocks opens the block files up to what the checkpoint covers.
func (s *Store) openBlocks(c control, o Options) (err error) {
	options := blockfile.Options{
		Disk: blockfile.Directory{Path: BlocksOf(s.path), NoSync: o.NoSync}, Mark: c.mark, Start: c.start,
		ReadOnly: s.readOnly, Sealed: c.sealed,
	}
	if o.archive != nil {
		options.Disk, options.Start = o.archive(options.Disk), blockfile.Start{}
	}
	s.durable, s.recorded = c.mark, lastRecorded(c.sealed, max(c.start.Number, 1))
	s.blocks, err = blockfile.Open(options)
	return err
}

func (s *Store) closeBlocks() error {
	if s.blocks == nil {
		return nil
	}
	return s.blocks.Close()
}

// BlockBase returns how many bytes of block files have been dropped. It never waits.
func (s *Store) BlockBase() uint64 { return s.blocks.Base() }

// BlockBytes returns how many bytes the block files take. It never waits.
func (s *Store) BlockBytes() int64 { return s.blocks.Bytes() }

// UnsyncedBlocks returns how many bytes of blocks a SyncBlocks would make durable.
// It never waits.
func (s *Store) UnsyncedBlocks() int64 { return s.blocks.Unsynced() }

// SyncBlocks makes the blocks durable that were made before the call, so that the
// next Flush has fewer to sync, and returns how many bytes they take. The checkpoint
// does not move. It runs beside Updates and Views; an error makes the store unusable.
func (s *Store) SyncBlocks() (int64, error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if err := s.writable(); err != nil { // Close holds flushMu when it sets closed
		return 0, err
	}
	n, err := s.blocks.Sync()
	if err != nil {
		return 0, s.fail(err)
	}
	return n, nil
}

// ScrubBlocks compares about n bytes of the block files with their checksums, from 0 or a position that it has
// returned. It returns the next position, 0 at the end, and how many bytes it has compared. It does not wait for an
// Update or Flush, nor delay one. Damage makes the store unusable.
func (s *Store) ScrubBlocks(from uint64, n int) (next uint64, compared int, err error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	r := &reader{store: s, blocksOnly: true}
	err = s.read(r, func(machine.Reader) error {
		blocks, err := r.blockReader()
		if err == nil {
			next, compared, err = blocks.Scrub(from, n)
		}
		if errors.Is(err, machine.ErrDropped) {
			next, compared = max(from, s.blocks.Base()), 0 // the next call does not come to that file any more
			return nil
		}
		if err != nil {
			return r.fail(err)
		}
		return nil
	})
	return next, compared, err
}

// EndReplay is called when everything in the log has been applied. A whole block after the last one that the log has
// made proves that the log has lost its end, because only durable entries are applied: EndReplay returns an error and
// removes nothing, and the store is unusable unless it is read-only. Other bytes there were torn by a crash and are
// removed.
func (s *Store) EndReplay() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	uncovered, err := s.blocks.Finish()
	if err == nil && uncovered > 0 {
		err = fmt.Errorf("%w: the log reaches to the blocks of ledger index %d, but %s proves that writes up to "+
			"index %d were decided: the end of the log is lost; "+adviceRestore,
			machine.ErrCorrupt, s.blocks.Mark().Last, BlocksName, uncovered)
	}
	if err != nil && !s.readOnly {
		return s.fail(err)
	}
	return err
}

// LastUncovered returns the ledger index of the last whole block that the log has not made again, 0 if there is none.
// It proves that writes up to that index were decided. See EndReplay.
func (s *Store) LastUncovered() (index uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return 0, err
	}
	return s.blocks.LastUncovered()
}

// blockReader returns the reader of the block files.
func (r *reader) blockReader() (*blockfile.Reader, error) {
	if err := r.arm(); err != nil {
		return nil, err
	}
	if r.blocks == nil {
		if r.updating {
			r.blocks = r.store.blocks.OwnReader()
		} else {
			r.blocks = r.store.blocks.Reader()
		}
	}
	return r.blocks, nil
}

// getBlocks returns the record under a key.
func (r *reader) getBlocks(key []byte) (data []byte, err error) {
	err = r.ascendBlocks(key, func(k, v []byte) bool {
		if string(k) == string(key) {
			data = v
		}
		return false
	})
	return data, err
}

// ascendBlocks is Ascend of the records of blocks.
func (r *reader) ascendBlocks(from []byte, visit func(key, value []byte) bool) error {
	blocks, err := r.blockReader()
	if err != nil {
		return err
	}
	var failed error
	err = blocks.Ascend(indexFrom(from), func(x blockfile.Record) bool {
		if !r.blocksOnly {
			r.store.advanced()
		}
		key := binary.BigEndian.AppendUint64(nil, x.Last)
		if failed = checkBlocks(key, &x); failed != nil {
			return false
		}
		return visit(key, x.Data)
	})
	if err == nil {
		err = failed
	}
	return err
}

// checkBlocks checks a record as a whole, unless its parts are checked by those who
// read them: a check of the whole would cost as much as all of them.
func checkBlocks(key []byte, x *blockfile.Record) error {
	if !machine.SelfChecked(machine.TableBlocks, x.Data) {
		return x.Check()
	}
	if err := machine.CheckKey(key, x.Data); err != nil {
		return fmt.Errorf("blocks up to ledger index %d: %w", x.Last, err)
	}
	return nil
}

// indexFrom returns the first ledger index whose key is not below from.
func indexFrom(from []byte) uint64 {
	var key [8]byte
	copy(key[:], from)
	index := binary.BigEndian.Uint64(key[:])
	if len(from) > len(key) {
		index++ // its own key is below
	}
	return index
}

// appendBlocks stores a record.
func (w *writer) appendBlocks(key, value []byte) error {
	if len(key) != 8 {
		return w.fail(fmt.Errorf("blocks under a key of %d bytes instead of 8", len(key)))
	}
	if err := w.store.blocks.Append(binary.BigEndian.Uint64(key), value); err != nil {
		return w.fail(err)
	}
	w.store.advanced()
	return nil
}
