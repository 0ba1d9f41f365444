package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// reserving is a store with another Reserve.
type reserving struct {
	idempotency.Store

	reserve func(r *idempotency.ReserveRequest) (*idempotency.Reservation, error)
}

func (s reserving) Reserve(_ context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	return s.reserve(r)
}

// With Open the work runs without the store only if the store does not answer: whatever it answers, it is not run.
func TestOpenRunsNothingThatTheStoreHasAnswered(t *testing.T) {
	t.Parallel()
	outcome := func(o idempotency.Outcome) func(*idempotency.ReserveRequest) (*idempotency.Reservation, error) {
		return func(*idempotency.ReserveRequest) (*idempotency.Reservation, error) {
			return &idempotency.Reservation{Outcome: o}, nil
		}
	}
	failed := func(err error) func(*idempotency.ReserveRequest) (*idempotency.Reservation, error) {
		return func(*idempotency.ReserveRequest) (*idempotency.Reservation, error) { return nil, err }
	}
	for name, test := range map[string]struct {
		reserve func(*idempotency.ReserveRequest) (*idempotency.Reservation, error)
		status  int
		code    idempotency.Code
		action  idempotency.Action
		call    connect.Code
		says    string
	}{
		"a field of the client": {
			failed(errors.Join(errors.New("internal"), &idempotency.InvalidError{
				Field: "record.principal", Problem: "is not UTF-8",
			})), 400, idempotency.CodeKeyInvalid, idempotency.FixRequest, connect.CodeInvalidArgument,
			"record.principal is not UTF-8",
		},
		"a setting": {
			failed(&idempotency.InvalidError{Field: "TTL", Problem: "is too long for this store"}),
			503, idempotency.CodeStoreUnavailable, idempotency.SameKey, connect.CodeUnavailable, "",
		},
		"a scope": {
			failed(&idempotency.InvalidError{Field: "record.scope.organization", Problem: "is required"}),
			503, idempotency.CodeStoreUnavailable, idempotency.SameKey, connect.CodeUnavailable, "",
		},
		"a refusal": {
			failed(errors.Join(idempotency.ErrRefused, errors.New("permission denied"))),
			503, idempotency.CodeStoreUnavailable, idempotency.SameKey, connect.CodeUnavailable, "",
		},
		"damage": {
			failed(idempotency.ErrDamaged),
			503, idempotency.CodeStoreUnavailable, idempotency.SameKey, connect.CodeUnavailable, "",
		},
		"stale": {
			outcome(idempotency.Stale),
			503, idempotency.CodeStoreUnavailable, idempotency.SameKey, connect.CodeUnavailable, "",
		},
		"another outcome": {
			outcome(idempotency.LeaseLost),
			503, idempotency.CodeStoreUnavailable, idempotency.SameKey, connect.CodeUnavailable, "",
		},
		"a wait that breaks": {
			func(r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
				if r.Wait > 0 {
					return nil, errors.New("the connection broke")
				}
				return &idempotency.Reservation{Outcome: idempotency.InFlight}, nil
			}, 409, idempotency.CodeInFlight, idempotency.SameKey, connect.CodeAborted, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := func(o *idempotency.Options) { o.Open, o.Wait = true, idempotency.DefaultWait }
			store := reserving{idempotency.Memory(), test.reserve}
			s := &service{T: t, store: store, metrics: newCounter()}
			s.use(open)
			answer := s.send()
			text, err := io.ReadAll(answer.Body)
			if err != nil || !strings.Contains(string(text), test.says) || strings.Contains(string(text), "internal") {
				t.Errorf("%s (%v) does not say %q", text, err, test.says)
			}
			answer.Body = io.NopCloser(strings.NewReader(string(text)))
			s.refused(answer, test.status, test.code, test.action, 0)
			if answer.Header.Get("Idempotent-Bypassed") != "" || s.metrics.of(idempotency.EventBypassed) != 0 {
				t.Errorf("%v %v", answer.Header, s.metrics.events)
			}
			e, clients := rpcOn(t, store, open)
			_, err = clients["Connect"].Write(t.Context(), writeCall("k", "a"))
			refusedCall(t, err, test.call, test.code, test.action)
			check.Equal(t, e.runs.Load(), 0, "the call ran %d times")
		})
	}
}

