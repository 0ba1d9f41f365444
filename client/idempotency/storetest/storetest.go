// Package storetest has the tests that every store of package idempotency must pass.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) idempotency.Store { return idempotency.NewStore(openBackend(t)) })
//	}
//
// The tests use leases and TTLs of a second and wait until the store's clock has passed them. Each test uses its own
// keys, so one database can serve them all.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Case is one test of a store.
type Case struct {
	Name string
	Test func(t *testing.T, store idempotency.Store)
}

// Cases returns the tests. [Run] runs them; use Cases to run them in another way, for example each in a bubble of
// package synctest.
func Cases() []Case {
	return []Case{
		{"OneOwnerFinishes", oneOwnerFinishes},
		{"LostAnswers", lostAnswers},
		{"RaceForOneKey", raceForOneKey},
		{"RaceForATakeover", raceForATakeover},
		{"TokensGrow", tokensGrow},
		{"ExpiredRecordIsReplaced", expiredRecordIsReplaced},
		{"RefusalExpires", refusalExpires},
		{"PendingRecordStays", pendingRecordStays},
		{"LateCompletion", lateCompletion},
		{"LateCompletionAfterATakeover", lateCompletionAfterATakeover},
		{"LostAnswerBehindATakeover", lostAnswerBehindATakeover},
		{"HeartbeatsKeepTheLease", heartbeatsKeepTheLease},
		{"EndOfALease", endOfALease},
		{"EndOfALeaseOfATakeover", endOfALeaseOfATakeover},
		{"ReleaseFreesTheKey", releaseFreesTheKey},
		{"CheckpointReachesTheNextOwner", checkpointReachesTheNextOwner},
		{"StaleReserve", staleReserve},
		{"WaitEndsWithTheResult", waitEndsWithTheResult},
		{"WaitEndsWithTheRefusal", waitEndsWithTheRefusal},
		{"WaitEndsWithTheRelease", waitEndsWithTheRelease},
		{"WaitEndsWithItsContext", waitEndsWithItsContext},
		{"KeysAreApart", keysAreApart},
		{"LargeValues", largeValues},
		{"InvalidRequests", invalidRequests},
	}
}

// Run runs all tests in parallel, each with its own store returned by open.
func Run(t *testing.T, open func(t *testing.T) idempotency.Store) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Test(t, open(t))
		})
	}
}

// racers is how many callers race for one key.
const racers = 32

// limit bounds a test that waits for something that never happens.
const limit = time.Minute

// subject is a store with one key of a test.
type subject struct {
	*testing.T
	idempotency.Store

	ctx context.Context
	key idempotency.RecordKey
}

func newSubject(t *testing.T, store idempotency.Store) *subject {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &subject{t, store, ctx, idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "storetest"}, Namespace: t.Name()[:min(len(t.Name()), 128)],
		Key: idempotency.NewKey("storetest", 1),
	}}
}

// request returns a Reserve of a new attempt.
func (s *subject) request(change ...func(*idempotency.ReserveRequest)) *idempotency.ReserveRequest {
	r := &idempotency.ReserveRequest{
		Key: s.key, AttemptID: idempotency.NewAttemptID(), Fingerprint: idempotency.Fingerprint{Algorithm: 1},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func brief(r *idempotency.ReserveRequest)        { r.Lease, r.TTL = time.Second, time.Second }
func takingOver(r *idempotency.ReserveRequest)   { r.OnLeaseExpired = idempotency.TakeOver }
func waiting(r *idempotency.ReserveRequest)      { r.Wait = 30 * time.Second }
func otherRequest(r *idempotency.ReserveRequest) { r.Fingerprint.Digest[0]++ }

// reserve reserves and expects an outcome.
func (s *subject) reserve(r *idempotency.ReserveRequest, want idempotency.Outcome) *idempotency.Reservation {
	s.Helper()
	answer, err := s.Reserve(s.ctx, r)
	if err != nil {
		s.Fatalf("Reserve: %v", err)
	}
	if answer.Outcome != want {
		s.Fatalf("Reserve: outcome %v, want %v", answer.Outcome, want)
	}
	return answer
}

// acquire reserves the key and returns its owner.
func (s *subject) acquire(r *idempotency.ReserveRequest) *idempotency.Ownership {
	s.Helper()
	answer := s.reserve(r, idempotency.Acquired)
	if answer.Token == 0 || answer.Attempt == 0 || answer.LeaseExpires.IsZero() {
		s.Fatalf("Reserve: %+v", answer)
	}
	return &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID}
}

// expect checks the answer to an owner's call.
func (s *subject) expect(call string, want idempotency.Outcome) func(*idempotency.Answer, error) *idempotency.Answer {
	return func(answer *idempotency.Answer, err error) *idempotency.Answer {
		s.Helper()
		if err != nil {
			s.Fatalf("%s: %v", call, err)
		}
		if answer.Outcome != want {
			s.Fatalf("%s: outcome %v, want %v", call, answer.Outcome, want)
		}
		return answer
	}
}

// eventually waits for a condition that time makes true.
func (s *subject) eventually(what string, holds func() bool) {
	s.Helper()
	for !holds() {
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			s.Fatalf("waiting for %s: %v", what, s.ctx.Err())
		}
	}
}

