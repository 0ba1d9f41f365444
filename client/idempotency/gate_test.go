package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A replay requires the caller's permission besides the key: without it there is no response, and the work does not
// run.
func TestMiddlewareAllowReplay(t *testing.T) {
	t.Parallel()
	var allowed bool
	var failure error
	var asked int
	s := newService(t, func(o *idempotency.Options) {
		o.AllowReplay = func(r *http.Request) (bool, error) {
			asked++
			if r.Header.Get("Authorization") != "Bearer demo" {
				t.Errorf("asked for %v", r.Header)
			}
			return allowed, failure
		}
	})
	s.expect(s.send(), http.StatusCreated, "false", 1)
	check.Equal(t, asked, 0, "asked before the first request: %v")
	forbidden := s.send()
	if forbidden.Header.Get("Location") != "" {
		t.Errorf("the refusal tells of the stored response: %v", forbidden.Header)
	}
	s.refused(forbidden, http.StatusForbidden, idempotency.CodeReplayForbidden, idempotency.FixRequest, 1)
	failure = errors.New("no route to host")
	s.refused(s.send(), http.StatusServiceUnavailable, idempotency.CodeReplayUnchecked, idempotency.SameKey, 1)
	allowed, failure = true, nil
	s.expect(s.send(), http.StatusCreated, "true", 1)
}

// For a principal that is not admitted, no body is read and no key reserved.
func TestMiddlewareAdmit(t *testing.T) {
	t.Parallel()
	admitted := map[string]int{}
	full := false
	s := newService(t, func(o *idempotency.Options) {
		o.Admit = func(principal string) (func(), bool) {
			if full {
				return nil, false
			}
			admitted[principal]++
			return func() { admitted[principal]-- }, true
		}
	})
	s.charge.serve = func(_ http.ResponseWriter, r *http.Request) {
		for principal, n := range admitted {
			if keyed := r.Header.Get("Idempotency-Key") != ""; keyed != (n == 1) || principal == "" {
				t.Errorf("%d of %q while the handler runs", n, principal)
			}
		}
	}
	s.expect(s.send(), http.StatusOK, "false", 1)
	full = true
	unread := func(r *http.Request) { r.Body = io.NopCloser(failingReader{errors.New("the body was read")}) }
	s.refused(s.send(unread), http.StatusTooManyRequests, idempotency.CodeQuota, idempotency.SameKey, 1)
	s.expect(s.send(func(r *http.Request) { r.Header.Del("Idempotency-Key") }), http.StatusOK, "", 2)
	if len(admitted) != 1 {
		t.Error(admitted)
	}
	for _, n := range admitted {
		check.Equal(t, n, 0, "a count was not ended: %v")
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// If the server gives up on reading a body, nothing was executed, so the same key may be sent again.
func TestMiddlewareSlowBody(t *testing.T) {
	t.Parallel()
	s := newService(t)
	slow := func(r *http.Request) { r.Body = io.NopCloser(failingReader{os.ErrDeadlineExceeded}) }
	s.refused(s.send(slow), http.StatusRequestTimeout, idempotency.CodeBodyTimeout, idempotency.SameKey, 0)
	s.expect(s.send(), http.StatusCreated, "false", 1)
}

// While the fingerprints of large bodies take as many processors as they may, a large body that is parsed waits, as
// long as its client does. Small ones and those that are compared as they are do not wait.
func TestLargeBodiesWait(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Fingerprint = idempotency.FingerprintJCS })
	plain := newService(t)
	large := body(`"` + strings.Repeat("x", 64<<10) + `"`)
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	patient := func(r *http.Request) { *r = *r.WithContext(limited) }
	ctx, cancel := context.WithCancel(limited)
	defer cancel()
	go func() { // ends when the sender of the first large body is known to wait
		for idempotency.LargeParties() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
	}()
	gone := func(r *http.Request) { *r = *r.WithContext(ctx) }
	func() {
		for range cap(idempotency.LargeBodies) {
			idempotency.LargeBodies <- struct{}{}
			defer func() { <-idempotency.LargeBodies }()
		}
		s.expect(s.send(), http.StatusCreated, "false", 1)
		s.refused(s.send(large, gone), 429, idempotency.CodeQuota, idempotency.SameKey, 1)
		plain.expect(plain.send(large, patient), http.StatusCreated, "false", 1)
		parts := header("Content-Type", "multipart/form-data; boundary=x")
		plain.refused(plain.send(large, parts, gone), 429, idempotency.CodeQuota, idempotency.SameKey, 1)
	}()
	check.Is(t, limited.Err(), nil, "it has not waited as its sender")
	s.expect(s.send(large, header("Idempotency-Key", "large")), http.StatusCreated, "false", 2)
	s.expect(s.send(large, header("Idempotency-Key", "large")), http.StatusCreated, "true", 2)
}

