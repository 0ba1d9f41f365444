package follow_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/follow"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var scope = &seqledgerv1.Scope{Organization: "bank", Vault: "main"}

// openLedger serves a ledger until stop is called, or the test ends.
func openLedger(t *testing.T, dir string) (c *client.Client, stop func()) {
	t.Helper()
	address, closeLedger := serveLedger(t, dir)
	c = dial(t, address)
	stop = sync.OnceFunc(func() {
		_ = c.Close()
		closeLedger()
	})
	t.Cleanup(stop)
	return c, stop
}

// serveLedger serves a ledger until stop is called, or the test ends.
func serveLedger(t *testing.T, dir string) (address string, stop func()) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := must.Get(embedded.Open(t.Context(), embedded.Options{Dir: dir, Version: "test", Listener: listener}))(t)
	stop = sync.OnceFunc(func() {
		check.Is(t, l.Close(), nil)
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// dial returns a client of a ledger.
func dial(t *testing.T, address string) *client.Client {
	t.Helper()
	c := must.Get(client.New(client.Options{Server: address}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// transfer commits a block that moves an amount between two accounts.
func transfer(t *testing.T, c *client.Client, key string, from, to, amount int) {
	t.Helper()
	must.Get(c.Write(t.Context(), &seqledgerv1.WriteRequest{
		Scope: scope, IdempotencyKey: key, Namespace: "transfers",
		Operations: []*seqledgerv1.Operation{op.Append(fmt.Appendf(nil, "%d %d %d", from, to, amount))},
	}))(t)
}

// openDatabase makes the tables of positions and of balances.
func openDatabase(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	db := must.Get(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(db.Close)
	tables := follow.Schema() +
		"CREATE TABLE IF NOT EXISTS balances (account int PRIMARY KEY, balance bigint NOT NULL);" +
		"CREATE TABLE IF NOT EXISTS applied (height bigint NOT NULL)"
	must.Get(db.Exec(t.Context(), tables, pgx.QueryExecModeSimpleProtocol))(t)
	return db
}

// keepBalances applies the transfers of a block.
func keepBalances(ctx context.Context, tx pgx.Tx, block *seqledgerv1.Block) error {
	for _, t := range block.GetTransactions() {
		for _, o := range t.GetOperations() {
			var from, to, amount int
			if _, err := fmt.Sscan(string(o.GetAppend().GetPayload()), &from, &to, &amount); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO balances VALUES ($1, -$3::bigint), ($2, $3::bigint)
				ON CONFLICT (account) DO UPDATE SET balance = balances.balance + excluded.balance`, from, to, amount)
			if err != nil {
				return err
			}
		}
	}
	_, err := tx.Exec(ctx, "INSERT INTO applied VALUES ($1)", block.GetHeader().GetHeight())
	return err
}

// await waits until the blocks to a height were applied, each once.
func await(t *testing.T, db *pgxpool.Pool, height int) {
	t.Helper()
	awaitWhile(t, db, height, func() {})
}

// awaitWhile is await, and calls a function again and again.
func awaitWhile(t *testing.T, db *pgxpool.Pool, height int, meanwhile func()) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond) // what it waits for happens in other processes
	defer tick.Stop()
	for ; ; <-tick.C {
		meanwhile()
		var applied, distinct, highest int
		err := db.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT height), coalesce(max(height), 0)
			FROM applied`).Scan(&applied, &distinct, &highest)
		if err == nil && applied != distinct {
			t.Fatalf("%d blocks were applied %d times", distinct, applied)
		}
		if err == nil && highest >= height {
			if highest != height || applied != height {
				t.Fatalf("%d blocks were applied to height %d, want %d", applied, highest, height)
			}
			return
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// start follows until stop is called, which returns the error.
func start(t *testing.T, c *client.Client, db *pgxpool.Pool, fn follow.Apply) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	// Ends with stop, or with the test.
	go func() { ended <- follow.Into(ctx, c, db, scope, fn, follow.Options{}) }()
	return sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
}

// Blocks are applied once: by two followers at once, over restarts, and across crashes of the database and
// of its connections.
func TestOnce(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	proxy := storefaults.Start(t, server.Address)
	c, _ := openLedger(t, filepath.Join(t.TempDir(), "data"))
	db := openDatabase(t, server.URL)
	faulty := openDatabase(t, strings.Replace(server.URL, server.Address, proxy.Address, 1))
	const rounds, perRound = 6, 20
	height := 0
	for round := range rounds {
		one, two := start(t, c, faulty, keepBalances), start(t, c, faulty, keepBalances)
		for i := range perRound {
			height++
			transfer(t, c, strconv.Itoa(height), i%5, 5+i%7, i)
			switch {
			case round == 1 && i == perRound/2:
				server.Kill()
				server.Start()
			case round == 2 && i%5 == 0:
				proxy.Set(storefaults.LoseAnswers) // of commits, for example
				proxy.Set(storefaults.Pass)
			case round == 3 && i == perRound/2:
				check.Is(t, one(), context.Canceled, "a follower that was stopped")
			}
		}
		await(t, db, height)
		for _, stop := range []func() error{one, two} {
			check.Is(t, stop(), context.Canceled, "a follower that was stopped")
		}
	}
	var sum int
	if err := db.QueryRow(t.Context(), "SELECT sum(balance) FROM balances").Scan(&sum); err != nil || sum != 0 {
		t.Errorf("the balances have the sum %d, %v", sum, err)
	}
}

var errNo = errors.New("no")

// The schema may be made by many processes at once.
func TestSchemaAtTheSameTime(t *testing.T) {
	t.Parallel()
	db := must.Get(pgxpool.New(t.Context(), servertest.Database(t)+"&pool_max_conns=16"))(t)
	t.Cleanup(db.Close)
	for range 4 {
		var group errgroup.Group
		for range 16 {
			group.Go(func() error {
				_, err := db.Exec(t.Context(), follow.Schema())
				return err
			})
		}
		must.Do(t, group.Wait())
		must.Get(db.Exec(t.Context(), "DROP TABLE seqledger_follow, seqledger_follow_blocks"))(t)
	}
}

// An error of the function ends following, and leaves nothing of its block.
func TestErrorOfFunction(t *testing.T) {
	t.Parallel()
	c, _ := openLedger(t, filepath.Join(t.TempDir(), "data"))
	db := openDatabase(t, servertest.Database(t))
	transfer(t, c, "one", 1, 2, 3)
	err := follow.Into(t.Context(), c, db, scope, func(ctx context.Context, tx pgx.Tx, b *seqledgerv1.Block) error {
		return errors.Join(keepBalances(ctx, tx, b), errNo)
	}, follow.Options{})
	check.Is(t, err, errNo, "Into")
	stop := start(t, c, db, keepBalances)
	await(t, db, 1)
	_ = stop()
}

// A follower that hangs within a transaction keeps others from the next block for a bounded time only, and goes on
// itself when it is back.
func TestHang(t *testing.T) {
	t.Parallel()
	c, _ := openLedger(t, filepath.Join(t.TempDir(), "data"))
	url := servertest.Database(t)
	db := openDatabase(t, url)
	config := must.Get(pgxpool.ParseConfig(url))(t)
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "100ms"
	impatient := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(impatient.Close)
	hangs, back := make(chan struct{}), make(chan struct{})
	hang := sync.OnceFunc(func() {
		close(hangs)
		<-back
	})
	one := start(t, c, impatient, func(ctx context.Context, tx pgx.Tx, b *seqledgerv1.Block) error {
		hang()
		return keepBalances(ctx, tx, b)
	})
	transfer(t, c, "one", 1, 2, 3)
	<-hangs
	var bound string
	two := start(t, c, db, func(ctx context.Context, tx pgx.Tx, b *seqledgerv1.Block) error {
		return errors.Join(tx.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&bound),
			keepBalances(ctx, tx, b))
	})
	await(t, db, 1)
	check.Is(t, two(), context.Canceled, "the other follower")
	check.Equal(t, bound, "5min", "without a setting a follower may be idle for %s")
	close(back)
	transfer(t, c, "two", 1, 2, 3)
	await(t, db, 2)
	check.Is(t, one(), context.Canceled, "the follower that hung")
}

// A ledger that was set back to a backup lacks blocks that were applied. Nothing of its new history is applied
// before the database was reconciled.
func TestDiverged(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, servertest.Database(t))
	data, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	write := func(c *client.Client, name string, n int) {
		for i := range n {
			transfer(t, c, name+strconv.Itoa(i), 1, 2, 1)
		}
	}
	c, closeLedger := openLedger(t, data)
	write(c, "both", 5)
	closeLedger()
	must.Do(t, os.CopyFS(backup, os.DirFS(data)))
	c, closeLedger = openLedger(t, data)
	write(c, "lost", 3)
	stop := start(t, c, db, keepBalances)
	await(t, db, 8)
	_ = stop()
	closeLedger()
	restored, _ := openLedger(t, backup)
	for _, more := range []int{0, 1, 9} { // a shorter history, and longer ones
		write(restored, "new"+strconv.Itoa(more), more)
		err := follow.Into(t.Context(), restored, db, scope, keepBalances, follow.Options{})
		if diverged, ok := errors.AsType[*follow.DivergedError](err); !ok || *diverged != (follow.DivergedError{
			Applied: 8, Common: 5,
		}) {
			t.Fatalf("with %d new blocks: %v", more, err)
		}
		await(t, db, 8)
	}
	must.Do(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "DELETE FROM applied WHERE height > 5"); err != nil {
			return err
		}
		return follow.Rewind(t.Context(), tx, scope, 5, follow.Options{})
	}))
	stop = start(t, restored, db, keepBalances)
	await(t, db, 15)
	_ = stop()
	for _, height := range []uint64{16, 99} {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			return follow.Rewind(t.Context(), tx, scope, height, follow.Options{})
		})
		if err == nil {
			t.Errorf("a position was set ahead to %d", height)
		}
	}
}