func result(text string) idempotency.Result { return idempotency.Result{Response: []byte(text)} }

func oneOwnerFinishes(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	if _, err := s.Get(s.ctx, &s.key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get without a record: %v", err)
	}
	owner := s.acquire(s.request())
	if in := s.reserve(s.request(), idempotency.InFlight); in.RetryAfter <= 0 || in.Token != 0 || in.Record != nil {
		t.Errorf("in flight: %+v", in)
	}
	if other := s.reserve(s.request(otherRequest), idempotency.Mismatch); other.Record != nil {
		t.Errorf("another request gets %+v", other)
	}
	if r, err := s.Get(s.ctx, &s.key); err != nil || r.State != idempotency.Pending || r.Token != owner.Token {
		t.Errorf("Get: %+v, %v", r, err)
	}
	done := s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result("done")))
	if done.Expires.IsZero() {
		t.Errorf("Complete: %+v", done)
	}
	again := s.reserve(s.request(), idempotency.Replay)
	if r := again.Record; r.State != idempotency.Committed || string(r.Response) != "done" || r.ResponseSize != 4 ||
		!r.Expires.Equal(done.Expires) || r.Completed.IsZero() {
		t.Errorf("replay: %+v", r)
	}
	s.reserve(s.request(otherRequest), idempotency.Mismatch)
	s.expect("Complete again", idempotency.OK)(s.Complete(s.ctx, owner, result("done")))
	other := s.expect("Complete with another result", idempotency.AlreadyCompleted)(s.Complete(s.ctx, owner,
		result("other")))
	if string(other.Record.Response) != "done" {
		t.Errorf("the record is %+v", other.Record)
	}
	s.expect("Reject", idempotency.AlreadyCompleted)(s.Reject(s.ctx, owner, result("no")))
	for _, wrong := range []idempotency.Ownership{
		{Key: s.key, Token: owner.Token + 1, AttemptID: owner.AttemptID},
		{Key: s.key, Token: owner.Token, AttemptID: idempotency.NewAttemptID()},
	} {
		s.expect("Complete by another", idempotency.LeaseLost)(s.Complete(s.ctx, &wrong, result("done")))
		s.expect("Heartbeat by another", idempotency.LeaseLost)(s.Heartbeat(s.ctx, &wrong, 0))
	}
}

// Every call may be retried when its answer was lost.
func lostAnswers(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	request := s.request()
	owner := s.acquire(request)
	if again := s.reserve(request, idempotency.Acquired); again.Token != owner.Token || again.Attempt != 1 {
		t.Errorf("the repeat of a Reserve is %+v, want token %d", again, owner.Token)
	}
	for range 2 {
		s.expect("Checkpoint", idempotency.OK)(s.Checkpoint(s.ctx, owner, []byte("half")))
		s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, owner, time.Minute))
	}
	for range 2 {
		s.expect("Reject", idempotency.OK)(s.Reject(s.ctx, owner, result("no")))
	}
	if r := s.reserve(request, idempotency.Replay).Record; r.State != idempotency.Rejected ||
		string(r.Response) != "no" {
		t.Errorf("replay: %+v", r)
	}
	s.key.Key += "-released"
	request = s.request()
	owner = s.acquire(request)
	for range 2 {
		s.expect("Release", idempotency.OK)(s.Release(s.ctx, owner))
	}
	s.reserve(request, idempotency.LeaseLost) // a late copy owns nothing
}

// race reserves from many callers at once and returns the owners, and the results of the others.
func (s *subject) race(change ...func(*idempotency.ReserveRequest)) (owners []*idempotency.Ownership,
	others []idempotency.Outcome) {
	s.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	for range racers {
		// Ends with its Reserve; the Wait below joins it.
		group.Go(func() {
			r := s.request(change...)
			answer, err := s.Reserve(s.ctx, r)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				s.Errorf("Reserve: %v", err)
			case answer.Outcome == idempotency.Acquired:
				owners = append(owners, &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID})
			default:
				others = append(others, answer.Outcome)
			}
		})
	}
	group.Wait()
	return owners, others
}

