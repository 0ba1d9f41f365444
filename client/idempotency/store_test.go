package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/embedded"
	rules "github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// mapBackend is the smallest possible Backend: two methods.
type mapBackend struct {
	mu     sync.Mutex
	values map[string]mapValue
	writes int
	keeps  bool // whether to keep values that may be deleted
	// fail may make a call fail; applied says whether the swap is stored anyway.
	fail func(call string, key idempotency.Key) (applied bool, err error)
}

type mapValue struct {
	bytes     []byte
	version   int
	keepUntil time.Time
}

func newMapBackend() *mapBackend { return &mapBackend{values: map[string]mapValue{}} }

func (b *mapBackend) Load(ctx context.Context, key idempotency.Key) ([]byte, string, time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if _, err := b.fail("load", key); err != nil {
			return nil, "", time.Time{}, err
		}
	}
	v, ok := b.values[key.Name]
	if ok && !b.keeps && !v.keepUntil.IsZero() && v.keepUntil.Before(time.Now()) {
		delete(b.values, key.Name) // as early as a store may
		ok = false
	}
	if !ok {
		return nil, "", time.Now(), ctx.Err()
	}
	return bytes.Clone(v.bytes), strconv.Itoa(v.version), time.Now(), ctx.Err()
}

func (b *mapBackend) CompareAndSwap(
	ctx context.Context, key idempotency.Key, version string, value []byte, keepUntil, _ time.Time,
) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var failure error
	if b.fail != nil {
		applied, err := b.fail("swap", key)
		if err != nil && !applied {
			return false, err
		}
		failure = err
	}
	current := ""
	if v, ok := b.values[key.Name]; ok {
		current = strconv.Itoa(v.version)
	}
	if current != version {
		return false, errors.Join(failure, ctx.Err())
	}
	b.writes++
	b.values[key.Name] = mapValue{bytes.Clone(value), b.writes, keepUntil}
	return failure == nil, failure
}

// A slow backend lets all callers load before one of them swaps, so that every race happens.
type (
	slowBackend struct{ idempotency.Backend }
	slowMemory  struct {
		slowBackend
		idempotency.Notifier
		idempotency.TokenSource
	}
)

func (b slowBackend) Load(ctx context.Context, key idempotency.Key) ([]byte, string, time.Time, error) {
	value, version, now, err := b.Backend.Load(ctx, key)
	pass(time.Millisecond)
	return value, version, now, err
}

// Every case runs on each store that needs no other process, in a synctest bubble.
func TestStores(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() idempotency.Store{
		"Memory": func() idempotency.Store {
			m := idempotency.MemoryBackend()
			return idempotency.NewStore(slowMemory{slowBackend{m}, m, m})
		},
		"Backend": func() idempotency.Store { return idempotency.NewStore(slowBackend{newMapBackend()}) },
		"BackendThatKeeps": func() idempotency.Store {
			b := newMapBackend()
			b.keeps = true
			return idempotency.NewStore(slowBackend{b})
		},
	} {
		for _, c := range storetest.Cases() {
			t.Run(name+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { c.Test(t, open()) })
			})
		}
	}
}

// A refusal because of too many waiters is returned at once, and not retried until the caller's deadline.
func TestTooManyWaiters(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		refusal := connect.NewError(connect.CodeResourceExhausted, errors.New("too many"))
		if detail, err := connect.NewErrorDetail(&seqledgerv1.WriteError{
			Code:       seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_WAITERS,
			RetryAfter: durationpb.New(time.Second),
		}); err == nil {
			refusal.AddDetail(detail)
		}
		check.Is(t, connect.NewErrorWriter().Write(w, r, refusal), nil)
	}))
	t.Cleanup(server.Close)
	c := must.Get(client.New(client.Options{Server: server.URL}))(t)
	t.Cleanup(func() { _ = c.Close() })
	s := &service{T: t, store: idempotency.Ledger(c), metrics: newCounter()}
	s.use()
	answer := s.send()
	s.refused(answer, http.StatusTooManyRequests, idempotency.CodeQuota, idempotency.SameKey, 0)
	if n := calls.Load(); n != 1 || answer.Header.Get("Retry-After") != "1" {
		t.Errorf("%d calls, %v", n, answer.Header)
	}
}

