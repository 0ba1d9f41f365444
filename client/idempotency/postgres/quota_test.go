package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
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
