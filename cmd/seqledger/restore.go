package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/seqledger/seqledger/ledger"
)

// restoreCommand makes a data directory from a backup.
type restoreCommand struct {
	File string `arg:"" help:"Backup to restore; - reads standard input." type:"path"`
	Data string `help:"Data directory to make; it must be absent or empty." default:"./seqledger-data" type:"path"`
}

// Help is shown below the flags.
func (*restoreCommand) Help() string {
	return `Everything in the backup is checked before the directory becomes a ledger. Killed at any moment, run the same
command again: no server starts on a directory whose restore did not reach its end.

The restored ledger begins a new epoch: a new ledger id for what is written from now on, and every session from
before has expired, because nobody knows what was committed after the backup. Writes from after the backup are
gone; clients find out with seqledger state which of theirs are there. Never run the old directory and the
restored one at the same time.

    seqledger restore ledger.seqledger --data /var/lib/seqledger
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

// Run is called by kong.
func (c *restoreCommand) Run(e *environment) (err error) {
	backup, size, done, err := openBackup(e, c.File)
	if err != nil {
		return err
	}
	defer done()
	told := newTransfer(e, "restoring", size)
	defer told.end()
	options := ledger.RestoreOptions{Dir: c.Data, Logger: e.log, Progress: func(done, _ int64) { told.to(done) }}
	info, err := ledger.Restore(e.ctx, backup, options)
	told.end()
	if err != nil {
		if e.ctx.Err() != nil {
			return fail(exitFailed, "run it again", "%w", context.Cause(e.ctx))
		}
		return fail(exitFailed, restoreHint(err, c.Data), "restore of %s to %s: %w", c.File, c.Data, err)
	}
	if e.json {
		return e.showObject(restoreResult{
			Data: c.Data, BackupLedgerID: info.Backup.LedgerID.String(), BackupIndex: info.Backup.Index,
			BackupDigest: info.Backup.Digest.String(), LedgerID: info.LedgerID.String(), Index: info.Index, Digest: info.Digest.String(),
		})
	}
	_, err = fmt.Fprintf(e.stdout, "restored to %s: ledger %s up to index %d; it goes on as ledger %s from index %d\n",
		c.Data, info.Backup.LedgerID, info.Backup.Index, info.LedgerID, info.Index)
	return err
}

// openBackup opens a backup to read, and tells its size, 0 for standard input.
func openBackup(e *environment, path string) (backup *os.File, size int64, done func(), err error) {
	if path == "-" {
		f, ok := e.stdin.(*os.File)
		if !ok {
			return nil, 0, nil, usage("there is no standard input")
		}
		return f, 0, func() {}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, nil, usage("%w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, nil, errors.Join(err, f.Close())
	}
	return f, info.Size(), func() { _ = f.Close() }, nil // it was only read
}

// restoreHint tells what to do about a restore that failed.
func restoreHint(err error, path string) string {
	if _, damaged := errors.AsType[*ledger.BackupDamageError](err); damaged {
		return "the directory is no ledger; restore another copy of the backup, or an older one, into it"
	}
	switch {
	case errors.Is(err, ledger.ErrInUse):
		return storageHint(err, path)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the file system of " + path + " and run the restore again"
	}
	return ""
}
