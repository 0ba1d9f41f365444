package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client/idempotency/internal/waiters"
)

const (
	helloTimeout = 5 * time.Second
	relisten     = time.Second      // after a connection broke
	relistenDeaf = 30 * time.Second // after notifications did not arrive
	quietTime    = 30 * time.Second // without a notification
)

// listening holds what a store's listener needs to connect.
type listening struct {
	config *pgx.ConnConfig
	pool   *pgxpool.Pool // sends the test notification for a new connection
	quiet  time.Duration // after which the connection is tested again
	log    *slog.Logger
	warned bool // warned once that waiting callers poll
}

func newListener(config *pgx.ConnConfig, pool *pgxpool.Pool, log *slog.Logger) *waiters.Listener {
	return waiters.NewListener((&listening{config: config, pool: pool, quiet: quietTime, log: log}).once)
}

// once listens on one connection, and returns the pause before the next.
func (g *listening) once(ctx context.Context, l *waiters.Listener) (pause time.Duration) {
	err := g.listen(ctx, l)
	if ctx.Err() == nil && !g.warned {
		g.warned = true
		g.log.Warn("callers that wait for a key poll, because notifications do not arrive; "+
			"behind PgBouncer's transaction mode they need the server's own address", "error", err)
	}
	if errors.Is(err, waiters.ErrNotListening) {
		return relistenDeaf
	}
	return relisten
}

// listen wakes callers until its connection breaks.
func (g *listening) listen(ctx context.Context, l *waiters.Listener) error {
	conn, err := pgx.ConnectConfig(ctx, g.config.Copy())
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), relisten)
		defer cancel()
		_ = conn.Close(ctx) // what it has not received does not matter
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	for {
		// Tested again when it is quiet: after a failover the pool may have another server than this connection.
		if err := g.test(ctx, conn, l); err != nil {
			return err
		}
		l.Hearing()
		if err := g.hear(ctx, conn, l); err != nil {
			return err
		}
	}
}

// hear wakes callers until no notification came for a while.
func (g *listening) hear(ctx context.Context, conn *pgx.Conn, l *waiters.Listener) error {
	for {
		quiet, cancel := context.WithTimeout(ctx, g.quiet)
		n, err := conn.WaitForNotification(quiet)
		over := quiet.Err() != nil && ctx.Err() == nil && !conn.IsClosed()
		cancel()
		switch {
		case err == nil:
			l.Wake(n.Payload)
		case over:
			return nil
		default:
			return err
		}
	}
}

// test sends a notification on another connection and waits for it. A pooler accepts a LISTEN, but drops the
// notifications that arrive later.
func (g *listening) test(ctx context.Context, conn *pgx.Conn, l *waiters.Listener) error {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	hello := "hello " + rand.Text()
	if _, err := g.pool.Exec(ctx, "SELECT pg_notify($1::text, $2::text)", channel, hello); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return errors.Join(waiters.ErrNotListening, err)
		}
		if n.Payload == hello {
			return nil
		}
		l.Wake(n.Payload)
	}
}
