package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/internal/pgserver"
)

// connections are those of a store's pool. Each is checked before its first use, because an address may lead to another
// server than at the start: after a failover, or a restart with other settings. After a failover open connections also
// stay at the old primary, which may take no writes: then the pool begins anew.
type connections struct {
	pool       *pgxpool.Pool
	privileges []string // that the role needs on the table

	resets atomic.Uint64 // of the pool
}

// use runs statements on a connection. What a server refuses because it takes no writes is tried once more, where the
// address leads then. Statements that may be repeated are also tried again when a connection broke, for example because
// the server restarted: the connections of a pool break together.
func (c *connections) use(ctx context.Context, repeatable bool, run func(q querier) error) error {
	for attempt := 1; ; attempt++ {
		resets := c.resets.Load()
		broken, err := c.once(ctx, run)
		if err == nil || ctx.Err() != nil {
			return err
		}
		// Once for all calls that meet it, so that new connections stay.
		if (broken || pgserver.IsUnable(err)) && c.resets.CompareAndSwap(resets, resets+1) {
			c.pool.Reset()
		}
		if attempt == 2 || !pgserver.IsReadOnly(err) && !(repeatable && (broken || pgserver.IsUnable(err))) {
			return err
		}
	}
}

// once runs statements on a connection, and reports whether there was none, or it broke.
func (c *connections) once(ctx context.Context, run func(q querier) error) (broken bool, err error) {
	conn, err := c.acquire(ctx)
	if err != nil {
		return true, err
	}
	defer conn.Release()
	err = run(conn)
	return conn.Conn().IsClosed(), err
}

// checkedName marks a connection that was checked, in its own data.
const checkedName = "seqledger idempotency"

// acquire returns a connection that was checked.
func (c *connections) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	data := conn.Conn().PgConn().CustomData()
	if data[checkedName] == nil {
		if err := c.check(ctx, conn.Conn()); err != nil {
			_ = conn.Conn().Close(ctx) // the next one may lead elsewhere
			conn.Release()
			return nil, err
		}
		data[checkedName] = true
	}
	return conn, nil
}

// privileges are those that a role needs on the table for decisions.
var privileges = []string{"SELECT", "INSERT", "UPDATE"}

// checkServer also names the privileges that are missing.
const checkServer = `SELECT current_setting('server_version_num')::int,
	pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
	current_setting('fsync'), current_setting('synchronous_commit'),
	to_regclass('idempotency_records') IS NOT NULL AND to_regclass('idempotency_tokens') IS NOT NULL,
	EXISTS (SELECT FROM pg_class WHERE relpersistence <> 'p' AND oid IN (to_regclass('idempotency_records'),
		to_regclass('idempotency_tokens'))),
	coalesce((SELECT string_agg(wanted || ' on idempotency_records', ', ')
		FROM unnest(string_to_array($1::text, ' ')) AS wanted
		WHERE NOT has_table_privilege(to_regclass('idempotency_records'), wanted)), '') ||
	CASE WHEN has_sequence_privilege(to_regclass('idempotency_tokens'), 'USAGE') THEN ''
		ELSE ' USAGE on idempotency_tokens' END`

// check refuses a server on which a store would lose acknowledged writes, or could not work. Except for one that takes
// no writes, the server has answered: without it the work must not run either.
func (c *connections) check(ctx context.Context, conn *pgx.Conn) error {
	var version int
	var readOnly, table, unlogged bool
	var fsync, commit, missing string
	err := conn.QueryRow(ctx, checkServer, strings.Join(c.privileges, " ")).
		Scan(&version, &readOnly, &fsync, &commit, &table, &unlogged, &missing)
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{idempotency.ErrRefused}, args...)...)
	}
	switch {
	case err != nil:
		return err
	case version < 130000:
		return refuse("PostgreSQL %d is too old: 13 and later", version/10000)
	case readOnly:
		return errors.New("the server is a standby, or read-only, and cannot store anything")
	case fsync == "off" || commit == "off":
		return refuse("the server acknowledges what it has not stored (fsync %s, synchronous_commit %s), so that "+
			"a crash would forget keys", fsync, commit)
	case !table:
		return refuse("there is no table idempotency_records: run seqledger store init with the same URL, once")
	case unlogged:
		return refuse("the table or the sequence is unlogged, so that a crash would forget keys")
	case missing != "":
		return refuse("the role lacks %s: seqledger store init --print shows what it needs", missing)
	}
	return nil
}
