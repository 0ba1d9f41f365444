package boltstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

const streams = machine.TableStreams

// TryView is View, but does not wait for an Update.
func TestTryView(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, streams, "stored", "1")
	put(t, s, streams, "changed", "1")
	flush(t, s)
	put(t, s, streams, "changed", "2")
	frozen := must.Get(s.freeze())(t)
	put(t, s, streams, "new", "3")
	for key, want := range map[string]string{"stored": "1", "changed": "2", "new": "3", "none": ""} {
		ran := false
		err := s.TryView(func(r machine.Reader) error {
			ran = true
			value, err := r.Get(streams, []byte(key))
			if string(value) != want || (value == nil) != (want == "") {
				t.Errorf("%s: got %q", key, value)
			}
			return err
		})
		if err != nil || !ran {
			t.Errorf("%s: ran %t, %v", key, ran, err)
		}
	}
	must.Do(t, s.Update(next(s), func(machine.Tx) error {
		return s.TryView(func(machine.Reader) error {
			t.Error("TryView runs beside an Update")
			return nil
		})
	}))
	must.Do(t, s.commit(frozen))
	s.thaw(frozen)
}

// Put must not keep its arguments: callers encode into one buffer again and
// again.
func TestPutCopiesItsArguments(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	key, value := []byte("key"), []byte("value")
	must.Do(t, s.Update(next(s), func(tx machine.Tx) error {
		err := tx.Put(streams, key, value)
		copy(key, "xxx")
		copy(value, "xxxxx")
		return err
	}))
	check.Equal(t, get(t, s, streams, "key"), "value", "stored value changed with the caller's buffer: %q")
}

// Visit may read other keys and tables, and may stop.
func TestAscendVisitMayReadAndStop(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	for _, key := range []string{"a", "b", "c", "d"} {
		put(t, s, streams, key, key)
	}
	flush(t, s)
	var seen string
	err := s.View(func(r machine.Reader) error {
		return r.Ascend(streams, []byte("b"), func(key, _ []byte) bool {
			check.Is(t, check.Err(r.Get(streams, []byte("a"))), nil)
			if inner, err := list(r, streams, "c"); inner != "c=c d=d " {
				t.Errorf("inner Ascend: %q, %v", inner, err)
			}
			seen += string(key)
			return len(seen) < 2
		})
	})
	if err != nil || seen != "bc" {
		t.Errorf("visited %q, %v; want b and c, then stop", seen, err)
	}
}

func TestPositions(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	at := Position{Index: 5, Term: 3}
	must.Do(t, s.Update(at, func(machine.Tx) error { return nil }))
	if s.Applied() != at || s.Checkpoint() != (Position{}) {
		t.Errorf("applied %v, checkpoint %v before a flush", s.Applied(), s.Checkpoint())
	}
	flush(t, s) // an entry without changes moves the position, too
	check.Equal(t, s.Checkpoint(), at, "checkpoint %v after a flush")
	must.Do(t, s.Close())
	s = reopen(t, s.path)
	if s.Applied() != at || s.Checkpoint() != at {
		t.Errorf("reopened: applied %v, checkpoint %v, want %v", s.Applied(), s.Checkpoint(), at)
	}
}

func TestEntryIsNeverAppliedTwice(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]Position{
		"same index": {Index: 5, Term: 3}, "lower index": {Index: 4, Term: 3}, "lower term": {Index: 6, Term: 2},
	} {
		s := fresh(t)
		must.Do(t, s.Update(Position{Index: 5, Term: 3}, func(machine.Tx) error { return nil }))
		err := s.Update(at, func(machine.Tx) error { t.Errorf("%s: fn ran", name); return nil })
		if err == nil || s.Err() == nil {
			t.Errorf("%s: Update = %v, Err = %v; want a lasting error", name, err, s.Err())
		}
	}
}

