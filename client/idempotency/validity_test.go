package idempotency_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A copy of a Reserve that arrives after its validity, and after its owner has released the key, owns nothing.
func TestALateCopyOwnsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ahead = 5*time.Minute + 10*time.Second // as far as it may be
		s := idempotency.Memory()
		r := &idempotency.ReserveRequest{
			Key: doKey(), ValidUntil: time.Now().Add(ahead), AttemptID: idempotency.NewAttemptID(),
		}
		owner := &idempotency.Ownership{
			Key: r.Key, Token: must.Get(s.Reserve(t.Context(), r))(t).Token, AttemptID: r.AttemptID,
		}
		must.Equal(t, must.Get(s.Release(t.Context(), owner))(t).Outcome, idempotency.OK)
		for _, after := range []time.Duration{time.Second, ahead, time.Hour, 24 * time.Hour} {
			pass(after)
			if got, err := s.Reserve(t.Context(), r); err != nil || got.Outcome == idempotency.Acquired {
				t.Errorf("%v later a copy owns the key: %v, %v", after, got.Outcome, err)
			}
		}
	})
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
