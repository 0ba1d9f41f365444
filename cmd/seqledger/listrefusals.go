package main

import (
	"context"
	"iter"
	"strings"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// listRefusalsCommand lists refused writes.
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
	return list(e, &c.clientFlags, items, columns[*seqledgerv1.Refusal]{headings, func(r *seqledgerv1.Refusal) []string {
		scope := "-"
		if r.GetScope() != nil {
			scope = quoted(scopeName(r.GetScope())) // a refused one may have any characters
		}
		return []string{
			number(r.GetNumber()), timestamp(r.GetTime()), strings.TrimPrefix(r.GetCode().String(), "WRITE_ERROR_CODE_"),
			r.GetMethod(), scope, quoted(r.GetClientId()), number(r.GetSequence()), r.GetMessage(),
		}
	}})
}
