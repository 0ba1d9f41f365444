package main

import (
	"context"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/seqledger/seqledger/internal/gateway"
	"github.com/seqledger/seqledger/server"
)

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