func (s *subject) oneWinner(change ...func(*idempotency.ReserveRequest)) *idempotency.Ownership {
	s.Helper()
	owners, others := s.race(change...)
	if len(owners) != 1 || len(others) != racers-1 {
		s.Fatalf("%d owners and %v", len(owners), others)
	}
	for _, o := range others {
		if o != idempotency.InFlight {
			s.Errorf("a caller that did not win got %v", o)
		}
	}
	return owners[0]
}

func raceForOneKey(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.oneWinner()
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result("done")))
}

func raceForATakeover(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	first := s.acquire(s.request(brief, takingOver))
	s.eventually("the end of the lease", func() bool {
		r, err := s.Get(s.ctx, &s.key)
		if err != nil {
			t.Fatal(err)
		}
		// The lease of a new reservation shows the store's clock.
		probe := s.request(brief, func(r *idempotency.ReserveRequest) { r.Key.Key = idempotency.NewKey("clock", 1) })
		now, err := s.Reserve(s.ctx, probe)
		if err != nil || now.Outcome != idempotency.Acquired {
			return false
		}
		_, err = s.Release(s.ctx, &idempotency.Ownership{Key: probe.Key, Token: now.Token, AttemptID: probe.AttemptID})
		return err == nil && now.LeaseExpires.Add(-time.Second).After(r.LeaseExpires)
	})
	second := s.oneWinner(takingOver)
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	s.expect("Complete by the first", idempotency.LeaseLost)(s.Complete(s.ctx, first, result("first")))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, second, result("second")))
}

func tokensGrow(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	var last uint64
	name := s.key.Key
	for i := range 12 {
		s.key.Key = name + string(rune('a'+i%3)) // tokens are unique in the whole store, not per key
		owner := s.acquire(s.request())
		if owner.Token <= last {
			t.Errorf("token %d after %d", owner.Token, last)
		}
		last = owner.Token
		s.expect("Release", idempotency.OK)(s.Release(s.ctx, owner))
	}
}

func expiredRecordIsReplaced(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	first := s.acquire(s.request(brief))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, first, result("first")))
	s.eventually("the end of the record", func() bool {
		_, err := s.Get(s.ctx, &s.key)
		return errors.Is(err, idempotency.ErrNotFound)
	})
	second := s.oneWinner()
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	s.expect("Complete by the first", idempotency.LeaseLost)(s.Complete(s.ctx, first, result("first")))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, second, result("second")))
	if r := s.reserve(s.request(), idempotency.Replay).Record; string(r.Response) != "second" {
		t.Errorf("replay: %+v", r)
	}
}

// A refusal lasts for its own TTL; then the key is free for any request.
func refusalExpires(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request(func(r *idempotency.ReserveRequest) { r.TTL = time.Hour }))
	s.expect("Reject", idempotency.OK)(s.Reject(s.ctx, owner, idempotency.Result{Response: []byte("no"),
		TTL: time.Second}))
	s.eventually("the end of the refusal", func() bool {
		_, err := s.Get(s.ctx, &s.key)
		return errors.Is(err, idempotency.ErrNotFound)
	})
	s.oneWinner(otherRequest)
	s.reserve(s.request(), idempotency.Mismatch)
}

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

// An owner that comes back late settles the unknown outcome.
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

// Where the next caller may take over, it need not wait for the rest of the lease.
func endOfALeaseOfATakeover(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request(takingOver))
	s.expect("Heartbeat", idempotency.OK)(s.Heartbeat(s.ctx, owner, idempotency.EndLease))
	next := s.acquire(s.request(takingOver))
	s.expect("Complete of the first", idempotency.LeaseLost)(s.Complete(s.ctx, owner, result("late")))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, next, result("done")))
}

func releaseFreesTheKey(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	first := s.acquire(s.request())
	s.expect("Release", idempotency.OK)(s.Release(s.ctx, first))
	if _, err := s.Get(s.ctx, &s.key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
	s.expect("Complete", idempotency.LeaseLost)(s.Complete(s.ctx, first, result("late")))
	second := s.acquire(s.request(otherRequest)) // the key belongs to no request
	s.expect("Release by the first", idempotency.LeaseLost)(s.Release(s.ctx, first))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, second, result("second")))
}

