package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// verifyCommand checks a data directory or a backup, or compares two data directories.
type verifyCommand struct {
	Data    string      `help:"Data directory." default:"./seqledger-data" type:"path"`
	Compare string      `help:"Also check this data directory, and compare the two." type:"path" placeholder:"DIR" env:"-"`
	Archive archivePath `help:"Check it together with the blocks in this archive." nonempty:"" placeholder:"TARGET" env:"-"`
	Backup  sourcePath  `help:"Check this backup instead, or what is in this archive; - reads a backup from standard input." nonempty:"" placeholder:"FILE" env:"-"`

	sourceFlags `embed:""`
}

func (*verifyCommand) Help() string {
	return `Reads everything, changes nothing, and needs a directory that no server has open. Problems are printed one a
line: where, and what is wrong. Exit code 1 says that there are some, or that the check could not be done.

What retention has dropped cannot be recomputed: it is taken from the state, and everything since is checked. With
--archive the whole history is.

With --compare it checks both and compares them: two nodes of a cluster have the same digest at the same entry of
the log, and the same blocks, as far as both reach. They may have stopped, or been killed, at different entries.
Entries at the end of a node's log that it cannot know to be committed are counted as undecided, and not looked at.

A backup is unpacked into the directory for temporary files ($TMPDIR), which needs as much room as it takes, and
then checked in the same way. So is what a restore of an archive would make, up to --to-index or --to-time.

    seqledger verify --data ./seqledger-data
    seqledger verify --data ./seqledger-data --archive /mnt/archive
    seqledger verify --data n1 --compare n2
    seqledger verify --backup ledger.seqledger
    seqledger verify --backup 's3://backups/ledger?region=eu-central-1'
    seqledger verify --data ./seqledger-data --json`
}

// verifyResult is the last line with --json; of two directories there is one for each, and a verifyComparison.
type verifyResult struct {
	Data          string `json:"data,omitempty"` // of two
	LedgerID      string `json:"ledgerId"`
	Index         uint64 `json:"index,string"`
	Digest        string `json:"digest"`
	LogEntries    uint64 `json:"logEntries,string"`
	Undecided     uint64 `json:"undecided,string"`
	Pages         uint64 `json:"pages,string"`
	Blocks        uint64 `json:"blocks,string"`
	Transactions  uint64 `json:"transactions,string"`
	Entities      uint64 `json:"entities,string"`
	Relationships uint64 `json:"relationships,string"`
	Streams       uint64 `json:"streams,string"`
	Receipts      uint64 `json:"receipts,string"`
	Dropped       uint64 `json:"dropped,string"`
	Carried       uint64 `json:"carried,string"`
	Problems      uint64 `json:"problems,string"`
}

// verifyComparison is the last line with --json of two directories.
type verifyComparison struct {
	Index       uint64 `json:"comparedIndex,string"`
	Blocks      uint64 `json:"comparedBlocks,string"`
	Differences uint64 `json:"differences,string"`
}

// verifyProblem is a line of a problem with --json.
type verifyProblem struct {
	Where string `json:"where"`
	What  string `json:"what"`
}

func (c *verifyCommand) Run(e *environment) error {
	if c.Archive != "" && c.Backup != "" {
		return usage("--archive and --backup do not go together")
	}
	if c.Compare == c.Data {
		return usage("--compare names the directory of --data")
	}
	if c.Compare != "" && (c.Archive != "" || c.Backup != "") {
		return usage("--compare does not go together with --archive or --backup")
	}
	if c.Backup == "" {
		err := cmp.Or(c.none(c.Data), checkThere("--data", c.Data, "--compare", c.Compare, "--archive",
			c.Archive.directory()))
		if err != nil {
			return err
		}
	}
	archived, err := c.Archive.open(e.ctx)
	if err != nil {
		return usage("--archive: %w", err)
	}
	var told seldom
	told.due() // from now on
	options := verify.Options{Archive: archived, Progress: func(s machine.AuditSummary) {
		if !e.json && told.due() {
			e.notice("checked %d blocks, %d transactions", s.Blocks, s.Transactions)
		}
	}}
	if c.Compare != "" {
		return c.compare(e, options)
	}
	what, hint := c.Data, "stop using this directory and restore it from a backup; keep the damaged one to find "+
		"the cause"
	switch {
	case c.Archive != "":
		hint = "seqledger verify without --archive tells whether the directory itself is damaged, and seqledger " +
			"archive verify whether the archive is"
	case c.Backup != "":
		what, hint = string(c.Backup), "make a new backup, and keep older ones until it is verified"
	}
	found, err := c.check(e, options)
	if own, ok := errors.AsType[*exitError](err); ok {
		return own
	}
	if err != nil {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		return fail(exitFailed, storageHint(err, c.Data), "verify %s: %w", what, err)
	}
	count := uint64(len(found.Problems)) + found.Omitted
	if err := errors.Join(showProblems(e, "", found.Problems), conclude(e, "", found, count)); err != nil {
		return err
	}
	if count > 0 {
		return fail(exitFailed, hint, "verify %s: %d problems", what, count)
	}
	return nil
}

