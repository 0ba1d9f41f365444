package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type archiveCommand struct {
	Status archiveStatusCommand `cmd:"" help:"Show what a running server has archived."`
	Point  archivePointCommand  `cmd:"" help:"Archive what was acknowledged before, and print the moment that a restore can name."`
	Verify archiveVerifyCommand `cmd:"" help:"Check an archive. It needs no ledger."`
	Cat    archiveCatCommand    `cmd:"" help:"Print the blocks of a scope from an archive. It needs no ledger."`
	Copy   archiveCopyCommand   `cmd:"" help:"Copy an archive to another directory or bucket. It needs no ledger."`
	Prune  archivePruneCommand  `cmd:"" help:"Remove old block files from an archive."`
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

type archivePointCommand struct {
	clientFlags `embed:""`
}

func (*archivePointCommand) Help() string {
	return `Waits until the archive has everything that was acknowledged before, and prints its ledger index and ledger
time. Run it before a risky change, and restore with the index if it goes wrong.

    seqledger archive point
    seqledger restore /mnt/archive --to-index 4711 --data ./before-the-change`
}

func (c *archivePointCommand) Run(e *environment) error {
	return ask(e, &c.clientFlags, admin.ArchivePoint, func(t *table, p *seqledgerv1.ArchivePointResponse) {
		t.field("index", number(p.GetIndex()))
		t.field("ledger time", p.GetTime().AsTime().Format(time.RFC3339Nano))
	})
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
		return nil, 0, usage("--ledger: %s has the archives of several ledgers: name one of %s", t,
			describeLedgers(e.ctx, t, ids))
	}
	return t, ids[0], nil
}

