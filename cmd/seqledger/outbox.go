package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/outbox"
)

type outboxCommand struct {
	Postgres outboxRelayCommand  `cmd:"" help:"Write the rows of a table in PostgreSQL to the ledger, each once."`
	Init     outboxInitCommand   `cmd:"" help:"Make the tables of an outbox."`
	Status   outboxStatusCommand `cmd:"" help:"Show waiting and refused rows, and why a stream is stopped."`
	Retry    outboxRetryCommand  `cmd:"" help:"Let a refused row be written again, as a new write."`
	Skip     outboxSkipCommand   `cmd:"" help:"Leave a refused row out; its stream goes on."`
	Settle   outboxSettleCommand `cmd:"" help:"Say what became of a row of a stopped stream, after a look into the ledger."`
	Resume   outboxResumeCommand `cmd:"" help:"Let a stopped stream go on, once all its rows have outcomes."`
}

// databaseFlags identify an outbox.
type databaseFlags struct {
	DSN   string `name:"dsn" help:"Database, such as postgres://USER@HOST/DB, also through PgBouncer in any mode. Prefer the variable for a password." required:"" placeholder:"URL"`
	Table string `help:"Table of rows, or SCHEMA.TABLE." default:"seqledger_outbox"`
}

// check returns the mistakes in the flags.
func (f *databaseFlags) check() error {
	_, err := f.config()
	if _, schema := outbox.Schema(f.Table); schema != nil {
		err = errors.Join(err, usage("--table: %w", schema))
	}
	return err
}

// config returns the configuration of the pool. Its errors do not contain the password.
func (f *databaseFlags) config() (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(f.DSN)
	if err != nil {
		return nil, usage("--dsn: %w", err)
	}
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// The default of pgx needs prepared statements, which PgBouncer in transaction mode must be configured to
		// track.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return config, nil
}

// databaseTimeout is how long a command other than relay waits for the database.
const databaseTimeout = 30 * time.Second

// within calls do with a pool and a context that ends after databaseTimeout.
func (f *databaseFlags) within(e *environment, do func(ctx context.Context, db *pgxpool.Pool) error) error {
	ctx, cancel := context.WithTimeout(e.ctx, databaseTimeout)
	defer cancel()
	return f.withPool(ctx, func(db *pgxpool.Pool) error { return do(ctx, db) })
}

// withPool calls do with a pool and closes it.
func (f *databaseFlags) withPool(ctx context.Context, do func(db *pgxpool.Pool) error) error {
	if err := f.check(); err != nil {
		return err
	}
	config, err := f.config()
	if err != nil {
		return err
	}
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer db.Close()
	return databaseError(do(db))
}

// The PostgreSQL error codes that have a hint.
const (
	noSuchTable = "42P01"
	forbidden   = "42501"
)

// databaseError adds a hint to an error of the database.
func databaseError(err error) error {
	failed, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, outbox.ErrNothingToDo):
		return fail(exitRefused, "seqledger outbox status lists the rows and the streams", "%w", err)
	case ok && failed.Code == noSuchTable:
		return fail(exitFailed, "seqledger outbox init makes the tables", "%w", err)
	case ok && failed.Code == forbidden:
		return fail(exitFailed, "seqledger outbox init --print shows what the roles need", "%w", err)
	}
	return err
}

type outboxInitCommand struct {
	databaseFlags `embed:""`
	Application   string `help:"Role that inserts rows, for the grants that are printed." default:"app"`
	Relay         string `help:"Role of outbox postgres, for the grants that are printed." default:"relay"`
	Print         bool   `help:"Only print the statements, for those who run them by hand." env:"-"`
}

func (*outboxInitCommand) Help() string {
	return `It may be run again: what is there stays as it is. The role of --dsn owns the tables. The statements that give
the application and the relay what they need, and no more, are printed and not run.

    seqledger outbox init --dsn postgres://owner@db.example.com/shop --application shop --relay relay`
}

func (c *outboxInitCommand) Run(e *environment) error {
	if err := c.check(); err != nil {
		return err
	}
	role := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	text, err := outbox.Privileges(c.Table, role(c.Application), role(c.Relay))
	if err != nil {
		return err
	}
	if c.Print {
		schema, err := outbox.Schema(c.Table)
		if err != nil {
			return err
		}
		text = schema + "\n" + text
	} else if err := c.within(e, func(ctx context.Context, db *pgxpool.Pool) error {
		return outbox.Init(ctx, db, c.Table)
	}); err != nil {
		return err
	}
	return e.showStatements(text)
}

