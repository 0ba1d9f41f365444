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

// RunQuota checks a store whose principals may have two open keys each. A key is open until it has a result. Keys are
// counted per principal and scope. No other test may use the organization acme of the store. At the end bob has two
// open keys and a released one: see [BobsKey].
func RunQuota(t *testing.T, s idempotency.Resolver) {
	t.Helper()
	released := own(t, s, BobsKey("released"))
	answer, err := s.Release(t.Context(), released)
	must(t, answer, err)
	one, two := own(t, s, BobsKey("one")), own(t, s, BobsKey("two"))
	over(t, s, BobsKey("three"))
	over(t, s, BobsKey("released")) // it still has a record, and was not counted
	// A key that is already counted is not blocked.
	answer, err = s.Heartbeat(t.Context(), one, time.Minute)
	must(t, answer, err)
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: two.Key, AttemptID: two.AttemptID})
	if err != nil || r.Token != two.Token {
		t.Errorf("%+v, %v", r, err)
	}
	// Other principals and scopes are counted separately.
	anonymous := BobsKey("one")
	anonymous.Principal = ""
	own(t, s, anonymous)
	elsewhere := BobsKey("one")
	elsewhere.Scope.Vault = "other"
	own(t, s, elsewhere)
	// A result frees a place; an unknown outcome does not.
	answer, err = s.Complete(t.Context(), one, idempotency.Result{})
	must(t, answer, err)
	answer, err = s.Heartbeat(t.Context(), two, idempotency.EndLease)
	must(t, answer, err)
	own(t, s, BobsKey("three"))
	over(t, s, BobsKey("four"))
	unknown := &idempotency.ReserveRequest{Key: two.Key, AttemptID: idempotency.NewAttemptID()}
	if r, err = s.Reserve(t.Context(), unknown); err != nil || r.Outcome != idempotency.Unknown {
		t.Fatalf("%+v, %v", r, err) // this stores the unknown outcome
	}
	over(t, s, BobsKey("four"))
	answer, err = s.Resolve(t.Context(), &two.Key, idempotency.Committed, idempotency.Result{})
	must(t, answer, err)
	own(t, s, BobsKey("four"))
	over(t, s, BobsKey("five"))
	// A released key frees a place, too.
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
