package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/gateway"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// gatewayStore is the ledger that keeps a gateway's records: a running one, or one in this process.
type gatewayStore struct {
	conn *client.Client
	// failed is closed when the ledger in this process ends by itself; nil for a running one.
	failed <-chan struct{}
	// address is where --ledger-listen listens, or "".
	address string
	metrics prometheus.Gatherer // nil for a running ledger
	access  *auth.Authority     // of --ledger-auth, or nil
	// stop ends what was started, and returns why the ledger in this process has failed.
	stop func() error
}

// reload reads the file of --ledger-auth again.
func (s *gatewayStore) reload() {
	if s.access != nil {
		_ = s.access.Reload() // which logs the result
	}
}

// openStore connects to the ledger.
func (c *gatewayProcess) openStore(e *environment) (*gatewayStore, error) {
	if c.Ledger == "" {
		return c.openLedger(e)
	}
	o, err := (&connectionFlags{Server: c.Ledger, TokenFile: c.TokenFile}).options()
	if err != nil {
		text := strings.NewReplacer("--server", "--ledger", "--token-file", "--ledger-token-file").Replace(err.Error())
		return nil, usage("%s", text)
	}
	o.Logger = e.log
	conn, err := client.New(o)
	if err != nil {
		return nil, err
	}
	return &gatewayStore{conn: conn, stop: conn.Close}, nil
}

// openLedger opens the ledger in --data. This process reaches it through a pipe, without
// credentials; others through --ledger-listen.
func (c *gatewayProcess) openLedger(e *environment) (*gatewayStore, error) {
	s := new(gatewayStore)
	listener, err := c.listenForLedger(e, s)
	if err != nil {
		return nil, err
	}
	// Not e.ctx: what is under way is answered after the signal.
	l, err := ledger.Open(context.WithoutCancel(e.ctx), ledger.Options{Dir: c.Data, Logger: e.log})
	if err != nil {
		if listener != nil {
			_ = listener.Close()
		}
		return nil, fail(exitFailed, storageHint(err, c.Data), "--data %s: %w", c.Data, err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(e.ctx))
	var group sync.WaitGroup
	var served []error // of the servers; belongs to the group until it has ended
	var mu sync.Mutex
	start := func(sv *server.Server, on net.Listener) <-chan struct{} {
		ended := make(chan struct{})
		// Ends with end; stop waits for it.
		group.Go(func() {
			defer close(ended)
			err := sv.Serve(ctx, on)
			mu.Lock()
			defer mu.Unlock()
			served = append(served, err)
		})
		return ended
	}
	s.stop = func() error {
		var closed error
		if s.conn != nil {
			closed = s.conn.Close()
		}
		end()
		group.Wait()
		err := errors.Join(append(served, closed, l.Close())...)
		if failure := l.Err(); failure != nil {
			return fail(exitFailed, storageHint(failure, c.Data), "%w", failure)
		}
		return err
	}
	if err := c.startServers(e, s, l, listener, start); err != nil {
		if listener != nil {
			_ = listener.Close()
		}
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// listenForLedger prepares --ledger-listen before the ledger is opened: a port in use must not make
// one. The listener is nil without the flag.
func (c *gatewayProcess) listenForLedger(e *environment, s *gatewayStore) (listener net.Listener, err error) {
	if c.LedgerListen == "" {
		return nil, nil
	}
	if c.LedgerAuth != "" {
		if s.access, err = auth.Open(c.LedgerAuth, auth.Options{Logger: e.log}); err != nil {
			return nil, authFileError(fmt.Errorf("--ledger-auth: %w", err))
		}
	}
	if listener, err = net.Listen("tcp", c.LedgerListen); err != nil {
		return nil, fail(exitFailed, "", "--ledger-listen %s: %w", c.LedgerListen, err)
	}
	s.address = listener.Addr().String()
	return listener, nil
}

// startServers serves the ledger to this process, and on the listener if there is one.
func (c *gatewayProcess) startServers(
	e *environment, s *gatewayStore, l *ledger.Ledger, listener net.Listener,
	start func(*server.Server, net.Listener) <-chan struct{},
) error {
	o := server.Options{
		Ledger: l, Version: buildVersion().Version, Logger: e.log, DrainTimeout: c.DrainTimeout, DiskReserve: -1,
		PrincipalKeys: c.MaxKeys,
	}
	if listener != nil {
		o.Auth, o.StoredFile = s.access, filepath.Join(c.Data, storedName)
		public, err := server.New(o)
		if err != nil {
			return err
		}
		start(public, listener)
		e.log.Info("serving the ledger", "address", s.address)
	}
	// Insecure, because only this process can reach it.
	o.Auth, o.StoredFile, o.Insecure = nil, "", true
	own, err := server.New(o)
	if err != nil {
		return err
	}
	s.metrics = own.Gatherer()
	pipe := gateway.NewPipe()
	s.failed = start(own, pipe)
	s.conn, err = client.New(client.Options{
		Server: "http://127.0.0.1", Logger: e.log,
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: pipe.Dial, MaxIdleConnsPerHost: 1_024}},
	})
	return err
}

// gatewayDebug serves profiles and metrics, if configured.
type gatewayDebug struct {
	address string
	stop    func()
}

// startDebug serves profiles and metrics until stop is called, which waits for the end.
func (c *gatewayCommand) startDebug(e *environment, g *gateway.Gateway, s *gatewayStore) (*gatewayDebug, error) {
	if c.DebugListen == "" {
		return &gatewayDebug{stop: func() {}}, nil
	}
	metrics := prometheus.Gatherers{g.Gatherer()}
	if s.metrics != nil {
		metrics = append(metrics, s.metrics)
	} else { // which the ledger's metrics have besides
		process := prometheus.NewRegistry()
		process.MustRegister(collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		metrics = append(metrics, process)
	}
	listener, err := net.Listen("tcp", c.DebugListen)
	if err != nil {
		return nil, fail(exitFailed, "give another address, or omit --debug-listen", "--debug-listen %s: %w",
			c.DebugListen, err)
	}
	d := &gatewayDebug{address: listener.Addr().String()}
	// The signal does not end it, so that a hanging drain can be inspected.
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.ctx))
	ended := make(chan struct{})
	// Ends with cancel; stop waits for it.
	go func() {
		defer close(ended)
		if err := server.ServeProfiles(ctx, listener, metrics); err != nil && ctx.Err() == nil {
			e.log.Error("the debug listener failed", "address", d.address, "error", err) // the gateway goes on
		}
	}()
	e.log.Info("serving profiles and metrics", "address", d.address)
	d.stop = func() {
		cancel()
		<-ended
	}
	return d, nil
}
