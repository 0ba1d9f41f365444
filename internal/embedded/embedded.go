// Package embedded runs a ledger inside a process, for a program that keeps keyed records and needs no separate server:
// a gateway or a guard. Its store calls the ledger directly, because a connection and an encoding would take most of
// the time of a replay.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// Options configure a ledger. Only Dir is required.
type Options struct {
	// Dir is the data directory. Open creates it if it does not exist.
	Dir     string
	Version string       // reported by the ledger
	Logger  *slog.Logger // nil logs nothing
	// PrincipalKeys is how many keyed records each principal may have in a scope; 0 means no bound.
	PrincipalKeys int
	// Listener serves the ledger to other processes, with the rules of Auth; see [server.Options]. Nil serves none.
	// Open closes it, also if it fails.
	Listener   net.Listener
	Auth       *auth.Authority
	StoredFile string
	// DrainTimeout bounds how long Close waits for the requests of other processes; 0 means 30 s.
	DrainTimeout time.Duration
}

// Ledger is an open ledger.
type Ledger struct {
	ledger  *ledger.Ledger
	server  *server.Server
	maxKeys uint64

	end    context.CancelFunc
	served sync.WaitGroup // the goroutine that serves Listener
	err    error          // of that goroutine; read after it has ended
}

// Open opens the ledger in a data directory. The caller must call Close.
func Open(ctx context.Context, o Options) (l *Ledger, err error) {
	defer func() {
		if err != nil && o.Listener != nil {
			_ = o.Listener.Close() // the error says why nothing is served
		}
	}()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l = &Ledger{maxKeys: cmp.Or(uint64(o.PrincipalKeys), math.MaxInt)}
	if l.ledger, err = ledger.Open(ctx, ledger.Options{Dir: o.Dir, Logger: o.Logger}); err != nil {
		return nil, err
	}
	l.server, err = server.New(server.Options{
		Ledger: l.ledger, Version: o.Version, Logger: o.Logger, DrainTimeout: o.DrainTimeout, DiskReserve: -1,
		PrincipalKeys: o.PrincipalKeys, Auth: o.Auth, StoredFile: o.StoredFile,
		MaxConnections: listen.Connections().Ledger,
	})
	if err != nil {
		return nil, errors.Join(err, l.ledger.Close())
	}
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	if o.Listener != nil {
		// Ends with l.end; Close waits for it.
		l.served.Go(func() { l.err = l.server.Serve(ctx, o.Listener) })
	}
	return l, nil
}

// Store returns the keyed records, for a caller that may do everything. A command is refused, except a repeat that the
// state answers, while the disk has less free space than the server's reserve.
func (l *Ledger) Store() idempotency.Store {
	return &store{ledger: l.ledger, mayStore: l.server.MayStore, maxKeys: l.maxKeys, actor: anonymous}
}

// Metrics returns the ledger's metrics, and those of the process.
func (l *Ledger) Metrics() prometheus.Gatherer { return l.server.Gatherer() }

// Failed is closed when the storage has failed; Close returns why.
func (l *Ledger) Failed() <-chan struct{} { return l.ledger.Failed() }

// FailedError is returned by [Ledger.Close] after the storage has failed.
type FailedError struct{ Cause error }

// Error implements error.
func (e *FailedError) Error() string { return fmt.Sprintf("the ledger in this process: %v", e.Cause) }

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Cause }

// Close ends the ledger once the requests of other processes are answered. No call of the store may be under way.
func (l *Ledger) Close() error {
	l.end()
	l.served.Wait()
	err := errors.Join(l.err, l.ledger.Close())
	if failure := l.ledger.Err(); failure != nil {
		return &FailedError{failure}
	}
	return err
}
