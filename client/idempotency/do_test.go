package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func doKey() idempotency.RecordKey {
	return idempotency.RecordKey{Namespace: "jobs", Key: "job-1"}
}

func answering(response string, err error) func(context.Context, *idempotency.Owner) ([]byte, error) {
	return func(context.Context, *idempotency.Owner) ([]byte, error) { return []byte(response), err }
}

// unexpected is a function that must not be called.
func unexpected(t *testing.T) func(context.Context, *idempotency.Owner) ([]byte, error) {
	return func(context.Context, *idempotency.Owner) ([]byte, error) {
		t.Error("the work runs again")
		return nil, nil
	}
}

// delegated is a store for a delegate, which may reserve for others and may not read their records.
type delegated struct{ idempotency.Store }

func (delegated) Get(context.Context, *idempotency.RecordKey) (*idempotency.Record, error) {
	return nil, idempotency.ErrRefused
}

func TestDoOnce(t *testing.T) {
	t.Parallel()
	store := idempotency.Memory()
	var runs atomic.Int64
	var group sync.WaitGroup
	for range 100 {
		// Ends with its call; the Wait below joins it.
		group.Go(func() {
			done, err := idempotency.Do(t.Context(), store, doKey(),
				func(_ context.Context, o *idempotency.Owner) ([]byte,
					error) {
					runs.Add(1)
					if o.Token() == 0 || o.Attempt() != 1 {
						t.Errorf("owner %+v", o)
					}
					return []byte("done"), nil
				})
			if err != nil || string(done.Response) != "done" || done.Expires.IsZero() {
				t.Errorf("%+v, %v", done, err)
			}
		})
	}
	group.Wait()
	check.Equal(t, runs.Load(), 1, "the work ran %d times")
	for _, other := range []struct {
		fingerprint idempotency.Fingerprint
		code        idempotency.Code
	}{
		{idempotency.Fingerprint{Digest: [32]byte{1}}, idempotency.CodeKeyReused},
		{idempotency.Fingerprint{Algorithm: 1}, idempotency.CodeOutcomeUnknown}, // it may be the same request
	} {
		o := idempotency.DoOptions{Fingerprint: other.fingerprint}
		_, err := o.Do(t.Context(), delegated{store}, doKey(), unexpected(t))
		if idempotency.CodeOf(err) != other.code {
			t.Errorf("another request: %v", err)
		}
	}
}

// The error that fn returns decides what the next call does.
func TestDoErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		err  error
		then func(t *testing.T, store idempotency.Store)
	}{
		"rejected": {&idempotency.RejectedError{Response: []byte("no")}, func(t *testing.T, store idempotency.Store) {
			_, err := idempotency.Do(t.Context(), store, doKey(), unexpected(t))
			if rejected, ok := errors.AsType[*idempotency.RejectedError](err); !ok ||
				string(rejected.Response) != "no" {
				t.Errorf("a repeat: %v", err)
			}
			pass(idempotency.DefaultRejectedTTL)
			if done, err := idempotency.Do(t.Context(), store, doKey(), answering("yes", nil)); err != nil ||
				done.Replayed {
				t.Errorf("later: %+v, %v", done, err)
			}
		}},
		"not executed": {errors.Join(broken, idempotency.ErrNotExecuted), func(t *testing.T, store idempotency.Store) {
			if done, err := idempotency.Do(t.Context(), store, doKey(), answering("yes", nil)); err != nil ||
				done.Replayed {
				t.Errorf("a repeat: %+v, %v", done, err)
			}
		}},
		"unknown": {broken, func(t *testing.T, store idempotency.Store) {
			_, err := idempotency.Do(t.Context(), store, doKey(), unexpected(t))
			if e, ok := errors.AsType[*idempotency.Error](err); !ok || e.Code != idempotency.CodeOutcomeUnknown ||
				e.Retryable() ||
				e.Action() != idempotency.Reconcile || e.Record.State != idempotency.Indeterminate {
				t.Errorf("a repeat: %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := idempotency.Memory()
				if _, err := idempotency.Do(t.Context(), store, doKey(), answering("", test.err)); !errors.Is(err,
					test.err) {
					t.Errorf("the error of the work is %v", err)
				}
				test.then(t, store)
			})
		})
	}
}

// lateStore ends the caller's context once its Reserve is answered.
type lateStore struct {
	idempotency.Store

	end context.CancelFunc
}

func (s lateStore) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	defer s.end()
	return s.Store.Reserve(ctx, r)
}

