package boltstore

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/internal/pagesum"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Errors that a caller tells apart with errors.Is. Damage is
// [machine.ErrCorrupt]; a missing file is [io/fs.ErrNotExist].
var (
	// ErrLocked means that the file is in use; stop the other process.
	ErrLocked = errors.New("another process has the data directory open")
	// ErrForeign means a file that is not this ledger's state.
	ErrForeign = errors.New("not the state of this data directory")
	// ErrVersion means a file of another format version.
	ErrVersion = format.ErrVersion
	// ErrSums means that the file of page checksums is damaged, and not the state file.
	ErrSums = pagesum.ErrSums
	// ErrReadOnly is the answer of a read-only store to Flush and SyncBlocks.
	ErrReadOnly = errors.New("state store is read-only")
	// ErrClosed is the answer of a closed store.
	ErrClosed = errors.New("state store is closed")
)

// Position is a place in the replicated log: an entry's index and term. The
// zero Position is before the first entry.
type Position struct{ Index, Term uint64 }

// Store is the state of the ledger: a bbolt file under an overlay in memory, and
// the block files beside it.
// All methods are safe for concurrent use. It starts no goroutine; the owner
// decides when to Flush and must slow down by PendingBytes, which is the only
// bound of the overlay's memory.
type Store struct {
	path     string
	readOnly bool
	bolt     *bbolt.DB
	file     *os.File // bolt's own handle
	mapped   int64    // address space reserved for the file; 0 for none
	pageSize int      // of the file, in bytes
	// sums are the checksums of the file's pages; nil while it is adopted, and for a file that
	// is only read and has none yet. They are updated under flushMu.
	sums *pagesum.Sums

	blocks  *blockfile.Files
	durable blockfile.Mark // of the last flush; under flushMu
	// recorded is the number of the last block file up to which the state file records what is sealed; under flushMu.
	recorded uint64

	// flushMu excludes concurrent Flushes and SyncBlocks; it is taken before mu.
	flushMu sync.Mutex
	flushed uint64 // the updates that are durable; under flushMu

	// mu is held shared by a View and exclusively by an Update and by the two
	// brief swaps of a Flush.
	mu     sync.RWMutex
	active *overlay
	frozen *overlay
	memory *pool // of both
	closed bool
	// unmerged: frozen is what a process before has left in the journal; under flushMu and mu.
	unmerged bool
	// reading is held shared by ViewBlocks and exclusively by Close; taken before mu.
	reading sync.RWMutex

	presorting sync.Mutex // taken before mu; see dropFrozen

	updates atomic.Uint64 // the updates applied since Open
	pending atomic.Int64
	tombs   atomic.Int64
	failed  atomic.Pointer[error]

	stepBytes   int64                      // see Options
	journalFrom int64                      // the size of the file from which a flush may have steps, in bytes
	journalRun  int                        // see defaultJournalRun
	yield       func(worked time.Duration) // see Options
	advanced    func()                     // see Options
	lastFlush   atomic.Pointer[FlushSize]
	// poisoned is set when bbolt panicked while it held its locks: Close must not wait for them.
	poisoned atomic.Bool

	positions struct {
		// A separate lock, so that reading a position never waits for a long View or Update.
		sync.Mutex
		applied, checkpoint Position
	}
}

// Update applies one log entry: fn changes the state, and at becomes the
// applied position together with the changes. It excludes Views and other
// Updates. Nothing is written to disk; see Flush.
//
// Any error of fn or the storage, a panic of fn, and an at that does not lie
// after Applied make the store unusable, because the overlay may hold half an
// entry: all later calls but Close return the error, and nothing of the overlay
// is ever flushed.
func (s *Store) Update(at Position, fn func(tx machine.Tx) error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if applied := s.Applied(); at.Index <= applied.Index || at.Term < applied.Term {
		// An entry applied twice would change balances twice.
		return s.fail(fmt.Errorf("apply log entry %d (term %d): already at %d (term %d)",
			at.Index, at.Term, applied.Index, applied.Term))
	}
	s.active.reuse()
	w := &writer{reader{store: s, active: s.active, frozen: s.frozen, updating: true}}
	returned := false
	// Deferred, because fn may leave by a panic or by runtime.Goexit.
	defer func() {
		s.measure()
		if p := w.end(recover(), &err); p != nil {
			_ = s.fail(fmt.Errorf("apply log entry %d: panic: %v", at.Index, p))
			panic(p)
		}
		switch {
		case err != nil:
			err = s.fail(fmt.Errorf("apply log entry %d: %w", at.Index, err))
		case !returned:
			_ = s.fail(fmt.Errorf("apply log entry %d: abandoned", at.Index))
		default:
			s.updates.Add(1)
			s.blocks.Publish()
			s.setApplied(at)
		}
	}()
	err = fn(w)
	returned = true
	// The applier reads this table in order, and must not have to sort all that
	// came since it did so last.
	s.active.table(machine.TableExpiry).orderEagerly()
	return err
}

// View lets fn read one consistent state: that after some whole number of
// Updates. Views run beside each other and beside a Flush. A View blocks
// Updates for as long as it lasts, so a caller that iterates must read a bounded page per
// View. Slices that fn was given must not be used after it returns. The error
// is fn's own or the storage's; the latter makes the store unusable, unless it
// was opened read-only.
func (s *Store) View(fn func(r machine.Reader) error) (err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view(fn)
}

// Idle reports whether an Update would begin at once. Within a View it would not.
func (s *Store) Idle() bool {
	if !s.mu.TryLock() {
		return false
	}
	s.mu.Unlock()
	return true
}

