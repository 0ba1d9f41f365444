package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/client/idempotency/storetest"
	"github.com/seqledger/seqledger/internal/servertest"
)

// over fails the test unless the quota refuses a key.
func over(t *testing.T, s idempotency.Store, key idempotency.RecordKey) {
	t.Helper()
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID()})
	if _, quota := errors.AsType[*idempotency.QuotaError](err); !quota {
		t.Fatalf("%s: want a refusal by the quota, got %+v, %v", key.Key, r, err)
	}
}

// Keys without a result count, those of each principal in each scope by themselves, until they have one.
func TestQuota(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL+"&max_open=2", postgres.Options{})
	of := func(principal, text string) idempotency.RecordKey {
		k := key(text)
		k.Principal = principal
		return k
	}
	released := reserve(t, s, of("bob", "released"))
	answer, err := s.Release(t.Context(), released)
	must(t, answer, err)
	one, two := reserve(t, s, of("bob", "one")), reserve(t, s, of("bob", "two"))
	over(t, s, of("bob", "three"))
	over(t, s, of("bob", "released")) // its row is there, and was not counted
	// What is counted already goes on.
	answer, err = s.Heartbeat(t.Context(), one, time.Minute)
	must(t, answer, err)
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: two.Key, AttemptID: two.AttemptID})
	if err != nil || r.Token != two.Token {
		t.Errorf("%+v, %v", r, err)
	}
	// Others do not count.
	reserve(t, s, of("", "one"))
	elsewhere := of("bob", "one")
	elsewhere.Scope.Vault = "other"
	reserve(t, s, elsewhere)
	// A result makes room, and an unknown outcome does not.
	answer, err = s.Complete(t.Context(), one, idempotency.Result{})
	must(t, answer, err)
	answer, err = s.Heartbeat(t.Context(), two, idempotency.EndLease)
	must(t, answer, err)
	reserve(t, s, of("bob", "three"))
	over(t, s, of("bob", "four"))
	answer, err = s.Resolve(t.Context(), &two.Key, idempotency.Committed, idempotency.Result{})
	must(t, answer, err)
	reserve(t, s, of("bob", "four"))
	over(t, s, of("bob", "five"))
	// In the caller's transaction no key stays open.
	if err := pgx.BeginFunc(t.Context(), connect(t, server.URL), func(tx pgx.Tx) error {
		_, err := idempotency.Do(t.Context(), s.WithTx(tx), of("bob", "five"), succeed)
		return err
	}); err != nil {
		t.Error(err)
	}
}

// The suite over a store that counts, and counts nothing too many.
func TestSuiteWithQuota(t *testing.T) {
	t.Parallel()
	shared := open(t, servertest.Postgres(t).URL, postgres.Options{MaxOpen: 1_000_000})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

func TestQuotaMistakes(t *testing.T) {
	t.Parallel()
	url := servertest.Postgres(t).URL
	if err := postgres.Init(t.Context(), url+"&max_open=7"); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"many", "-1", ""} {
		if _, err := postgres.Open(t.Context(), url+"&max_open="+wrong, postgres.Options{}); err == nil ||
			!strings.Contains(strings.ToLower(strings.ReplaceAll(err.Error(), "_", "")), "maxopen") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
