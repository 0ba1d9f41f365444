package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Flush makes everything durable that was applied before the call: the block
// files are fsynced, and then the overlay goes to the state file in one transaction
// with its log position and the length of the block files, and that is fsynced. A large
// one of a large file goes through a journal in the file, in several transactions (journal.go).
// Updates and Views run on meanwhile. Concurrent calls are served in turn, and one whose
// changes a predecessor has already written returns without writing. An error makes the
// store unusable: the pages of a failed fsync may be lost, and only a replay from the log is
// sure to bring them back.
func (s *Store) Flush() error {
	target := s.updates.Load()
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.finish(); err != nil {
		return err
	}
	if s.flushed >= target && target > 0 {
		return nil
	}
	frozen, err := s.freeze()
	if frozen == nil || err != nil {
		return err
	}
	return s.write(frozen)
}

// frozenState is what one Flush writes.
type frozenState struct {
	overlay *overlay
	at      Position
	mark    blockfile.Mark // where the blocks of that position end
	updates uint64
}

// write makes durable what is frozen; under flushMu.
func (s *Store) write(f *frozenState) error {
	if err := s.commit(f); err != nil {
		return s.fail(fmt.Errorf("flush up to log entry %d: %w", f.at.Index, err))
	}
	s.thaw(f)
	return nil
}

// freeze sets the active overlay aside and starts an empty one. It returns nil
// when there is nothing to write.
func (s *Store) freeze() (*frozenState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writable(); err != nil {
		return nil, err
	}
	updates := s.updates.Load()
	if updates == s.flushed {
		return nil, nil
	}
	s.frozen, s.active = s.active, s.newOverlay()
	s.measure()
	return &frozenState{overlay: s.frozen, at: s.Applied(), mark: s.blocks.Mark(), updates: updates}, nil
}

// writable says why nothing may be frozen, or nil. Under mu, because an Update
// that fails does so under mu: what is frozen ends with a whole entry.
func (s *Store) writable() error {
	if err := s.usable(); err != nil {
		return err
	}
	if s.readOnly {
		return ErrReadOnly
	}
	return nil
}

// thaw drops the frozen overlay, whose data the file now holds. No View is
// running, so none can have begun its bbolt transaction before the commit and
// look for the data afterwards, or at memory that is used again.
func (s *Store) thaw(f *frozenState) {
	s.presorting.Lock() // it reads keys without mu
	defer s.presorting.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropFrozen()
	s.flushed, s.durable = f.updates, f.mark
	s.recorded = max(s.recorded, f.mark.Number-min(f.mark.Number, 1))
	s.positions.Lock()
	defer s.positions.Unlock()
	s.positions.checkpoint = f.at
}

// dropFrozen gives the memory of the frozen overlay back; under presorting and mu.
func (s *Store) dropFrozen() {
	s.frozen.release()
	s.frozen = nil
	s.measure()
}

// newOverlay returns an empty overlay of the store's memory; under mu.
func (s *Store) newOverlay() *overlay { return &overlay{pool: s.memory} }

// commit writes the frozen overlay, once the blocks that it refers to are durable: in one bbolt transaction, or in
// several (journal.go).
func (s *Store) commit(f *frozenState) (err error) {
	if _, err := s.blocks.Sync(); err != nil {
		return err
	}
	changes, p := f.overlay.changes(), s.pacer()
	pages, err := s.commitAtOnce(f, *changes, p)
	if errors.Is(err, errLarge) {
		pages, err = s.commitInSteps(f, changes, p)
	}
	if err != nil {
		return err
	}
	s.lastFlush.Store(&FlushSize{Changed: f.overlay.size(), Pages: pages})
	return nil
}

// commitAtOnce writes what is frozen in one transaction. The error is errLarge if that would take too much memory, and
// then nothing is written; c is a copy, so that the caller's still has all changes.
func (s *Store) commitAtOnce(f *frozenState, c changes, p *pacer) (pages int64, err error) {
	info, err := s.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("size of the state file: %w", err)
	}
	budget := int64(math.MaxInt64)
	if info.Size() > s.journalFrom {
		budget = s.stepBytes
	}
	if int64(c.len()) > budget/int64(s.pageSize) {
		return 0, errLarge
	}
	return s.step(p, func(tx *bbolt.Tx) error {
		if err := s.writeSome(tx, &c, budget, p); err != nil {
			return err
		}
		if c.len() > 0 {
			return errLarge
		}
		return s.record(tx, f)
	})
}

