package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// listCommand groups the listings.
type listCommand struct {
	Entities      listEntitiesCommand      `cmd:"" default:"withargs" help:"List entities by key (default command)."`
	Relationships listRelationshipsCommand `cmd:"" help:"List relationships."`
	Blocks        listBlocksCommand        `cmd:"" help:"List the headers of blocks."`
	Clients       listClientsCommand       `cmd:"" help:"List the streams of a scope, or of all."`
	Refusals      listRefusalsCommand      `cmd:"" help:"List the writes that a server has refused last."`
}

// listPage is the server's largest page size, because a list shows all pages anyway.
const listPage = 1000

// list prints the items of a listing with show. Because the timeout applies to each item, a long
// list may take long.
func list[T any](e *environment, flags *clientFlags,
	items func(ctx context.Context, c *client.Client) iter.Seq2[T, error],
	heading []string, show func(e *environment, t *table, item T) error,
) error {
	if err := flags.check(); err != nil {
		return err
	}
	return flags.connected(e, func(c *client.Client) error {
		of := func(ctx context.Context) iter.Seq2[T, error] { return items(ctx, c) }
		return printList(e, flags, of, heading, show)
	})
}

// printList is list for items that are not a ledger's.
func printList[T any](e *environment, flags *clientFlags, items func(ctx context.Context) iter.Seq2[T, error],
	heading []string, show func(e *environment, t *table, item T) error,
) error {
	return flags.withinEach(e, func(ctx context.Context, progress func()) error {
		t, n := newTable(e.stdout), 0
		for item, err := range items(ctx) {
			if err != nil && context.Cause(ctx) != nil {
				return fmt.Errorf("%w: %v", context.Cause(ctx),
					err) //nolint:errorlint // This replaces the error of the cancellation.
			}
			if err != nil {
				return err
			}
			progress()
			if n == 0 && !e.json {
				t.row(heading...)
			}
			if err := show(e, t, item); err != nil {
				return err
			}
			// Print page by page, because a list may not fit into memory.
			if n++; n%listPage == 0 {
				if err := t.flush(); err != nil {
					return err
				}
				t = newTable(e.stdout)
			}
		}
		return t.flush()
	})
}

// listEntitiesCommand lists entities.
type listEntitiesCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	Prefix      string `help:"Only keys that begin with this." env:"-" placeholder:"TEXT"`
}

func (*listEntitiesCommand) Help() string {
	return `Examples:

    seqledger list --scope acme/main --prefix balance/
    seqledger list entities --scope acme/main --json`
}

func (c *listEntitiesCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.Entity, error] {
		return conn.ListEntities(c.context(ctx), &seqledgerv1.ListEntitiesRequest{Scope: scope, Prefix: c.Prefix,
			PageSize: listPage})
	}
	return list(e, &c.clientFlags, items, []string{"KEY", "VERSION", "VALUE", "EXPIRES"},
		func(e *environment, t *table, entity *seqledgerv1.Entity) error {
			if e.json {
				return e.showJSON(entity)
			}
			t.row(quoted(entity.GetKey()), number(entity.GetVersion()),
				operation.Display(entity.GetValue()), timestamp(entity.GetExpiresAt()))
			return nil
		})
}

// listRelationshipsCommand lists relationships.
type listRelationshipsCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	Resource    string `help:"Only those of this resource." env:"-" placeholder:"TEXT"`
	Relation    string `help:"Only those of this relation; needs --resource." env:"-" placeholder:"TEXT"`
}

func (*listRelationshipsCommand) Help() string {
	return `Examples:

    seqledger list relationships --scope acme/main --resource doc:1 --relation viewer`
}

func (c *listRelationshipsCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	if c.Relation != "" && c.Resource == "" {
		return usage("--relation needs --resource")
	}
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.Relationship, error] {
		return conn.ListRelationships(c.context(ctx), &seqledgerv1.ListRelationshipsRequest{
			Scope: scope, Resource: c.Resource, Relation: c.Relation, PageSize: listPage,
		})
	}
	return list(e, &c.clientFlags, items, []string{"RESOURCE", "RELATION", "SUBJECT"},
		func(e *environment, t *table, r *seqledgerv1.Relationship) error {
			if e.json {
				return e.showJSON(r)
			}
			t.row(quoted(r.GetResource()), quoted(r.GetRelation()), quoted(r.GetSubject()))
			return nil
		})
}

// listBlocksCommand lists block headers.
type listBlocksCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	From        uint64 `help:"Height of the first block." default:"1" env:"-"`
}

func (*listBlocksCommand) Help() string {
	return `Examples:

    seqledger list blocks --scope acme/main`
}

func (c *listBlocksCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.Block, error] {
		return conn.ListBlocks(c.context(ctx), &seqledgerv1.ListBlocksRequest{Scope: scope, FromHeight: c.From,
			PageSize: listPage})
	}
	return list(e, &c.clientFlags, items, []string{"HEIGHT", "TRANSACTIONS", "COMMITTED", "HASH"},
		func(e *environment, t *table, block *seqledgerv1.Block) error {
			if e.json {
				return e.showJSON(block)
			}
			h := block.GetHeader()
			t.row(number(h.GetHeight()), number(h.GetTxCount()),
				timestamp(h.GetCommittedAt()), hex.EncodeToString(block.GetHash()))
			return nil
		})
}

// listClientsCommand lists streams.
type listClientsCommand struct {
	scopeFlags  `embed:""`
	clientFlags `embed:""`
}

func (*listClientsCommand) Help() string {
	return `The clients of a scope come together, in the order of their names; scopes with shorter names come first.

    seqledger list clients
    seqledger list clients --scope acme/main`
}

func (c *listClientsCommand) Run(e *environment) error {
	scope, err := c.optional()
	if err != nil {
		return err
	}
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.ClientEntry, error] {
		return conn.ListClients(ctx, &seqledgerv1.ListClientsRequest{Scope: scope, PageSize: listPage})
	}
	return list(e, &c.clientFlags, items, []string{"SCOPE", "CLIENT", "SEQUENCE", "SESSION", "LAST SEEN"},
		func(e *environment, t *table, entry *seqledgerv1.ClientEntry) error {
			if e.json {
				return e.showJSON(entry)
			}
			s := entry.GetState()
			t.row(scopeName(entry.GetScope()), quoted(entry.GetClientId()), number(s.GetLastCommittedSequence()),
				number(s.GetSession()), timestamp(s.GetLastSeen()))
			return nil
		})
}