// describeLedgers says of each ledger which state is its newest.
func describeLedgers(ctx context.Context, t archive.Target, ids []machine.LedgerID) string {
	var texts []string
	for _, id := range ids {
		text := id.String() + " (no state)"
		if states, err := archive.States(ctx, t, id); err == nil && len(states) > 0 {
			newest := states[len(states)-1]
			text = fmt.Sprintf("%s (state of %s, up to index %d)", id, newest.Time.UTC().Format(time.RFC3339),
				newest.Index)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

type archiveVerifyCommand struct {
	archiveFlags `embed:""`
	Quick        bool `help:"Check each object by itself alone." env:"-"`
}

func (*archiveVerifyCommand) Help() string {
	return `Reads every byte: of each file its hash, its records and what it says of the file before it, of each state its
parts, and the log. Then it replays the log from each state to the next one, which must be what that leads to, and
audits the end as seqledger verify does; this takes as much room in the directory for temporary files ($TMPDIR) as the
ledger. Problems are printed one a line. Exit code 1 says that there are some, or that the check could not be done.

    seqledger archive verify /mnt/archive
    seqledger archive verify /mnt/archive --quick
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
	LogFirst  uint64   `json:"logFirst,string"`
	LogLast   uint64   `json:"logLast,string"`
	Replayed  uint64   `json:"replayed,string"`
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
	var replayed uint64
	if !c.Quick {
		options := verify.Options{Progress: func(s machine.AuditSummary) {
			if !e.json && told.due() {
				e.notice("audited %d blocks, %d transactions", s.Blocks, s.Transactions)
			}
		}}
		found, err := verify.Archive(e.ctx, target, ledger, options, func(index uint64) {
			if !e.json && told.due() {
				e.notice("replayed the log up to index %d", index)
			}
		})
		if err != nil {
			if e.ctx.Err() != nil {
				return context.Cause(e.ctx)
			}
			return fail(exitFailed, "", "archive verify: %w", err)
		}
		replayed, report.Problems = found.LogEntries, append(report.Problems, found.Problems...)
	}
	if err := errors.Join(showProblems(e, "", report.Problems), c.conclude(e, &report, replayed)); err != nil {
		return err
	}
	if n := len(report.Problems); n > 0 {
		return fail(exitFailed, "do not let retention go on with this archive; a ledger that still has these files "+
			"makes them again in another target", "archive verify %s: %d problems", target, n)
	}
	return nil
}

func (c *archiveVerifyCommand) conclude(e *environment, r *archive.Report, replayed uint64) error {
	result := archiveVerifyResult{
		r.ID, r.Ledger.String(), nil, r.Files, r.Bytes, r.Last, nil, r.LogFirst, r.LogLast, replayed, r.Unlisted,
		len(r.Problems),
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
		if r.LogLast > 0 {
			t.field("log", fmt.Sprintf("entries %d to %d, %d commands replayed", r.LogFirst, r.LogLast, replayed))
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

type archivePruneCommand struct {
	archiveFlags `embed:""`
	Before       uint64 `help:"Remove files all of whose records are before this ledger index." required:"" env:"-" placeholder:"INDEX"`
}

func (*archivePruneCommand) Help() string {
	return `Removes the oldest block files of an archive, for good. A file that a state needs stays. The blocks in them can no
longer be proven, printed or audited, so keep another copy unless a law says otherwise.

    seqledger archive prune /mnt/archive --before 1000000`
}

// archivePruneResult is the one object that is printed with --json.
type archivePruneResult struct {
	LedgerID string `json:"ledgerId"`
	Files    int    `json:"files"`
	Bytes    int64  `json:"bytes,string"`
	First    uint64 `json:"firstIndex,string"`
}

func (c *archivePruneCommand) Run(e *environment) error {
	target, ledger, err := c.find(e, "archive prune")
	if err != nil {
		return err
	}
	files, bytes, first, err := archive.Prune(e.ctx, target, ledger, c.Before)
	if e.ctx.Err() != nil {
		return context.Cause(e.ctx)
	}
	if err != nil {
		return fail(exitFailed, "", "archive prune: after %d files: %w", files, err)
	}
	return e.show(archivePruneResult{ledger.String(), files, bytes, first}, func(t *table) {
		t.field("removed", fmt.Sprintf("%d files, %s", files, byteSize(uint64(bytes))))
		if files > 0 {
			t.field("first index", number(first))
		}
	})
}

type archiveCopyCommand struct {
	archiveFlags `embed:""`
	To           archivePath `arg:"" help:"Directory or bucket to copy it to." nonempty:""`
}

func (*archiveCopyCommand) Help() string {
	return `Objects that are there already stay, so run it again to continue, or to bring the copy up to date. An archive that
is being written may be copied. The copy is an archive once the command ends; archive verify checks it.

    seqledger archive copy /mnt/archive 's3://backups/ledger?region=eu-central-1'`
}

// archiveCopyResult is the one object that is printed with --json.
type archiveCopyResult struct {
	LedgerID string `json:"ledgerId"`
	Objects  int    `json:"objects"`
	Bytes    int64  `json:"bytes,string"`
}

func (c *archiveCopyCommand) Run(e *environment) error {
	from, ledger, err := c.find(e, "archive copy")
	if err != nil {
		return err
	}
	to, err := c.To.open(e.ctx)
	if err == nil && to == nil {
		err = errors.New("must be a directory or s3://BUCKET/PREFIX")
	}
	if err != nil {
		return usage("archive copy: to: %w", err)
	}
	result := archiveCopyResult{LedgerID: ledger.String()}
	var told seldom
	err = archive.Copy(e.ctx, from, to, ledger, func(_ string, bytes int64) {
		if result.Objects, result.Bytes = result.Objects+1, result.Bytes+bytes; !e.json && told.due() {
			e.notice("copied %d objects, %s", result.Objects, byteSize(uint64(result.Bytes)))
		}
	})
	if err != nil {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		return fail(exitFailed, "run it again to continue", "archive copy: %w", err)
	}
	return e.show(result, func(t *table) {
		t.field("copied", fmt.Sprintf("%d objects, %s", result.Objects, byteSize(uint64(result.Bytes))))
	})
}
