package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// open creates the table and opens a store.
func open(t testing.TB, url string, o postgres.Options) *postgres.Store {
	t.Helper()
	must.Do(t, postgres.Init(t.Context(), url))
	s := must.Get(postgres.Open(t.Context(), url, o))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool := must.Get(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(pool.Close)
	return pool
}

func key(text string) idempotency.RecordKey {
	return idempotency.RecordKey{Scope: idempotency.Scope{Organization: "acme"}, Namespace: "test", Key: text}
}

// The suite on a server: directly, within transactions, and under the strictest isolation.
func TestSuite(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	t.Run("Store", func(t *testing.T) {
		t.Parallel()
		shared := open(t, server.URL, postgres.Options{CleanupInterval: 100 * time.Millisecond})
		storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
	})
	t.Run("Transactions", func(t *testing.T) {
		t.Parallel()
		shared := open(t, server.URL, postgres.Options{CleanupInterval: -1})
		pool := connect(t, server.URL+"&pool_max_conns=150") // a waiting caller keeps its connection
		storetest.Run(t, func(*testing.T) idempotency.Store { return &eachInTx{shared, pool} })
	})
	t.Run("Serializable", func(t *testing.T) {
		t.Parallel()
		shared := open(t, server.URL+"&default_transaction_isolation=serializable", postgres.Options{})
		storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
	})
}

// PgBouncer hands each statement to another connection.
func TestSuiteBehindPgBouncer(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	bouncer := servertest.PgBouncer(t, server)
	for name, o := range map[string]postgres.Options{
		"Polling": {}, "ListenURL": {ListenURL: server.URL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shared := open(t, bouncer.URL, o)
			storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
		})
	}
}

// eachInTx runs each call in its own transaction.
type eachInTx struct {
	store *postgres.Store
	pool  *pgxpool.Pool
}

func inTx[T any](ctx context.Context, s *eachInTx, call func(idempotency.Store) (T, error)) (result T, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		result, err = call(s.store.WithTx(tx))
		return err
	})
	return result, err
}

func (s *eachInTx) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	return inTx(ctx, s, func(store idempotency.Store) (*idempotency.Reservation, error) {
		return store.Reserve(ctx, r)
	})
}

func (s *eachInTx) answer(
	ctx context.Context, call func(idempotency.Store) (*idempotency.Answer, error),
) (*idempotency.Answer, error) {
	return inTx(ctx, s, call)
}

func (s *eachInTx) Complete(
	ctx context.Context, o *idempotency.Ownership, r idempotency.Result,
) (*idempotency.Answer, error) {
	return s.answer(ctx, func(store idempotency.Store) (*idempotency.Answer, error) {
		return store.Complete(ctx, o, r)
	})
}

func (s *eachInTx) Reject(
	ctx context.Context, o *idempotency.Ownership, r idempotency.Result,
) (*idempotency.Answer, error) {
	return s.answer(ctx, func(store idempotency.Store) (*idempotency.Answer, error) { return store.Reject(ctx, o, r) })
}

func (s *eachInTx) Release(ctx context.Context, o *idempotency.Ownership) (*idempotency.Answer, error) {
	return s.answer(ctx, func(store idempotency.Store) (*idempotency.Answer, error) { return store.Release(ctx, o) })
}

func (s *eachInTx) Heartbeat(
	ctx context.Context, o *idempotency.Ownership, lease time.Duration,
) (*idempotency.Answer, error) {
	return s.answer(ctx, func(store idempotency.Store) (*idempotency.Answer, error) {
		return store.Heartbeat(ctx, o, lease)
	})
}

func (s *eachInTx) Checkpoint(
	ctx context.Context, o *idempotency.Ownership, data []byte,
) (*idempotency.Answer, error) {
	return s.answer(ctx, func(store idempotency.Store) (*idempotency.Answer, error) {
		return store.Checkpoint(ctx, o, data)
	})
}

