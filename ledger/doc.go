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
// A Ledger owns a data directory (package datadir). It joins three parts: the state
// machine decides what a command does (package machine), the replicated log makes
// commands durable (package raftlog), and the store holds the state (package
// boltstore).
//
//	commit.go      the path of a write into the log
//	apply.go       log entries change the state
//	checkpoint.go  the state reaches the disk
//	cache.go       a retry is answered without the log
//	probes.go      when the state is probed for retries
//	keyed.go       commands on keyed records
//	watch.go       blocks as they are committed
//	backup.go      a copy of a running ledger
//	replay.go      what a start does with the log
//	epoch.go       a restored copy becomes an independent ledger
//
// A Ledger embeds a Reader (package read), which has its views and reads of blocks, and
// Ledger.Cluster is the node's part in a cluster (package cluster). Packages restore and
// recovery make data directories from backups and from the survivor of a cluster, verify
// audits them, and backupfile is the format of a backup.
//
// An outcome with a refusal code is a result. An error means that no decision
// is known: see ErrOutcomeUnknown. DESIGN.md beside this file gives the reasons
// and the invariants, FORMAT.md the bytes.
package ledger
