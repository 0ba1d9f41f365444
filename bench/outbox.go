package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/freeport"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// backlog is how many rows wait when a relay starts.
	backlog = 100_000
	// leastRelayed is how many of them it must write in a second.
	leastRelayed = 5_000
	outboxRounds = 5
)

// outboxBed is a PostgreSQL and a server of their own; the relay and the application are in this process.
type outboxBed struct {
	*bed

	pool     *pgxpool.Pool
	ledger   *client.Client
	postgres *harness.Process
	orders   [][]byte // one of each worker
}

// outboxRows are the rows of `bench outbox`.
func outboxRows() []row {
	var rows []row
	for _, n := range []int{1, 8} {
		rows = append(rows, row{fmt.Sprintf("relay/%d", n), onOutboxBed(n, measureRelay)})
	}
	for _, n := range []int{1, 8} {
		rows = append(rows, row{fmt.Sprintf("application/%d", n), onOutboxBed(n, measureApplication)})
	}
	return rows
}

// onOutboxBed measures with n streams or callers where there is a PostgreSQL, and says that there is none otherwise.
func onOutboxBed(
	n int, measure func(ctx context.Context, b *outboxBed, n int) ([]harness.Line, error),
) func(ctx context.Context, b *bed) ([]harness.Line, error) {
	return func(ctx context.Context, b *bed) ([]harness.Line, error) {
		postgres, err := harness.FindPostgres()
		if errors.Is(err, harness.ErrNotInstalled) {
			return []harness.Line{told("skipped: "+err.Error(), "")}, nil
		}
		if err != nil {
			return nil, err
		}
		o := &outboxBed{bed: b}
		if err := o.start(ctx, postgres, n); err != nil {
			return nil, err
		}
		return measure(ctx, o, n)
	}
}

// start starts both servers, and makes the tables for so many callers.
func (b *outboxBed) start(ctx context.Context, postgres *harness.Postgres, callers int) error {
	dir := filepath.Join(b.dir, "postgres")
	// PostgreSQL's user must reach its directory through ours.
	err := errors.Join(os.Chmod(b.dir, 0o711), os.Mkdir(dir, 0o755), postgres.Init(ctx, dir, "bench"))
	if err != nil {
		return err
	}
	address, err := freeport.Address()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	command := postgres.Command(dir, port, "shared_buffers=512MB", "max_wal_size=4GB")
	if b.postgres, err = harness.Launch(command, filepath.Join(b.dir, "postgres.log"), postgres.User); err != nil {
		return err
	}
	b.postgres.Signal = syscall.SIGINT // fast: does not wait for its clients
	b.later(b.postgres.Stop)
	config, err := pgxpool.ParseConfig("postgres://bench@" + address + "/postgres?sslmode=disable")
	if err != nil {
		return err
	}
	config.MaxConns = int32(callers + outbox.DefaultConcurrency + 2) // the relay's streams, and its look for rows
	if b.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	b.later(func() error {
		b.pool.Close()
		return nil
	})
	if err := b.postgres.Ready(ctx, b.pool.Ping); err != nil {
		return err
	}
	if err := errors.Join(b.startServer(ctx), b.makeTables(ctx, callers)); err != nil {
		return err
	}
	b.ledger, err = b.client(client.Options{})
	return err
}

// The outboxes: rows of heldTable wait for ever, those of relayedTable for a relay.
const (
	heldTable    = "held_outbox"
	relayedTable = "relayed_outbox"
)

func (b *outboxBed) makeTables(ctx context.Context, callers int) error {
	const application = `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
		CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account bigint NOT NULL,
			body bytea NOT NULL);
		CREATE TABLE plain (stream text NOT NULL, operations jsonb NOT NULL)`
	if _, err := b.pool.Exec(ctx, application); err != nil {
		return err
	}
	for i := range callers {
		if _, err := b.pool.Exec(ctx, "INSERT INTO accounts VALUES ($1, 0)", i); err != nil {
			return err
		}
		b.orders = append(b.orders, fmt.Appendf(nil, "%0128d", i))
	}
	return errors.Join(outbox.Init(ctx, b.pool, heldTable), outbox.Init(ctx, b.pool, relayedTable))
}

