package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// unreliable is a store behind a bad network: requests and answers are lost, calls are slow, and copies of requests
// arrive again minutes later.
type unreliable struct {
	idempotency.Store

	mu     sync.Mutex
	random *rand.Rand
	healed bool
	copies sync.WaitGroup
}

var errLost = errors.New("the network lost it")

// fault is what happens to one call.
type fault struct {
	request, answer bool          // is lost
	slow, again     time.Duration // extra time for the call; delay of a copy, 0 for none
}

func (s *unreliable) next() (f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.healed {
		return f
	}
	switch s.random.IntN(12) {
	case 0, 1:
		f.request = true
	case 2, 3:
		f.answer = true
	case 4:
		f.slow = time.Duration(s.random.Int64N(int64(4 * time.Second)))
	}
	if s.random.IntN(4) == 0 {
		f.again = time.Duration(1 + s.random.Int64N(int64(7*time.Minute)))
	}
	return f
}

func (s *unreliable) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.healed = true
}

// through sends a call through the network.
func through[T any](ctx context.Context, s *unreliable, call func(context.Context) (T, error)) (answer T, err error) {
	f := s.next()
	if f.slow > 0 {
		pass(f.slow)
	}
	if f.again > 0 {
		s.copies.Go(func() { // ends with the call; the test waits for it
			pass(f.again)
			_, _ = call(context.WithoutCancel(ctx))
		})
	}
	if f.request {
		return answer, errLost
	}
	got, err := call(ctx)
	if f.answer {
		return answer, errLost
	}
	return got, err
}

func (s *unreliable) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	request := *r
	return through(ctx, s, func(ctx context.Context) (*idempotency.Reservation, error) {
		again := request
		return s.Store.Reserve(ctx, &again)
	})
}

func (s *unreliable) Complete(
	ctx context.Context, o *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	owner := *o
	return through(ctx, s, func(ctx context.Context) (*idempotency.Answer, error) {
		return s.Store.Complete(ctx, &owner, result)
	})
}

func (s *unreliable) Reject(
	ctx context.Context, o *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	owner := *o
	return through(ctx, s, func(ctx context.Context) (*idempotency.Answer, error) {
		return s.Store.Reject(ctx, &owner, result)
	})
}

func (s *unreliable) Release(ctx context.Context, o *idempotency.Ownership) (*idempotency.Answer, error) {
	owner := *o
	return through(ctx, s, func(ctx context.Context) (*idempotency.Answer, error) {
		return s.Store.Release(ctx, &owner)
	})
}

func (s *unreliable) Heartbeat(
	ctx context.Context, o *idempotency.Ownership, lease time.Duration,
) (*idempotency.Answer, error) {
	owner := *o
	return through(ctx, s, func(ctx context.Context) (*idempotency.Answer, error) {
		return s.Store.Heartbeat(ctx, &owner, lease)
	})
}

// work tracks the work of one key.
type work struct {
	mu       sync.Mutex
	runs     int
	tokens   []uint64
	final    int    // runs after which no other run is allowed
	response string // of the final run
	rejected bool
	unknown  bool     // the final run ended without a result
	seen     []string // responses that callers got
}

var errHalfway = errors.New("the work broke off")

// run does the work once: it succeeds, refuses, fails midway, or does nothing.
func (w *work) run(o *idempotency.Owner, ends int, takes time.Duration) ([]byte, error) {
	w.mu.Lock()
	w.runs++
	w.tokens = append(w.tokens, o.Token())
	response := fmt.Sprintf("run %d", w.runs)
	w.mu.Unlock()
	pass(takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if ends < 3 {
		return nil, fmt.Errorf("busy: %w", idempotency.ErrNotExecuted)
	}
	w.final++
	switch {
	case ends < 5:
		w.response, w.rejected = response, true
		return nil, &idempotency.RejectedError{Response: []byte(response)}
	case ends < 7:
		w.unknown = true
		return nil, errHalfway
	}
	w.response = response
	return []byte(response), nil
}

// call retries like a client, until it gets an answer or runs out of tries.
func (w *work) call(o idempotency.DoOptions, store idempotency.Store, key idempotency.RecordKey, random *rand.Rand) {
	for range 8 {
		ends, takes := random.IntN(14), time.Duration(random.Int64N(int64(6*time.Second)))
		done, err := o.Do(context.Background(), store, key,
			func(_ context.Context, o *idempotency.Owner) ([]byte, error) { return w.run(o, ends, takes) })
		rejected, isRejected := errors.AsType[*idempotency.RejectedError](err)
		failed, notRun := errors.AsType[*idempotency.Error](err)
		switch {
		case err == nil:
			w.saw("done: " + string(done.Response))
			return
		case isRejected:
			w.saw("rejected: " + string(rejected.Response))
			return
		case notRun && failed.Retryable(), errors.Is(err, idempotency.ErrNotExecuted):
			pass(time.Duration(random.Int64N(int64(20 * time.Second))))
		default: // the outcome is unknown: a client must not continue by itself
			return
		}
	}
}

func (w *work) saw(answer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, answer)
}

