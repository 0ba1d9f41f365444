package main

import (
	"context"

	"github.com/seqledger/seqledger/client"
)

// staleFlags are the flags of reads that any node may answer alone.
type staleFlags struct {
	Stale bool `help:"Read without asking the other nodes; the answer may be out of date." env:"-"`

	read client.StaleRead
}

// context returns the context of the reads.
func (f *staleFlags) context(ctx context.Context) context.Context {
	if !f.Stale {
		return ctx
	}
	return client.WithStaleRead(ctx, &f.read)
}

// tell says how old the answer is.
func (f *staleFlags) tell(e *environment) {
	if f.Stale && f.read.Index > 0 && !e.json {
		e.notice("as of ledger index %d at the server that was asked", f.read.Index)
	}
}