// Whatever goes wrong inside an Update, half an entry must neither be read nor
// reach the file.
func TestFailedUpdateIsSticky(t *testing.T) {
	t.Parallel()
	cause := errors.New("no")
	const halfPut = "half"
	for name, fn := range map[string]func(tx machine.Tx) error{
		"error":           func(machine.Tx) error { return cause },
		"panic":           func(machine.Tx) error { panic("boom") },
		"goexit":          func(machine.Tx) error { runtime.Goexit(); return nil },
		"dropped failure": func(tx machine.Tx) error { _ = tx.Put(streams, nil, nil); return nil },
		"no such table":   func(tx machine.Tx) error { _, _ = tx.Get(machine.TableCount, nil); return nil },
		"long key":        func(tx machine.Tx) error { return tx.Delete(streams, make([]byte, maxKeySize+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fresh(t)
			put(t, s, streams, "durable", "1")
			flush(t, s)
			put(t, s, streams, "lost", "1")
			done := make(chan error, 1)
			// Ends with its Update, by return or Goexit; the receive below waits.
			go func() {
				var err error
				defer func() { _ = recover(); done <- err }()
				err = s.Update(next(s), func(tx machine.Tx) error {
					return errors.Join(tx.Put(streams, []byte(halfPut), nil), fn(tx))
				})
			}()
			if err := <-done; name == "error" && !errors.Is(err, cause) {
				t.Errorf("Update = %v, want its fn's error", err)
			}
			if s.Err() == nil {
				t.Fatal("the store goes on after a failed Update")
			}
			for call, err := range map[string]error{
				"Update":     s.Update(next(s), func(machine.Tx) error { return nil }),
				"View":       s.View(func(machine.Reader) error { return nil }),
				"Flush":      s.Flush(),
				"SyncBlocks": syncError(s),
			} {
				if !errors.Is(err, errors.Unwrap(s.Err())) {
					t.Errorf("%s after the failure = %v, want %v", call, err, s.Err())
				}
			}
			must.Do(t, s.Close())
			s = reopen(t, s.path)
			if got, want := s.Applied().Index, uint64(1); got != want {
				t.Errorf("reopened at index %d, want the checkpoint %d", got, want)
			}
			for key, want := range map[string]string{"durable": "1", "lost": "<absent>", halfPut: "<absent>"} {
				check.Equal(t, get(t, s, streams, key), want, "reopened: %s is %q", key)
			}
		})
	}
}

// A View's own error or panic says nothing about the state.
func TestViewErrorIsNotSticky(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	cause := errors.New("no")
	if err := s.View(func(machine.Reader) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("View = %v, want fn's error itself", err)
	}
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic of a View's fn did not reach its caller")
			}
		}()
		_ = s.View(func(r machine.Reader) error {
			_, _ = r.Get(streams, []byte("k")) // opens the bbolt transaction
			panic("boom")
		})
	}()
	put(t, s, streams, "k", "v") // would wait for ever if the View had kept its lock
	flush(t, s)
	must.Do(t, s.Err(), "Err =")
}

func TestReaderIsUselessAfterItsView(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	var kept machine.Reader
	must.Do(t, s.View(func(r machine.Reader) error { kept = r; return nil }))
	if _, err := kept.Get(streams, []byte("k")); err == nil || !strings.Contains(err.Error(), "after its View") {
		t.Errorf("Get on a kept reader = %v, want an error", err)
	}
}

// A full disk, as bbolt reports it: the flush fails, the store stops, and the
// file keeps the checkpoint before it.
func TestFailedFlushIsSticky(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, streams, "a", "1")
	flush(t, s)
	s.bolt.MaxSize = 1
	put(t, s, streams, "b", strings.Repeat("x", 1<<20))
	if err := s.Flush(); err == nil {
		t.Fatal("Flush succeeded without space")
	}
	if s.Err() == nil || s.Flush() == nil {
		t.Error("the store goes on after a failed flush")
	}
	if s.Checkpoint().Index != 1 {
		t.Errorf("checkpoint %v counts a flush that failed", s.Checkpoint())
	}
	must.Do(t, s.Close())
	s = reopen(t, s.path)
	if a, b := get(t, s, streams, "a"), get(t, s, streams, "b"); a != "1" || b != "<absent>" {
		t.Errorf("reopened: a = %q, b = %q", a, b)
	}
}

