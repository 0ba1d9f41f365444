package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// Keys without a result count. In the caller's transaction no key stays open.
func TestQuota(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL+"&max_open=2", postgres.Options{})
	storetest.RunQuota(t, s)
	must.Do(t, pgx.BeginFunc(t.Context(), connect(t, server.URL), func(tx pgx.Tx) error {
		_, err := idempotency.Do(t.Context(), s.WithTx(tx), storetest.BobsKey("five"), succeed)
		return err
	}))
}

// The suite on a store with a quota, which must not count too many keys.
func TestSuiteWithQuota(t *testing.T) {
	t.Parallel()
	shared := open(t, servertest.Postgres(t).URL, postgres.Options{MaxOpen: 1_000_000})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

func TestQuotaMistakes(t *testing.T) {
	t.Parallel()
	url := servertest.Postgres(t).URL
	must.Do(t, postgres.Init(t.Context(), url+"&max_open=7"))
	for _, wrong := range []string{"many", "-1", ""} {
		if _, err := postgres.Open(t.Context(), url+"&max_open="+wrong, postgres.Options{}); err == nil ||
			!strings.Contains(strings.ToLower(strings.ReplaceAll(err.Error(), "_", "")), "maxopen") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// A key that is remembered for longer than its outcome is open counts for no longer than that.
func TestQuotaOfRemembered(t *testing.T) {
	t.Parallel()
	url := servertest.Database(t)
	s := open(t, url+"&max_open=1", postgres.Options{})
	reserve := func(key string) (*idempotency.Reservation, error) {
		return s.Reserve(t.Context(), &idempotency.ReserveRequest{
			Key: storetest.BobsKey(key), AttemptID: idempotency.NewAttemptID(), ForgetAfter: idempotency.Never,
		})
	}
	must.Get(reserve("one"))(t)
	if r, err := reserve("two"); !errors.Is(err, idempotency.ErrOpenKeys) {
		t.Fatalf("%+v, %v", r, err)
	}
	// As if its owner had vanished two months ago.
	conn := connect(t, url)
	var stored []byte
	must.Do(t, conn.QueryRow(t.Context(), "SELECT record FROM idempotency_records").Scan(&stored))
	record := must.Get(keyed.Decode(stored))(t)
	record.LeaseEnd -= int64(60 * 24 * time.Hour)
	_ = must.Get(conn.Exec(t.Context(), "UPDATE idempotency_records SET record = $1", record.Append(nil)))(t)
	if r, err := reserve("two"); err != nil || r.Outcome != idempotency.Acquired {
		t.Errorf("%+v, %v", r, err)
	}
}
