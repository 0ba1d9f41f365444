package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// reader is one consistent view of the three layers. It lives as long as the
// View or Update that made it, which hold Store.mu for that time: neither
// overlay can change or vanish under it.
type reader struct {
	store  *Store
	active *overlay
	frozen *overlay // nil when no flush is running
	// updating tells that this is an Update, which reads the blocks that it appends;
	// blocksOnly that it reads blocks alone, without the lock.
	updating, blocksOnly bool
	amending             bool // it may change local tables alone

	// The bbolt transaction is opened by the first read that needs it. Most
	// Views are answered by the overlay and must not pay for one.
	tx          *bbolt.Tx
	cursors     [machine.TableCount]*boltpage.Cursor // for Get; reused
	blocks      *blockfile.Reader                    // the same for the block files
	armed       bool                                 // faults of the memory maps panic
	faultPanics bool                                 // the goroutine's setting before

	failure error // the first error of the storage, even if fn dropped it
	done    bool
}

// Get implements [machine.Reader].
func (r *reader) Get(table machine.Table, key []byte) ([]byte, error) {
	if err := r.mayRead(table); err != nil {
		return nil, r.fail(err)
	}
	if r.blocksOnly && table == machine.TableCarried {
		value, err := r.store.getCarried(key)
		if err != nil {
			return nil, r.fail(err)
		}
		return value, nil
	}
	if table == machine.TableBlocks {
		value, err := r.getBlocks(key)
		if err != nil {
			return nil, r.fail(err)
		}
		return value, nil
	}
	if e, known := r.active.get(table, key); known {
		return e.value(), nil
	}
	if r.frozen != nil {
		if e, known := r.frozen.get(table, key); known {
			return e.value(), nil
		}
	}
	value, err := r.getStored(table, key)
	if err != nil {
		return nil, r.fail(err)
	}
	return value, nil
}

// mayRead returns an error unless the reader may read a table.
func (r *reader) mayRead(table machine.Table) error {
	if table >= machine.TableCount {
		return fmt.Errorf("no table %d", table)
	}
	if r.blocksOnly && table != machine.TableBlocks && table != machine.TableCarried {
		return fmt.Errorf("table %d is read where blocks alone may be", table)
	}
	return nil
}

// getCarried returns a copy of a carried value, of the state as it is now.
func (s *Store) getCarried(key []byte) (value []byte, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	err = s.view(func(r machine.Reader) error {
		found, err := r.Get(machine.TableCarried, key)
		if found != nil {
			value = append([]byte{}, found...)
		}
		return err
	})
	return value, err
}

// getStored looks key up in the file.
func (r *reader) getStored(table machine.Table, key []byte) (value []byte, err error) {
	defer recoverDamage(table, key, &err)
	c := r.cursors[table]
	if c == nil {
		if c, err = r.cursor(table); err != nil {
			return nil, err
		}
		r.cursors[table] = c
	}
	found, sealed, err := c.Seek(key)
	if err != nil {
		return nil, pageDamage(table, key, err)
	}
	r.store.advanced()
	if found != nil && bytes.Equal(found, key) {
		return unseal(table, key, sealed)
	}
	return nil, checkGap(c, table, key, found, sealed)
}

// checkGap lets a miss prove itself: next is what the cursor landed on. A bit flipped
// in a stored key leaves its record in place but out of reach, so a lookup of the
// true key lands beside it. Believing the miss would run a write a second time. So
// the keys on both sides must be what was written, and enclose the one that is
// missing. That they are neighbours, and that both are where the inner pages lead
// to, is what the cursor checks on its way.
func checkGap(c *boltpage.Cursor, table machine.Table, key, next, sealed []byte) error {
	if err := checkStored(table, next, sealed); err != nil {
		return err
	}
	prev, sealed, err := c.Before()
	if err != nil {
		return pageDamage(table, key, err)
	}
	if err := checkStored(table, prev, sealed); err != nil {
		return err
	}
	if next != nil && bytes.Compare(next, key) <= 0 || prev != nil && bytes.Compare(prev, key) >= 0 {
		return damaged(table, key, "it should be between %x and %x", prev, next)
	}
	return nil
}

