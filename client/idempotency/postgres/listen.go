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
)

// listening holds what a store's listener needs to connect.
type listening struct {
	config *pgx.ConnConfig
	pool   *pgxpool.Pool // sends the test notification for a new connection
	log    *slog.Logger
	warned bool // warned once that waiting callers poll
}

func newListener(config *pgx.ConnConfig, pool *pgxpool.Pool, log *slog.Logger) *waiters.Listener {
	return waiters.NewListener((&listening{config: config, pool: pool, log: log}).once)
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
	if err := g.test(ctx, conn); err != nil {
		return err
	}
	l.Hearing()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		l.Wake(n.Payload)
	}
}

// test sends a notification on another connection and waits for it. A pooler accepts a LISTEN, but drops the
// notifications that arrive later.
func (g *listening) test(ctx context.Context, conn *pgx.Conn) error {
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
	}
}
