package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// An operator can settle an unknown outcome, and nothing else.
func TestResolve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.Memory().(idempotency.Resolver)
		key := idempotency.RecordKey{Key: "k"}
		done := idempotency.Result{Response: []byte("done")}
		resolve := func() (*idempotency.Answer, error) {
			return store.Resolve(t.Context(), &key, idempotency.Committed, done)
		}
		purge := func() (*idempotency.Answer, error) { return store.Purge(t.Context(), &key) }
		expect := func(call string, f func() (*idempotency.Answer, error), outcome idempotency.Outcome, want error) {
			t.Helper()
			a, err := f()
			if !errors.Is(err, want) || err == nil && a.Outcome != outcome {
				t.Errorf("%s: %+v, %v; want %v, %v", call, a, err, outcome, want)
			}
		}
		expect("Resolve without a record", resolve, 0, idempotency.ErrNotFound)
		expect("Purge without a record", purge, 0, idempotency.ErrNotFound)
		request := &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID(), Lease: time.Second}
		owner := must.Get(store.Reserve(t.Context(), request))(t)
		expect("Resolve during the work", resolve, 0, idempotency.ErrNotFinal)
		expect("Purge during the work", purge, 0, idempotency.ErrNotFinal)
		pass(2 * time.Second)
		expect("Purge of an unknown outcome", purge, 0, idempotency.ErrNotFinal)
		for range 2 {
			expect("Resolve", resolve, idempotency.OK, nil)
		}
		if a, err := store.Resolve(t.Context(), &key, idempotency.Rejected, done); err != nil ||
			a.Outcome != idempotency.AlreadyCompleted || string(a.Record.Response) != "done" {
			t.Errorf("Resolve in another way: %+v, %v", a, err)
		}
		late := &idempotency.Ownership{Key: key, Token: owner.Token, AttemptID: request.AttemptID}
		check.Equal(t, must.Get(store.Complete(t.Context(), late, idempotency.Result{}))(t).Outcome,
			idempotency.AlreadyCompleted, "the owner's late result: %+v")
		work := func(context.Context, *idempotency.Owner) ([]byte, error) {
			t.Error("the work runs again")
			return nil, nil
		}
		again, err := idempotency.Do(t.Context(), store, key, work)
		if err != nil || !again.Replayed || string(again.Response) != "done" {
			t.Errorf("a repeat: %+v, %v", again, err)
		}
		expect("Purge", purge, idempotency.OK, nil)
		check.Is(t, check.Err(store.Get(t.Context(), &key)), idempotency.ErrNotFound, "after the purge")
		if _, err := store.Resolve(t.Context(), &key, idempotency.Pending, done); err == nil {
			t.Error("Resolve takes a state that is not final")
		}
	})
}