// commitInSteps makes durable what is frozen, and then puts it into its tables.
func (s *Store) commitInSteps(f *frozenState, c *changes, p *pacer) (pages int64, err error) {
	if err := s.commitJournal(f, c, p); err != nil {
		return 0, err
	}
	return s.merge(c, p)
}

// commitJournal makes durable what is frozen, beside its tables.
func (s *Store) commitJournal(f *frozenState, c *changes, p *pacer) error {
	_, err := s.step(p, func(tx *bbolt.Tx) error { return errors.Join(s.writeJournal(tx, c, p), s.record(tx, f)) })
	return err
}

// record puts the position of what is frozen into the transaction.
func (s *Store) record(tx *bbolt.Tx, f *frozenState) error {
	return errors.Join(
		s.recordFiles(tx, f.mark), putApplied(tx, f.at), putControl(tx, keyBlocks, f.mark.Append(nil)))
}

// FlushSize tells what a Flush wrote, in bytes.
type FlushSize struct {
	Changed int64 // what it wrote out, as [Store.PendingBytes] counts it
	Pages   int64 // the pages of the file that its tables took
}

// LastFlush returns the size of the last flush that succeeded since Open, or
// zeros. It never waits.
func (s *Store) LastFlush() FlushSize {
	if size := s.lastFlush.Load(); size != nil {
		return *size
	}
	return FlushSize{}
}

// How long a flush works before it may rest, and how many records it writes
// before it looks at the clock.
const (
	workBetweenRests = time.Millisecond
	restEvery        = 64
)

// writeTable applies entries, sorted by key, to the table's bucket, until that has cost more than a budget, and at
// least one. It returns how many it has applied, and the cost: the bytes of pages that they change, and of what they
// put there. Sorted, because bbolt then walks its leaves once from left to right.
func (s *Store) writeTable(
	tx *bbolt.Tx, table machine.Table, changes entries, budget int64, p *pacer,
) (n int, cost int64, err error) {
	bucket := tx.Bucket(bucketName(table))
	if bucket == nil {
		return 0, 0, damaged(table, nil, "the table's bucket is missing")
	}
	bucket.FillPercent = fillPercent(table)
	before, err := s.tableOf(tx, table)
	if err != nil {
		return 0, 0, err
	}
	guard, added := leafGuard{table: table, cursor: before.Cursor()}, int64(0)
	for n < changes.len() && cost <= budget {
		if n%restEvery == restEvery-1 {
			p.rest(workBetweenRests)
		}
		e := changes.at(n)
		if err := guard.check(e.key, e.deleted); err != nil {
			return 0, 0, err
		}
		if e.deleted {
			err = bucket.Delete(e.key)
		} else {
			seal(table, e.key, e.buf)
			err = bucket.Put(e.key, e.buf) // copies the key, and keeps the value until the commit
			added += int64(len(e.key) + len(e.buf))
		}
		if err != nil {
			return 0, 0, fmt.Errorf("table %d key %x: %w", table, e.key, err)
		}
		n, cost = n+1, guard.touched()+added
	}
	return n, cost, nil
}

// fillPercent is how full bbolt leaves a page that it splits. Where keys are only appended, a page stays as full as the
// split left it, and bbolt's default of a half would waste half the file. Pages that get keys in the middle need the
// space.
func fillPercent(table machine.Table) float64 {
	switch table {
	case machine.TableExpiry:
		return 0.9 // append within a kind: a split is near a run's end
	default:
		return bbolt.DefaultFillPercent
	}
}

// putApplied records the log position of the transaction.
func putApplied(tx *bbolt.Tx, at Position) error {
	value := binary.LittleEndian.AppendUint64(nil, at.Index)
	value = binary.LittleEndian.AppendUint64(value, at.Term)
	return putControl(tx, keyApplied, value)
}
