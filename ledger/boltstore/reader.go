package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// reader is one consistent view of the three layers. It lives as long as the
// View or Update that made it, which hold Store.mu for that time: neither
// overlay can change or vanish under it.
type reader struct {
	store  *Store
	active *overlay
	frozen *overlay // nil when no flush is running
	hidden []byte   // see Store.hidden

	// The bbolt transaction is opened by the first read that needs it. Most
	// Views are answered by the overlay and must not pay for one.
	tx          *bbolt.Tx
	cursors     [machine.TableCount]*bbolt.Cursor // for Get; reused
	faultPanics bool                              // the goroutine's setting before tx was opened

	failure error // the first error of the storage, even if fn dropped it
	done    bool
}

// Get implements [machine.Reader].
func (r *reader) Get(table machine.Table, key []byte) ([]byte, error) {
	if table >= machine.TableCount {
		return nil, r.fail(fmt.Errorf("no table %d", table))
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

// getStored looks key up in the file.
func (r *reader) getStored(table machine.Table, key []byte) (value []byte, err error) {
	defer recoverDamage(table, key, &err)
	if table == machine.TableBlocks && hides(r.hidden, key) {
		return nil, nil
	}
	c := r.cursors[table]
	if c == nil {
		if c, err = r.cursor(table); err != nil {
			return nil, err
		}
		r.cursors[table] = c
	}
	found, sealed := c.Seek(key)
	if found != nil && bytes.Equal(found, key) {
		return unseal(table, key, sealed)
	}
	return nil, checkGap(c, table, found, sealed)
}

// checkGap checks the neighbours of a key that was not found: next is what the
// cursor landed on. A bit flipped in a stored key leaves its record in place
// but out of reach, so a lookup of the true key lands beside it. Believing the
// miss would run a write a second time.
func checkGap(c *bbolt.Cursor, table machine.Table, next, sealed []byte) error {
	if next != nil {
		if _, err := unseal(table, next, sealed); err != nil {
			return err
		}
	}
	if prev, sealed := c.Prev(); prev != nil {
		if _, err := unseal(table, prev, sealed); err != nil {
			return err
		}
	}
	return nil
}

// cursor returns a new cursor over the table's bucket.
func (r *reader) cursor(table machine.Table) (*bbolt.Cursor, error) {
	if err := r.begin(); err != nil {
		return nil, err
	}
	bucket := r.tx.Bucket(bucketName(table))
	if bucket == nil {
		return nil, damaged(table, nil, "the table's bucket is missing")
	}
	return bucket.Cursor(), nil
}

// begin opens the bbolt transaction unless it is open.
func (r *reader) begin() error {
	if r.done {
		// A transaction opened now would never be closed and would keep bbolt
		// from reusing pages for ever.
		return errors.New("reader used after its View or Update returned")
	}
	if r.tx != nil {
		return nil
	}
	// A damaged or truncated file shows as a fault of the memory map, which
	// would kill the process. Turned into a panic it can be recovered. The
	// setting belongs to the goroutine, so finish restores it.
	r.faultPanics = debug.SetPanicOnFault(true)
	tx, err := r.store.begin(false)
	if err != nil {
		debug.SetPanicOnFault(r.faultPanics)
		return err
	}
	r.tx = tx
	return nil
}

// finish closes the bbolt transaction and returns the storage's first error.
func (r *reader) finish() (err error) {
	r.done = true
	if r.tx != nil {
		defer recoverDamage(controlTable, nil, &err)
		debug.SetPanicOnFault(r.faultPanics)
		if err := r.tx.Rollback(); err != nil {
			return r.fail(fmt.Errorf("end a read: %w", err))
		}
	}
	return r.failure
}

// fail remembers the first error of the storage.
func (r *reader) fail(err error) error {
	if r.failure == nil {
		r.failure = err
	}
	return err
}

// writer is the Tx of one Update.
type writer struct{ reader }

// Put implements [machine.Tx].
func (w *writer) Put(table machine.Table, key, value []byte) error {
	if err := checkKey(table, key); err != nil {
		return w.fail(err)
	}
	w.active.put(table, key, value)
	return nil
}

// Delete implements [machine.Tx].
func (w *writer) Delete(table machine.Table, key []byte) error {
	if err := checkKey(table, key); err != nil {
		return w.fail(err)
	}
	w.active.remove(table, key)
	return nil
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
