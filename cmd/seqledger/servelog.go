package main

import (
	"net"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
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