// showProblems prints one line each, so that grep and wc work.
func showProblems(e *environment, data string, problems []machine.Problem) (err error) {
	if data != "" {
		data += ": "
	}
	for _, problem := range problems {
		if e.json {
			err = e.showObject(verifyProblem{data + problem.Where, problem.What})
		} else {
			_, err = fmt.Fprintf(e.stdout, "%s%s: %s\n", data, oneLine(problem.Where), oneLine(problem.What))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compare verifies two directories, and compares them.
func (c *verifyCommand) compare(e *environment, options verify.Options) error {
	found, err := verify.Compare(e.ctx, c.Data, c.Compare, options)
	if err != nil {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		return fail(exitFailed, storageHint(err, c.Data+" or "+c.Compare), "verify: %w", err)
	}
	problems := uint64(0)
	for i, report := range found.Reports {
		count := uint64(len(report.Problems)) + report.Omitted
		problems += count
		dir := [...]string{c.Data, c.Compare}[i]
		err := errors.Join(showProblems(e, dir, report.Problems), conclude(e, dir, report, count))
		if err == nil && !e.json {
			_, err = fmt.Fprintln(e.stdout)
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(showProblems(e, "", found.Differences), concludeComparison(e, found)); err != nil {
		return err
	}
	switch {
	case len(found.Differences) > 0:
		return fail(exitFailed, "keep both to find the cause; the node that differs from the others joins again with "+
			"an empty data directory", "verify: %s and %s differ", c.Data, c.Compare)
	case problems > 0:
		return fail(exitFailed, "let the damaged node join again with an empty data directory; keep the damaged one "+
			"to find the cause", "verify %s, %s: %d problems", c.Data, c.Compare, problems)
	}
	return nil
}

func concludeComparison(e *environment, found *verify.Comparison) error {
	differences := uint64(len(found.Differences))
	compared := "up to index " + number(found.Index)
	if found.Index == 0 {
		compared = "not compared: one ends before the checkpoint of the other"
	}
	return e.show(verifyComparison{found.Index, found.Blocks, differences}, func(t *table) {
		t.field("digests", compared)
		t.field("scopes", number(found.Blocks)+", compared up to the last block that both have")
		t.field("differences", number(differences))
	})
}

// check verifies the data directory or the backup.
func (c *verifyCommand) check(e *environment, options verify.Options) (*verify.Report, error) {
	if c.Backup == "" {
		return verify.Directory(e.ctx, c.Data, options)
	}
	from, err := c.open(e, "verify", c.Backup)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.close() }() // it was only read
	return verify.State(e.ctx, from.from[0], options)
}

// conclude prints what was checked; data is empty for the only directory.
func conclude(e *environment, data string, found *verify.Report, count uint64) error {
	result := verifyResult{
		Data:     data,
		LedgerID: found.LedgerID.String(), Index: found.Index, Digest: found.Digest.String(),
		LogEntries: found.LogEntries, Undecided: found.Undecided, Pages: found.Pages,
		Blocks: found.Blocks, Transactions: found.Transactions, Entities: found.Entities,
		Relationships: found.Relationships, Streams: found.Streams, Receipts: found.Receipts,
		Dropped: found.Dropped, Carried: found.Carried, Problems: count,
	}
	return e.show(result, func(t *table) {
		if data != "" {
			t.field("directory", data)
		}
		t.field("ledger", found.LedgerID.String())
		t.field("index", number(found.Index))
		t.field("digest", found.Digest.String())
		t.field("log entries", number(found.LogEntries)+" after the checkpoint")
		if found.Undecided > 0 {
			t.field("undecided", number(found.Undecided)+" more log entries: the other nodes know what became of them")
		}
		if found.Pages > 0 {
			t.field("pages", number(found.Pages)+" of the state file compared with their checksums")
		}
		t.field("blocks", number(found.Blocks))
		t.field("transactions", number(found.Transactions))
		t.field("entities", number(found.Entities))
		t.field("relationships", number(found.Relationships))
		t.field("streams", number(found.Streams))
		t.field("receipts", number(found.Receipts))
		if found.Dropped > 0 {
			t.field("dropped", "the blocks up to index "+number(found.Dropped)+", which are taken from the state")
		}
		t.field("problems", number(count))
	})
}
