package storefaults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// callTimeout bounds a call that meets a fault. It asserts nothing about speed.
const callTimeout = time.Second

// Run checks a store whose proxy loses answers, closes connections, or hangs.
func Run(t *testing.T, p *Proxy, store idempotency.Store) {
	t.Helper()
	t.Run("LostAnswers", func(t *testing.T) { lostAnswers(t, p, store) })
	t.Run("Away", func(t *testing.T) { unreachable(t, p, store, Refuse) })
	t.Run("Hangs", func(t *testing.T) { unreachable(t, p, store, Stall) })
}

// subject is one key of a test.
type subject struct {
	*testing.T

	proxy   *Proxy
	store   idempotency.Store
	request *idempotency.ReserveRequest
	owner   *idempotency.Ownership
}

func newSubject(t *testing.T, p *Proxy, store idempotency.Store) *subject {
	key := idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "faults"}, Key: idempotency.NewKey("faults", 1), Namespace: "test",
	}
	t.Cleanup(func() { p.Set(Pass) })
	r := &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID(), Lease: time.Hour}
	return &subject{t, p, store, r, &idempotency.Ownership{Key: key, AttemptID: r.AttemptID}}
}

// call is a call of a store.
type call func(ctx context.Context) (idempotency.Outcome, error)

// under makes a call while the proxy has a fault.
func (s *subject) under(mode Mode, do call) (idempotency.Outcome, error) {
	s.proxy.Set(mode)
	defer s.proxy.Set(Pass)
	ctx, cancel := context.WithTimeout(s.Context(), callTimeout)
	defer cancel()
	return do(ctx)
}

// repeat makes a call until it is answered.
func (s *subject) repeat(do call) idempotency.Outcome {
	s.Helper()
	for {
		ctx, cancel := context.WithTimeout(s.Context(), callTimeout)
		outcome, err := do(ctx)
		cancel()
		if err == nil {
			return outcome
		}
		if s.Context().Err() != nil {
			s.Fatal(err)
		}
	}
}

func (s *subject) reserve(ctx context.Context) (idempotency.Outcome, error) {
	r, err := s.store.Reserve(ctx, s.request)
	if err != nil {
		return 0, err
	}
	if r.Outcome == idempotency.Acquired {
		if r.Attempt != 1 || s.owner.Token != 0 && r.Token != s.owner.Token {
			s.Errorf("Reserve: %+v, the token before was %d", r, s.owner.Token)
		}
		s.owner.Token = r.Token
	}
	return r.Outcome, nil
}

// by makes a call of the owner's.
func by(f func(ctx context.Context) (*idempotency.Answer, error)) call {
	return func(ctx context.Context) (idempotency.Outcome, error) {
		a, err := f(ctx)
		if err != nil {
			return 0, err
		}
		return a.Outcome, nil
	}
}

// lostAnswers loses the answer to every call, which may have been stored, and repeats it.
func lostAnswers(t *testing.T, p *Proxy, store idempotency.Store) {
	s := newSubject(t, p, store)
	result := idempotency.Result{Response: []byte("done")}
	for _, c := range []struct {
		name string
		call call
		want idempotency.Outcome
	}{
		{"Reserve", s.reserve, idempotency.Acquired},
		{"Heartbeat", by(func(ctx context.Context) (*idempotency.Answer, error) {
			return store.Heartbeat(ctx, s.owner, time.Hour)
		}), idempotency.OK},
		{"Checkpoint", by(func(ctx context.Context) (*idempotency.Answer, error) {
			return store.Checkpoint(ctx, s.owner, []byte("half"))
		}), idempotency.OK},
		{"Complete", by(func(ctx context.Context) (*idempotency.Answer, error) {
			return store.Complete(ctx, s.owner, result)
		}), idempotency.OK},
		{"Reserve of another", func(ctx context.Context) (idempotency.Outcome, error) {
			other := *s.request
			other.AttemptID = idempotency.NewAttemptID()
			r, err := store.Reserve(ctx, &other)
			if err != nil {
				return 0, err
			}
			return r.Outcome, nil
		}, idempotency.Replay},
	} {
		if outcome, err := s.under(LoseAnswers, c.call); err == nil {
			t.Errorf("%s without an answer: %v", c.name, outcome)
		}
		if outcome := s.repeat(c.call); outcome != c.want {
			t.Errorf("%s: %v, want %v", c.name, outcome, c.want)
		}
	}
}

// unreachable makes calls to a server that does not answer. Each must return an error, soon after its context ended.
func unreachable(t *testing.T, p *Proxy, store idempotency.Store, mode Mode) {
	s := newSubject(t, p, store)
	if outcome := s.repeat(s.reserve); outcome != idempotency.Acquired {
		t.Fatalf("Reserve: %v", outcome)
	}
	complete := by(func(ctx context.Context) (*idempotency.Answer, error) {
		return store.Complete(ctx, s.owner, idempotency.Result{Response: []byte("done")})
	})
	get := func(ctx context.Context) (idempotency.Outcome, error) {
		_, err := store.Get(ctx, &s.request.Key)
		if errors.Is(err, idempotency.ErrNotFound) {
			t.Error("a record is said to be absent")
		}
		return idempotency.OK, err
	}
	for name, c := range map[string]call{"Reserve": s.reserve, "Complete": complete, "Get": get} {
		began := time.Now()
		outcome, err := s.under(mode, c)
		if took := time.Since(began); err == nil || took > 3*callTimeout {
			t.Errorf("%s: %v, %v after %v", name, outcome, err, took)
		}
	}
	if outcome := s.repeat(complete); outcome != idempotency.OK {
		t.Errorf("Complete afterwards: %v", outcome)
	}
}