func (s *eachInTx) Get(ctx context.Context, k *idempotency.RecordKey) (*idempotency.Record, error) {
	return inTx(ctx, s, func(store idempotency.Store) (*idempotency.Record, error) { return store.Get(ctx, k) })
}

// A server that loses acknowledged writes is refused.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings   []string
		init       bool
		then, want string
	}{
		"no table":           {want: "store init"},
		"fsync":              {[]string{"fsync=off"}, true, "", "fsync off"},
		"synchronous_commit": {[]string{"synchronous_commit=off"}, true, "", "synchronous_commit off"},
		"unlogged":           {nil, true, "ALTER TABLE idempotency_records SET UNLOGGED", "is unlogged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Postgres(t, c.settings...)
			if c.init {
				must.Do(t, postgres.Init(t.Context(), server.URL))
				must.Get(connect(t, server.URL).Exec(t.Context(), c.then))(t)
			}
			s, err := postgres.Open(t.Context(), server.URL, postgres.Options{})
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the server is taken: %v", err)
			}
		})
	}
}

// Every gateway of a deployment may start with store init.
func TestInitAtTheSameTime(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	pool := connect(t, server.URL)
	for range 4 {
		var group errgroup.Group
		for range 16 {
			group.Go(func() error { return postgres.Init(t.Context(), server.URL) })
		}
		must.Do(t, group.Wait())
		const drop = "DROP TABLE idempotency_records; DROP SEQUENCE idempotency_tokens"
		must.Get(pool.Exec(t.Context(), drop))(t)
	}
}

func succeed(context.Context, *idempotency.Owner) ([]byte, error) { return []byte("done"), nil }

// A row describes its record for people, but does not contain the key.
func TestDescription(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL, postgres.Options{})
	k := key("order-4711")
	k.Principal = "p\x00"
	must.Get(idempotency.Do(t.Context(), s, k, succeed))(t)
	var organization, namespace, principal string
	var state int
	var found bool
	must.Do(t, connect(t, server.URL).QueryRow(t.Context(), `SELECT organization, namespace, principal, state,
		key_hash = sha256('order-4711') FROM idempotency_records`).Scan(&organization, &namespace, &principal, &state,
		&found))
	if organization != "acme" || namespace != "test" || principal != "p\uFFFD" || state != 3 || !found {
		t.Errorf("%q %q %q %d %v", organization, namespace, principal, state, found)
	}
}

// Cleanup deletes everything that may be deleted, and nothing else.
func TestCleanup(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL, postgres.Options{CleanupInterval: 10 * time.Millisecond})
	must.Get(idempotency.Do(t.Context(), s, key("live"), succeed))(t)
	pool := connect(t, server.URL)
	must.Get(pool.Exec(t.Context(), `INSERT INTO idempotency_records
		(key, version, record, keep_until, organization, vault, namespace, principal, key_hash)
		SELECT sha256(n::text::bytea), n, '\x0103', clock_timestamp() - interval '2 minutes', '', '', '', '', ''
		FROM generate_series(1, 2500) AS n`))(t)
	for left := 0; left != 1; {
		must.Do(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM idempotency_records").Scan(&left))
	}
	check.Equal(t, must.Get(s.Get(t.Context(), new(key("live"))))(t).State, idempotency.Committed,
		"the record that must stay is %+v")
}

var errNo = errors.New("no")