// startServer starts a real server and returns a client for it.
func startServer(t testing.TB) *client.Client {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := must.Get(embedded.Open(t.Context(), embedded.Options{Dir: t.TempDir() + "/data", Listener: listener}))(t)
	t.Cleanup(func() {
		check.Is(t, l.Close(), nil)
	})
	c := must.Get(client.New(client.Options{Server: listener.Addr().String()}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The same cases against a server.
func TestLedgerStore(t *testing.T) {
	t.Parallel()
	c := startServer(t)
	storetest.Run(t, func(*testing.T) idempotency.Store { return idempotency.Ledger(c) })
	t.Run("Middleware", func(t *testing.T) {
		t.Parallel()
		s := &service{T: t, store: idempotency.Ledger(c), metrics: newCounter()}
		s.use(func(o *idempotency.Options) { o.Scope.Organization = "shop" })
		first := s.expect(s.send(), http.StatusCreated, "false", 1)
		if again := s.expect(s.send(), http.StatusCreated, "true", 1); again != first {
			t.Errorf("%q is replayed as %q", first, again)
		}
		s.refused(s.send(body("{}")), 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
		// A scope that the ledger refuses is the operator's mistake, not the client's.
		s.use(func(o *idempotency.Options) { o.StoreTimeout = time.Second })
		s.refused(s.send(), 503, idempotency.CodeStoreUnavailable, idempotency.SameKey, 1)
	})
}

// How a ledger's errors map to the errors of a keyed request.
func TestLedgerErrors(t *testing.T) {
	t.Parallel()
	for code, want := range map[connect.Code]struct {
		status int
		code   idempotency.Code
		opens  bool
	}{
		connect.CodeResourceExhausted: {429, idempotency.CodeQuota, false},
		connect.CodeUnavailable:       {503, idempotency.CodeStoreUnavailable, true},
		connect.CodePermissionDenied:  {503, idempotency.CodeStoreUnavailable, false},
		connect.CodeUnauthenticated:   {503, idempotency.CodeStoreUnavailable, false},
	} {
		answers := connect.NewErrorWriter()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			check.Is(t, answers.Write(w, r, connect.NewError(code, errors.New("no"))), nil)
		}))
		t.Cleanup(server.Close)
		c := must.Get(client.New(client.Options{Server: server.URL, MaxAttempts: 1}))(t)
		t.Cleanup(func() { _ = c.Close() })
		s := &service{T: t, store: idempotency.Ledger(c), metrics: newCounter()}
		s.use()
		s.refused(s.send(), want.status, want.code, idempotency.SameKey, 0)
		s.use(func(o *idempotency.Options) { o.Open = true })
		check.Equal(t, s.send().StatusCode == http.StatusCreated, want.opens, "%v: open runs the request: %v", code)
	}
}

// A swap is stored and its answer is lost: a retry of each call has the outcome of the first.
func TestLostSwaps(t *testing.T) {
	t.Parallel()
	backend := newMapBackend()
	store := idempotency.NewStore(backend)
	lost := 0
	repeat := func(call string, f func() (idempotency.Outcome, error)) {
		t.Helper()
		armed := map[bool]bool{true: true, false: true} // by whether it is a record's key
		backend.setFail(func(kind string, key idempotency.Key) (bool, error) {
			if kind == "swap" && armed[key.Record != nil] {
				armed[key.Record != nil] = false
				lost++
				return true, errors.New("the connection broke")
			}
			return false, nil
		})
		outcome, err := f()
		for repeats := 0; err != nil && repeats < 2; repeats++ {
			outcome, err = f()
		}
		if err != nil || outcome != idempotency.OK && outcome != idempotency.Acquired {
			t.Errorf("%s: %v, %v", call, outcome, err)
		}
	}
	request := &idempotency.ReserveRequest{Key: doKey(), AttemptID: idempotency.NewAttemptID()}
	owner := &idempotency.Ownership{Key: doKey(), AttemptID: request.AttemptID}
	repeat("Reserve", func() (idempotency.Outcome, error) {
		r, err := store.Reserve(t.Context(), request)
		if err != nil {
			return 0, err
		}
		if owner.Token != 0 && owner.Token != r.Token {
			t.Errorf("the owner had token %d and has %d", owner.Token, r.Token)
		}
		owner.Token = r.Token
		return r.Outcome, nil
	})
	outcome := func(a *idempotency.Answer, err error) (idempotency.Outcome, error) {
		if err != nil {
			return 0, err
		}
		return a.Outcome, nil
	}
	repeat("Heartbeat", func() (idempotency.Outcome, error) { return outcome(store.Heartbeat(t.Context(), owner, 0)) })
	repeat("Checkpoint", func() (idempotency.Outcome, error) {
		return outcome(store.Checkpoint(t.Context(), owner, []byte("half")))
	})
	repeat("Complete", func() (idempotency.Outcome, error) {
		return outcome(store.Complete(t.Context(), owner, idempotency.Result{Response: []byte("done")}))
	})
	check.Equal(t, lost, 5, "%d answers were lost")
	if r, err := store.Get(t.Context(), new(doKey())); err != nil || string(r.Response) != "done" || r.Attempts != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func BenchmarkStore(b *testing.B) {
	c := startServer(b)
	storetest.Benchmark(b, idempotency.Ledger(c), func(ctx context.Context, key string) error {
		_, err := c.Write(ctx, &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "storetest"}, Namespace: "bare", IdempotencyKey: key,
			Operations: []*seqledgerv1.Operation{op.Append([]byte(key))},
		})
		return err
	})
}

