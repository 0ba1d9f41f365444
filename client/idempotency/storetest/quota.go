package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// over fails the test unless the quota refuses a key.
func over(t *testing.T, s idempotency.Store, key idempotency.RecordKey) {
	t.Helper()
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID()})
	if _, quota := errors.AsType[*idempotency.QuotaError](err); !quota {
		t.Fatalf("%s: want a refusal by the quota, got %+v, %v", key.Key, r, err)
	}
}

// RunQuota checks a store whose principals may have two open keys each: keys without a result count, those of each
// principal in each scope by themselves, until they have one. No other test may use the organization acme of the
// store. bob has two keys that are open and one that was released at the end: see [BobsKey].
func RunQuota(t *testing.T, s idempotency.Resolver) {
	t.Helper()
	released := own(t, s, BobsKey("released"))
	answer, err := s.Release(t.Context(), released)
	must(t, answer, err)
	one, two := own(t, s, BobsKey("one")), own(t, s, BobsKey("two"))
	over(t, s, BobsKey("three"))
	over(t, s, BobsKey("released")) // its record is there, and was not counted
	// What is counted already goes on.
	answer, err = s.Heartbeat(t.Context(), one, time.Minute)
	must(t, answer, err)
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: two.Key, AttemptID: two.AttemptID})
	if err != nil || r.Token != two.Token {
		t.Errorf("%+v, %v", r, err)
	}
	// Others do not count.
	anonymous := BobsKey("one")
	anonymous.Principal = ""
	own(t, s, anonymous)
	elsewhere := BobsKey("one")
	elsewhere.Scope.Vault = "other"
	own(t, s, elsewhere)
	// A result makes room, and an unknown outcome does not.
	answer, err = s.Complete(t.Context(), one, idempotency.Result{})
	must(t, answer, err)
	answer, err = s.Heartbeat(t.Context(), two, idempotency.EndLease)
	must(t, answer, err)
	own(t, s, BobsKey("three"))
	over(t, s, BobsKey("four"))
	unknown := &idempotency.ReserveRequest{Key: two.Key, AttemptID: idempotency.NewAttemptID()}
	if r, err = s.Reserve(t.Context(), unknown); err != nil || r.Outcome != idempotency.Unknown {
		t.Fatalf("%+v, %v", r, err) // which stores the unknown outcome
	}
	over(t, s, BobsKey("four"))
	answer, err = s.Resolve(t.Context(), &two.Key, idempotency.Committed, idempotency.Result{})
	must(t, answer, err)
	own(t, s, BobsKey("four"))
	over(t, s, BobsKey("five"))
	// A released key makes room, too.
	six := BobsKey("six")
	six.Principal = "carol"
	for range 3 {
		answer, err = s.Release(t.Context(), own(t, s, six))
		must(t, answer, err)
	}
}

// BobsKey returns a key of the principal whose keys [RunQuota] counts.
func BobsKey(text string) idempotency.RecordKey {
	return idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme"}, Namespace: "test", Principal: "bob", Key: text,
	}
}
