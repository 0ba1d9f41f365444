// Package embedded runs a ledger inside a process, for a program that keeps keyed records and needs no
// server beside it: a gateway, a guard. Its calls go to the ledger's own handlers, without a connection
// and without an encoding, because those take most of the time of a replay.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// Options configure a ledger. Only Dir is required.
type Options struct {
	// Dir is the data directory. It is made if it does not exist.
	Dir     string
	Version string       // that the ledger reports
	Logger  *slog.Logger // nil logs nothing
	// PrincipalKeys is how many keyed records each principal may have in a scope; 0 means no bound.
	PrincipalKeys int
	// Listener serves the ledger to other processes, with the rules of Auth; see [server.Options].
	// Nil serves none. Open closes it, also if it fails.
	Listener   net.Listener
	Auth       *auth.Authority
	StoredFile string
	// DrainTimeout bounds how long Close waits for the requests of other processes; 0 means 30 s.
	DrainTimeout time.Duration
}

// Ledger is an open ledger.
type Ledger struct {
	ledger  *ledger.Ledger
	client  *client.Client
	metrics prometheus.Gatherer

	end    context.CancelFunc
	served sync.WaitGroup // the goroutine that serves Listener
	err    error          // of it; read when it has ended
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
	l = new(Ledger)
	if l.ledger, err = ledger.Open(ctx, ledger.Options{Dir: o.Dir, Logger: o.Logger}); err != nil {
		return nil, err
	}
	if err = l.start(ctx, &o); err != nil {
		return nil, errors.Join(err, l.ledger.Close())
	}
	return l, nil
}

// start makes the ways to the ledger.
func (l *Ledger) start(ctx context.Context, o *Options) error {
	settings := server.Options{
		Ledger: l.ledger, Version: o.Version, Logger: o.Logger, DrainTimeout: o.DrainTimeout, DiskReserve: -1,
		PrincipalKeys: o.PrincipalKeys,
	}
	own, err := server.New(settings)
	if err != nil {
		return err
	}
	l.metrics = own.Gatherer()
	// No connection is made to this address, because every call of a record
	// goes to Records.
	l.client, err = client.New(client.Options{Server: "127.0.0.1", Records: own.Records(), Logger: o.Logger})
	if err != nil {
		return err
	}
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	if o.Listener == nil {
		return nil
	}
	settings.Auth, settings.StoredFile, settings.MaxConnections = o.Auth, o.StoredFile, listen.Connections().Ledger
	public, err := server.New(settings)
	if err != nil {
		l.end()
		return errors.Join(err, l.client.Close())
	}
	// Ends with l.end; Close waits for it.
	l.served.Go(func() { l.err = public.Serve(ctx, o.Listener) })
	return nil
}

// Store returns the keyed records, for a caller that may do everything. The store has the ledger's clock, because
// ledger time is behind the wall clock of a machine that was suspended.
func (l *Ledger) Store() idempotency.Store { return &store{idempotency.Ledger(l.client), l.ledger} }

// store implements [idempotency.Clock].
type store struct {
	idempotency.Store

	ledger *ledger.Ledger
}

// Now returns ledger time.
func (s *store) Now() time.Time { return time.Unix(0, s.ledger.Now()) }

// Metrics returns the ledger's metrics, and those of the process.
func (l *Ledger) Metrics() prometheus.Gatherer { return l.metrics }

// Failed is closed when the storage has failed; Close returns why.
func (l *Ledger) Failed() <-chan struct{} { return l.ledger.Failed() }

// FailedError is returned by [Ledger.Close] after the storage has failed.
type FailedError struct{ Cause error }

// Error implements error.
func (e *FailedError) Error() string { return fmt.Sprintf("the ledger in this process: %v", e.Cause) }

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Cause }

// Close ends the ledger, once what is under way in it is answered.
func (l *Ledger) Close() error {
	err := l.client.Close()
	l.end()
	l.served.Wait()
	err = errors.Join(err, l.err, l.ledger.Close())
	if failure := l.ledger.Err(); failure != nil {
		return &FailedError{failure}
	}
	return err
}