// A flush that has nothing new to write must not cost a transaction.
func TestFlushWithoutChangesWritesNothing(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, streams, "a", "1")
	flush(t, s)
	before := transaction(t, s)
	flush(t, s)
	if after := transaction(t, s); after != before {
		t.Errorf("an idle flush moved bbolt's transaction from %d to %d", before, after)
	}
	put(t, s, streams, "a", "2")
	flush(t, s)
	check.Equal(t, transaction(t, s), before+1, "a flush moved bbolt's transaction from %d to %d", before)
}

func transaction(t *testing.T, s *Store) (id int) {
	t.Helper()
	must.Do(t, s.bolt.View(func(tx *bbolt.Tx) error { id = tx.ID(); return nil }))
	return id
}

// PendingBytes must follow what is held: growing with each new key, hardly with
// a repeated one, across a freeze, and back to nothing.
func TestPendingBytes(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, streams, "a", strings.Repeat("x", 1000))
	one := s.PendingBytes()
	if one < 1000 || one > 2000 {
		t.Errorf("1,000 bytes count as %d", one)
	}
	for range 100 {
		put(t, s, streams, "a", strings.Repeat("y", 1000))
	}
	if got := s.PendingBytes(); got != one {
		t.Errorf("rewriting one key moved the pending bytes from %d to %d", one, got)
	}
	frozen := must.Get(s.freeze())(t)
	put(t, s, streams, "a", strings.Repeat("z", 1000))
	check.Equal(t, s.PendingBytes(), 2*one, "a frozen and an active copy count as %d")
	must.Do(t, s.commit(frozen))
	s.thaw(frozen)
	check.Equal(t, s.PendingBytes(), one, "after the flush %d bytes are pending")
}

func TestClosedStoreRefuses(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put(t, s, streams, "a", "1")
	for range 2 {
		must.Do(t, s.Close())
	}
	for call, err := range map[string]error{
		"Update":     s.Update(next(s), func(machine.Tx) error { return nil }),
		"View":       s.View(func(machine.Reader) error { return nil }),
		"Flush":      s.Flush(),
		"SyncBlocks": syncError(s),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s = %v, want ErrClosed", call, err)
		}
	}
	must.Do(t, s.Err(), "closing counts as a failure")
}

// What the last flush wrote: the changes as PendingBytes counted them, and the
// pages, of which records far apart take one each.
func TestLastFlushTellsPages(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	check.Equal(t, s.LastFlush(), FlushSize{}, "before any flush: %+v")
	const records = 2_000
	value := strings.Repeat("x", 100)
	for i := range records {
		put(t, s, streams, fmt.Sprintf("%06d", i), value)
	}
	pending := s.PendingBytes()
	flush(t, s)
	if size := s.LastFlush(); size.Changed != pending || size.Pages < records*100 {
		t.Errorf("%+v after %d bytes of changes", size, pending)
	}
	for i := 0; i < records; i += 100 {
		put(t, s, streams, fmt.Sprintf("%06d", i), value)
	}
	pending = s.PendingBytes()
	flush(t, s)
	if size := s.LastFlush(); size.Changed != pending || size.Pages < 4*pending {
		t.Errorf("%+v after %d bytes of scattered changes: want several times as much in pages", size, pending)
	}
}

// A long flush rests between records, and whoever rests holds nobody up.
func TestFlushRests(t *testing.T) {
	t.Parallel()
	var s *Store
	rests := 0
	rest := func(worked time.Duration) {
		if rests++; worked < workBetweenRests {
			t.Errorf("a rest after %s of work", worked)
		}
		if rests == 1 { // no lock is held
			put(t, s, streams, "meanwhile", "x")
		}
	}
	s, err := Open(filepath.Join(t.TempDir(), "state.db"), Options{Create: true, Identity: testIdentity, NoSync: true,
		Yield: rest})
	must.Do(t, err)
	defer func() { _ = s.Close() }() // it is thrown away
	must.Do(t, s.Update(next(s), func(tx machine.Tx) (err error) {
		for i := range 200_000 {
			err = errors.Join(err, tx.Put(streams, fmt.Appendf(nil, "key %d", i), nil))
		}
		return err
	}))
	flush(t, s)
	if rests == 0 {
		t.Error("200,000 records were written without a rest")
	}
	check.Equal(t, get(t, s, streams, "meanwhile"), "x", "what was written meanwhile is %q")
}