// The work does not begin under a context that ended while the key was reserved, and the key is free again.
func TestDoAfterItsCallerHasGone(t *testing.T) {
	t.Parallel()
	store, key := idempotency.Memory(), idempotency.RecordKey{Namespace: "n", Key: "k"}
	ctx, cancel := context.WithCancel(t.Context())
	work := func(ctx context.Context, _ *idempotency.Owner) ([]byte, error) { return []byte("done"), ctx.Err() }
	_, err := idempotency.Do(ctx, lateStore{store, cancel}, key, work)
	if !errors.Is(err, idempotency.ErrNotExecuted) || !errors.Is(err, context.Canceled) {
		t.Errorf("the call whose context has ended: %v", err)
	}
	if done, err := idempotency.Do(t.Context(), store, key, work); err != nil || done.Replayed {
		t.Errorf("the repeat: %v, %v", done, err)
	}
}

// A result that no store takes, of work that was done or refused, leaves the outcome unknown at once, and does not
// reach the journal. One byte less is stored.
func TestDoLargeResults(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{false, true} {
		for size, fits := range map[int]bool{idempotency.MaxResponse: true, idempotency.MaxResponse + 1: false} {
			store := idempotency.Memory()
			o := idempotency.DoOptions{Settings: idempotency.Settings{Journal: openJournal(t, t.TempDir(), store)}}
			response, err := make([]byte, size), error(nil)
			if refused {
				err = fmt.Errorf("no: %w", &idempotency.RejectedError{Response: response})
			}
			_, err = o.Do(t.Context(), store, doKey(), answering(string(response), err))
			_, invalid := errors.AsType[*idempotency.InvalidError](err)
			_, isRejected := errors.AsType[*idempotency.RejectedError](err)
			if invalid == fits || isRejected != (refused && fits) {
				t.Errorf("refused %v, %d bytes: %v", refused, size, err)
			}
			record, err := store.Get(t.Context(), new(doKey()))
			want := idempotency.Indeterminate
			if fits && refused {
				want = idempotency.Rejected
			} else if fits {
				want = idempotency.Committed
			}
			if err != nil || record.State != want || o.Journal.Len() != 0 {
				t.Errorf("refused %v, %d bytes: %v, %v, %d in the journal", refused, size, record.State, err,
					o.Journal.Len())
			}
		}
	}
}

// A panic of the work leaves the outcome unknown and leaks no goroutine.
func TestDoPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.Memory()
		func() {
			defer func() { _ = recover() }()
			_, _ = idempotency.Do(t.Context(), store, doKey(), func(context.Context, *idempotency.Owner) ([]byte,
				error) {
				panic("x")
			})
		}()
		pass(idempotency.DefaultLease) // a heartbeat would keep the lease
		if _, err := idempotency.Do(t.Context(), store, doKey(),
			unexpected(t)); idempotency.CodeOf(err) != idempotency.CodeOutcomeUnknown {
			t.Error(err)
		}
	})
}

// The next owner resumes where the last one stopped.
func TestDoCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.Memory()
		o := idempotency.DoOptions{Settings: idempotency.Settings{OnLeaseExpired: idempotency.TakeOver}}
		var first *idempotency.Owner
		_, _ = o.Do(t.Context(), store, doKey(), func(ctx context.Context, owner *idempotency.Owner) ([]byte, error) {
			first = owner
			check.Is(t, owner.Checkpoint(ctx, []byte("half")), nil)
			return nil, errors.New("killed")
		})
		pass(idempotency.DefaultLease)
		done, err := o.Do(t.Context(), store, doKey(),
			func(_ context.Context, owner *idempotency.Owner) ([]byte, error) {
				if string(owner.LastCheckpoint()) != "half" || owner.Attempt() != 2 || owner.Token() <= first.Token() {
					t.Errorf("the next owner is %+v", owner)
				}
				check.Is(t, first.Checkpoint(t.Context(), nil), idempotency.ErrLeaseLost, "the first one's checkpoint")
				return []byte("done"), nil
			})
		if err != nil || string(done.Response) != "done" {
			t.Errorf("%+v, %v", done, err)
		}
	})
}

