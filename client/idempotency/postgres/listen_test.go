package postgres

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/client/idempotency/internal/waiters"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// A connection that listens at a server which the pool has left ends, so that the next one listens where the pool is.
func TestListenerFollowsThePool(t *testing.T) {
	t.Parallel()
	p, pool, old, next := storefaults.Moving(t)
	config := must.Get(pgx.ParseConfig(old.URL))(t)
	g := &listening{config: config, pool: pool, quiet: time.Millisecond, log: slog.New(slog.DiscardHandler)}
	l := waiters.NewListener(g.once)
	t.Cleanup(l.Close)
	ended := make(chan error, 1)
	// Ends with the connection; the receive below waits for it.
	go func() { ended <- g.listen(t.Context(), l) }()
	for tests := pool.Stat().AcquireCount() + 3; pool.Stat().AcquireCount() < tests; { // it hears, and is tested again
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
		}
	}
	storefaults.FailOver(t, p, old, next)
	pool.Reset()
	check.Is(t, <-ended, waiters.ErrNotListening)
}
