package storetest

import (
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// A record whose owner does not come back still exists after its lease has ended, even if it was not accessed: a store
// that forgot it would let the work run twice.
func pendingRecordStays(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	s.acquire(s.request(brief))
	s.eventually("the end of the lease", func() bool {
		r, err := s.Get(s.ctx, &s.key)
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		return r.State == idempotency.Indeterminate
	})
	s.reserve(s.request(), idempotency.Unknown)
}

// A late result of the owner settles the unknown outcome.
func lateCompletion(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request(brief))
	// The wait ends with the lease.
	if r := s.reserve(s.request(waiting), idempotency.Unknown).Record; r.State != idempotency.Indeterminate {
		t.Errorf("the record is %+v", r)
	}
	s.expect("Heartbeat", idempotency.LeaseLost)(s.Heartbeat(s.ctx, owner, 0))
	s.expect("Release", idempotency.LeaseLost)(s.Release(s.ctx, owner))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, idempotency.Result{Response: []byte("late"),
		TTL: time.Hour}))
	if r := s.reserve(s.request(), idempotency.Replay).Record; string(r.Response) != "late" {
		t.Errorf("replay: %+v", r)
	}
}

func lateCompletionAfterATakeover(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	first := s.acquire(s.request(brief, takingOver))
	second := s.acquire(s.request(takingOver, waiting)) // when the lease ends
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	for call, f := range map[string]func() (*idempotency.Answer, error){
		"Complete":   func() (*idempotency.Answer, error) { return s.Complete(s.ctx, first, result("first")) },
		"Reject":     func() (*idempotency.Answer, error) { return s.Reject(s.ctx, first, result("first")) },
		"Release":    func() (*idempotency.Answer, error) { return s.Release(s.ctx, first) },
		"Heartbeat":  func() (*idempotency.Answer, error) { return s.Heartbeat(s.ctx, first, 0) },
		"Checkpoint": func() (*idempotency.Answer, error) { return s.Checkpoint(s.ctx, first, nil) },
	} {
		s.expect(call, idempotency.LeaseLost)(f())
	}
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, second, result("second")))
	lost := s.expect("Complete by the first", idempotency.LeaseLost)(s.Complete(s.ctx, first, result("first")))
	if lost.Record == nil || string(lost.Record.Response) != "second" {
		t.Errorf("the winner's record is %+v", lost.Record)
	}
}

// A copy of a Reserve that arrives after a takeover creates no second owner.
func lostAnswerBehindATakeover(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	request := s.request(brief, takingOver)
	s.acquire(request)
	second := s.acquire(s.request(takingOver, waiting))
	if copied, err := s.Reserve(s.ctx, request); err != nil || copied.Outcome == idempotency.Acquired {
		t.Errorf("the copy gets %+v, %v", copied, err)
	}
	s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, second, time.Minute))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, second, result("second")))
	if r := s.reserve(request, idempotency.Replay).Record; string(r.Response) != "second" {
		t.Errorf("replay: %+v", r)
	}
}

func heartbeatsKeepTheLease(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	// Shorter than the lease after a heartbeat, and long enough for a slow machine to send the first heartbeat.
	request := s.request(func(r *idempotency.ReserveRequest) { r.Lease = 30 * time.Second })
	owner := s.acquire(request)
	beat := s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, owner, time.Hour))
	if in := s.reserve(s.request(), idempotency.InFlight); in.RetryAfter <= time.Minute {
		t.Errorf("the lease ends in %v", in.RetryAfter)
	}
	if r, err := s.Get(s.ctx, &s.key); err != nil || !r.LeaseExpires.Equal(beat.Expires) {
		t.Errorf("Get: %+v, %v; want a lease until %v", r, err, beat.Expires)
	}
	// A shorter lease does not cut it.
	s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, owner, time.Second))
	if in := s.reserve(s.request(), idempotency.InFlight); in.RetryAfter <= time.Minute {
		t.Errorf("the lease ends in %v", in.RetryAfter)
	}
}

// An owner that does not know whether its work was done ends its lease: waiting callers learn of it at once, and its
// late result still settles the key.
func endOfALease(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request())
	answers := s.waiters()
	s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, owner, idempotency.EndLease))
	for _, answer := range answers() {
		if answer.Outcome != idempotency.Unknown {
			t.Errorf("a caller that waited got %+v", answer)
		}
	}
	if r, err := s.Get(s.ctx, &s.key); err != nil || r.State != idempotency.Indeterminate {
		t.Errorf("the record is %+v, %v", r, err)
	}
	s.expect("Heartbeat", idempotency.LeaseLost)(s.Heartbeat(s.ctx, owner, time.Minute))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result("after all")))
	s.reserve(s.request(), idempotency.Replay)
}

// Where the next caller may take over, it need not wait for the rest of the lease. It gets the checkpoint, and no other
// request gets the key, however many owners end their leases.
func endOfALeaseOfATakeover(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request(takingOver))
	s.expect("Checkpoint", idempotency.OK)(s.Checkpoint(s.ctx, owner, []byte("half")))
	s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, owner, idempotency.EndLease))
	idle := s.acquire(s.request(takingOver))
	s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, idle, idempotency.EndLease))
	s.reserve(s.request(takingOver, otherRequest), idempotency.Mismatch)
	request := s.request(takingOver)
	third := s.reserve(request, idempotency.Acquired)
	if third.Attempt != 3 || string(third.Checkpoint) != "half" {
		t.Errorf("the third owner: %+v", third)
	}
	next := &idempotency.Ownership{Key: s.key, Token: third.Token, AttemptID: request.AttemptID}
	s.expect("Complete of the first", idempotency.LeaseLost)(s.Complete(s.ctx, owner, result("late")))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, next, result("done")))
}
