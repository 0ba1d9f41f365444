package main

import (
	"context"
	"encoding/hex"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// listCommand groups the listings.
type listCommand struct {
	Entities      listEntitiesCommand      `cmd:"" default:"withargs" help:"List entities in the order of their keys. This is what list does without a word."`
	Relationships listRelationshipsCommand `cmd:"" help:"List relationships."`
	Blocks        listBlocksCommand        `cmd:"" help:"List the headers of blocks."`
	Clients       listClientsCommand       `cmd:"" help:"List the streams of a scope, or of all."`
}

// listPage is the largest page that the server gives, because a list shows all
// of them anyway.
const listPage = 1000

// pages calls fetch with the token of one page after the other and prints the
// items with show. The timeout is each page's own, so that a list may take as
// long as it is.
func pages[T any](e *environment, flags *clientFlags, fetch func(ctx context.Context, c *client.Client, token string) ([]T, string, error),
	heading []string, show func(e *environment, t *table, item T) error,
) error {
	if err := flags.check(); err != nil {
		return err
	}
	return flags.connected(e, func(c *client.Client) error {
		for token, first := "", true; first || token != ""; first = false {
			var items []T
			var next string
			err := flags.within(e, func(ctx context.Context) (err error) {
				items, next, err = fetch(ctx, c, token)
				return err
			})
			if err != nil {
				return err
			}
			// Printed page by page, because a list may be longer than the memory.
			t := newTable(e.stdout)
			if first && !e.json && len(items) > 0 {
				t.row(heading...)
			}
			for _, item := range items {
				if err := show(e, t, item); err != nil {
					return err
				}
			}
			if err := t.flush(); err != nil {
				return err
			}
			token = next
		}
		return nil
	})
}

// listEntitiesCommand lists entities.
type listEntitiesCommand struct {
	scopeFlags  `embed:""`
	clientFlags `embed:""`
	Prefix      string `help:"Only keys that begin with this." env:"-" placeholder:"TEXT"`
}

// Help is shown below the flags.
func (*listEntitiesCommand) Help() string {
	return `Examples:

    seqledger list --scope acme/main --prefix balance/
    seqledger list entities --scope acme/main --json`
}

// Run is called by kong.
func (c *listEntitiesCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	fetch := func(ctx context.Context, conn *client.Client, token string) ([]*seqledgerv1.Entity, string, error) {
		page, err := conn.ListEntities(ctx, &seqledgerv1.ListEntitiesRequest{
			Scope: scope, Prefix: c.Prefix, PageSize: listPage, PageToken: token,
		})
		return page.GetEntities(), page.GetNextPageToken(), err
	}
	return pages(e, &c.clientFlags, fetch, []string{"KEY", "VERSION", "VALUE", "EXPIRES"},
		func(e *environment, t *table, entity *seqledgerv1.Entity) error {
			if e.json {
				return e.showJSON(entity)
			}
			t.row(quoted(entity.GetKey()), number(entity.GetVersion()), display(entity.GetValue()), timestamp(entity.GetExpiresAt()))
			return nil
		})
}

// listRelationshipsCommand lists relationships.
type listRelationshipsCommand struct {
	scopeFlags  `embed:""`
	clientFlags `embed:""`
	Resource    string `help:"Only those of this resource." env:"-" placeholder:"TEXT"`
	Relation    string `help:"Only those of this relation; needs --resource." env:"-" placeholder:"TEXT"`
}

// Help is shown below the flags.
func (*listRelationshipsCommand) Help() string {
	return `Examples:

    seqledger list relationships --scope acme/main --resource doc:1 --relation viewer`
}

// Run is called by kong.
func (c *listRelationshipsCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	if c.Relation != "" && c.Resource == "" {
		return usage("--relation needs --resource")
	}
	fetch := func(ctx context.Context, conn *client.Client, token string) ([]*seqledgerv1.Relationship, string, error) {
		page, err := conn.ListRelationships(ctx, &seqledgerv1.ListRelationshipsRequest{
			Scope: scope, Resource: c.Resource, Relation: c.Relation, PageSize: listPage, PageToken: token,
		})
		return page.GetRelationships(), page.GetNextPageToken(), err
	}
	return pages(e, &c.clientFlags, fetch, []string{"RESOURCE", "RELATION", "SUBJECT"},
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
	clientFlags `embed:""`
	From        uint64 `help:"Height of the first block." default:"1" env:"-"`
}

// Help is shown below the flags.
func (*listBlocksCommand) Help() string {
	return `Examples:

    seqledger list blocks --scope acme/main`
}

// Run is called by kong.
func (c *listBlocksCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	fetch := func(ctx context.Context, conn *client.Client, token string) ([]*seqledgerv1.Block, string, error) {
		page, err := conn.ListBlocks(ctx, &seqledgerv1.ListBlocksRequest{
			Scope: scope, FromHeight: c.From, PageSize: listPage, PageToken: token,
		})
		return page.GetBlocks(), page.GetNextPageToken(), err
	}
	return pages(e, &c.clientFlags, fetch, []string{"HEIGHT", "TRANSACTIONS", "COMMITTED", "HASH"},
		func(e *environment, t *table, block *seqledgerv1.Block) error {
			if e.json {
				return e.showJSON(block)
			}
			h := block.GetHeader()
			t.row(number(h.GetHeight()), number(h.GetTxCount()), timestamp(h.GetCommittedAt()), hex.EncodeToString(block.GetHash()))
			return nil
		})
}

// listClientsCommand lists streams.
type listClientsCommand struct {
	scopeFlags  `embed:""`
	clientFlags `embed:""`
}

// Help is shown below the flags.
func (*listClientsCommand) Help() string {
	return `The clients of a scope come together, in the order of their names; scopes with shorter names come first.

    seqledger list clients
    seqledger list clients --scope acme/main`
}

// Run is called by kong.
func (c *listClientsCommand) Run(e *environment) error {
	scope, err := c.optional()
	if err != nil {
		return err
	}
	fetch := func(ctx context.Context, conn *client.Client, token string) ([]*seqledgerv1.ClientEntry, string, error) {
		page, err := conn.ListClients(ctx, &seqledgerv1.ListClientsRequest{Scope: scope, PageSize: listPage, PageToken: token})
		return page.GetClients(), page.GetNextPageToken(), err
	}
	return pages(e, &c.clientFlags, fetch, []string{"SCOPE", "CLIENT", "SEQUENCE", "SESSION", "LAST SEEN"},
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
