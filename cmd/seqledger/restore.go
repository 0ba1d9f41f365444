package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// restoreCommand makes a data directory from a backup, or from another data
// directory.
type restoreCommand struct {
	Source        sourcePath `arg:"" optional:"" help:"Backup to restore, - for standard input, or an archive: a directory or s3://BUCKET/PREFIX." nonempty:""`
	FromDirectory string     `help:"Restore this data directory, or a copy of one, instead; no server may have it open." type:"path" env:"-" placeholder:"DIR"`
	Data          string     `help:"Data directory to create; it must be absent or empty." default:"./seqledger-data" type:"path"`
	LedgerTime    string     `help:"Ledger time to continue from, now or such as 2027-01-31T00:00:00Z; may be earlier than before. Default: unchanged." env:"-" placeholder:"RFC3339"`
	sourceFlags   `embed:""`
}

func (*restoreCommand) Help() string {
	return `Everything in the backup is checked before the directory becomes a ledger. Killed at any moment, run the
same command again: no server starts on a directory whose restore did not reach its end.

Of an archive (seqledger serve --archive) the newest state is restored with its block files, and the log that follows
it is replayed: to its end, or with --to-index or --to-time to the last whole log entry up to that moment. If a state is
damaged, an older one and a longer log take its place. If the log is, the restore names the object and makes no ledger.

The restored ledger begins a new epoch: a new ledger id for what is written from now on, and every session from
before has expired, because nothing tells what was committed after the backup. Writes from after the backup are
gone; clients find out with seqledger state which of theirs are there. Never run the old directory and the
restored one at the same time.

A copy of the data directory of a stopped server is restored with --from-directory. Do not start a server on
such a copy: once the original has gone on, it would give out transaction ids and sessions a second time. The
copy stays as it is.

A ledger that was once started with a clock far ahead is repaired by a restore with --ledger-time now. What has
expired under the wrong time stays expired; everything else keeps its time to live again.

    seqledger restore ledger.seqledger --data /var/lib/seqledger
    seqledger restore 's3://backups/ledger?region=eu-central-1' --data /var/lib/seqledger
    seqledger restore /mnt/archive --data /var/lib/seqledger --to-time 2027-01-31T11:59:59Z
    seqledger restore --from-directory /mnt/copy/seqledger --data /var/lib/seqledger
    seqledger restore --from-directory /var/lib/ahead --data /var/lib/seqledger --ledger-time now
    seqledger verify --data /var/lib/seqledger
    seqledger serve --data /var/lib/seqledger`
}

// restoreResult is the one object that is printed with --json.
type restoreResult struct {
	Data           string `json:"data"`
	BackupLedgerID string `json:"backupLedgerId"`
	BackupIndex    uint64 `json:"backupIndex,string"`
	BackupDigest   string `json:"backupDigest"`
	BackupTime     string `json:"backupTime"` // ledger time
	LedgerID       string `json:"ledgerId"`
	Index          uint64 `json:"index,string"`
	Digest         string `json:"digest"`
}

func (c *restoreCommand) Run(e *environment) (err error) {
	from, run, done, err := c.source(e)
	if err != nil {
		return err
	}
	defer func() { _ = done() }() // it was only read
	at, err := c.ledgerTime()
	if err != nil {
		return err
	}
	var told *progress
	var replayed seldom
	info, err := run(restore.Options{Dir: c.Data, Logger: e.log, Time: at, Progress: func(done, total int64) {
		if told == nil {
			told = newProgress(e, "restoring", "bytes", 0, total)
		}
		told.to(done)
	}, Replayed: func(index uint64) {
		if !e.json && replayed.due() {
			told.end()
			e.notice("replayed the log up to index %d", index)
		}
	}})
	told.end()
	if err != nil {
		if e.ctx.Err() != nil {
			return fail(exitFailed, "run it again", "%w", context.Cause(e.ctx))
		}
		return fail(exitFailed, c.hint(err), "restore of %s to %s: %w", from, c.Data, err)
	}
	of := time.Unix(0, info.Backup.Time).UTC().Format(time.RFC3339Nano)
	if e.json {
		return e.showObject(restoreResult{
			Data: c.Data, BackupLedgerID: info.Backup.LedgerID.String(), BackupIndex: info.Backup.Index,
			BackupDigest: info.Backup.Digest.String(), BackupTime: of, LedgerID: info.LedgerID.String(),
			Index: info.Index, Digest: info.Digest.String(),
		})
	}
	_, err = fmt.Fprintf(e.stdout, "restored to %s: ledger %s up to index %d, of %s; it goes on as ledger %s from %d\n",
		c.Data, info.Backup.LedgerID, info.Backup.Index, of, info.LedgerID, info.Index)
	return err
}

// source returns what is restored, and how.
func (c *restoreCommand) source(e *environment) (
	name string, run func(restore.Options) (restore.Info, error), done func() error, err error,
) {
	switch {
	case c.Source != "" && c.FromDirectory != "":
		return "", nil, nil, usage("the backup %s and --from-directory: give one of them", c.Source)
	case c.FromDirectory != "":
		return c.FromDirectory, func(o restore.Options) (restore.Info, error) {
			return restore.Directory(e.ctx, c.FromDirectory, o)
		}, func() error { return nil }, cmp.Or(c.none(c.FromDirectory), checkThere("--from-directory", c.FromDirectory))
	case c.Source == "":
		return "", nil, nil, usage("nothing to restore: name a backup or an archive, or a data directory with " +
			"--from-directory")
	}
	from, err := c.open(e, "restore", c.Source)
	return string(c.Source), func(o restore.Options) (restore.Info, error) {
		return restore.State(e.ctx, from.from, o)
	}, from.close, err
}

// ledgerTime returns the value of --ledger-time, or the zero Time.
func (c *restoreCommand) ledgerTime() (time.Time, error) {
	switch c.LedgerTime {
	case "":
		return time.Time{}, nil
	case "now":
		return time.Now(), nil
	}
	at, err := operation.ParseTime(c.LedgerTime)
	if err != nil {
		return time.Time{}, usage("--ledger-time: %w", err)
	}
	if t := at.AsTime(); t.Year() < 1970 || t.After(time.Now()) {
		return time.Time{}, usage("--ledger-time %s: must be after 1970 and not in the future", c.LedgerTime)
	}
	return at.AsTime(), nil
}

// hint says what to do about a failed restore.
func (c *restoreCommand) hint(err error) string {
	if _, damaged := errors.AsType[*backupfile.DamageError](err); damaged {
		return "the directory is not a ledger; restore another copy of the backup, or an older one, into it"
	}
	switch {
	case errors.Is(err, datadir.ErrInUse):
		return "stop the process that has it open, or name another directory"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the file system of " + c.Data + " and run the restore again"
	case verify.IsDamage(err) && c.FromDirectory == "":
		return "the directory is not a ledger; seqledger archive verify tells what else is damaged"
	case verify.IsDamage(err):
		return "keep " + c.FromDirectory + " unchanged, run seqledger verify --data " + c.FromDirectory +
			" to see the damage, and restore another copy or a backup"
	}
	return ""
}
