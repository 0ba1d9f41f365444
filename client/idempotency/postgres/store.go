package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client/idempotency"
)

//go:embed schema.sql
var schema string

// Schema returns the statements that create the table and the sequence. They may be run again.
func Schema() string { return schema }

// Privileges returns the statements that grant a role the privileges a store needs, and no more. role is an SQL
// identifier, quoted if necessary.
func Privileges(role string) string {
	return "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_records TO " + role + ";\n" +
		"GRANT USAGE ON SEQUENCE idempotency_tokens TO " + role + ";\n"
}

// DefaultCleanupInterval is how often a store deletes expired records.
const DefaultCleanupInterval = 10 * time.Second

// Options configure a store. The zero value is usable.
type Options struct {
	// ListenURL is the server's own address for notifications, needed if the store's URL leads through a PgBouncer in
	// transaction mode. Empty means the store's URL.
	ListenURL string
	// CleanupInterval is how often expired records are deleted, a thousand per statement; 0 means 10 s, and a negative
	// value leaves it to another process.
	CleanupInterval time.Duration
	// MaxOpen is how many keys of one principal, in one scope, may be pending or have an unknown outcome; 0 means no
	// limit. A reservation beyond it is refused with an [idempotency.QuotaError]. It costs each reservation a round
	// trip. Concurrent reservations do not see each other, and neither do concurrent transactions of WithTx: the limit
	// may be exceeded by as many as there are.
	MaxOpen int
	// Logger may be nil. It never receives a key or a principal.
	Logger *slog.Logger
}

// Store keeps records in PostgreSQL. It is safe for concurrent use.
type Store struct {
	idempotency.Resolver

	backend *backend
	owned   *pgxpool.Pool // nil if the caller owns the pool
	stop    context.CancelFunc
	joined  sync.WaitGroup // the cleanup
}

// Open connects to a database. The URL takes the parameters of libpq and of pgxpool (pool_max_conns=16), plus max_open
// and listen_url, which set the options. listen_url is itself a URL, with %XX for the characters that would end it,
// such as %26 for &. An error does not contain a password.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	config, err := parse(url)
	if err != nil {
		return nil, err
	}
	if text, ok := config.ConnConfig.RuntimeParams[maxOpenParameter]; ok {
		if o.MaxOpen, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("%s: %w", maxOpenParameter, err)
		}
	}
	if text, ok := config.ConnConfig.RuntimeParams[listenParameter]; ok {
		o.ListenURL = text
	}
	forget(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = pool
	return s, nil
}

// URL parameters that set options. Parameters that pgx does not know are settings of the server.
const (
	maxOpenParameter = "max_open"
	listenParameter  = "listen_url"
)

// forget removes the parameters that set options from what is sent to the server.
func forget(config *pgx.ConnConfig) {
	for _, name := range []string{maxOpenParameter, listenParameter} {
		delete(config.RuntimeParams, name)
	}
}

// parse returns the configuration of a URL.
func parse(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// This replaces the default of pgx, which does not work in PgBouncer's transaction mode unless PgBouncer is
		// configured to track prepared statements.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return config, nil
}

// New returns a store that uses the caller's pool. The caller closes the pool after the store.
func New(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	if o.MaxOpen < 0 {
		return nil, errors.New("Options.MaxOpen must not be negative")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	listen := pool.Config().ConnConfig
	if o.ListenURL != "" {
		config, err := pgx.ParseConfig(o.ListenURL)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", listenParameter, err)
		}
		listen = config
	}
	b := &backend{connections: connections{pool: pool, privileges: privileges}, maxOpen: o.MaxOpen}
	if o.CleanupInterval >= 0 {
		b.privileges = append(privileges[:len(privileges):len(privileges)], "DELETE")
	}
	if err := b.use(ctx, true, func(querier) error { return nil }); err != nil { // a connection is checked
		return nil, err
	}
	b.listener = newListener(listen, pool, o.Logger)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{Resolver: idempotency.NewStore(b), backend: b, stop: stop}
	if o.CleanupInterval == 0 {
		o.CleanupInterval = DefaultCleanupInterval
	}
	if o.CleanupInterval > 0 {
		// Close ends this goroutine and waits for it.
		s.joined.Go(func() { s.cleanUp(running, o.CleanupInterval, o.Logger) })
	}
	return s, nil
}

// Close stops the store's background work and waits for it. Calls in flight fail.
func (s *Store) Close() error {
	s.stop()
	s.backend.listener.Close()
	s.joined.Wait()
	if s.owned != nil {
		s.owned.Close()
	}
	return nil
}

// Init creates the table and the sequence.
func Init(ctx context.Context, url string) error {
	config, err := parse(url)
	if err != nil {
		return err
	}
	forget(config.ConnConfig)
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	// One simple query is one transaction.
	_, err = conn.PgConn().Exec(ctx, schema).ReadAll()
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// expiredBatch deletes expired records. A record in use is locked, and left to a later batch. Expired records are kept
// for another minute, in case the clock is set back.
const expiredBatch = `DELETE FROM idempotency_records WHERE keep_until < clock_timestamp() - interval '1 minute'
	AND key = ANY (ARRAY(SELECT key FROM idempotency_records
		WHERE keep_until < clock_timestamp() - interval '1 minute' ORDER BY keep_until LIMIT 1000
		FOR UPDATE SKIP LOCKED))`

// cleanUp deletes expired records until ctx ends.
func (s *Store) cleanUp(ctx context.Context, interval time.Duration, log *slog.Logger) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := s.deleteExpired(ctx); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "expired records of keys were not deleted", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// deleteExpired deletes all expired records, in batches.
func (s *Store) deleteExpired(ctx context.Context) error {
	for {
		var deleted int64
		err := s.backend.use(ctx, true, func(q querier) error {
			tag, err := q.Exec(ctx, expiredBatch)
			deleted = tag.RowsAffected()
			return err
		})
		if err != nil || deleted < 1000 {
			return err
		}
	}
}
