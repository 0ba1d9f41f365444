package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

var (
	leftKey  = []byte("left")
	rightKey = []byte("right")
)

// applyPair writes the entry's number to two keys of two tables, appends a
// block, and churns another table: entry i puts key i%97 and deletes key
// (i+50)%97.
func applyPair(s *Store, i uint64) error {
	value := binary.BigEndian.AppendUint64(nil, i)
	return s.Update(Position{Index: i, Term: 1}, func(tx machine.Tx) error {
		return errors.Join(
			tx.Put(machine.TableStreams, leftKey, value),
			tx.Put(machine.TableMeta, rightKey, value),
			tx.Put(machine.TableBlocks, blockKey(i), value),
			tx.Put(machine.TableExpiry, fmt.Appendf(nil, "%02d", i%97), value),
			tx.Delete(machine.TableExpiry, fmt.Appendf(nil, "%02d", (i+50)%97)),
		)
	})
}

// checkPair expects a state after exactly one entry, not before last, and
// returns its number. Applied before the View is a lower bound of it.
func checkPair(r machine.Reader, last uint64) (uint64, error) {
	right, err := r.Get(machine.TableMeta, rightKey)
	if err != nil || right == nil {
		return 0, err
	}
	now := binary.BigEndian.Uint64(right)
	var churned []uint64
	err = r.Ascend(machine.TableExpiry, nil, func(_, value []byte) bool {
		churned = append(churned, binary.BigEndian.Uint64(value))
		return true
	})
	if err != nil {
		return 0, err
	}
	// Read last, so that a change in the middle of the View would show.
	left, err := r.Get(machine.TableStreams, leftKey)
	if err != nil {
		return 0, err
	}
	if got := binary.BigEndian.Uint64(left); got != now || now < last {
		return 0, fmt.Errorf("left is %d, right %d, seen before %d", got, now, last)
	}
	// Key i%97 is put by entry i and deleted 47 entries later, so the table
	// holds the last 47 entries.
	if want := int(min(now, 47)); len(churned) != want {
		return 0, fmt.Errorf("entry %d: %d records, want %d: %v", now, len(churned), want, churned)
	}
	for _, i := range churned {
		if i > now || i+47 <= now {
			return 0, fmt.Errorf("entry %d: record of entry %d", now, i)
		}
	}
	return now, checkAllBlocks(r, now)
}

// checkBlocks expects the blocks of all entries up to now, and no other.
func checkAllBlocks(r machine.Reader, now uint64) error {
	from := uint64(1)
	if now > 200 {
		from = now - 200
	}
	expected := from
	err := r.Ascend(machine.TableBlocks, blockKey(from), func(key, value []byte) bool {
		if !bytes.Equal(key, blockKey(expected)) || !bytes.Equal(value, key) {
			return false
		}
		expected++
		return true
	})
	if err != nil {
		return err
	}
	if expected != now+1 {
		return fmt.Errorf("entry %d: from block %d on they are whole up to %d", now, from, expected-1)
	}
	for _, i := range []uint64{1 + now/3, now, now + 1, now + 7} {
		value, err := r.Get(machine.TableBlocks, blockKey(i))
		if err != nil || (value != nil) != (i <= now) {
			return fmt.Errorf("entry %d: block %d is %x, %w", now, i, value, err)
		}
	}
	return nil
}

// checkSomeBlocks expects the blocks of all entries up to now, of which it reads some, and
// perhaps of later ones.
func checkSomeBlocks(r machine.Reader, now uint64) error {
	for _, i := range []uint64{1, 1 + now/3, max(now, 1)} {
		if i > now {
			continue
		}
		if value, err := r.Get(machine.TableBlocks, blockKey(i)); err != nil || !bytes.Equal(value, blockKey(i)) {
			return fmt.Errorf("entry %d: block %d is %x: %w", now, i, value, err)
		}
	}
	expected := max(now, 1)
	err := r.Ascend(machine.TableBlocks, blockKey(expected), func(key, value []byte) bool {
		if !bytes.Equal(key, blockKey(expected)) || !bytes.Equal(value, key) {
			expected = 0
			return false
		}
		expected++
		return true
	})
	if err == nil && expected < now+1 {
		err = fmt.Errorf("entry %d: the blocks behind it are others", now)
	}
	return err
}