// relay works on relayedTable until done reports that it is, and returns how long it took.
func (b *outboxBed) relay(ctx context.Context, done func(r *outbox.Relay) bool) (time.Duration, error) {
	relay, err := outbox.NewRelay(b.ledger, b.pool, outbox.Options{
		Scope: &seqledgerv1.Scope{Organization: "bench", Vault: "outbox"}, Table: relayedTable,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), // what it says is that something is wrong
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	began := time.Now()
	// Ends with ctx, which is cancelled below; waited for there.
	running.Go(func() { cancel(relay.Run(ctx)) })
	for !done(relay) && ctx.Err() == nil {
		if relay.Counters().Stopped > 0 {
			cancel(errors.New("a stream of the outbox was stopped"))
		}
		load.Pause(ctx, time.Millisecond)
	}
	took, err := time.Since(began), context.Cause(ctx)
	cancel(nil)
	running.Wait()
	return took, err
}

// measureRelay measures how fast a relay writes the rows that wait for it, in so many streams.
func measureRelay(ctx context.Context, b *outboxBed, streams int) ([]harness.Line, error) {
	const (
		insert = `INSERT INTO relayed_outbox (stream, operations)
			SELECT 's' || i % $1,
				jsonb_build_array(jsonb_build_object('append', jsonb_build_object('payload', $2::text)))
			FROM generate_series(1, $3) AS i`
		payload = 128 * 4 / 3 // in base64
	)
	rows := scaled(b.o, backlog)
	var rounds []harness.Values
	for range scaled(b.o, outboxRounds) {
		// TRUNCATE rather than DELETE, because a vacuum in the middle of a round would be measured in some rounds and
		// not in others.
		if _, err := b.pool.Exec(ctx, "TRUNCATE relayed_outbox"); err != nil {
			return nil, err
		}
		if _, err := b.pool.Exec(ctx, insert, streams, fmt.Sprintf("%0*d", payload/4*4, 0), rows); err != nil {
			return nil, err
		}
		round, err := b.measureBacklog(ctx, rows)
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, round)
	}
	return relayFindings(rounds), nil
}

// measureBacklog has a relay write the rows that wait, and returns what that took, for one row.
func (b *outboxBed) measureBacklog(ctx context.Context, rows int) (harness.Values, error) {
	database, server := harness.Usage(b.dir, b.postgres.Tree()...), harness.Usage(b.dir, b.server.Pid)
	usedBefore, errDatabase := database()
	servedBefore, errServer := server()
	if err := errors.Join(errDatabase, errServer); err != nil {
		return nil, err
	}
	took, err := b.relay(ctx, func(r *outbox.Relay) bool { return r.Counters().Committed >= uint64(rows) })
	if err != nil {
		return nil, err
	}
	used, errDatabase := database()
	served, errServer := server()
	each := func(after, before harness.Values, name string) float64 {
		return (after[name] - before[name]) / float64(rows)
	}
	return harness.Values{
		"throughput_per_s": float64(rows) / took.Seconds(),
		"database_us":      each(used, usedBefore, "cpu_us_per_write"),
		"server_us":        each(served, servedBefore, "cpu_us_per_write"),
		"relay_us":         each(served, servedBefore, "client_cpu_us_per_write"),
	}, errors.Join(errDatabase, errServer)
}

// relayFindings holds the rounds against the target.
func relayFindings(rounds []harness.Values) []harness.Line {
	v := harness.Medians(rounds)
	rate := v["throughput_per_s"]
	return []harness.Line{
		held("rows a second", harness.Count(rate), ">= "+harness.Count(leastRelayed), rate >= leastRelayed),
		told("processor time of a row: PostgreSQL, ledger, relay",
			fmt.Sprintf("%.0f + %.0f + %.0f µs", v["database_us"], v["server_us"], v["relay_us"])),
	}
}

// applicationSides are the transactions that are measured in turns.
var applicationSides = []string{"an update and an insert", "a plain row, too", "an outbox row, too",
	"and a relay at work"}

const (
	sideBare = iota
	sidePlain
	sideHeld
	sideRelayed
)

