package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// lastKey is a store that records the key of the last Reserve.
type lastKey struct {
	idempotency.Resolver

	key atomic.Pointer[idempotency.RecordKey]
}

func newLastKey() *lastKey {
	return &lastKey{Resolver: idempotency.Memory().(idempotency.Resolver)}
}

func (l *lastKey) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	l.key.Store(&r.Key)
	return l.Resolver.Reserve(ctx, r)
}

// settle acts as an operator who has established what happened to the last key.
func (l *lastKey) settle(t *testing.T, as idempotency.State, text string) {
	t.Helper()
	a := must.Get(l.Resolve(t.Context(), l.key.Load(), as, idempotency.Result{Response: []byte(text)}))(t)
	must.Equal(t, a.Outcome, idempotency.OK)
}

// The response reflects what an operator settled: work that was not done is not reported as executed, and the text
// stored for work that was done is the response.
func TestMiddlewareTellsWhatWasSettled(t *testing.T) {
	t.Parallel()
	const tooLong = 5_000
	for name, test := range map[string]struct {
		as            idempotency.State
		text          string
		status        int
		code          idempotency.Code
		detail, media string
	}{
		"rejected":              {idempotency.Rejected, "", 409, idempotency.CodeNotExecuted, "", ""},
		"rejected, with a text": {idempotency.Rejected, "no charge", 409, idempotency.CodeNotExecuted, "no charge", ""},
		"rejected, with a long text": {
			idempotency.Rejected, strings.Repeat("x", tooLong), 409, idempotency.CodeNotExecuted, "", "",
		},
		"committed": {idempotency.Committed, "", 410, idempotency.CodeNotRetained, "", ""},
		"committed, with a text": {
			idempotency.Committed, "charge ch_1", 200, "", "", "text/plain; charset=utf-8",
		},
		"committed, with JSON": {idempotency.Committed, `{"charge":"ch_1"}`, 200, "", "", "application/json"},
		"committed, with bytes that are no text": {
			idempotency.Committed, "\xff\xfe", 410, idempotency.CodeNotRetained, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newLastKey()
			s := &service{T: t, store: store, metrics: newCounter()}
			s.use()
			s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }
			s.expect(s.send(), http.StatusBadGateway, "false", 1)
			store.settle(t, test.as, test.text)
			answer := s.send()
			if test.code == "" {
				text := s.expect(answer, test.status, "true", 1)
				if media := answer.Header.Get("Content-Type"); text != test.text || media != test.media {
					t.Errorf("%q as %s", text, media)
				}
				return
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body = io.NopCloser(strings.NewReader(string(text)))
			action := idempotency.Reconcile
			if test.code == idempotency.CodeNotExecuted {
				action = idempotency.OtherKey
			}
			s.refused(answer, test.status, test.code, action, 1)
			if !strings.Contains(string(text), test.detail) || len(text) > tooLong/2 {
				t.Errorf("the problem: %s", text)
			}
			if test.as == idempotency.Rejected && strings.Contains(string(text), "was executed") {
				t.Errorf("it says that the request was executed: %s", text)
			}
		})
	}
}

// The same for calls. A text that is the JSON of the procedure's response becomes that response.
func TestInterceptorTellsWhatWasSettled(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		as       idempotency.State
		text     string
		code     connect.Code
		reason   idempotency.Code
		action   idempotency.Action
		sequence uint64
	}{
		"rejected": {idempotency.Rejected, "no", connect.CodeFailedPrecondition, idempotency.CodeNotExecuted,
			idempotency.OtherKey, 0},
		"committed": {idempotency.Committed, "", connect.CodeAlreadyExists, idempotency.CodeNotRetained,
			idempotency.Reconcile, 0},
		"committed, with a text": {idempotency.Committed, "yes", connect.CodeAlreadyExists, idempotency.CodeNotRetained,
			idempotency.Reconcile, 0},
		"committed, with JSON": {idempotency.Committed, `{"receipt":{"sequence":"7"}}`, 0, "", "", 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newLastKey()
			s, clients := rpcOn(t, store)
			s.serve = func(context.Context, http.Header) error {
				return connect.NewError(connect.CodeInternal, errors.New("a broken connection"))
			}
			c := clients["Connect"]
			if _, err := c.Write(t.Context(), writeCall("k", "a")); err == nil {
				t.Fatal("the first call succeeded")
			}
			store.settle(t, test.as, test.text)
			answer, err := c.Write(t.Context(), writeCall("k", "a"))
			if test.reason != "" {
				refusedCall(t, err, test.code, test.reason, test.action)
			} else if err != nil || answer.Msg.GetReceipt().GetSequence() != test.sequence ||
				answer.Header().Get("Idempotent-Replayed") != "true" {
				t.Error(answer, err)
			}
			check.Equal(t, s.runs.Load(), 1, "the handler ran %d times")
		})
	}
}

// Do returns what was stored as its own kind of result.
func TestDoTellsWhatWasSettled(t *testing.T) {
	t.Parallel()
	for as, text := range map[idempotency.State]string{
		idempotency.Rejected: "no charge", idempotency.Committed: "ch_1",
	} {
		store := newLastKey()
		key := idempotency.RecordKey{Key: "k"}
		runs := 0
		work := func(context.Context, *idempotency.Owner) ([]byte, error) {
			runs++
			return nil, errors.New("a broken connection")
		}
		if _, err := idempotency.Do(t.Context(), store, key, work); err == nil {
			t.Fatal("the work succeeded")
		}
		store.settle(t, as, text)
		done, err := idempotency.Do(t.Context(), store, key, work)
		rejected, isRejected := errors.AsType[*idempotency.RejectedError](err)
		switch {
		case runs != 1:
			t.Errorf("%v: it ran %d times", as, runs)
		case as == idempotency.Committed && (err != nil || string(done.Response) != text || !done.Replayed):
			t.Errorf("committed: %+v, %v", done, err)
		case as == idempotency.Rejected && (!isRejected || string(rejected.Response) != text):
			t.Errorf("rejected: %+v, %v", done, err)
		}
	}
}
