package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/recovery"
)

type recoverCommand struct {
	Data             string `help:"Data directory of the node that is left." default:"./seqledger-data" type:"path"`
	AcceptLostWrites bool   `help:"Recover although writes that only the lost nodes had, including acknowledged ones, are lost." env:"-"`
}

func (*recoverCommand) Help() string {
	return `For the day on which most voters of a cluster are lost for good, and not for one on which they are only away:
start those that can be started, and the cluster goes on by itself with nothing lost.

Without --accept-lost-writes it describes the node and changes nothing. Do that on every node that is left, and take
the one whose log ends in the highest term, and among those of one term at the highest index: it has everything that
the others have. What only the lost nodes had is gone, also if it was acknowledged, and what was never acknowledged
may be there.

With the flag the node becomes a ledger with one node. It begins a new epoch, as a restored backup does: a new ledger id
for what is written from now on, and every session from before has expired. Clients find out with seqledger state
which of their writes are there. The other nodes of the old cluster never belong to it again: empty their
directories and let them join. Killed at any moment, run the same command again; no server starts on the
directory before it has come to its end.

    seqledger recover --data /var/lib/seqledger
    seqledger recover --data /var/lib/seqledger --accept-lost-writes
    seqledger verify --data /var/lib/seqledger
    seqledger serve --data /var/lib/seqledger --peer-listen 10.0.0.1:7451`
}

// survivorResult describes a node with --json.
type survivorResult struct {
	Data           string           `json:"data"`
	Node           uint64           `json:"node,string"`
	LedgerID       string           `json:"ledgerId"`
	LastTerm       uint64           `json:"lastTerm,string"`
	LastIndex      uint64           `json:"lastIndex,string"`
	CommittedIndex uint64           `json:"committedIndex,string"`
	LastTime       time.Time        `json:"lastTime"`
	Members        []survivorMember `json:"members"`
}

type survivorMember struct {
	ID            uint64 `json:"id,string"`
	Voter         bool   `json:"voter"`
	PeerAddress   string `json:"peerAddress,omitempty"`
	ClientAddress string `json:"clientAddress,omitempty"`
}

// recoverResult is the single object that --json prints.
type recoverResult struct {
	Data     string `json:"data"`
	Node     uint64 `json:"node,string"`
	LedgerID string `json:"ledgerId"`
	Index    uint64 `json:"index,string"`
	Digest   string `json:"digest"`
}

func (c *recoverCommand) Run(e *environment) error {
	if err := checkThere("--data", c.Data); err != nil {
		return err
	}
	s, err := recovery.Inspect(c.Data)
	interrupted := errors.Is(err, datadir.ErrRecovering)
	if err != nil && !(interrupted && c.AcceptLostWrites) {
		return c.failed(err)
	}
	if !c.AcceptLostWrites {
		if err := c.describe(e, &s); err != nil {
			return err
		}
		if len(s.Members) == 1 {
			return c.failed(recovery.ErrNothingToRecover)
		}
		return fail(exitRefused, "compare this with every other node that is left; then seqledger recover --data "+
			c.Data+" --accept-lost-writes on the one whose log goes furthest",
			"nothing was changed: writes that were acknowledged may be missing in this node, and are gone after a "+
				"recovery")
	}
	if !interrupted {
		e.notice("recovering node %d with its log up to index %d of term %d: what only the other nodes of its cluster "+
			"had, %d by its log, is lost, and none of them must be started again", s.Node, s.Last.Index, s.Last.Term,
			len(s.Members)-1)
	}
	r, err := recovery.Run(e.ctx, c.Data, e.log)
	if err != nil {
		return c.failed(err)
	}
	if e.json {
		return e.showObject(recoverResult{
			Data: c.Data, Node: r.Before.Node, LedgerID: r.LedgerID.String(), Index: r.Index, Digest: r.Digest.String(),
		})
	}
	_, err = fmt.Fprintf(e.stdout, "recovered %s: node %d is the only one now; it goes on as ledger %s from index %d\n",
		c.Data, r.Before.Node, r.LedgerID, r.Index)
	return err
}

// describe prints the position and the members of a node.
func (c *recoverCommand) describe(e *environment, s *recovery.Survivor) error {
	shown := survivorResult{
		Data: c.Data, Node: s.Node, LedgerID: s.LedgerID.String(), LastTerm: s.Last.Term, LastIndex: s.Last.Index,
		CommittedIndex: s.Committed, LastTime: s.Time.UTC(),
	}
	for _, m := range s.Members {
		shown.Members = append(shown.Members, survivorMember{m.ID, m.Voter, m.Peer, m.Client})
	}
	return e.show(shown, func(t *table) {
		t.row("node", number(s.Node))
		t.row("ledger", s.LedgerID.String())
		t.row("log ends", fmt.Sprintf("in term %d at index %d", s.Last.Term, s.Last.Index))
		t.row("committed", fmt.Sprintf("up to index %d as far as this node knew", s.Committed))
		t.row("last command", s.Time.UTC().Format(time.RFC3339Nano))
		t.row("")
		t.row("NODE", "ROLE", "FOR NODES", "FOR CLIENTS")
		for _, m := range s.Members {
			role := "learner"
			if m.Voter {
				role = "voter"
			}
			t.row(number(m.ID), role, m.Peer, m.Client)
		}
	})
}

// failed adds what the operator should do.
func (c *recoverCommand) failed(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fail(exitFailed, "run it again", "%w", err)
	case errors.Is(err, recovery.ErrNothingToRecover):
		return fail(exitRefused, "seqledger serve --data "+c.Data, "recovery of %s: %w", c.Data, err)
	}
	return fail(exitFailed, storageHint(err, c.Data), "recovery of %s: %w", c.Data, err)
}
