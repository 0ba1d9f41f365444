package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type archiveCommand struct {
	Status archiveStatusCommand `cmd:"" help:"Show what a running server has archived."`
	Verify archiveVerifyCommand `cmd:"" help:"Check an archive. It needs no ledger."`
	Cat    archiveCatCommand    `cmd:"" help:"Print the blocks of a scope from an archive. It needs no ledger."`
}

type archiveStatusCommand struct {
	clientFlags `embed:""`
}

func (c *archiveStatusCommand) Run(e *environment) error {
	return ask(e, &c.clientFlags, func(ctx context.Context, conn *client.Client) (*seqledgerv1.ArchiveStatus, error) {
		status, err := conn.Status(ctx)
		archive := status.GetNode().GetArchive()
		if err == nil && archive == nil {
			err = fail(exitRefused, "serve --archive TARGET copies its block files to one", "the server has no archive")
		}
		return archive, err
	}, showArchive)
}

// archiveFlags name the archive of a ledger.
type archiveFlags struct {
	Target archivePath `arg:"" help:"Directory or bucket of the archive, as serve --archive has it." nonempty:""`
	Ledger string      `help:"Id of the ledger, if the target has several." env:"-" placeholder:"ID"`
}

// find opens the target, and finds the ledger.
func (c *archiveFlags) find(e *environment, what string) (t archive.Target, ledger machine.LedgerID, err error) {
	if t, err = c.Target.open(e.ctx); err == nil && t == nil {
		err = errors.New("must be a directory or s3://BUCKET/PREFIX")
	}
	if err != nil {
		return nil, 0, usage("%s: target: %w", what, err)
	}
	const mount = "give the target that serve --archive has, and mount its file system first"
	if c.Ledger != "" {
		ledger, ok := archive.ParseLedger(c.Ledger)
		if !ok {
			return nil, 0, usage("--ledger: must be the id of a ledger, 16 hex digits")
		}
		return t, ledger, nil
	}
	ids, err := archive.Ledgers(e.ctx, t)
	switch {
	case e.ctx.Err() != nil:
		return nil, 0, context.Cause(e.ctx)
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, fail(exitUsage, mount, "%s: %w", what, err)
	case err != nil:
		return nil, 0, fail(exitFailed, "", "%s: %w", what, err)
	case len(ids) == 0:
		return nil, 0, fail(exitFailed, mount, "%s: there is no archive in %s", what, t)
	case len(ids) > 1:
		return nil, 0, usage("--ledger: %s has the archives of the ledgers %s: name one", t,
			strings.Trim(fmt.Sprint(ids), "[]"))
	}
	return t, ids[0], nil
}

type archiveVerifyCommand struct {
	archiveFlags `embed:""`
}

func (*archiveVerifyCommand) Help() string {
	return `Reads every byte: of each file its hash, its records and what it says of the file before it, and of each state its
parts. Problems are printed one a line. Exit code 1 says that there are some, or that the check could not be done.

    seqledger archive verify /mnt/archive
    seqledger archive verify 's3://backups/ledger?region=eu-central-1'`
}

// archiveVerifyResult is the last line with --json.
type archiveVerifyResult struct {
	ID        string   `json:"id"`
	LedgerID  string   `json:"ledgerId"`
	ParentIDs []string `json:"parentIds,omitempty"`
	Files     uint64   `json:"files,string"`
	Bytes     int64    `json:"bytes,string"`
	LastIndex uint64   `json:"lastIndex,string"`
	States    []string `json:"states,omitempty"`
	Unlisted  []string `json:"unlisted,omitempty"`
	Problems  int      `json:"problems"`
}

func (c *archiveVerifyCommand) Run(e *environment) error {
	target, ledger, err := c.find(e, "archive verify")
	if err != nil {
		return err
	}
	var told seldom
	told.due() // from now on
	report, err := archive.Verify(e.ctx, target, ledger, func(r archive.Report) {
		if !e.json && told.due() {
			e.notice("checked %s of %d files and their states", byteSize(uint64(r.Bytes)), r.Files)
		}
	})
	if err != nil {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		return fail(exitFailed, "", "archive verify: %w", err)
	}
	if err := errors.Join(showProblems(e, "", report.Problems), c.conclude(e, &report)); err != nil {
		return err
	}
	if n := len(report.Problems); n > 0 {
		return fail(exitFailed, "do not let retention go on with this archive; a ledger that still has these files "+
			"makes them again in another target", "archive verify %s: %d problems", target, n)
	}
	return nil
}

func (c *archiveVerifyCommand) conclude(e *environment, r *archive.Report) error {
	result := archiveVerifyResult{
		r.ID, r.Ledger.String(), nil, r.Files, r.Bytes, r.Last, nil, r.Unlisted, len(r.Problems),
	}
	for _, id := range r.Parents {
		result.ParentIDs = append(result.ParentIDs, id.String())
	}
	for _, s := range r.States {
		result.States = append(result.States, number(s.Index))
	}
	return e.show(result, func(t *table) {
		t.field("archive", r.ID)
		t.field("ledger", result.LedgerID)
		for _, id := range result.ParentIDs {
			t.field("restored from", id)
		}
		t.field("files", number(r.Files))
		t.field("checked", byteSize(uint64(r.Bytes)))
		t.field("up to index", number(r.Last))
		for _, s := range r.States {
			t.field("state", fmt.Sprintf("up to index %d, of %s", s.Index, s.Time.UTC().Format(time.RFC3339)))
		}
		for _, name := range r.Unlisted {
			t.field("no file of it", oneLine(name))
		}
		t.field("problems", number(uint64(len(r.Problems))))
	})
}

type archiveCatCommand struct {
	archiveFlags `embed:""`
	scopeFlags   `embed:""`
	FromHeight   uint64 `help:"Height of the first block." default:"1" env:"-"`
	Limit        uint64 `help:"Stop after this many blocks; 0 for all." env:"-" placeholder:"N"`
}

func (*archiveCatCommand) Help() string {
	return `Blocks come in order, each checked against its transactions and the block before it. The archive has the blocks
of sealed files; the ledger has the newest ones.

    seqledger archive cat /mnt/archive --scope acme/main --from-height 1 --json`
}

func (c *archiveCatCommand) Run(e *environment) error {
	m, err := c.scope()
	if err != nil {
		return err
	}
	target, ledger, err := c.find(e, "archive cat")
	if err != nil {
		return err
	}
	archived, err := archive.NewReader(e.ctx, target, ledger)
	if err != nil {
		return fail(exitFailed, "", "archive cat: %w", err)
	}
	scope := machine.Scope{Organization: m.GetOrganization(), Vault: m.GetVault()}
	var failed error
	seen := uint64(0)
	err = archived.VisitScope(scope, c.FromHeight, func(h machine.BlockHeader, txs []machine.Transaction) bool {
		block, part := wire.RenderBlock(&h), wire.NewPart(1<<40)
		for i := range txs {
			part.Add(&txs[i], 0)
		}
		block.Transactions = part.Transactions
		failed = e.show(block, func(t *table) {
			showBlock(t, block)
			t.row("")
		})
		seen++
		return failed == nil && seen != c.Limit && e.ctx.Err() == nil
	})
	switch {
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	case err != nil:
		return fail(exitFailed, "seqledger archive verify tells how much is damaged", "archive cat: %w", err)
	case failed == nil && seen == 0:
		return fail(exitRefused, "", "the archive has no block of %s from height %d on", scope, c.FromHeight)
	}
	return failed
}