// Reservation, effect and result commit together or not at all.
func TestWithTx(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL, postgres.Options{})
	pool := connect(t, server.URL)
	must.Get(pool.Exec(t.Context(), "CREATE TABLE effects (n int)"))(t)
	effects := func() (n int) {
		t.Helper()
		must.Do(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&n))
		return n
	}
	// Heartbeats arrive while the work uses the transaction.
	settings := idempotency.Settings{Lease: time.Second}
	work := func(ctx context.Context, after error) (done *idempotency.Done, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			done, err = idempotency.DoOptions{Settings: settings}.Do(ctx, s.WithTx(tx), key("k"),
				func(ctx context.Context, _ *idempotency.Owner) ([]byte, error) {
					_, err := tx.Exec(ctx, "INSERT INTO effects SELECT 1 FROM pg_sleep(1.2)")
					return []byte("done"), errors.Join(err, after)
				})
			return err
		})
		return done, err
	}
	if _, err := work(t.Context(), errNo); !errors.Is(err, errNo) || effects() != 0 {
		t.Fatalf("a transaction that failed: %v, %d effects", err, effects())
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	replayed := 0
	for range 8 {
		group.Go(func() {
			done, err := work(t.Context(), nil)
			if err != nil || string(done.Response) != "done" {
				t.Errorf("%+v, %v", done, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if done.Replayed {
				replayed++
			}
		})
	}
	group.Wait()
	if effects() != 1 || replayed != 7 {
		t.Errorf("%d effects, %d replays", effects(), replayed)
	}
	// The result is visible outside the transaction, too.
	done, err := idempotency.Do(t.Context(), s, key("k"), succeed)
	if err != nil || !done.Replayed {
		t.Errorf("%+v, %v", done, err)
	}
}

// A transaction under repeatable read that lost a race fails as a whole, and its retry gets the result.
func TestWithTxRepeatableRead(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL, postgres.Options{})
	pool := connect(t, server.URL)
	attempt := func() (done *idempotency.Done, err error) {
		err = pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SELECT 1 FROM idempotency_records"); err != nil { // takes the snapshot
				return err
			}
			if done == nil {
				_, err := idempotency.Do(t.Context(), s, key("k"), succeed)
				if err != nil {
					return err
				}
			}
			done, err = idempotency.Do(t.Context(), s.WithTx(tx), key("k"), succeed)
			return err
		})
		return done, err
	}
	if done, err := attempt(); err == nil {
		t.Errorf("the transaction that lost has %+v", done)
	}
	if done, err := attempt(); err != nil || !done.Replayed {
		t.Errorf("its repeat has %+v, %v", done, err)
	}
}

// What was acknowledged survives kill -9 of the server, and the store continues.
func TestKill(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL, postgres.Options{})
	request := &idempotency.ReserveRequest{Key: key("pending"), AttemptID: idempotency.NewAttemptID()}
	pending, err := s.Reserve(t.Context(), request)
	must.Do(t, err)
	must.Get(idempotency.Do(t.Context(), s, key("done"), succeed))(t)
	server.Kill()
	for err == nil { // the server's children exit a moment later
		_, err = s.Get(t.Context(), new(key("done")))
	}
	if errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get without a server: %v", err)
	}
	server.Start()
	done, err := idempotency.Do(t.Context(), s, key("done"), succeed)
	if err != nil || !done.Replayed {
		t.Errorf("%+v, %v", done, err)
	}
	again, err := s.Reserve(t.Context(), request)
	if err != nil || again.Outcome != idempotency.Acquired || again.Token != pending.Token {
		t.Errorf("%+v, %v; want token %d", again, err, pending.Token)
	}
	request = &idempotency.ReserveRequest{Key: key("new"), AttemptID: idempotency.NewAttemptID()}
	later, err := s.Reserve(t.Context(), request)
	if err != nil || later.Token <= pending.Token {
		t.Errorf("%+v, %v; want a token above %d", later, err, pending.Token)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	p := storefaults.Start(t, server.Address)
	url := strings.Replace(server.URL, server.Address, p.Address, 1)
	storefaults.Run(t, p, open(t, url, postgres.Options{CleanupInterval: -1}))
}

func BenchmarkStore(b *testing.B) {
	url := servertest.Postgres(b, "shared_buffers=512MB", "max_wal_size=4GB").URL + "&pool_max_conns=64"
	pool := connect(b, url)
	must.Get(pool.Exec(b.Context(), "CREATE TABLE bare (key text PRIMARY KEY)"))(b)
	storetest.Benchmark(b, open(b, url, postgres.Options{}), func(ctx context.Context, key string) error {
		_, err := pool.Exec(ctx, "INSERT INTO bare VALUES ($1)", key)
		return err
	})
}