// With Open a call runs if the store does not answer.
func TestInterceptorOpen(t *testing.T) {
	t.Parallel()
	store := reserving{idempotency.Memory(), func(*idempotency.ReserveRequest) (*idempotency.Reservation, error) {
		return nil, errors.New("unreachable")
	}}
	e, clients := rpcOn(t, store, func(o *idempotency.Options) { o.Open = true })
	answer, err := clients["Connect"].Write(t.Context(), writeCall("k", "a"))
	if err != nil || answer.Header().Get("Idempotent-Bypassed") != "true" || e.runs.Load() != 1 {
		t.Errorf("%v, %v, %d runs", answer, err, e.runs.Load())
	}
}

// A principal that is not a text would be another one in a journal, and no ledger takes it.
func TestPrincipalsAreTexts(t *testing.T) {
	t.Parallel()
	for _, principal := range []string{"ren\xe9", "\xff", "a\xc3"} {
		key := idempotency.RecordKey{Namespace: "jobs", Principal: principal, Key: "k"}
		invalid, ok := errors.AsType[*idempotency.InvalidError](key.Validate())
		if !ok || invalid.Field != "Key.Principal" {
			t.Errorf("%q: %v", principal, key.Validate())
		}
		s := newService(t, func(o *idempotency.Options) {
			o.Open = true
			o.Principal = func(context.Context, http.Header) (string, error) { return principal, nil }
		})
		answer := s.send()
		text, _ := io.ReadAll(answer.Body)
		answer.Body = io.NopCloser(strings.NewReader(string(text)))
		s.refused(answer, http.StatusBadRequest, idempotency.CodeKeyInvalid, idempotency.FixRequest, 0)
		check.Contains(t, string(text), "Key.Principal is not UTF-8", "%q: %s", principal, text)
	}
	key := idempotency.RecordKey{Namespace: "jobs", Principal: "rené", Key: "k"}
	must.Do(t, key.Validate())
}

// lossy is a ledger that reserves, loses its answer, and has no room for the retry of the call.
type lossy struct {
	seqledgerv1connect.UnimplementedIdempotencyServiceHandler

	calls, released atomic.Int64
}

func (l *lossy) Reserve(
	context.Context, *connect.Request[seqledgerv1.ReserveRequest],
) (*connect.Response[seqledgerv1.ReserveResponse], error) {
	switch l.calls.Add(1) {
	case 1:
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the answer is lost"))
	case 2:
		return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("too many calls"))
	}
	return connect.NewResponse(&seqledgerv1.ReserveResponse{
		Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED, Token: 1, Attempt: 1,
	}), nil
}

func (l *lossy) Release(
	context.Context, *connect.Request[seqledgerv1.ReleaseRequest],
) (*connect.Response[seqledgerv1.ReleaseResponse], error) {
	l.released.Add(1)
	return connect.NewResponse(&seqledgerv1.ReleaseResponse{
		Outcome: seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK,
	}), nil
}

// A refusal for lack of room that answers only the retry of a Reserve does not leave a key reserved without an owner.
// If no answer was lost, the full ledger is not asked again.
func TestQuotaBehindALostAnswer(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} {
		l := new(lossy)
		want := int64(3)
		attempts := 2
		if !lost {
			l.calls.Store(1)
			want, attempts = 2, 1
		}
		_, handler := seqledgerv1connect.NewIdempotencyServiceHandler(l)
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		c, err := client.New(client.Options{Server: server.URL, MaxAttempts: attempts})
		must.Do(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = idempotency.Do(t.Context(), idempotency.Ledger(c), doKey(), unexpected(t))
		if idempotency.CodeOf(err) != idempotency.CodeQuota || l.calls.Load() != want ||
			(l.released.Load() == 1) != lost {
			t.Errorf("lost %v: %v after %d calls, %d released", lost, err, l.calls.Load(), l.released.Load())
		}
	}
}