// TestTurns: whatever a party has sent, another one waits for one of its turns only.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		take, parties := idempotency.NewTurns(1)
		first := must.Get(take(t.Context(), "a"))(t)
		var order []string // one turn at a time
		for _, party := range []string{"a", "a", "b", ""} {
			go func() { // ends with its turn, awaited below
				leave, err := take(t.Context(), party)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, party)
				leave()
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, party := range []string{"a", "c"} {
			check.Is(t, check.Err(take(ctx, party)), context.DeadlineExceeded, "%s got a turn beside another", party)
		}
		first()
		synctest.Wait()
		check.EqualSlices(t, order, []string{"b", "", "a", "a"}, "the turns were of %q")
		check.Equal(t, parties(), 0, "parties without a turn are kept: %v")
	})
}

// resultStore records the last stored result.
type resultStore struct {
	idempotency.Store

	last *atomic.Pointer[[]byte]
}

func (s resultStore) Complete(
	ctx context.Context, owner *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	s.last.Store(&result.Response)
	return s.Store.Complete(ctx, owner, result)
}

// Only the status and the Location of a response reach the store.
func TestMiddlewareOutcomeOnly(t *testing.T) {
	t.Parallel()
	var stored atomic.Pointer[[]byte]
	s := &service{T: t, metrics: newCounter()}
	s.store = resultStore{idempotency.Memory(), &stored}
	s.use(func(o *idempotency.Options) { o.OutcomeOnly = true })
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/charges/1")
		w.Header().Set("Etag", `"secret"`)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "secret")
	}
	check.Equal(t, s.expect(s.send(), http.StatusCreated, "false", 1), "secret")
	if kept := *stored.Load(); bytes.Contains(kept, []byte("secret")) || !bytes.Contains(kept, []byte("/charges/1")) {
		t.Errorf("stored: %q", kept)
	}
	again := s.send()
	if again.Header.Get("Location") != "/charges/1" {
		t.Error(again.Header)
	}
	s.refused(again, http.StatusGone, idempotency.CodeNotRetained, idempotency.Reconcile, 1)
}

// A wait that breaks is answered with what is left of the lease when the answer is made: as the store says then, or
// else as it said before the wait, less the time since.
func TestMiddlewareRetryAfterABrokenWait(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answers bool
		want    string
	}{"the store answers again": {true, "50"}, "the store is gone": {false, "20"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				store := reserving{idempotency.Memory(), func(r *idempotency.ReserveRequest) (*idempotency.Reservation,
					error) {
					switch calls++; {
					case calls == 1:
						return &idempotency.Reservation{Outcome: idempotency.InFlight,
							RetryAfter: 30 * time.Second}, nil
					case r.Wait > 0:
						<-time.After(10 * time.Second) // in a bubble
					case test.answers:
						return &idempotency.Reservation{Outcome: idempotency.InFlight,
							RetryAfter: 50 * time.Second}, nil
					}
					return nil, errors.New("the connection broke")
				}}
				s := &service{T: t, store: store, metrics: newCounter()}
				s.use(func(o *idempotency.Options) { o.Wait = idempotency.DefaultWait })
				answer := s.send()
				s.refused(answer, http.StatusConflict, idempotency.CodeInFlight, idempotency.SameKey, 0)
				check.Equal(t, answer.Header.Get("Retry-After"), test.want, "Retry-After is %s")
			})
		})
	}
}
