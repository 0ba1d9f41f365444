// Package storetest has the tests that every store of package idempotency must pass. The package of the same name in
// client/idempotency gives them to authors of other stores.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
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
func Cases() []Case { return slices.Concat(prompt, waits) }

// prompt are the tests that wait for no time to pass.
var prompt = []Case{
	{"OneOwnerFinishes", oneOwnerFinishes},
	{"LostAnswers", lostAnswers},
	{"RaceForOneKey", raceForOneKey},
	{"TokensGrow", tokensGrow},
	{"HeartbeatsKeepTheLease", heartbeatsKeepTheLease},
	{"EndOfALease", endOfALease},
	{"EndOfALeaseOfATakeover", endOfALeaseOfATakeover},
	{"ReleaseFreesTheKey", releaseFreesTheKey},
	{"StaleReserve", staleReserve},
	{"WaitEndsWithTheResult", waitEndsWithTheResult},
	{"WaitEndsWithTheRefusal", waitEndsWithTheRefusal},
	{"WaitEndsWithTheRelease", waitEndsWithTheRelease},
	{"WaitEndsWithItsContext", waitEndsWithItsContext},
	{"KeysAreApart", keysAreApart},
	{"LargeValues", largeValues},
	{"InvalidRequests", invalidRequests},
}

// waits are the tests that wait for a second, the shortest lease and TTL.
var waits = []Case{
	{"RaceForATakeover", raceForATakeover},
	{"ExpiredRecordIsReplaced", expiredRecordIsReplaced},
	{"RefusalExpires", refusalExpires},
	{"ExpiredNotForgotten", expiredNotForgotten},
	{"PendingRecordStays", pendingRecordStays},
	{"LateCompletion", lateCompletion},
	{"LateCompletionAfterATakeover", lateCompletionAfterATakeover},
	{"LostAnswerBehindATakeover", lostAnswerBehindATakeover},
	{"CheckpointReachesTheNextOwner", checkpointReachesTheNextOwner},
	{"RetryAfterIsOfTheAnswer", retryAfterIsOfTheAnswer},
}

// Run runs all tests in parallel, each with its own store returned by open.
func Run(t *testing.T, open func(t *testing.T) idempotency.Store) {
	t.Helper()
	for _, c := range prompt {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Test(t, open(t))
		})
	}
	// Together they count as one parallel test, because they need no processor.
	t.Run("Waits", func(t *testing.T) {
		t.Parallel()
		var running sync.WaitGroup
		for _, c := range waits {
			// Ends with its test; the Wait below joins it.
			running.Go(func() { t.Run(c.Name, func(t *testing.T) { c.Test(t, open(t)) }) })
		}
		running.Wait()
	})
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
func otherWay(r *idempotency.ReserveRequest)     { r.Fingerprint.Algorithm++ }

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
	if other := s.reserve(s.request(otherRequest), idempotency.Mismatch); other.Record != nil ||
		other.Incomparable {
		t.Errorf("another request gets %+v", other)
	}
	if other := s.reserve(s.request(otherWay), idempotency.Mismatch); !other.Incomparable || other.Record != nil {
		t.Errorf("a request with a fingerprint of another kind gets %+v", other)
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

// A key that is to be remembered for longer than its result never runs again, and shows nothing of the result.
func expiredNotForgotten(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	remembered := func(r *idempotency.ReserveRequest) { r.ForgetAfter = time.Hour }
	owner := s.acquire(s.request(brief, remembered))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result(strings.Repeat("first", 500))))
	before := s.reserve(s.request(), idempotency.Replay).Record
	if until := before.Forgotten.Sub(before.Completed); until != time.Hour {
		t.Errorf("the key is forgotten %v after its work has ended", until)
	}
	s.eventually("the end of the result", func() bool {
		r, err := s.Get(s.ctx, &s.key)
		return err == nil && r.State == idempotency.Expired
	})
	for range 2 { // the first one may drop the result
		r := s.reserve(s.request(), idempotency.ResultExpired).Record
		if r == nil || r.State != idempotency.Expired || len(r.Response) > 0 || r.ResponseSize > 0 ||
			!r.Forgotten.Equal(before.Forgotten) {
			t.Errorf("what has expired: %+v", r)
		}
	}
	s.reserve(s.request(otherRequest), idempotency.Mismatch)
	s.expect("Complete by the owner", idempotency.LeaseLost)(s.Complete(s.ctx, owner, result("late")))
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
		"forgotten before its result": func(r *idempotency.ReserveRequest) {
			r.TTL, r.ForgetAfter = time.Hour, time.Minute
		},
		"long wait": func(r *idempotency.ReserveRequest) { r.Wait = time.Hour },
		// A store would have to bound it anew for each copy.
		"valid for hours":     func(r *idempotency.ReserveRequest) { r.ValidUntil = time.Now().Add(3 * time.Hour) },
		"valid for centuries": func(r *idempotency.ReserveRequest) { r.ValidUntil = time.Now().Add(1<<63 - 1) },
		"policy":              func(r *idempotency.ReserveRequest) { r.OnLeaseExpired = 9 },
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