// Views, reads of blocks, flushes and updates at once, with files sealed meanwhile: every
// View must see the state after one whole entry, and each Flush must make durable what was
// applied before it.
func TestViewsAreSnapshots(t *testing.T) {
	t.Parallel()
	entries := uint64(3000)
	if testing.Short() {
		entries = 600
	}
	s := fresh(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for last := uint64(0); !stop.Load(); {
				last = max(last, s.Applied().Index)
				err := s.View(func(r machine.Reader) (err error) { last, err = checkPair(r, last); return err })
				if err != nil {
					t.Errorf("view: %v", err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for !stop.Load() {
			now := s.Applied().Index
			if err := s.ViewBlocks(func(r machine.Reader) error { return checkSomeBlocks(r, now) }); err != nil {
				t.Errorf("view of blocks: %v", err)
				return
			}
		}
	})
	wg.Go(func() {
		for !stop.Load() {
			if _, err := s.SyncBlocks(); err != nil {
				t.Errorf("sync of blocks: %v", err)
				return
			}
		}
	})
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				before := s.Applied()
				if err := s.Flush(); err != nil {
					t.Errorf("flush: %v", err)
					return
				}
				if after := s.Checkpoint(); after.Index < before.Index {
					t.Errorf("checkpoint %v after a flush that began at %v", after, before)
				}
			}
		})
	}
	for i := uint64(1); i <= entries; i++ {
		must.Do(t, applyPair(s, i), "update")
	}
	stop.Store(true)
	wg.Wait()
	flush(t, s)
	if s.Checkpoint().Index != entries || s.PendingBytes() != 0 {
		t.Errorf("at the end checkpoint %v and %d bytes pending", s.Checkpoint(), s.PendingBytes())
	}
}

// Blocks are read in the middle of an Update, which has the lock, and show those of the Updates
// before it. Nothing else is read so.
func TestBlocksAreReadDuringAnUpdate(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	for i := range uint64(20) {
		must.Do(t, applyPair(s, i+1))
	}
	err := s.Update(Position{Index: 21, Term: 1}, func(tx machine.Tx) error {
		if err := tx.Put(machine.TableBlocks, blockKey(21), blockKey(21)); err != nil {
			return err
		}
		return s.ViewBlocks(func(r machine.Reader) error { return checkAllBlocks(r, 20) })
	})
	check.Is(t, err, nil)
	err = s.ViewBlocks(func(r machine.Reader) error {
		_, getErr := r.Get(machine.TableStreams, leftKey)
		scanErr := r.Ascend(machine.TableExpiry, nil, func(_, _ []byte) bool { return true })
		if getErr == nil || scanErr == nil {
			t.Errorf("a table that changes was read: %v, %v", getErr, scanErr)
		}
		return nil
	})
	check.ErrorContains(t, err, "blocks alone")
}

// A store closed in the middle of everything must reopen at a whole entry, and
// the calls it cuts off must say ErrClosed.
func TestCloseDuringEverything(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	var durable atomic.Uint64
	var wg sync.WaitGroup
	started := make(chan struct{})
	for name, call := range map[string]func(i uint64) error{
		"update": func(i uint64) error {
			if i == 200 {
				close(started)
			}
			return applyPair(s, i)
		},
		"flush": func(uint64) error {
			before := s.Applied().Index
			err := s.Flush()
			if err == nil {
				durable.Store(before)
			}
			return err
		},
		"spill": func(uint64) error { _, err := s.SyncBlocks(); return err },
		"view of blocks": func(uint64) error {
			now := s.Applied().Index
			return s.ViewBlocks(func(r machine.Reader) error { return checkSomeBlocks(r, now) })
		},
		"view": func(uint64) error {
			return s.View(func(r machine.Reader) error { _, err := checkPair(r, 0); return err })
		},
	} {
		wg.Go(func() {
			for i := uint64(1); ; i++ {
				if err := call(i); err != nil {
					check.Is(t, err, ErrClosed, "%s", name)
					return
				}
			}
		})
	}
	<-started
	must.Do(t, s.Close())
	wg.Wait()
	s = reopen(t, s.path)
	if s.Applied().Index < durable.Load() {
		t.Errorf("reopened at %v, but %d was durable", s.Applied(), durable.Load())
	}
	must.Do(t, s.View(func(r machine.Reader) error {
		now, err := checkPair(r, 0)
		check.Equal(t, now, s.Applied().Index, "reopened at %v with the data of entry %d", s.Applied())
		return err
	}))
}