func checkpointReachesTheNextOwner(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	first := s.acquire(s.request(brief, takingOver))
	s.expect("Checkpoint", idempotency.OK)(s.Checkpoint(s.ctx, first, []byte("a third")))
	s.expect("Checkpoint", idempotency.OK)(s.Checkpoint(s.ctx, first, []byte("half")))
	second := s.reserve(s.request(takingOver, waiting), idempotency.Acquired)
	if second.Attempt != 2 || string(second.Checkpoint) != "half" {
		t.Errorf("the next owner gets %+v", second)
	}
}

func staleReserve(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	s.reserve(s.request(func(r *idempotency.ReserveRequest) { r.ValidUntil = time.Unix(1, 0) }), idempotency.Stale)
	if _, err := s.Get(s.ctx, &s.key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
}

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

func keysAreApart(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	s.acquire(s.request())
	key := s.key
	for name, change := range map[string]func(*idempotency.RecordKey){
		"vault":     func(k *idempotency.RecordKey) { k.Scope.Vault = "other" },
		"namespace": func(k *idempotency.RecordKey) { k.Namespace += "x" },
		"principal": func(k *idempotency.RecordKey) { k.Principal = "other" },
		"key":       func(k *idempotency.RecordKey) { k.Key += "x" },
		"shifted":   func(k *idempotency.RecordKey) { k.Principal, k.Key = "p", "p"+k.Key },
	} {
		s.key = key
		change(&s.key)
		s.Logf("another %s", name)
		s.acquire(s.request(otherRequest))
	}
}

func largeValues(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.acquire(s.request())
	checkpoint := bytes.Repeat([]byte("c"), idempotency.MaxCheckpoint)
	s.expect("Checkpoint", idempotency.OK)(s.Checkpoint(s.ctx, owner, checkpoint))
	if r, err := s.Get(s.ctx, &s.key); err != nil || !bytes.Equal(r.Checkpoint, checkpoint) {
		t.Errorf("the checkpoint did not come back: %v", err)
	}
	response := bytes.Repeat([]byte("r"), idempotency.MaxResponse)
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, idempotency.Result{Response: response}))
	if r := s.reserve(s.request(), idempotency.Replay).Record; !bytes.Equal(r.Response, response) {
		t.Errorf("the response came back with %d bytes", len(r.Response))
	}
}

func invalidRequests(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	for name, change := range map[string]func(*idempotency.ReserveRequest){
		"no key":         func(r *idempotency.ReserveRequest) { r.Key.Key = "" },
		"a long key":     func(r *idempotency.ReserveRequest) { r.Key.Key = strings.Repeat("k", idempotency.MaxKey+1) },
		"a key's space":  func(r *idempotency.ReserveRequest) { r.Key.Key = "a b" },
		"long namespace": func(r *idempotency.ReserveRequest) { r.Key.Namespace = strings.Repeat("n", 129) },
		"long principal": func(r *idempotency.ReserveRequest) { r.Key.Principal = strings.Repeat("p", 513) },
		"no attempt":     func(r *idempotency.ReserveRequest) { r.AttemptID = idempotency.AttemptID{} },
		"short lease":    func(r *idempotency.ReserveRequest) { r.Lease = time.Millisecond },
		"long lease":     func(r *idempotency.ReserveRequest) { r.Lease = 25 * time.Hour },
		"short TTL":      func(r *idempotency.ReserveRequest) { r.TTL = -1 },
		"long wait":      func(r *idempotency.ReserveRequest) { r.Wait = time.Hour },
		"policy":         func(r *idempotency.ReserveRequest) { r.OnLeaseExpired = 9 },
	} {
		if answer, err := s.Reserve(s.ctx, s.request(change)); !isInvalid(err) {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
	owner := s.acquire(s.request())
	if _, err := s.Complete(s.ctx, owner, idempotency.Result{Response: make([]byte,
		idempotency.MaxResponse+1)}); !isInvalid(err) {
		t.Errorf("a long response: %v", err)
	}
	if _, err := s.Checkpoint(s.ctx, owner, make([]byte, idempotency.MaxCheckpoint+1)); !isInvalid(err) {
		t.Errorf("a long checkpoint: %v", err)
	}
	if _, err := s.Complete(s.ctx, &idempotency.Ownership{Key: s.key, AttemptID: owner.AttemptID},
		result("")); !isInvalid(err) {
		t.Errorf("no token: %v", err)
	}
	if _, err := s.Get(s.ctx, &idempotency.RecordKey{}); !isInvalid(err) {
		t.Errorf("Get without a key: %v", err)
	}
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result("done")))
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*idempotency.InvalidError](err)
	return ok
}
