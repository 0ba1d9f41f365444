package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// waiters reserves from many callers at once, all of which wait, and returns a function that waits for their answers. A
// caller may arrive after the event that ends the reservation; it gets the same answer.
func (s *subject) waiters() (answers func() []*idempotency.Reservation) {
	var mu sync.Mutex
	var all []*idempotency.Reservation
	var group sync.WaitGroup
	for range racers {
		// Ends with the reservation; the returned function joins it.
		group.Go(func() {
			request := s.request(waiting)
			answer, err := s.Reserve(s.ctx, request)
			if err != nil {
				s.Errorf("Reserve: %v", err)
				return
			}
			if answer.Outcome == idempotency.Acquired { // release at once, for the next caller
				owner := &idempotency.Ownership{Key: request.Key, Token: answer.Token, AttemptID: request.AttemptID}
				if done, err := s.Complete(s.ctx, owner, result("by a waiter")); err != nil ||
					done.Outcome != idempotency.OK {
					s.Errorf("Complete: %+v, %v", done, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, answer)
		})
	}
	return func() []*idempotency.Reservation {
		group.Wait()
		return all
	}
}

func waitEndsWithTheResult(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request())
	answers := s.waiters()
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result("done")))
	for _, answer := range answers() {
		if answer.Outcome != idempotency.Replay || string(answer.Record.Response) != "done" {
			t.Errorf("a caller that waited got %+v", answer)
		}
	}
}

func waitEndsWithTheRefusal(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request())
	answers := s.waiters()
	s.expect("Reject", idempotency.OK)(s.Reject(s.ctx, owner, result("no")))
	for _, answer := range answers() {
		if answer.Outcome != idempotency.Replay || answer.Record.State != idempotency.Rejected {
			t.Errorf("a caller that waited got %+v", answer)
		}
	}
}

// One waiting caller becomes the owner, and the others get its result.
func waitEndsWithTheRelease(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request())
	answers := s.waiters()
	s.expect("Release", idempotency.OK)(s.Release(s.ctx, owner))
	owners := 0
	for _, answer := range answers() {
		switch {
		case answer.Outcome == idempotency.Acquired && answer.Token > owner.Token:
			owners++
		case answer.Outcome != idempotency.Replay || string(answer.Record.Response) != "by a waiter":
			t.Errorf("a caller that waited got %+v", answer)
		}
	}
	if owners != 1 {
		t.Errorf("%d of those that waited became owners", owners)
	}
}

// After a wait a caller learns the rest of the lease at that time, and not before the wait.
func retryAfterIsOfTheAnswer(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	// An object store's clock has whole seconds, which are read before and after.
	const lease, wait, clocks = time.Minute, 2 * time.Second, 1100 * time.Millisecond
	s.acquire(s.request(func(r *idempotency.ReserveRequest) { r.Lease = lease }))
	answer := s.reserve(s.request(func(r *idempotency.ReserveRequest) { r.Wait = wait }), idempotency.InFlight)
	if answer.RetryAfter <= 0 || answer.RetryAfter > lease-wait+clocks {
		t.Errorf("after a wait of %v, %v of the lease of %v are left", wait, answer.RetryAfter, lease)
	}
}

func waitEndsWithItsContext(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	s.acquire(s.request())
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	// Ends with its context; the receive below waits for it.
	go func() {
		_, err := s.Reserve(ctx, s.request(waiting))
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Reserve: %v", err)
	}
}
