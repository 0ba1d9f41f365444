package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// A reservation that arrives late creates no owner; its token would be lower than that of a later owner.
func TestLateSwap(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	p := storefaults.Start(t, server.Address)
	direct := open(t, server.URL, postgres.Options{CleanupInterval: -1})
	// The pool has one connection, whose messages are counted.
	behind := open(t, strings.Replace(server.URL, server.Address, p.Address, 1)+"&pool_max_conns=1",
		postgres.Options{CleanupInterval: -1})
	pool := connect(t, server.URL)
	storefaults.LateSwap(t, p, behind, direct, func() {
		if _, err := pool.Exec(t.Context(), "DELETE FROM idempotency_records"); err != nil {
			t.Error(err)
		}
	}, func() (now time.Time) {
		check.Is(t, pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now), nil)
		return now
	})
}

// An insert that waits for another transaction is late according to the clock when the wait ends, not when it begins.
func TestLateBehindATransaction(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL, postgres.Options{CleanupInterval: -1})
	pool := connect(t, server.URL)
	tx := must.Get(pool.Begin(t.Context()))(t)
	request := &idempotency.ReserveRequest{Key: key("k"), AttemptID: idempotency.NewAttemptID()}
	must.Get(s.WithTx(tx).Reserve(t.Context(), request))(t)
	late := &idempotency.ReserveRequest{
		Key: key("k"), AttemptID: idempotency.NewAttemptID(), ValidUntil: time.Now().Add(time.Second),
	}
	var group errgroup.Group
	group.Go(func() error {
		r, err := s.Reserve(t.Context(), late)
		if err == nil && r.Outcome != idempotency.Stale {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	const waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
	for n := 0; n == 0 || !time.Now().After(late.ValidUntil); {
		must.Do(t, pool.QueryRow(t.Context(), waits).Scan(&n))
	}
	must.Do(t, tx.Rollback(t.Context()))
	must.Do(t, group.Wait())
}

// A result is visible although its caller canceled the wait for a standby. A retry is acknowledged only when a standby
// has the result.
func TestRepeatWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, "synchronous_standby_names=away")
	local := open(t, server.URL+"&synchronous_commit=local", postgres.Options{CleanupInterval: -1})
	r := &idempotency.ReserveRequest{Key: key("k"), AttemptID: idempotency.NewAttemptID()}
	answer := must.Get(local.Reserve(t.Context(), r))(t)
	owner := &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID}
	pool := connect(t, server.URL)
	briefly := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return do(ctx)
	}
	for briefly(func(ctx context.Context) error { // just after its start the server does not wait yet
		_, err := pool.Exec(ctx, "CREATE TABLE probe (); DROP TABLE probe", pgx.QueryExecModeSimpleProtocol)
		return err
	}) == nil {
	}
	s := must.Get(postgres.Open(t.Context(), server.URL, postgres.Options{CleanupInterval: -1}))(t)
	t.Cleanup(func() { _ = s.Close() })
	complete := func(s idempotency.Store) error {
		return briefly(func(ctx context.Context) error {
			answer, err := s.Complete(ctx, owner, idempotency.Result{Response: []byte("done")})
			if err == nil && answer.Outcome != idempotency.OK {
				t.Errorf("%+v", answer)
			}
			return err
		})
	}
	if complete(s) == nil {
		t.Fatal("a result that no standby has is acknowledged")
	}
	for state := idempotency.Pending; state != idempotency.Committed; {
		// The server abandons the wait when it learns that the client has.
		got := must.Get(local.Get(t.Context(), &r.Key))(t)
		state = got.State
	}
	if complete(s) == nil {
		t.Error("the repeat is told that it is stored")
	}
	for complete(local) != nil && t.Context().Err() == nil { // this requires no standby
	}
}