type outboxRelayCommand struct {
	databaseFlags   `embed:""`
	scopeFlags      `embed:""`
	connectionFlags `embed:""`
	ClientPrefix    string        `help:"Prefix of a stream's client id; no other program may write under these." default:"outbox."`
	Park            bool          `help:"Leave refused rows out and go on; otherwise a refused row stops its stream."`
	Poll            time.Duration `help:"How often to look for new rows." default:"100ms"`
	Concurrency     int           `help:"How many streams are worked on at once." default:"8"`
	DeleteAfter     time.Duration `help:"How long committed rows are kept; 0 keeps them." default:"0"`
	DebugListen     string        `help:"Serve profiles (/debug/pprof/) and /metrics without TLS on this loopback address; off when empty." placeholder:"ADDRESS"`
}

func (*outboxRelayCommand) Help() string {
	return `An application inserts a row in the transaction that changes its own data; this relay writes the row to the ledger
and the receipt, or the refusal, back into the row. Rows of one stream are written in order. It may be killed at any
moment, as may the database and the ledger: the next relay goes on with the same numbers. Of several relays on one
table, one works on a stream, and another takes over seconds after that one was killed.

    seqledger outbox init --dsn postgres://owner@db.example.com/shop
    seqledger outbox postgres --dsn postgres://relay@db.example.com/shop --scope acme/orders

    INSERT INTO seqledger_outbox (stream, operations)
      VALUES ('orders', '[{"append": {"payload": "b25l"}}]');`
}

func (c *outboxRelayCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err == nil && scope.GetVault() == "" {
		err = usage("--scope: the rows need a vault, too: ORG/VAULT")
	}
	options, err2 := c.options()
	err = errors.Join(err, err2, c.check(), checkLoopback("--debug-listen", c.DebugListen))
	if c.Poll <= 0 || c.Concurrency <= 0 || c.DeleteAfter < 0 {
		err = errors.Join(err, usage("--poll and --concurrency must be more than 0, and --delete-after not less"))
	}
	if err != nil {
		return err
	}
	ledger, err := client.New(options)
	if err != nil {
		return err
	}
	defer func() { _ = ledger.Close() }() // nothing is in flight
	return c.withPool(e.ctx, func(db *pgxpool.Pool) error {
		relay, err := outbox.NewRelay(ledger, db, outbox.Options{
			Scope: scope, Table: c.Table, ClientPrefix: c.ClientPrefix, Park: c.Park, Poll: c.Poll,
			Concurrency: c.Concurrency, DeleteAfter: c.DeleteAfter, Logger: e.log,
		})
		if err != nil {
			return err
		}
		return c.relay(e, db, relay)
	})
}

// relay runs a relay until a signal.
func (c *outboxRelayCommand) relay(e *environment, db *pgxpool.Pool, relay *outbox.Relay) error {
	tuneCollector()
	signal.Ignore(notForServers...)
	registry := prometheus.NewRegistry()
	registry.MustRegister(&outboxMetrics{relay: relay, db: db, table: c.Table})
	debug, err := startDebug(e, c.DebugListen, profilesOf(prometheus.Gatherers{registry, processMetrics()}))
	if err != nil {
		return err
	}
	defer debug.stop()
	e.log.Info("relaying", "table", c.Table, "server", c.Server)
	err = relay.Run(e.ctx)
	if e.ctx.Err() == nil {
		return err
	}
	done := relay.Counters()
	e.log.Info("stopped", "committed", done.Committed, "refused", done.Refused)
	return nil
}

type outboxStatusCommand struct {
	databaseFlags `embed:""`
}

func (*outboxStatusCommand) Help() string {
	return `Below the streams it lists the rows that were refused or left out, and those of stopped streams that may have been
committed.

    seqledger outbox status --dsn postgres://relay@db.example.com/shop`
}

func (c *outboxStatusCommand) Run(e *environment) error {
	return c.within(e, func(ctx context.Context, db *pgxpool.Pool) error {
		status, err := outbox.ReadStatus(ctx, db, c.Table)
		if err != nil {
			return err
		}
		if e.json {
			return e.showObject(status)
		}
		return showOutbox(e, status)
	})
}

