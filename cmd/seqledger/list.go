package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type listCommand struct {
	Entities      listEntitiesCommand      `cmd:"" default:"withargs" help:"List entities by key (default command)."`
	Relationships listRelationshipsCommand `cmd:"" help:"List relationships."`
	Blocks        listBlocksCommand        `cmd:"" help:"List the headers of blocks."`
	Clients       listClientsCommand       `cmd:"" help:"List the streams of a scope, or of all."`
	Refusals      listRefusalsCommand      `cmd:"" help:"List the writes that a server has refused last."`
}

// listPage is the server's largest page size, because a list shows all pages anyway.
const listPage = 1000

// columns are those of a listing: their headings, and the cells of an item.
type columns[T proto.Message] struct {
	headings []string
	cells    func(item T) []string
}

// list prints the items of a listing. Because the timeout applies to each item, a long list may take long.
func list[T proto.Message](
	e *environment, flags *clientFlags, items func(ctx context.Context, c *client.Client) iter.Seq2[T, error],
	in columns[T],
) error {
	if err := flags.check(); err != nil {
		return err
	}
	return flags.connected(e, func(c *client.Client) error {
		of := func(ctx context.Context) iter.Seq2[T, error] { return items(ctx, c) }
		return printList(e, flags, of, in)
	})
}

// printList is list for items that are not a ledger's.
func printList[T proto.Message](
	e *environment, flags *clientFlags, items func(ctx context.Context) iter.Seq2[T, error], in columns[T],
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
			switch {
			case e.json:
				if err := e.showJSON(item); err != nil {
					return err
				}
				continue
			case n == 0:
				t.row(in.headings...)
			}
			t.row(in.cells(item)...)
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

type listEntitiesCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	Prefix      string `help:"Only keys that begin with this." env:"-" placeholder:"TEXT"`
}

func (*listEntitiesCommand) Help() string {
	return examples("seqledger list --scope acme/main --prefix balance/",
		"seqledger list entities --scope acme/main --json")
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
	return list(e, &c.clientFlags, items, columns[*seqledgerv1.Entity]{
		[]string{"KEY", "VERSION", "VALUE", "EXPIRES"}, func(m *seqledgerv1.Entity) []string {
			return []string{
				quoted(m.GetKey()), number(m.GetVersion()), operation.Display(m.GetValue()),
				timestamp(m.GetExpiresAt()),
			}
		},
	})
}

type listRelationshipsCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	Resource    string `help:"Only those of this resource." env:"-" placeholder:"TEXT"`
	Relation    string `help:"Only those of this relation; needs --resource." env:"-" placeholder:"TEXT"`
}

func (*listRelationshipsCommand) Help() string {
	return examples("seqledger list relationships --scope acme/main --resource doc:1 --relation viewer")
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
	return list(e, &c.clientFlags, items, columns[*seqledgerv1.Relationship]{
		[]string{"RESOURCE", "RELATION", "SUBJECT"}, func(r *seqledgerv1.Relationship) []string {
			return []string{quoted(r.GetResource()), quoted(r.GetRelation()), quoted(r.GetSubject())}
		},
	})
}

type listBlocksCommand struct {
	scopeFlags  `embed:""`
	staleFlags  `embed:""`
	clientFlags `embed:""`
	From        uint64 `help:"Height of the first block." default:"1" env:"-"`
}

func (*listBlocksCommand) Help() string { return examples("seqledger list blocks --scope acme/main") }

func (c *listBlocksCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.Block, error] {
		return conn.ListBlocks(c.context(ctx), &seqledgerv1.ListBlocksRequest{Scope: scope, FromHeight: c.From,
			PageSize: listPage})
	}
	return list(e, &c.clientFlags, items, columns[*seqledgerv1.Block]{
		[]string{"HEIGHT", "TRANSACTIONS", "COMMITTED", "HASH"}, func(block *seqledgerv1.Block) []string {
			h := block.GetHeader()
			return []string{
				number(h.GetHeight()), number(h.GetTxCount()), timestamp(h.GetCommittedAt()),
				hex.EncodeToString(block.GetHash()),
			}
		},
	})
}

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
	return list(e, &c.clientFlags, items, columns[*seqledgerv1.ClientEntry]{
		[]string{"SCOPE", "CLIENT", "SEQUENCE", "SESSION", "LAST SEEN"}, func(m *seqledgerv1.ClientEntry) []string {
			s := m.GetState()
			return []string{
				scopeName(m.GetScope()), quoted(m.GetClientId()), number(s.GetLastCommittedSequence()),
				number(s.GetSession()), timestamp(s.GetLastSeen()),
			}
		},
	})
}

type listRefusalsCommand struct {
	clientFlags `embed:""`
	After       uint64 `help:"Only those with a higher number." env:"-" placeholder:"NUMBER"`
}

func (*listRefusalsCommand) Help() string {
	return `A server keeps the last 256 writes that it has refused, in memory, with scope, client id and sequence, but with
nothing of what they would have written. It numbers them from its start on; the oldest comes first. docs/clients.md of
the source says what a client should do about each reason. Needs an admin of every scope. In a cluster each node has
its own: ask the one that the clients write to, which is the leader for those that go to it.

    seqledger list refusals
    seqledger list refusals --after 117 --json`
}

func (c *listRefusalsCommand) Run(e *environment) error {
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.Refusal, error] {
		return func(yield func(*seqledgerv1.Refusal, error) bool) {
			answer, err := admin.ListRefusals(ctx, conn, c.After)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, r := range answer.GetRefusals() {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
	headings := []string{"NUMBER", "TIME", "REASON", "CALL", "SCOPE", "CLIENT", "SEQUENCE", "MESSAGE"}
	in := columns[*seqledgerv1.Refusal]{headings, func(r *seqledgerv1.Refusal) []string {
		scope := "-"
		if r.GetScope() != nil {
			scope = quoted(scopeName(r.GetScope())) // a refused one may have any characters
		}
		return []string{
			number(r.GetNumber()), timestamp(r.GetTime()),
			strings.TrimPrefix(r.GetCode().String(), "WRITE_ERROR_CODE_"), r.GetMethod(), scope, quoted(r.GetClientId()),
			number(r.GetSequence()), r.GetMessage(),
		}
	}}
	return list(e, &c.clientFlags, items, in)
}
