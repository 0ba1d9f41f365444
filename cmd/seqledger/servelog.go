package main

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
)

// This file has the log of serve and its profiles.

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

// checkDebug refuses an address for profiles that other machines could reach. No flag allows
// it: use a tunnel.
func (c *serveCommand) checkDebug() error {
	if c.DebugListen == "" {
		return nil
	}
	host, err := checkListen("--debug-listen", c.DebugListen)
	if err != nil || loopbackName(host) {
		return err
	}
	return fail(exitUsage, "listen on 127.0.0.1 or [::1], and reach it from elsewhere through ssh -L",
		"--debug-listen %s: is not a loopback address; profiles show what the process has in memory", c.DebugListen)
}

// startDebug serves profiles, if configured, until the returned function is called, which waits
// for the end.
func (c *serveCommand) startDebug(e *environment, s *server.Server) (stop func() error, err error) {
	if c.DebugListen == "" {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", c.DebugListen)
	if err != nil {
		return nil, fail(exitFailed, "give another address, or omit --debug-listen",
			"--debug-listen %s: %w", c.DebugListen, err)
	}
	// The signal does not end it, so that a hanging drain can be inspected.
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.ctx))
	served := make(chan error, 1)
	// Ends with cancel; the returned function waits for it.
	go func() {
		err := s.ServeDebug(ctx, listener)
		if ctx.Err() == nil { // the server continues without it
			e.log.Error("the debug listener failed", "address", listener.Addr().String(), "error", err)
			err = nil
		}
		served <- err
	}()
	e.log.Info("serving profiles and metrics", "address", listener.Addr().String())
	return func() error {
		cancel()
		err := <-served
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}, nil
}
