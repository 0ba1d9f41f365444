package main

import (
	"context"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/seqledger/seqledger/internal/gateway"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
)

// logServing logs the start. The ready line on standard output is for a program that waits for
// it; this one stays in the log.
func (c *serveCommand) logServing(e *environment, l *ledger.Ledger, address net.Addr, id machine.LedgerID) {
	stats := l.Stats()
	var index, streams uint64
	err := l.ViewLocal(func(v machine.View) error {
		index, streams = v.Index(), v.Streams()
		return nil
	})
	if err != nil { // the server logs that itself
		return
	}
	e.log.Info("serving", "address", address.String(), "version", buildVersion().Version, "data", c.Data,
		"ledger", id.String(), "index", index, "streams", streams,
		"recovered_entries", stats.RecoveredEntries, "recovery_took", stats.RecoveryTook)
}

// logStopped logs the totals, because the metrics end with the process.
func logStopped(e *environment, l *ledger.Ledger) {
	stats := l.Stats()
	e.log.Info("stopped", "up", time.Since(stats.Opened).Round(time.Millisecond),
		"commands", stats.Commands-min(stats.Commands, stats.RecoveredCommands),
		"log_entries", stats.Entries-min(stats.Entries, stats.RecoveredEntries),
		"pending_bytes", stats.PendingBytes)
}

// debugServer serves profiles and metrics, if configured.
type debugServer struct {
	address string
	stop    func()
}

// processMetrics are the metrics of a process, which a ledger's metrics include.
func processMetrics() *prometheus.Registry {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return process
}

// startDebug serves the gateway's metrics, and those of the ledger in this process.
func (c *gatewayCommand) startDebug(e *environment, g *gateway.Gateway, s *keyStore) (*debugServer, error) {
	metrics := prometheus.Gatherers{g.Gatherer(), processMetrics()}
	if s.own != nil {
		metrics[1] = s.own.Metrics()
	}
	return startDebug(e, c.DebugListen, profilesOf(metrics))
}

// profilesOf returns the function that serves profiles and some metrics.
func profilesOf(metrics prometheus.Gatherer) func(ctx context.Context, l net.Listener) error {
	return func(ctx context.Context, l net.Listener) error { return server.ServeProfiles(ctx, l, metrics) }
}

// startDebug serves profiles and metrics on the address of --debug-listen until stop is called, which waits for
// the end. Without an address it serves nothing.
func startDebug(
	e *environment, address string, serve func(ctx context.Context, l net.Listener) error,
) (*debugServer, error) {
	if address == "" {
		return &debugServer{stop: func() {}}, nil
	}
	listener, err := listenOn("--debug-listen", address)
	if err != nil {
		return nil, err
	}
	d := &debugServer{address: listener.Addr().String()}
	// The signal does not end it, so that a hanging drain can be inspected.
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.ctx))
	ended := make(chan struct{})
	// Ends with cancel; stop waits for it.
	go func() {
		defer close(ended)
		if err := serve(ctx, listener); err != nil && ctx.Err() == nil {
			e.log.Error("the debug listener failed", "address", d.address, "error", err) // not fatal
		}
	}()
	e.log.Info("serving profiles and metrics", "address", d.address)
	d.stop = func() {
		cancel()
		<-ended
	}
	return d, nil
}
