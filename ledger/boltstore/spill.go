package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Spill writes the blocks that have gathered to the file, fsynced, ahead of the
// next Flush, and returns how much memory they took, in bytes as
// [Store.SpillableBytes] counts them. Checkpoint does not move: after a crash
// the log makes the same blocks again, and until then no reader sees them. It
// needs what is true of blocks alone: they are written once, in the order of
// their keys, and never change. Like Flush it runs beside Updates and Views,
// and an error makes the store unusable.
func (s *Store) Spill() (int64, error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if s.closed { // Close holds flushMu when it sets this
		return 0, ErrClosed
	}
	frozen, err := s.freezeBlocks()
	if frozen == nil || err != nil {
		return 0, err
	}
	if err := s.write(frozen); err != nil {
		return 0, err
	}
	return frozen.overlay.size(), nil
}

// SpillableBytes returns about how much memory a Spill would free now, in bytes.
// It never waits.
func (s *Store) SpillableBytes() int64 { return s.spillable.Load() }

// Proven returns the key of the last block that Open found in the file behind
// what the checkpoint covers, or nil when there was none. Its log entry has been
// applied before, so a log that ends before it has lost entries.
func (s *Store) Proven() []byte { return bytes.Clone(s.proven) }

// freezeBlocks is freeze for the blocks alone.
func (s *Store) freezeBlocks() (*frozenState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writable(); err != nil {
		return nil, err
	}
	if s.active.tables[machine.TableBlocks] == nil {
		return nil, nil
	}
	s.frozen = s.active.split(machine.TableBlocks)
	s.measure()
	return &frozenState{overlay: s.frozen, spill: true, at: s.Applied()}, nil
}

// newBlocks returns those of the blocks, sorted by key, that the file lacks. The
// first ones may be there already, from before a crash; then they must be the
// same, byte for byte: anything else means that the log has changed or that the
// machine has decided it in another way. It also finds what stays hidden.
func (s *Store) newBlocks(tx *bbolt.Tx, f *frozenState, blocks entries) (entries, error) {
	if blocks.len() == 0 {
		f.hidden = s.hidden
		return blocks, nil
	}
	table, err := s.tableOf(tx, machine.TableBlocks)
	if err != nil {
		return blocks, err
	}
	from := s.hidden
	if from == nil {
		from = blocks.at(0).key
	}
	cursor := table.Cursor()
	key, sealed, err := cursor.Seek(from)
	if err == nil && !bytes.Equal(key, from) {
		err = checkGap(cursor, machine.TableBlocks, from, key, sealed)
	}
	for ; err == nil && key != nil && blocks.len() > 0; key, sealed, err = cursor.Next() {
		stored, err := unseal(machine.TableBlocks, key, sealed)
		if err != nil {
			return blocks, err
		}
		if b := blocks.at(0); !bytes.Equal(key, b.key) || b.deleted || !bytes.Equal(stored, b.value()) {
			return blocks, damaged(machine.TableBlocks, key,
				"the log now gives another block, or none, where the file has this one "+
					"(the log's next is %x); "+adviceRestore, b.key)
		}
		blocks = blocks.from(1)
	}
	if err == nil {
		err = checkStored(machine.TableBlocks, key, sealed)
	}
	if err != nil {
		return blocks, pageDamage(machine.TableBlocks, from, err)
	}
	if key != nil && s.hidden == nil {
		return blocks, damaged(machine.TableBlocks, key, "it lies behind a block that is new; "+adviceRestore)
	}
	for i := range blocks.len() {
		if b := blocks.at(i); b.deleted {
			return blocks, fmt.Errorf("table %d key %x: a block must not be deleted", machine.TableBlocks, b.key)
		}
	}
	f.hidden, f.known = bytes.Clone(key), blocks.len() == 0
	return blocks, nil
}

// markAhead notes the first block that the checkpoint does not cover, unless an
// earlier Spill has done so.
func markAhead(tx *bbolt.Tx, f *frozenState) error {
	c, err := readControl(tx, nil)
	if err != nil || c.ahead != nil {
		return err
	}
	return putControl(tx, keyAhead, f.overlay.table(machine.TableBlocks).sorted().at(0).key)
}

// hides tells whether a block in the file is to be taken for absent.
func hides(hidden, key []byte) bool { return hidden != nil && bytes.Compare(key, hidden) >= 0 }

// lastLeftover returns the key of the last block that was spilled, given the
// first one.
func (s *Store) lastLeftover(tx *bbolt.Tx, ahead []byte) (last []byte, err error) {
	defer recoverDamage(machine.TableBlocks, ahead, &err)
	if ahead == nil {
		return nil, nil
	}
	table, err := s.tableOf(tx, machine.TableBlocks)
	if err != nil {
		return nil, err
	}
	cursor := table.Cursor()
	first, sealed, err := cursor.Seek(ahead)
	if err == nil && !bytes.Equal(first, ahead) {
		return nil, damaged(machine.TableBlocks, ahead, "control record %q names this block, and it is not there; "+
			adviceRestore, keyAhead)
	}
	if err == nil {
		err = checkStored(machine.TableBlocks, first, sealed)
	}
	if err == nil {
		last, sealed, err = cursor.Last()
	}
	if err == nil {
		err = checkStored(machine.TableBlocks, last, sealed)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; "+adviceRestore, pageDamage(machine.TableBlocks, ahead, err))
	}
	return bytes.Clone(last), nil
}

// removeLeftovers deletes the blocks from ahead on.
func (s *Store) removeLeftovers(tx *bbolt.Tx, ahead []byte) error {
	if _, err := s.lastLeftover(tx, ahead); err != nil || ahead == nil {
		return err
	}
	table, err := s.tableOf(tx, machine.TableBlocks)
	if err != nil {
		return err
	}
	guard, cursor := leafGuard{table: machine.TableBlocks, cursor: table.Cursor()}, table.Cursor()
	key, _, err := cursor.Seek(ahead)
	for ; key != nil && err == nil; key, _, err = cursor.Next() {
		if err := guard.check(key, true); err != nil {
			return err
		}
	}
	if err != nil {
		return pageDamage(machine.TableBlocks, ahead, err)
	}
	bucket := tx.Bucket(bucketName(machine.TableBlocks))
	// A new cursor for each: bbolt's may skip a key after a deletion.
	for key, _ := bucket.Cursor().Seek(ahead); key != nil; key, _ = bucket.Cursor().Seek(ahead) {
		if err := bucket.Delete(key); err != nil {
			return fmt.Errorf("table %d key %x: %w", machine.TableBlocks, key, err)
		}
	}
	return nil
}

// CheckAhead compares the blocks that the file has ahead of its checkpoint with
// those that the replay on a read-only store has made, as a Spill would.
func (s *Store) CheckAhead() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverDamage(machine.TableBlocks, nil, &err)
	s.mu.RLock()
	defer s.mu.RUnlock()
	tx, err := s.begin(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	_, err = s.newBlocks(tx, new(frozenState), s.active.table(machine.TableBlocks).sorted())
	return err
}