// checkStored checks that a key in the file is what was written, of a record whose
// value is not asked for. No key is no record.
func checkStored(table machine.Table, key, sealed []byte) error {
	if key == nil {
		return nil
	}
	_, err := unseal(table, key, sealed)
	return err
}

// cursor returns a new cursor over the table's records in the file.
func (r *reader) cursor(table machine.Table) (*boltpage.Cursor, error) {
	if err := r.begin(); err != nil {
		return nil, err
	}
	bucket, err := r.store.tableOf(r.tx, table)
	if err != nil {
		return nil, err
	}
	return bucket.Cursor(), nil
}

// begin opens the bbolt transaction unless it is open.
func (r *reader) begin() error {
	if r.tx != nil {
		return nil
	}
	if err := r.arm(); err != nil {
		return err
	}
	tx, err := r.store.begin(false)
	if err != nil {
		return err
	}
	r.tx = tx
	return nil
}

// arm turns faults of the memory maps into panics.
func (r *reader) arm() error {
	if r.done {
		// A transaction opened now would never be closed, and bbolt could not reuse pages.
		return errors.New("reader used after its View or Update returned")
	}
	if !r.armed {
		// A damaged or truncated file shows as a fault of its map, which would kill the
		// process. Turned into a panic it can be recovered. The setting belongs to the
		// goroutine, so finish restores it.
		r.faultPanics, r.armed = debug.SetPanicOnFault(true), true
	}
	return nil
}

// finish closes the bbolt transaction and returns the storage's first error.
func (r *reader) finish() (err error) {
	r.done = true
	if r.blocks != nil {
		r.blocks.Close()
	}
	if r.armed {
		debug.SetPanicOnFault(r.faultPanics)
	}
	if r.tx != nil {
		defer recoverDamage(controlTable, nil, &err)
		if err := r.tx.Rollback(); err != nil {
			return r.fail(fmt.Errorf("end a read: %w", err))
		}
	}
	return r.failure
}

// fail keeps the first error of the storage.
func (r *reader) fail(err error) error {
	// The file was dropped since the reader was made, which is no failure.
	if r.failure == nil && !errors.Is(err, machine.ErrDropped) {
		r.failure = err
	}
	return err
}

// writer is the Tx of one Update.
type writer struct{ reader }

// Put implements [machine.Tx].
func (w *writer) Put(table machine.Table, key, value []byte) error {
	if err := w.mayChange(table, key); err != nil {
		return w.fail(err)
	}
	if table == machine.TableBlocks {
		return w.appendBlocks(key, value)
	}
	w.active.put(table, key, value)
	return nil
}

// Delete implements [machine.Tx].
func (w *writer) Delete(table machine.Table, key []byte) error {
	if err := w.mayChange(table, key); err != nil {
		return w.fail(err)
	}
	if table == machine.TableBlocks {
		return w.fail(fmt.Errorf("table %d key %x: blocks are not deleted", table, key))
	}
	w.active.remove(table, key)
	return nil
}

// mayChange returns an error unless the writer may change a key.
func (w *writer) mayChange(table machine.Table, key []byte) error {
	if w.amending && table < machine.FirstLocalTable {
		return fmt.Errorf("table %d is replicated, and changes with the log alone", table)
	}
	return checkKey(table, key)
}

// checkKey refuses what bbolt would refuse at the flush, when the change has
// long been acknowledged and can no longer be undone.
func checkKey(table machine.Table, key []byte) error {
	switch {
	case table >= machine.TableCount:
		return fmt.Errorf("no table %d", table)
	case len(key) == 0:
		return fmt.Errorf("table %d: empty key", table)
	case len(key) > maxKeySize:
		return fmt.Errorf("table %d: key of %d bytes, at most %d", table, len(key), maxKeySize)
	}
	return nil
}

// recoverDamage turns a panic of bbolt into an error; it must be deferred
// directly. bbolt panics on pages that make no sense.
func recoverDamage(table machine.Table, key []byte, err *error) {
	if p := recover(); p != nil {
		*err = damaged(table, key, "bbolt: %v", p)
	}
}

// bucketName is the name of a table's bucket.
func bucketName(table machine.Table) []byte { return []byte{byte(table)} }
