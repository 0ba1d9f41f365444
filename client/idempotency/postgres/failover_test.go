package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// failOver returns a store whose address has moved from a server that became read-only, with idle connections to that,
// and a store at the other server.
func failOver(t *testing.T) (moved, direct *postgres.Store, pool *pgxpool.Pool) {
	t.Helper()
	old, next := servertest.Postgres(t), servertest.Postgres(t)
	p := storefaults.Start(t, old.Address)
	open(t, old.URL, postgres.Options{CleanupInterval: -1})
	direct = open(t, next.URL, postgres.Options{CleanupInterval: -1})
	pool = connect(t, strings.Replace(old.URL, old.Address, p.Address, 1)+"&pool_max_conns=8")
	moved = must.Get(postgres.New(t.Context(), pool, postgres.Options{CleanupInterval: -1}))(t)
	t.Cleanup(func() { _ = moved.Close() })
	fill(t, pool, 8)
	storefaults.FailOver(t, p, old, next)
	return moved, direct, pool
}

// No call fails when the address of a server moves: the connections to the old one, which is read-only, are left.
func TestFailOver(t *testing.T) {
	t.Parallel()
	moved, direct, _ := failOver(t)
	var calls sync.WaitGroup
	for i := range 16 {
		// Ends with its call; the Wait below joins it.
		calls.Go(func() {
			k := key(fmt.Sprint(i))
			if _, err := idempotency.Do(t.Context(), moved, k, succeed); err != nil {
				t.Error(err)
			}
			if done, err := idempotency.Do(t.Context(), direct, k, succeed); err != nil || !done.Replayed {
				t.Errorf("the new server: %+v, %v", done, err)
			}
		})
	}
	calls.Wait()
}

// A transaction of the caller stays where it is, and fails; the next one is on the new server.
func TestFailOverOfTransactions(t *testing.T) {
	t.Parallel()
	moved, direct, pool := failOver(t)
	reserve := func(k string) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := moved.WithTx(tx).Reserve(t.Context(), &idempotency.ReserveRequest{
				Key: key(k), AttemptID: idempotency.NewAttemptID(),
			})
			return err
		})
	}
	if err := reserve("old"); err == nil {
		t.Error("a server that is read-only took a reservation")
	}
	must.Do(t, reserve("new"))
	k := key("new")
	must.Get(direct.Get(t.Context(), &k))(t)
}

// Each new connection is checked, not only those at the start.
func TestRoleThatLosesItsPrivileges(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	open(t, server.URL, postgres.Options{CleanupInterval: -1})
	owner := connect(t, server.URL)
	execute := func(statement string) {
		t.Helper()
		must.Get(owner.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol))(t)
	}
	execute("CREATE ROLE app LOGIN; " + postgres.Privileges("app"))
	url := strings.Replace(server.URL, "test@", "app@", 1)
	s := openAs(t, url)
	for _, privilege := range []string{
		"SELECT ON idempotency_records", "UPDATE ON idempotency_records", "USAGE ON SEQUENCE idempotency_tokens",
	} {
		execute("REVOKE " + privilege + " FROM app")
		execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
		name, _, _ := strings.Cut(privilege, " ")
		k := key(name)
		// Also for a call that would not need it: the next one would.
		_, err := s.Get(t.Context(), &k)
		if !errors.Is(err, idempotency.ErrRefused) || !strings.Contains(err.Error(), "the role lacks") ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", privilege, err)
		}
		if other, err := postgres.Open(t.Context(), url, postgres.Options{CleanupInterval: -1}); err == nil {
			_ = other.Close()
			t.Errorf("a store without %s was opened", privilege)
		}
		execute("GRANT " + privilege + " TO app")
		must.Do(t, check.Err(idempotency.Do(t.Context(), s, k, succeed)), "with %s again", privilege)
	}
}

// openAs opens a store whose table is there. It deletes, too, so that the role needs the privilege.
func openAs(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s := must.Get(postgres.Open(t.Context(), url, postgres.Options{}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// fill makes a pool have so many connections, which are idle.
func fill(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	for range n {
		conn := must.Get(pool.Acquire(t.Context()))(t)
		defer conn.Release()
	}
}
