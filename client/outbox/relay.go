package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/internal/pgserver"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Defaults of [Options].
const (
	DefaultClientPrefix = "outbox."
	DefaultPoll         = 100 * time.Millisecond
	DefaultConcurrency  = 8
)

// Options configure a relay. Scope is required.
type Options struct {
	// Scope is where the rows go.
	Scope *seqledgerv1.Scope
	// Table is the table of rows, with its schema before a dot if it is not in the search_path. Empty means
	// DefaultTable.
	Table string
	// ClientPrefix stands before the name of a stream in its client id. Empty means DefaultClientPrefix. No
	// other program may write under these client ids.
	ClientPrefix string
	// Park leaves a refused row out and continues with the next row; otherwise its stream stops.
	Park bool
	// Poll is how often the table is looked at for new rows; 0 means DefaultPoll. While a stream has few rows, they
	// are gathered for a fifth of it.
	Poll time.Duration
	// Concurrency is how many streams are worked on at once; 0 means DefaultConcurrency.
	Concurrency int
	// DeleteAfter is how long committed rows are kept; 0 means forever.
	DeleteAfter time.Duration
	// Logger may be nil. It never gets the operations of a row.
	Logger *slog.Logger
}

// How long a relay owns a stream without renewing that, and how often it does: three times as often, so that a renewal
// that fails is repeated in time.
const (
	ownFor = 15 * time.Second
	renew  = 5 * time.Second
	// ownIdle is how long a stream without rows is kept, with its session, for the next ones.
	ownIdle = time.Minute
)

// Counters say what a relay has done since it was made.
type Counters struct {
	Committed uint64 // rows
	Refused   uint64 // rows
	Repeated  uint64 // sends after one that left a row open
	Sessions  uint64 // opened
	Stopped   uint64 // streams that this relay has stopped
	Owned     uint64 // streams that it works on now
}

// Relay writes the rows of an outbox to a ledger. Any number of relays may run on one table: one of them works on each
// stream, and another one takes the stream over seconds after the first was killed.
type Relay struct {
	ledger  *client.Client
	db      *pgxpool.Pool
	options Options
	tables  tables
	log     *slog.Logger
	owner   string // of the streams that this relay works on

	mu      sync.Mutex
	streams map[string]*stream // that this relay owns

	waiting atomic.Int32 // streams that wait for a place

	// at is called at each step of a stream's work. Tests set it to cause a failure there.
	at func(stream string, step step)
	// silence is the time without a statement after which PostgreSQL ends a transaction of this relay.
	silence time.Duration

	committed, refused, repeated, sessions, stopped atomic.Uint64
}

// NewRelay checks the options and returns a relay. The caller closes the client and the pool after Run has ended.
func NewRelay(ledger *client.Client, db *pgxpool.Pool, o Options) (*Relay, error) {
	t, err := tablesOf(o.Table)
	switch {
	case err != nil:
		return nil, err
	case o.Scope.GetOrganization() == "" || o.Scope.GetVault() == "":
		return nil, errors.New("outbox: Options.Scope is incomplete")
	case o.Poll < 0 || o.Concurrency < 0 || o.DeleteAfter < 0:
		return nil, errors.New("outbox: Options.Poll, Concurrency and DeleteAfter must not be negative")
	}
	o.ClientPrefix = cmp.Or(o.ClientPrefix, DefaultClientPrefix)
	o.Poll = cmp.Or(o.Poll, DefaultPoll)
	o.Concurrency = cmp.Or(o.Concurrency, DefaultConcurrency)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Relay{
		ledger: ledger, db: db, options: o, tables: t, log: o.Logger, owner: rand.Text(),
		streams: map[string]*stream{}, at: func(string, step) {}, silence: ownFor,
	}, nil
}

// Counters returns what the relay has done.
func (r *Relay) Counters() Counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Counters{
		Committed: r.committed.Load(), Refused: r.refused.Load(), Repeated: r.repeated.Load(),
		Sessions: r.sessions.Load(), Stopped: r.stopped.Load(), Owned: uint64(len(r.streams)),
	}
}