// measureApplication measures what a row of the outbox adds to a transaction of the application.
func measureApplication(ctx context.Context, b *outboxBed, callers int) ([]harness.Line, error) {
	rounds := make([][]harness.Values, len(applicationSides))
	err := harness.Turns(scaled(b.o, outboxRounds), len(applicationSides), func(_, side int) error {
		measured, err := b.measureSide(ctx, side, callers)
		if err == nil {
			rounds[side] = append(rounds[side], measured.Values())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	lines := applicationFindings(rounds)
	var middle, most float64
	const lag = `SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)
		FROM (SELECT extract(epoch FROM settled_at - created_at) * 1000 AS ms FROM relayed_outbox) AS lags`
	if err := b.pool.QueryRow(ctx, lag).Scan(&middle, &most); err != nil {
		return nil, err
	}
	return append(lines, told("from the row's insert to its receipt in the row: p50, p99",
		milliseconds(middle)+", "+milliseconds(most))), nil
}

// measureSide measures one round of a side.
func (b *outboxBed) measureSide(ctx context.Context, side, callers int) (measured load.Result, err error) {
	load := func(ctx context.Context) {
		measured, err = load.RunSome(ctx, load.Load{
			Workers: callers, Warmup: b.o.warmup / 4, Duration: b.o.duration / outboxRounds,
			Meter: harness.Usage(b.dir, b.postgres.Tree()...),
		}, func(ctx context.Context, worker int) error { return b.transact(ctx, side, worker) })
	}
	if side != sideRelayed {
		load(ctx)
		return measured, err
	}
	relayed := b.besideRelay(ctx, load)
	return measured, errors.Join(err, relayed)
}

// besideRelay runs a load while a relay writes its rows, and lets the relay finish.
func (b *outboxBed) besideRelay(ctx context.Context, load func(ctx context.Context)) error {
	ended := make(chan struct{})
	// Ends with the load, which has its own time; waited for below.
	go func() {
		defer close(ended)
		load(ctx)
	}()
	_, err := b.relay(ctx, func(*outbox.Relay) bool {
		select {
		case <-ended:
		default:
			return false
		}
		var left bool
		const open = "SELECT EXISTS (SELECT FROM relayed_outbox WHERE state IN ('new', 'sent'))"
		return b.pool.QueryRow(ctx, open).Scan(&left) != nil || !left
	})
	<-ended
	return err
}

// transact is one transaction of the application: it changes an account and keeps an order.
func (b *outboxBed) transact(ctx context.Context, side, worker int) error {
	// Not cut off by the end of the load, because pgx closes a connection whose statement is cancelled.
	return pgx.BeginFunc(context.WithoutCancel(ctx), b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 1 WHERE id = $1", worker); err != nil {
			return err
		}
		order := b.orders[worker]
		_, err := tx.Exec(ctx, "INSERT INTO orders (account, body) VALUES ($1, $2)", worker, order)
		stream := fmt.Sprint("s", worker)
		switch {
		case err != nil || side == sideBare:
		case side == sidePlain:
			text := fmt.Sprintf(`[{"append": {"payload": "%s"}}]`, order)
			_, err = tx.Exec(ctx, "INSERT INTO plain VALUES ($1, $2::text::jsonb)", stream, text)
		case side == sideHeld:
			_, err = outbox.Insert(ctx, tx, heldTable, stream, op.Append(order))
		case side == sideRelayed:
			_, err = outbox.Insert(ctx, tx, relayedTable, stream, op.Append(order))
		}
		return err
	})
}

// applicationFindings compares the sides.
func applicationFindings(rounds [][]harness.Values) []harness.Line {
	var lines []harness.Line
	rate := func(side int) []float64 { return harness.Of(rounds[side], "throughput_per_s") }
	for side, name := range applicationSides {
		v := harness.Medians(rounds[side])
		lines = append(lines,
			told(name+": transactions a second", harness.Count(v["throughput_per_s"])),
			told(name+": p50, p99", milliseconds(v["p50_ms"])+", "+milliseconds(v["p99_ms"])),
			told(name+": PostgreSQL's processor time", fmt.Sprintf("%.0f µs", v["cpu_us_per_write"])))
		if side != sideBare {
			ratio := harness.Median(harness.Ratios(rate(side), rate(sideBare)))
			lines = append(lines, told(name+": of the first one's rate", fmt.Sprintf("%.2f", ratio)))
		}
	}
	return lines
}
