package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// reserveUntil returns a Reserve of its own key that is valid until a time.
func reserveUntil(key string, until time.Time) *idempotency.ReserveRequest {
	return &idempotency.ReserveRequest{
		Key: idempotency.RecordKey{Scope: idempotency.Scope{Organization: "acme"}, Key: key}, ValidUntil: until,
		AttemptID: idempotency.NewAttemptID(),
	}
}

// A copy of a Reserve that arrives after its validity, and after its owner has released the key, owns nothing. A store
// would have to clamp a longer validity anew at each arrival, so it refuses one.
func TestALateCopyOwnsNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ahead   time.Duration
		refused bool
	}{
		"two minutes":                 {ahead: 2 * time.Minute},
		"as far as it may be":         {ahead: 5*time.Minute + 10*time.Second},
		"a clock that is 11 s ahead":  {ahead: 5*time.Minute + 11*time.Second, refused: true},
		"a clock that is hours ahead": {ahead: 3 * time.Hour, refused: true},
		"beyond the nanoseconds":      {ahead: 1<<63 - 1, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := idempotency.Memory()
				r := reserveUntil("k", time.Now().Add(test.ahead))
				got, err := s.Reserve(t.Context(), r)
				if invalid, ok := errors.AsType[*idempotency.InvalidError](err); test.refused != ok ||
					ok && invalid.Field != "ValidUntil" {
					t.Fatal(got, err)
				}
				if test.refused {
					return
				}
				owner := &idempotency.Ownership{Key: r.Key, Token: got.Token, AttemptID: r.AttemptID}
				must.Equal(t, must.Get(s.Release(t.Context(), owner))(t).Outcome, idempotency.OK)
				for _, after := range []time.Duration{time.Second, test.ahead, time.Hour, 24 * time.Hour} {
					pass(after)
					if got, err = s.Reserve(t.Context(), r); err != nil || got.Outcome == idempotency.Acquired {
						t.Errorf("%v later a copy owns the key: %v, %v", after, got.Outcome, err)
					}
				}
			})
		})
	}
}

// The same for a ledger, whose error gives its time to a caller whose clock is off.
func TestLedgerRefusesALongValidity(t *testing.T) {
	t.Parallel()
	s := idempotency.Ledger(startServer(t))
	_, err := s.Reserve(t.Context(), reserveUntil("far", time.Now().Add(time.Hour)))
	if invalid, ok := errors.AsType[*idempotency.InvalidError](err); !ok || invalid.Field != "valid_until" {
		t.Error("an hour ahead:", err)
	}
	for key, until := range map[string]time.Time{
		"near": time.Now().Add(5 * time.Minute), "unset": {}, "past": time.Now().Add(-time.Minute),
	} {
		want := idempotency.Acquired
		if key == "past" {
			want = idempotency.Stale
		}
		check.Equal(t, must.Get(s.Reserve(t.Context(), reserveUntil(key, until)))(t).Outcome, want, "%s: %v", key)
	}
}

// slowClock is a backend whose clock is far behind.
type slowClock struct{ idempotency.Backend }

const behind = 3 * time.Hour

func (s slowClock) Load(ctx context.Context, key idempotency.Key) ([]byte, string, time.Time, error) {
	value, version, now, err := s.Backend.Load(ctx, key)
	return value, version, now.Add(-behind), err
}

// clocked is a store that provides a clock, and records the validity of each call.
type clocked struct {
	idempotency.Store

	off  time.Duration
	seen []time.Time
}

func (c *clocked) Now() time.Time { return time.Now().Add(c.off) }

func (c *clocked) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	c.seen = append(c.seen, r.ValidUntil)
	return c.Store.Reserve(ctx, r)
}

// The store's own clock counts, or the clock that it provides. A store whose clock differs from that by hours runs
// nothing and says why.
func TestTheClockOfAStore(t *testing.T) {
	t.Parallel()
	s := &service{T: t, store: idempotency.NewStore(slowClock{newMapBackend()}), metrics: newCounter()}
	s.use()
	s.expect(s.send(), http.StatusCreated, "false", 1)
	s.expect(s.send(), http.StatusCreated, "true", 1)
	named := &clocked{Store: s.store, off: -behind}
	s.store = named
	s.use()
	s.expect(s.send(), http.StatusCreated, "true", 1)
	named.off = 0
	s.refused(s.send(), http.StatusServiceUnavailable, idempotency.CodeStoreUnavailable, idempotency.SameKey, 1)
	// The first call of each request is retried after it fails, in case its answer was lost.
	if n := len(named.seen); n != 3 || named.seen[1] != named.seen[2] ||
		named.seen[1].Sub(named.seen[0]) < behind-time.Minute {
		t.Errorf("valid until %v", named.seen)
	}
}