// Run writes rows until ctx ends, and returns its error. It retries after failures of the ledger and of the
// database. It returns an error at once if the tables are missing or the role lacks a privilege, or if their
// rows go to another scope. Run may be called once.
func (r *Relay) Run(ctx context.Context) error {
	if err := r.check(ctx); err != nil {
		return err
	}
	var loops sync.WaitGroup
	// Ends with ctx; waited for before the streams are given up.
	loops.Go(func() { r.every(ctx, renew, r.renewOwnership) })
	if r.options.DeleteAfter > 0 {
		// As above.
		loops.Go(func() { r.every(ctx, r.options.DeleteAfter/10+time.Second, r.deleteCommitted) })
	}
	places := make(chan struct{}, r.options.Concurrency)
	r.every(ctx, r.options.Poll, func(ctx context.Context) error { return r.look(ctx, places) })
	for range cap(places) { // until the streams that are worked on have ended
		places <- struct{}{}
	}
	loops.Wait()
	// ctx has ended, and the streams must be given up nevertheless, or else another relay waits for ownFor.
	r.giveUp(context.WithoutCancel(ctx))
	return ctx.Err()
}

// check reports early what a retry does not repair, and waits for a database that does not answer yet.
func (r *Relay) check(ctx context.Context) error {
	for failures := 0; ; failures++ {
		err := r.checkOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		_, elsewhere := errors.AsType[*stopError](err)
		_, refused := errors.AsType[*pgconn.PgError](err)
		if elsewhere || refused && !pgserver.Passes(err) {
			return fmt.Errorf("outbox: %w", err)
		}
		_ = pgserver.Leave(r.db, err)
		r.log.WarnContext(ctx, "the outbox's database does not answer; retrying", "error", err)
		_ = rpc.Sleep(ctx, rpc.Backoff(failures, 0))
	}
}

func (r *Relay) checkOnce(ctx context.Context) error {
	// They change nothing, and fail where a relay's own statements would.
	statements := []string{
		"UPDATE {table} SET state = state WHERE false", "UPDATE {streams} SET owner = owner WHERE false",
		"INSERT INTO {streams} (stream, organization, vault, client_id) SELECT '', '', '', '' WHERE false",
	}
	if r.options.DeleteAfter > 0 {
		statements = append(statements, "DELETE FROM {table} WHERE false")
	}
	for _, statement := range statements {
		if _, err := r.db.Exec(ctx, r.tables.statement(statement)); err != nil {
			return err
		}
	}
	// Rows that were perhaps sent to one scope must not be sent to another.
	const others = `SELECT stream, organization, vault, client_id FROM {streams}
		WHERE (organization, vault, client_id) <> ($1, $2, $3 || stream) ORDER BY stream LIMIT 1`
	var stream, organization, vault, id string
	err := r.db.QueryRow(ctx, r.tables.statement(others), r.options.Scope.GetOrganization(),
		r.options.Scope.GetVault(), r.options.ClientPrefix).Scan(&stream, &organization, &vault, &id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return stopf("the rows of stream %q go to scope %s/%s as client %q, and this relay writes elsewhere: "+
		"use that scope and prefix, or another table", stream, organization, vault, id)
}

// every does something again and again, until ctx ends.
func (r *Relay) every(ctx context.Context, pause time.Duration, do func(ctx context.Context) error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := pgserver.Leave(r.db, do(ctx)); err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the outbox's database failed; retrying", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// openStreams lists the streams that have rows to write, with one index lookup for each rather than with
// DISTINCT, which would read every open row. It also lists those that were resumed: their number is taken from the
// ledger at once, so that a backup of the database rarely contains a stream that accepts any number.
const openStreams = `WITH RECURSIVE found AS (
	(SELECT stream FROM {table} WHERE state IN ('new', 'sent') ORDER BY stream LIMIT 1)
	UNION ALL
	SELECT (SELECT stream FROM {table} t WHERE state IN ('new', 'sent') AND t.stream > found.stream
		ORDER BY stream LIMIT 1) FROM found WHERE stream IS NOT NULL)
	SELECT every.stream FROM (SELECT stream FROM found WHERE stream IS NOT NULL
		UNION SELECT stream FROM {streams} WHERE next_sequence IS NULL) AS every
	LEFT JOIN {streams} s ON s.stream = every.stream
	WHERE s.stopped IS NULL
	AND (s.owner IS NULL OR s.owner = $1 OR s.owned_until < clock_timestamp())`

// look starts work on the streams that have rows to write and are not being worked on.
func (r *Relay) look(ctx context.Context, places chan struct{}) error {
	rows, err := r.db.Query(ctx, r.tables.statement(openStreams), r.owner)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		s := r.take(name)
		if s == nil {
			continue
		}
		if !r.awaitPlace(ctx, places) {
			s.busy.Store(false)
			return nil
		}
		// Ends when the stream has no more rows, and with ctx; Run waits for it with the places.
		go func() {
			defer func() { <-places }()
			s.work(ctx)
		}()
	}
	return nil
}

// awaitPlace takes a place, or returns false because ctx has ended. If both happen at once the place is taken, because
// Run waits for every place that is not returned.
func (r *Relay) awaitPlace(ctx context.Context, places chan<- struct{}) bool {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// take marks a stream as being worked on and returns it, or nil if it is already.
func (r *Relay) take(name string) *stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.streams[name]
	if s == nil {
		s = &stream{relay: r, name: name}
		r.streams[name] = s
	}
	if !s.busy.CompareAndSwap(false, true) {
		return nil
	}
	return s
}

// forget is called when this relay does not own a stream any more.
func (r *Relay) forget(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, s.name)
}