// TryView is View for a caller that does not depend on the result: it never waits, and returns at once while an Update
// is running or waiting.
func (s *Store) TryView(fn func(r machine.Reader) error) error {
	if !s.mu.TryRLock() {
		return nil
	}
	defer s.mu.RUnlock()
	return s.view(fn)
}

// ViewBlocks lets fn read the records of machine.TableBlocks that an ended Update has
// stored, and machine.TableCarried, and nothing else. It neither waits for an Update or Flush nor holds one
// up, unless it reads a carried value; only Close waits for it. Otherwise it is View. A record that is dropped
// meanwhile is machine.ErrDropped.
func (s *Store) ViewBlocks(fn func(r machine.Reader) error) (err error) {
	s.reading.RLock()
	defer s.reading.RUnlock()
	return s.read(&reader{store: s, blocksOnly: true}, fn)
}

func (s *Store) view(fn func(r machine.Reader) error) (err error) {
	return s.read(&reader{store: s, active: s.active, frozen: s.frozen}, fn)
}

// read lets fn read by a reader, under a lock that keeps Close out.
func (s *Store) read(r *reader, fn func(r machine.Reader) error) (err error) {
	if err := s.usable(); err != nil {
		return err
	}
	defer func() {
		if p := r.end(recover(), &err); p != nil {
			panic(p)
		}
		// A verifier continues after damage, to report all of it.
		if r.failure != nil && !s.readOnly {
			_ = s.fail(r.failure)
		}
	}()
	return fn(r)
}

// end finishes the reader after its fn. The storage's error goes before fn's,
// which may have dropped it. p is what fn panicked with, and what of it the
// caller must pass on is returned.
func (r *reader) end(p any, err *error) any {
	p = r.takeFault(p)
	if failure := r.finish(); failure != nil {
		*err = failure
	}
	return p
}

// takeFault looks at what a fn panicked with. A memory fault means that the file
// was cut under a value that fn was reading, and becomes an error of the storage;
// any other panic is returned. bbolt's own panics never come here: whatever calls
// bbolt takes them.
func (r *reader) takeFault(p any) any {
	fault, ok := p.(interface{ Addr() uintptr })
	if !ok || !r.armed {
		return p
	}
	_ = r.fail(damaged(controlTable, nil, "memory fault at %#x", fault.Addr()))
	return nil
}

// Applied returns the position of the last Update, durable or not.
func (s *Store) Applied() Position {
	s.positions.Lock()
	defer s.positions.Unlock()
	return s.positions.applied
}

// Checkpoint returns the position that the file is known to hold. The log must
// be kept after it.
func (s *Store) Checkpoint() Position {
	s.positions.Lock()
	defer s.positions.Unlock()
	return s.positions.checkpoint
}

// PendingBytes returns about how much memory the changes take that are not yet
// in the file, in bytes. It never waits.
func (s *Store) PendingBytes() int64 { return s.pending.Load() }

// Tombstones returns how many deletions of the expiry index a Flush would take
// out of the way of reads in order. It never waits.
func (s *Store) Tombstones() int64 { return s.tombs.Load() }

// Err returns why the store is unusable, or nil. Closing is not an error.
func (s *Store) Err() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Close waits for running calls and releases the file. It does not flush: what
// was applied since the last Flush is dropped and comes back from the log. An
// owner that stops cleanly calls Flush first, so that the next start is fast.
// Closing twice is fine.
func (s *Store) Close() error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	s.reading.Lock()
	defer s.reading.Unlock()
	s.presorting.Lock()
	defer s.presorting.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.active, s.frozen = nil, nil
	s.memory.close()
	s.pending.Store(0)
	others := errors.Join(s.closeBlocks(), s.sums.Close())
	if s.poisoned.Load() {
		// bbolt's Close would wait for the lock that its panic left locked, so the memory map stays until the process
		// ends.
		return errors.Join(others, abandon(s.file))
	}
	if err := s.bolt.Close(); err != nil {
		return errors.Join(others, fmt.Errorf("close %s: %w", s.path, err))
	}
	return others
}

// usable says why the store cannot be used, or nil. Called under mu, so that
// no caller can pass between an Update's failure and its being recorded.
func (s *Store) usable() error {
	if s.closed {
		return ErrClosed
	}
	return s.Err()
}

// fail makes the store unusable. The first error stays; it is the cause.
func (s *Store) fail(err error) error {
	err = fmt.Errorf("state store %s stopped: %w", s.path, err)
	s.failed.CompareAndSwap(nil, &err)
	return err
}

func (s *Store) setApplied(at Position) {
	s.positions.Lock()
	defer s.positions.Unlock()
	s.positions.applied = at
}

// measure takes note of what the overlays hold; under mu.
func (s *Store) measure() {
	n := s.active.size()
	if s.frozen != nil {
		n += s.frozen.size()
	}
	s.pending.Store(n)
	tombs := s.active.table(machine.TableExpiry).deleted
	if s.unmerged { // no Flush is about to drop it
		tombs += s.frozen.table(machine.TableExpiry).deleted
	}
	s.tombs.Store(int64(tombs))
}

// begin opens a bbolt transaction. Reading the meta pages of a file that was
// cut off panics with bbolt's locks held.
func (s *Store) begin(writable bool) (tx *bbolt.Tx, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.poisoned.Store(true)
			err = damaged(controlTable, nil, "bbolt: begin: %v", p)
		}
	}()
	tx, err = s.bolt.Begin(writable)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return tx, nil
}
