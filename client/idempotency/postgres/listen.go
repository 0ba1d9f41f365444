package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
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

// errNotListening makes a caller poll.
var errNotListening = errors.New("notifications do not arrive")

// listener wakes waiting callers on notifications. It connects when the first caller waits.
type listener struct {
	config *pgx.ConnConfig
	pool   *pgxpool.Pool // sends the test of a new connection
	log    *slog.Logger

	waiters waiters.Set
	hearing atomic.Bool // notifications arrive

	mu     sync.Mutex
	start  bool
	closed bool
	ctx    context.Context //nolint:containedctx // The life of the listener, which close ends.
	cancel context.CancelFunc
	joined sync.WaitGroup
}

func newListener(config *pgx.ConnConfig, pool *pgxpool.Pool, log *slog.Logger) *listener {
	l := &listener{config: config, pool: pool, log: log}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// close ends the listener and waits for it.
func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.joined.Wait()
	l.waiters.WakeAll()
}

// wait registers a caller for the notifications of a key; see [waiters.Set.Add].
func (l *listener) wait(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	l.mu.Lock()
	if !l.start && !l.closed {
		l.start = true
		// Ended and waited for by close.
		l.joined.Go(l.run)
	}
	l.mu.Unlock()
	if !l.hearing.Load() {
		return nil, nil, errors.Join(errNotListening, ctx.Err())
	}
	return l.waiters.Add(key)
}

// run listens until close, over one connection after another.
func (l *listener) run() {
	warned := false
	for l.ctx.Err() == nil {
		err := l.listen()
		l.hearing.Store(false)
		l.waiters.WakeAll()
		pause := relisten
		if errors.Is(err, errNotListening) {
			pause = relistenDeaf
		}
		if l.ctx.Err() == nil && !warned {
			warned = true // once: the callers that wait poll
			l.log.Warn("callers that wait for a key poll, because notifications do not arrive; "+
				"behind PgBouncer's transaction mode they need the server's own address", "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
		}
	}
}

// listen wakes callers until its connection breaks.
func (l *listener) listen() error {
	conn, err := pgx.ConnectConfig(l.ctx, l.config.Copy())
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), relisten)
		defer cancel()
		_ = conn.Close(ctx) // what it has not received does not matter
	}()
	if _, err := conn.Exec(l.ctx, "LISTEN "+channel); err != nil {
		return err
	}
	if err := l.test(conn); err != nil {
		return err
	}
	l.hearing.Store(true)
	for {
		n, err := conn.WaitForNotification(l.ctx)
		if err != nil {
			return err
		}
		l.waiters.Wake(n.Payload)
	}
}

// test sends a notification over another connection and waits for it. A pooler takes a LISTEN, and
// drops what comes for it later.
func (l *listener) test(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(l.ctx, helloTimeout)
	defer cancel()
	hello := "hello " + rand.Text()
	if _, err := l.pool.Exec(ctx, "SELECT pg_notify($1::text, $2::text)", channel, hello); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return errors.Join(errNotListening, err)
		}
		if n.Payload == hello {
			return nil
		}
	}
}
