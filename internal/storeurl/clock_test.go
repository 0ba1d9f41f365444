package storeurl

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// atClock runs a part of a test whose clock is apart from the real one by the given time, and stands still. Only what
// the part opens has this clock.
func atClock(t *testing.T, apart time.Duration, part func(t *testing.T)) {
	t.Helper()
	now := time.Now().Round(0) // without the monotonic clock, which a bubble does not share
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(now.Add(apart))) // a bubble begins at the year 2000, and time in it costs none
		part(t)
	})
}

// clockedKey is a key of the tests of clocks.
func clockedKey(text string) idempotency.RecordKey {
	return idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme", Vault: "main"}, Namespace: "clocks", Key: text,
	}
}

// openAt opens a store for a part of a test.
func openAt(t *testing.T, url string) idempotency.Store {
	t.Helper()
	s, closing, err := Open(t.Context(), url, slog.New(slog.DiscardHandler))
	must.Do(t, err)
	t.Cleanup(func() {
		check.Is(t, closing(), nil)
	})
	return s
}

// once does a key's work, which says who has done it.
func once(t *testing.T, s idempotency.Store, key, who string) (string, error) {
	t.Helper()
	work := func(context.Context, *idempotency.Owner) ([]byte, error) { return []byte(who), nil }
	done, err := idempotency.Do(t.Context(), s, clockedKey(key), work)
	if err != nil {
		return "", err
	}
	return string(done.Response), nil
}

// held reserves a key for two minutes.
func held(t *testing.T, s idempotency.Store, key string) *idempotency.Ownership {
	t.Helper()
	request := &idempotency.ReserveRequest{
		Key: clockedKey(key), AttemptID: idempotency.NewAttemptID(), Lease: 2 * time.Minute,
	}
	r := must.Get(s.Reserve(t.Context(), request))(t)
	must.Equal(t, r.Outcome, idempotency.Acquired)
	return &idempotency.Ownership{Key: request.Key, Token: r.Token, AttemptID: request.AttemptID}
}

// inFlight fails the test unless a key's owner is at work, for no longer than its lease.
func inFlight(t *testing.T, s idempotency.Store, key string) {
	t.Helper()
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{
		Key: clockedKey(key), AttemptID: idempotency.NewAttemptID(),
	})
	if err != nil || r.Outcome != idempotency.InFlight || r.RetryAfter > 121*time.Second {
		t.Errorf("%s: want the other owner, got %+v, %v", key, r, err)
	}
}

// Two clients of one store, one of which has a clock that is minutes ahead or behind: the leases and results of each
// count for the other as if the clocks agreed.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	for name, start := range startServer {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t).URL
			right := openAt(t, url)
			for suffix, apart := range map[string]time.Duration{
				"-behind": 3 * -time.Minute, "-ahead": 10 * time.Minute,
			} {
				mine := held(t, right, "mine"+suffix)
				must.Get(once(t, right, "before"+suffix, "right"))(t)
				var theirs *idempotency.Ownership
				atClock(t, apart, func(t *testing.T) {
					wrong := openAt(t, url)
					inFlight(t, wrong, "mine"+suffix)
					check.Equal(t, must.Get(once(t, wrong, "before"+suffix, "wrong"))(t), "right",
						"the work was done by %q")
					check.Equal(t, must.Get(once(t, wrong, "behind"+suffix, "wrong"))(t), "wrong",
						"the work was done by %q")
					theirs = held(t, wrong, "theirs"+suffix)
					answer, err := wrong.Heartbeat(t.Context(), theirs, 2*time.Minute)
					if err != nil || answer.Outcome != idempotency.OK {
						t.Errorf("%+v, %v", answer, err)
					}
				})
				inFlight(t, right, "theirs"+suffix)
				check.Equal(t, must.Get(once(t, right, "behind"+suffix, "right"))(t), "wrong",
					"the work was done by %q")
				for _, owner := range []*idempotency.Ownership{mine, theirs} {
					answer := must.Get(right.Complete(t.Context(), owner, idempotency.Result{}))(t)
					check.Equal(t, answer.Outcome, idempotency.OK, "%s: %+v", owner.Key.Key)
				}
			}
		})
	}
}

// A client whose clock is behind by more than a reservation is valid works like any other: what counts is the store's
// clock.
func TestClockFarBehind(t *testing.T) {
	t.Parallel()
	for name, start := range startServer {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t).URL
			right := openAt(t, url)
			atClock(t, 6*-time.Minute, func(t *testing.T) {
				check.Equal(t, must.Get(once(t, openAt(t, url), "k", "wrong"))(t), "wrong", "the work was done by %q")
			})
			check.Equal(t, must.Get(once(t, right, "k", "right"))(t), "wrong", "the work was done by %q")
		})
	}
}

// startServer starts the server of each of the stores.
var startServer = map[string]func(t *testing.T) *servertest.Server{
	"postgres": func(t *testing.T) *servertest.Server {
		s := servertest.Postgres(t)
		must.Get(Init(t.Context(), s.URL))(t)
		return s
	},
	"redis": func(t *testing.T) *servertest.Server { return servertest.Redis(t) },
	"s3":    func(t *testing.T) *servertest.Server { return servertest.S3(t) },
}
