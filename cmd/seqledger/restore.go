package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
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
	Files         []string `arg:"" optional:"" help:"Backup to restore, or a full one followed by its incremental ones in order; - reads one from standard input." name:"file" type:"path"`
	FromDirectory string   `help:"Restore this data directory, or a copy of one, instead of a backup; no server may have it open." type:"path" env:"-" placeholder:"DIR"`
	Data          string   `help:"Data directory to create; it must be absent or empty." default:"./seqledger-data" type:"path"`
	LedgerTime    string   `help:"Ledger time to continue from, now or such as 2027-01-31T00:00:00Z; may be earlier than before. Default: unchanged." env:"-" placeholder:"RFC3339"`
}

func (*restoreCommand) Help() string {
	return `Everything in the backup is checked before the directory becomes a ledger. Killed at any moment, run the
same command again: no server starts on a directory whose restore did not reach its end.

An incremental backup is restored with those that it was made since, the full one first and each directly behind the
one before it. What the last one holds is restored.

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
    seqledger restore full.seqledger monday.seqledger tuesday.seqledger --data /var/lib/seqledger
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
	LedgerID       string `json:"ledgerId"`
	Index          uint64 `json:"index,string"`
	Digest         string `json:"digest"`
}

func (c *restoreCommand) Run(e *environment) (err error) {
	source, run, done, err := c.source(e)
	if err != nil {
		return err
	}
	defer done()
	at, err := c.ledgerTime()
	if err != nil {
		return err
	}
	var told *progress
	info, err := run(restore.Options{Dir: c.Data, Logger: e.log, Time: at, Progress: func(done, total int64) {
		if told == nil {
			told = newProgress(e, "restoring", "bytes", 0, total)
		}
		told.to(done)
	}})
	told.end()
	if err != nil {
		if e.ctx.Err() != nil {
			return fail(exitFailed, "run it again", "%w", context.Cause(e.ctx))
		}
		return fail(exitFailed, c.hint(err), "restore of %s to %s: %w", source, c.Data, err)
	}
	if e.json {
		return e.showObject(restoreResult{
			Data: c.Data, BackupLedgerID: info.Backup.LedgerID.String(), BackupIndex: info.Backup.Index,
			BackupDigest: info.Backup.Digest.String(), LedgerID: info.LedgerID.String(),
			Index: info.Index, Digest: info.Digest.String(),
		})
	}
	_, err = fmt.Fprintf(e.stdout, "restored to %s: ledger %s up to index %d; it goes on as ledger %s from index %d\n",
		c.Data, info.Backup.LedgerID, info.Backup.Index, info.LedgerID, info.Index)
	return err
}

// source returns what is restored, and how.
func (c *restoreCommand) source(e *environment) (
	name string, run func(restore.Options) (restore.Info, error), done func(), err error,
) {
	switch {
	case len(c.Files) > 0 && c.FromDirectory != "":
		return "", nil, nil, usage("the backup %s and --from-directory: give one of them", c.Files[0])
	case c.FromDirectory != "":
		return c.FromDirectory, func(o restore.Options) (restore.Info, error) {
			return restore.Directory(e.ctx, c.FromDirectory, o)
		}, func() {}, checkThere("--from-directory", c.FromDirectory)
	case len(c.Files) == 0:
		return "", nil, nil, usage("nothing to restore: name a backup, or a data directory with --from-directory")
	case len(c.Files) == 1:
		backup, done, err := openBackup(e, c.Files[0])
		return c.Files[0], func(o restore.Options) (restore.Info, error) {
			return restore.Backup(e.ctx, backup, o)
		}, done, err
	}
	chain, done, err := openChain(c.Files)
	return strings.Join(c.Files, ", "), func(o restore.Options) (restore.Info, error) {
		return restore.Chain(e.ctx, chain, o)
	}, done, err
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

// openChain opens backups that belong together.
func openChain(paths []string) (chain []backupfile.File, done func(), err error) {
	var files []io.Closer
	done = func() {
		for _, f := range files {
			_ = f.Close() // it was only read
		}
	}
	for _, path := range paths {
		if path == "-" {
			done()
			return nil, nil, usage("an incremental backup is read more than once, which standard input cannot be: " +
				"write it to a file")
		}
		f, size, err := openFile(path)
		if err != nil {
			done()
			return nil, nil, err
		}
		files = append(files, f)
		chain = append(chain, backupfile.File{Name: path, Content: f, Size: size})
	}
	return chain, done, nil
}

// openBackup opens a backup to read.
func openBackup(e *environment, path string) (backup io.Reader, done func(), err error) {
	if path == "-" {
		return e.stdin, func() {}, nil
	}
	f, size, err := openFile(path)
	if err != nil {
		return nil, nil, err
	}
	// An incremental one is refused before anything is made. What cannot be read twice is looked at as it is read.
	err = backupfile.CheckChain([]backupfile.File{{Name: path, Content: f, Size: size}})
	if errors.Is(err, backupfile.ErrChain) {
		return nil, nil, errors.Join(fail(exitFailed, "name the full backup first, then each that was made since, and "+
			"this one last", "%w", err), f.Close())
	}
	return f, func() { _ = f.Close() }, nil // it was only read
}

func openFile(path string) (f *os.File, size int64, err error) {
	if f, err = os.Open(path); err != nil {
		return nil, 0, usage("%w", err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fail(exitUsage, "a data directory is restored with restore --from-directory and checked with verify "+
			"--data",
			"%s is a directory, not a backup", path)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// hint says what to do about a failed restore.
func (c *restoreCommand) hint(err error) string {
	if _, damaged := errors.AsType[*backupfile.DamageError](err); damaged {
		return "the directory is not a ledger; restore another copy of the backup, or an older one, into it"
	}
	switch {
	case errors.Is(err, backupfile.ErrIncremental):
		return "seqledger restore FULL NEXT … THIS --data " + c.Data
	case errors.Is(err, datadir.ErrInUse):
		return "stop the process that has it open, or name another directory"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the file system of " + c.Data + " and run the restore again"
	case verify.IsDamage(err) && c.FromDirectory != "":
		return "keep " + c.FromDirectory + " unchanged, run seqledger verify --data " + c.FromDirectory +
			" to see the damage, and restore another copy or a backup"
	}
	return ""
}