// renewOwnership keeps the streams that this relay works on, and gives up those that had nothing to write for long,
// because the number of streams has no bound.
func (r *Relay) renewOwnership(ctx context.Context) error {
	idle := r.takeIdle()
	_, err := r.db.Exec(ctx, r.tables.statement(`UPDATE {streams} SET
		owner = CASE WHEN stream = ANY($3::text[]) THEN NULL ELSE owner END,
		owned_until = clock_timestamp() + $2::interval WHERE owner = $1`), r.owner, ownFor, streamNames(idle))
	for _, s := range idle {
		if err == nil {
			r.forget(s)
		}
		s.busy.Store(false)
	}
	return err
}

// takeIdle returns the streams that had nothing to write for long, marked as worked on.
func (r *Relay) takeIdle() (idle []*stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		if !s.busy.CompareAndSwap(false, true) {
			continue
		}
		if time.Since(s.used) > ownIdle {
			idle = append(idle, s)
		} else {
			s.busy.Store(false)
		}
	}
	return idle
}

func streamNames(streams []*stream) []string {
	names := make([]string, len(streams))
	for i, s := range streams {
		names[i] = s.name
	}
	return names
}

// giveUp lets the next relay begin at once.
func (r *Relay) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renew)
	defer cancel()
	_, err := r.db.Exec(ctx, r.tables.statement("UPDATE {streams} SET owner = NULL WHERE owner = $1"), r.owner)
	if err != nil {
		r.log.WarnContext(ctx,
			"the streams of the outbox were not released; another relay takes them over in some seconds", "error", err)
	}
}

// deleteCommitted deletes old rows, in batches, so that no statement locks many rows for long. Rows that another relay
// is deleting are skipped.
func (r *Relay) deleteCommitted(ctx context.Context) error {
	const batch = `DELETE FROM {table} WHERE id = ANY (ARRAY(SELECT id FROM {table} WHERE state = 'committed'
		AND settled_at < clock_timestamp() - $1::interval ORDER BY settled_at LIMIT 1000 FOR UPDATE SKIP LOCKED))`
	for {
		tag, err := r.db.Exec(ctx, r.tables.statement(batch), r.options.DeleteAfter)
		if err != nil || tag.RowsAffected() < 1000 {
			return err
		}
	}
}
