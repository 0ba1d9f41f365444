package main

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type getCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	EntityKey   string `arg:"" name:"key" help:"Key of the entity."`
}

func (*getCommand) Help() string {
	return `A value that is not printable text is shown in base64; --json has every value in base64.

    seqledger get --scope acme/main balance/42
    seqledger get --scope acme/main balance/42 --server 127.0.0.1:7460 --stale`
}

func (c *getCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	return ask(e, &c.clientFlags, func(ctx context.Context, conn *client.Client) (*seqledgerv1.Entity, error) {
		entity, err := conn.GetEntity(c.context(ctx), &seqledgerv1.GetEntityRequest{Scope: scope, Key: c.EntityKey})
		c.tell(e)
		return entity, absent(err, "seqledger list --prefix shows the keys that there are",
			"there is no entity %q in %s", c.EntityKey, scopeName(scope))
	}, func(t *table, entity *seqledgerv1.Entity) {
		t.field("key", quoted(entity.GetKey()))
		// Print a row, because an empty value must show too.
		t.row("value", operation.Display(entity.GetValue()))
		t.field("version", number(entity.GetVersion()))
		t.field("expires", timestamp(entity.GetExpiresAt()))
		t.field("transaction", entity.GetTxId())
	})
}

// absent names what a server has not found; other errors stay unchanged.
func absent(err error, hint, format string, args ...any) error {
	answer, ok := errors.AsType[*failure.Error](err)
	if !ok || answer.ConnectCode != connect.CodeNotFound {
		return err
	}
	return fail(exitRefused, hint, "%s: %w", answer.ConnectCode, &explainedError{fmt.Sprintf(format, args...), err})
}

type blockCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	Height      uint64 `arg:"" help:"Height of the block, from 1."`
}

func (*blockCommand) Help() string { return examples("seqledger block --scope acme/main 1") }

func (c *blockCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	return ask(e, &c.clientFlags, func(ctx context.Context, conn *client.Client) (*seqledgerv1.Block, error) {
		block, err := conn.GetBlock(c.context(ctx), &seqledgerv1.GetBlockRequest{Scope: scope, Height: c.Height})
		c.tell(e)
		return block, absent(err, "seqledger list blocks shows those that there are", "there is no block %d of %s",
			c.Height, scopeName(scope))
	}, showBlock)
}

type watchCommand struct {
	scopeFlags `embed:""`
	// Without the timeout of clientFlags, because a watch is silent while there are no writes, which
	// looks the same as a failure.
	connectionFlags `embed:""`
	From            uint64 `help:"Height of the first block." default:"1" env:"-"`
	Limit           uint64 `help:"Stop after this many blocks; 0 runs until interrupted." env:"-" placeholder:"N"`
}

func (*watchCommand) Help() string {
	return `Blocks come in order and without a hole, first those that there are, then each as it is committed. A broken
connection is opened again where it broke. Ctrl-C ends it with exit code 0.

    seqledger watch --scope acme/main
    seqledger watch --scope acme/main --from 100 --limit 10 --json`
}

func (c *watchCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	return c.connected(e, func(conn *client.Client) error {
		seen := uint64(0)
		for block, err := range conn.Watch(e.ctx, &seqledgerv1.WatchRequest{Scope: scope, FromHeight: c.From}) {
			if e.ctx.Err() != nil {
				return nil // the only end that it has
			}
			if err != nil {
				return err
			}
			err = e.show(block, func(t *table) {
				showBlock(t, block)
				t.row("")
			})
			if err != nil {
				return err
			}
			if seen++; seen == c.Limit {
				return nil
			}
		}
		return nil
	})
}

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