func BenchmarkMemory(b *testing.B) {
	// Allows more entries than a run has keys.
	storetest.Benchmark(b, idempotency.MemoryOf(100_000_000, 8<<30), nil)
}

// The limits of a store in memory can be chosen: it refuses new keys until expired ones are removed.
func TestExpiredRecordsDoNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(idempotency.MemoryOptions{MaxEntries: 1, CleanupInterval: 2 * time.Second})
		work := func(context.Context, *idempotency.Owner) ([]byte, error) { return nil, nil }
		do := func(key string) error {
			_, err := idempotency.DoOptions{Settings: idempotency.Settings{TTL: time.Second}}.Do(t.Context(), s,
				idempotency.RecordKey{Key: key}, work)
			return err
		}
		for i := range 5 {
			must.Do(t, do(fmt.Sprint(i)), "%v", i)
			check.Equal(t, idempotency.CodeOf(do("another")), idempotency.CodeQuota, "%v: %v", i)
			pass(3*time.Second + 1) // the TTL and the interval
		}
	})
}

// Of a result that has expired a store in memory holds nothing, so that keys that it remembers do not fill it.
func TestExpiredResultsTakeNoMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.MemoryOf(100, 3<<20)
		large := func(context.Context, *idempotency.Owner) ([]byte, error) { return make([]byte, 1<<20), nil }
		o := idempotency.DoOptions{Settings: idempotency.Settings{TTL: time.Second, ForgetAfter: idempotency.Never}}
		for i := range 5 {
			_, err := o.Do(t.Context(), s, idempotency.RecordKey{Key: fmt.Sprint(i)}, large)
			must.Do(t, err, "%v", i)
			pass(20 * time.Second) // the TTL, and the interval of the cleanup
		}
		_, err := o.Do(t.Context(), s, idempotency.RecordKey{Key: "0"}, large)
		check.Equal(t, idempotency.CodeOf(err), idempotency.CodeExpired, "%v: %v", err)
	})
}

// A swap that was decided for a result is decided again when that has expired and only its request is remembered.
func TestSwapAfterAnExpiry(t *testing.T) {
	t.Parallel()
	m, key := idempotency.MemoryBackend(), idempotency.Key{Name: "k"}
	record := rules.Record{State: rules.Committed, Completed: 1, Expires: 2, ForgetAfter: int64(rules.Never)}
	record.Response, record.ResponseSize = []byte("r"), 1
	deadline := time.Now().Add(time.Minute)
	_, before, _, err := m.Load(t.Context(), key)
	must.Do(t, err)
	must.Get(m.CompareAndSwap(t.Context(), key, before, record.Append(nil), time.Time{}, deadline))(t)
	_, before, _, err = m.Load(t.Context(), key)
	must.Do(t, err)
	idempotency.CleanUp(m)
	swapped := must.Get(m.CompareAndSwap(t.Context(), key, before, []byte("late"), time.Time{}, deadline))(t)
	check.Equal(t, swapped, false)
}

// A swap that was decided for an absent key is decided again when a value was removed: it may have been the key's.
func TestSwapAfterARemoval(t *testing.T) {
	t.Parallel()
	m := idempotency.MemoryBackend()
	key := idempotency.Key{Name: "k"}
	_, before, _, err := m.Load(t.Context(), key)
	must.Do(t, err)
	swap := func(version string, keep time.Time) bool {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		swapped := must.Get(m.CompareAndSwap(t.Context(), key, version, []byte("no record"), keep, deadline))(t)
		return swapped
	}
	if !swap(before, time.Unix(1, 0)) {
		t.Fatal("the first swap")
	}
	idempotency.CleanUp(m)
	if swap(before, time.Time{}) {
		t.Error("a swap from before the removal was made")
	}
	value, after, _, err := m.Load(t.Context(), key)
	if err != nil || value != nil || !swap(after, time.Time{}) {
		t.Errorf("after the removal: %q, %q, %v", value, after, err)
	}
}