// check compares what callers saw with what happened.
func (w *work) check(t *testing.T) {
	t.Helper()
	if w.final > 1 {
		t.Errorf("the work was done %d times, in %d runs", w.final, w.runs)
	}
	want := "done: " + w.response
	if w.rejected {
		want = "rejected: " + w.response
	}
	if slices.ContainsFunc(w.seen, func(answer string) bool { return answer != want }) ||
		len(w.seen) > 0 && (w.final == 0 || w.unknown) {
		t.Errorf("callers were told %q, want %q; %d runs were final, unknown %v", w.seen, want, w.final, w.unknown)
	}
	if !slices.IsSorted(w.tokens) || len(slices.Compact(slices.Clone(w.tokens))) != len(w.tokens) {
		t.Errorf("the tokens of the runs are %v, want each higher than the one before", w.tokens)
	}
}

// last calls once more, when the network has recovered and every lease has ended.
func (w *work) last(t *testing.T, o idempotency.DoOptions, store idempotency.Store, key idempotency.RecordKey) {
	t.Helper()
	ran := false
	done, err := o.Do(t.Context(), store, key, func(context.Context, *idempotency.Owner) ([]byte, error) {
		ran = true
		return nil, idempotency.ErrNotExecuted
	})
	if ran && w.final > 0 {
		t.Error("the work would run again")
	}
	rejected, isRejected := errors.AsType[*idempotency.RejectedError](err)
	switch {
	case w.final == 0:
		if err == nil || isRejected {
			t.Errorf("nothing was done, and a caller gets %+v, %v", done, err)
		}
	case w.unknown || o.Journal == nil && idempotency.CodeOf(err) == idempotency.CodeOutcomeUnknown:
		if idempotency.CodeOf(err) != idempotency.CodeOutcomeUnknown {
			t.Errorf("the outcome is unknown, and a caller gets %+v, %v", done, err)
		}
	case w.rejected:
		if !isRejected || string(rejected.Response) != w.response {
			t.Errorf("refused with %q, and a caller gets %+v, %v", w.response, done, err)
		}
	case err != nil || !done.Replayed || string(done.Response) != w.response:
		t.Errorf("done with %q, and a caller gets %+v, %v", w.response, done, err)
	}
}

// TestDoBehindABadNetwork checks three things, whatever the network does to calls of the store: work that may have had
// an effect runs once, every caller that gets a result gets the one run's result, and with a journal no result is lost.
func TestDoBehindABadNetwork(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	rounds := 4_000
	if testing.Short() {
		rounds = 400
	}
	finals, replays, journals := 0, 0, 0
	for round := range rounds {
		dir := ""
		if round%2 == 0 {
			dir = t.TempDir()
		}
		synctest.Test(t, func(t *testing.T) {
			for _, w := range badNetwork(t, rand.New(rand.NewPCG(seed, uint64(round))), dir) {
				finals, replays = finals+w.final, replays+max(0, len(w.seen)-1)
			}
			if dir != "" {
				journals++
			}
		})
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	if finals < rounds || replays < rounds || journals == 0 {
		t.Errorf("%d runs, %d replays, %d journals: the test tested too little", finals, replays, journals)
	}
}

// badNetwork lets callers share some keys over a network that recovers in the end.
func badNetwork(t *testing.T, random *rand.Rand, journal string) []*work {
	s := &unreliable{Store: idempotency.Memory(), random: rand.New(rand.NewPCG(random.Uint64(), 0))}
	o := idempotency.DoOptions{Settings: idempotency.Settings{
		Lease: 2 * time.Second, RejectedTTL: 24 * time.Hour, Wait: 10 * time.Second, StoreTimeout: 3 * time.Second,
	}}
	if journal != "" {
		o.Journal = must.Get(idempotency.OpenJournal(journal, s, nil))(t)
		defer func() {
			check.Is(t, o.Journal.Close(), nil)
		}()
	}
	all := []*work{new(work), new(work)}
	key := func(i int) idempotency.RecordKey {
		return idempotency.RecordKey{Namespace: "jobs", Key: fmt.Sprint("job-", i)}
	}
	var callers sync.WaitGroup
	for i, w := range all {
		for range 4 {
			own := rand.New(rand.NewPCG(random.Uint64(), 0))
			callers.Go(func() { // ends after some tries; joined below
				pass(time.Duration(own.Int64N(int64(30 * time.Second))))
				w.call(o, s, key(i), own)
			})
		}
	}
	callers.Wait()
	s.heal()
	s.copies.Wait()
	for o.Journal != nil && o.Journal.Len() > 0 {
		pass(time.Second)
	}
	pass(time.Hour) // longer than every lease
	for i, w := range all {
		w.check(t)
		w.last(t, o, s, key(i))
	}
	return all
}