// showOutbox prints a status in readable form.
func showOutbox(e *environment, status *outbox.Status) error {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	t := newTable(e.stdout)
	t.row("STREAM", "OPEN", "OLDEST", "REFUSED", "SKIPPED", "NEXT", "STATE", "WHY")
	for _, s := range status.Streams {
		oldest, state := "-", "idle"
		if !s.Oldest.IsZero() {
			oldest = s.Oldest.UTC().Format(time.RFC3339)
		}
		switch {
		case s.Stopped != "":
			state = "stopped"
		case s.Owned:
			state = "relayed"
		case s.Open > 0:
			state = "waiting"
		}
		t.row(s.Name, count(s.Open), oldest, count(s.Refused), count(s.Skipped),
			cmp.Or(nonzero(s.Next), "-"), state,
			oneLine(cmp.Or(s.Stopped, s.LastError)))
	}
	if err := t.flush(); err != nil || len(status.Rows) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(e.stdout); err != nil {
		return err
	}
	t = newTable(e.stdout)
	t.row("ROW", "STREAM", "STATE", "SEQUENCE", "CODE", "REFUSAL")
	for _, r := range status.Rows {
		t.row(count(r.ID), r.Stream, r.State, cmp.Or(nonzero(r.Sequence), "-"), cmp.Or(r.Code, "-"), oneLine(r.Refusal))
	}
	return t.flush()
}

// rowFlags name a row.
type rowFlags struct {
	databaseFlags `embed:""`
	Row           int64 `arg:"" help:"The id of the row."`
}

// change changes the row.
func (f *rowFlags) change(
	e *environment, do func(ctx context.Context, db outbox.Beginner, table string, row int64) error,
) error {
	return f.within(e, func(ctx context.Context, db *pgxpool.Pool) error { return do(ctx, db, f.Table, f.Row) })
}

type outboxRetryCommand struct {
	rowFlags `embed:""`
}

func (c *outboxRetryCommand) Run(e *environment) error { return c.change(e, outbox.Retry) }

type outboxSkipCommand struct {
	rowFlags `embed:""`
}

func (c *outboxSkipCommand) Run(e *environment) error { return c.change(e, outbox.Skip) }

type outboxSettleCommand struct {
	rowFlags `embed:""`
	As       string `help:"committed if the ledger has it; new if not, and the row is written as a new write." required:"" enum:"committed,new" env:"-"`
}

func (c *outboxSettleCommand) Run(e *environment) error {
	return c.within(e, func(ctx context.Context, db *pgxpool.Pool) error {
		return outbox.Settle(ctx, db, c.Table, c.Row, c.As == "committed")
	})
}

type outboxResumeCommand struct {
	databaseFlags `embed:""`
	Stream        string `arg:"" help:"The name of the stream."`
}

func (c *outboxResumeCommand) Run(e *environment) error {
	return c.within(e, func(ctx context.Context, db *pgxpool.Pool) error {
		return outbox.Resume(ctx, db, c.Table, c.Stream)
	})
}

// outboxMetrics are the metrics of a relay. The state of the table is read with each scrape, and is left out if the
// database does not answer.
type outboxMetrics struct {
	relay *outbox.Relay
	db    *pgxpool.Pool
	table string
}

// scrapeTimeout bounds the time that a scrape waits for the database; Prometheus waits 10 s.
const scrapeTimeout = 5 * time.Second

func outboxMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("seqledger_outbox_"+name, help, labels, nil)
}

var (
	outboxRows     = outboxMetric("rows_total", "Rows that this relay has settled.", "outcome")
	outboxRepeats  = outboxMetric("repeats_total", "Sends after one that left a row without an outcome.")
	outboxSessions = outboxMetric("sessions_total", "Sessions that this relay has opened.")
	outboxOwned    = outboxMetric("owned_streams", "Streams that this relay works on.")
	outboxOpen     = outboxMetric("open_rows", "Rows in the table that are not settled.")
	outboxAge      = outboxMetric("oldest_row_age_seconds", "Age of the oldest row that is not settled; 0 without one.")
	outboxRefused  = outboxMetric("refused_rows", "Refused rows in the table that wait for a decision.")
	outboxStopped  = outboxMetric("stopped_streams", "Streams in the table that are stopped.")
)

func (*outboxMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		outboxRows, outboxRepeats, outboxSessions, outboxOwned, outboxOpen, outboxAge, outboxRefused, outboxStopped,
	} {
		descriptions <- d
	}
}

func (m *outboxMetrics) Collect(metrics chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	done := m.relay.Counters()
	counter(outboxRows, done.Committed, "committed")
	counter(outboxRows, done.Refused, "refused")
	counter(outboxRepeats, done.Repeated)
	counter(outboxSessions, done.Sessions)
	gauge(outboxOwned, float64(done.Owned))

	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	status, err := outbox.ReadStatus(ctx, m.db, m.table)
	if err != nil {
		return
	}
	var open, refused, stopped int64
	var age time.Duration
	for _, s := range status.Streams {
		open, refused = open+s.Open, refused+s.Refused
		if s.Stopped != "" {
			stopped++
		}
		age = max(age, s.Age)
	}
	gauge(outboxOpen, float64(open))
	gauge(outboxAge, age.Seconds())
	gauge(outboxRefused, float64(refused))
	gauge(outboxStopped, float64(stopped))
}
