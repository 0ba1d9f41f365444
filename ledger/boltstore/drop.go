package boltstore

import (
	"errors"
	"fmt"
	"math"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Amend changes tables that belong to this node alone (from machine.FirstLocalTable on). The applied position stays.
// The changes become durable with the next Flush. Like an Update it excludes Views and Updates, and an error makes the
// store unusable.
func (s *Store) Amend(fn func(tx machine.Tx) error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writable(); err != nil {
		return err
	}
	w := &writer{reader{store: s, active: s.active, frozen: s.frozen, updating: true, amending: true}}
	defer func() {
		s.measure()
		p := w.end(recover(), &err)
		if err != nil || p != nil {
			err = s.fail(fmt.Errorf("amend: %w", errors.Join(err, errorOf(p))))
		}
		if p != nil {
			panic(p)
		}
		if err == nil {
			s.updates.Add(1)
		}
	}()
	return fn(w)
}

func errorOf(p any) error {
	if p == nil {
		return nil
	}
	return fmt.Errorf("panic: %v", p)
}

// Droppable returns the sealed block files that have only records before a ledger index, in order. After a
// Flush DropBlocks would remove them. It never waits.
func (s *Store) Droppable(ledgerIndex uint64) []blockfile.SealedFile {
	return s.blocks.SealedBefore(ledgerIndex)
}

// SealedBlocks returns the sealed block files that the last Flush covers, in order.
func (s *Store) SealedBlocks() []blockfile.SealedFile {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.blocks.Sealed(s.durable.Number)
}

// UncoveredBlocks returns the sealed block files that the last Flush does not cover, in order: the next one will.
func (s *Store) UncoveredBlocks() []blockfile.SealedFile {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.blocks.SealedFrom(s.durable.Number, math.MaxUint64)
}

// DropBlocks removes the block files that have only records before a ledger index, and returns how many bytes they had.
// The index must not be after the horizon of the last Flush, because a replay reads from the horizon on, and live
// values in these files must have been carried before that Flush. It first records durably where the files begin: a
// crash leaves files that the next Open removes. An error makes the store unusable.
func (s *Store) DropBlocks(ledgerIndex uint64) (bytes int64, err error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if err := s.writable(); err != nil {
		return 0, err
	}
	start, some, err := s.blocks.Before(ledgerIndex, s.durable)
	if err != nil {
		return 0, s.fail(err)
	}
	if !some {
		return 0, nil
	}
	err = s.change(func(tx *bbolt.Tx) error {
		return errors.Join(putControl(tx, keyStart, start.Append(nil)), s.forgetFiles(tx, start.Number))
	})
	if err != nil {
		return 0, s.fail(fmt.Errorf("drop block files before %s: %w", blockfile.Name(start.Number), err))
	}
	before := s.blocks.Base()
	s.mu.Lock()
	s.blocks.Forget(start)
	s.mu.Unlock()
	if err := s.blocks.RemoveDropped(); err != nil {
		return 0, s.fail(err)
	}
	return int64(start.Base - before), nil
}

// SealedBlockFile returns a sealed block file for reading.
func (s *Store) SealedBlockFile(number uint64) (blockfile.File, error) {
	return blockfile.Directory{Path: BlocksOf(s.path)}.OpenSealed(blockfile.Name(number))
}