// Files that a crash leaves in the journal's directory.
func TestJournalFiles(t *testing.T) {
	t.Parallel()
	store := idempotency.NewStore(failingBackend{})
	dir := t.TempDir()
	j := must.Get(idempotency.OpenJournal(dir, store, nil))(t)
	must.Do(t, idempotency.AddToJournal(j, doKey(), []byte("done")))
	must.Do(t, j.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*.result"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// A partial write is not a result.
	must.Do(t, os.WriteFile(files[0]+".new", []byte("seqledger"), 0o600))
	if j, err = idempotency.OpenJournal(dir, store, nil); err != nil || j.Len() != 1 {
		t.Fatalf("%v", err)
	}
	_ = j.Close()
	whole, _ := os.ReadFile(files[0])
	for i := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 0x10
		must.Do(t, os.WriteFile(files[0], damaged, 0o600))
		if j, err := idempotency.OpenJournal(dir, store, nil); err == nil {
			_ = j.Close()
			t.Fatalf("byte %d is damaged, and the result is taken", i)
		}
	}
}

// A journal is bounded.
func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	j, err := idempotency.OpenJournal(t.TempDir(), idempotency.NewStore(failingBackend{}), nil)
	must.Do(t, err)
	defer j.Close()
	for err == nil {
		err = idempotency.AddToJournal(j, doKey(), nil)
	}
	if !errors.Is(err, idempotency.ErrJournalFull) || j.Len() != 1024 {
		t.Errorf("%d results, %v", j.Len(), err)
	}
}

// A full store in memory refuses new keys, stores every result, and accepts new keys again when records have expired.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func() idempotency.Store{
		"entries": func() idempotency.Store { return idempotency.MemoryOf(3, 1<<30) },
		"bytes":   func() idempotency.Store { return idempotency.MemoryOf(1<<30, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := store()
				key := func(i int) idempotency.RecordKey {
					return idempotency.RecordKey{Key: "k" +
						string(rune('a'+i))}
				}
				once := func(i int) error {
					_, err := idempotency.Do(t.Context(), store, key(i),
						func(context.Context, *idempotency.Owner) ([]byte, error) {
							return make([]byte, 500), nil
						})
					return err
				}
				n, err := 0, error(nil)
				for ; err == nil && n < 10; n++ {
					err = once(n)
				}
				if e, ok := errors.AsType[*idempotency.Error](err); !ok || e.Code != idempotency.CodeQuota ||
					e.RetryAfter == 0 {
					t.Fatalf("after %d keys: %v", n, err)
				}
				for i := range n - 1 {
					if record, err := store.Get(t.Context(), new(key(i))); err != nil || len(record.Response) != 500 {
						t.Errorf("key %d: %+v, %v", i, record, err)
					}
				}
				pass(idempotency.DefaultTTL + time.Hour)
				check.Is(t, once(n), nil)
			})
		})
	}
}

// failingBackend is a database that is down.
type failingBackend struct{}

var errDown = errors.New("down")

func (failingBackend) Load(context.Context, idempotency.Key) ([]byte, string, time.Time, error) {
	return nil, "", time.Time{}, errDown
}

func (failingBackend) CompareAndSwap(
	context.Context, idempotency.Key, string, []byte, time.Time, time.Time,
) (bool, error) {
	return false, errDown
}

// Damage in a database is reported and changes nothing.
func TestDamagedValues(t *testing.T) {
	t.Parallel()
	backend := newMapBackend()
	store := idempotency.NewStore(backend)
	request := &idempotency.ReserveRequest{Key: doKey(), AttemptID: idempotency.NewAttemptID()}
	must.Get(store.Reserve(t.Context(), request))(t)
	writes := backend.writes
	for key, v := range backend.values {
		intact := v
		v.bytes = v.bytes[:len(v.bytes)-1]
		backend.values[key] = v
		_, err := store.Reserve(t.Context(), &idempotency.ReserveRequest{
			Key:       idempotency.RecordKey{Key: doKey().Key, Namespace: doKey().Namespace},
			AttemptID: idempotency.NewAttemptID(),
		})
		if key == "tokens" {
			_, err = store.Reserve(t.Context(), &idempotency.ReserveRequest{
				Key: idempotency.RecordKey{Key: "other"}, AttemptID: idempotency.NewAttemptID(),
			})
		}
		check.Is(t, err, idempotency.ErrDamaged, "%s is damaged", key)
		backend.values[key] = intact
	}
	check.Equal(t, backend.writes, writes, "damage was written over: got %v")
	// A counter that restarted would hand out tokens twice.
	released, _ := store.Reserve(t.Context(), request)
	must.Get(store.Release(t.Context(), &idempotency.Ownership{
		Key: request.Key, Token: released.Token, AttemptID: request.AttemptID,
	}))(t)
	delete(backend.values, "tokens")
	request.AttemptID = idempotency.NewAttemptID()
	if _, err := store.Reserve(t.Context(), request); !errors.Is(err, idempotency.ErrDamaged) {
		t.Errorf("the counter is lost: %v", err)
	}
}
