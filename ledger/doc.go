// Package ledger is the engine of seqledger: it makes writes durable once,
// whatever is retried, and answers every retry as it answered the first time.
//
//	l, err := ledger.Open(ctx, ledger.Options{Dir: "./seqledger-data"})
//	outcome, err := l.Write(ctx, &machine.Write{
//		Scope:      machine.Scope{Organization: "acme", Vault: "main"},
//		ClientID:   "till-7",
//		Actor:      "system:example",
//		Sequence:   1,
//		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: payload}},
//	})
//	err = l.Close()
//
// A Ledger owns a data directory (package datadir). Its parts are the state machine,
// which decides (package machine), the replicated log, which makes durable (package
// raftlog), and the store, which has the state (package boltstore). This package
// joins them: commit.go is the way of a write, apply.go where the log meets the
// state, checkpoint.go how the state reaches the disk, cache.go how a retry is
// answered without the log, backup.go and restore.go how a ledger is copied.
// Packages backupfile and verify are the format of a backup, and the audit of what
// is stored.
//
// An outcome with a refusal code is a result. An error means that no decision
// is known: see ErrOutcomeUnknown. DESIGN.md beside this file gives the reasons
// and the invariants, FORMAT.md the bytes.
package ledger
