package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/durable"
)

type backupCommand struct {
	// Not clientFlags, because a large backup takes hours and must not time out.
	connectionFlags `embed:""`
	File            string `arg:"" help:"File to make, which must not exist; - writes to standard output." type:"path"`
}

func (*backupCommand) Help() string {
	return `The backup holds every write that was acknowledged before it began; the server goes on meanwhile. It is
checked while it arrives, and the file appears under its name only when it is whole and on disk. What a killed
backup has left, NAME.partial-…, the next one of that name removes. One backup can be made at a time.

It has all of the ledger. An archive (seqledger serve --archive) gets the blocks once and a state from time to time.

Bring it to another place, and try it now and then: seqledger verify --backup FILE checks all of it.

    seqledger backup /mnt/backup/ledger-2026-07-01.seqledger
    seqledger backup - | ssh elsewhere 'cat > ledger.seqledger'   # check the exit code of both
    seqledger backup ledger.seqledger --json`
}

// backupResult is printed with --json.
type backupResult struct {
	File     string `json:"file"`
	LedgerID string `json:"ledgerId"`
	Index    uint64 `json:"index,string"`
	Digest   string `json:"digest"`
	Bytes    uint64 `json:"bytes,string"`
	SHA256   string `json:"sha256"`
}

func (c *backupCommand) Run(e *environment) (err error) {
	if c.File == "-" {
		info, err := c.receive(e, e.stdout)
		if err != nil {
			return err
		}
		// Standard output carries the backup.
		e.notice("%s", harmless(summary(&info)))
		return nil
	}
	if _, err := os.Lstat(c.File); err == nil {
		return errFileThere(c.File)
	}
	if err := checkParent("the backup", c.File); err != nil {
		return err
	}
	info, err := c.make(e)
	if err != nil {
		return err
	}
	if e.json {
		return e.showObject(backupResult{
			File: c.File, LedgerID: info.LedgerID, Index: info.Index, Digest: info.Digest,
			Bytes: info.Bytes, SHA256: hex.EncodeToString(info.SHA256),
		})
	}
	_, err = fmt.Fprintf(e.stdout, "%s: %s\n", c.File, harmless(summary(&info)))
	return err
}

func summary(info *admin.BackupInfo) string {
	return fmt.Sprintf("ledger %s up to index %d, %d bytes, SHA-256 %x", info.LedgerID, info.Index, info.Bytes,
		info.SHA256)
}

func errFileThere(path string) error {
	return fail(exitUsage, "give another name; a backup never overwrites anything", "%s exists already", path)
}

// make receives the backup under a temporary name and renames it when it is complete and on
// disk.
func (c *backupCommand) make(e *environment) (info admin.BackupInfo, err error) {
	f, err := os.CreateTemp(filepath.Dir(c.File), filepath.Base(c.File)+".partial-*")
	if err != nil {
		return info, usage("%w", err)
	}
	// Remove an incomplete backup. After the rename there is none.
	defer func() { _ = os.Remove(f.Name()) }()
	lockFile(f)
	c.removeLeftovers()
	info, err = c.receive(e, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return info, err
	}
	// A link does not overwrite a file that was created in the meantime. It is tried rather than
	// required, because not every file system has links.
	switch err := os.Link(f.Name(), c.File); {
	case errors.Is(err, os.ErrExist):
		return info, errFileThere(c.File)
	case err != nil:
		if err := os.Rename(f.Name(), c.File); err != nil {
			return info, err
		}
	}
	return info, durable.SyncDir(filepath.Dir(c.File))
}

// removeLeftovers removes what backups of this name have left that were killed: the lock of one that lives is held.
func (c *backupCommand) removeLeftovers() {
	entries, _ := os.ReadDir(filepath.Dir(c.File)) // what cannot be read is not removed
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), filepath.Base(c.File)+".partial-") {
			continue
		}
		if f, err := os.Open(filepath.Join(filepath.Dir(c.File), entry.Name())); err == nil {
			if lockFile(f) {
				_ = os.Remove(f.Name())
			}
			_ = f.Close() // it was not written
		}
	}
}

// receive writes the backup to w. A nil error means that w has all of it.
func (c *backupCommand) receive(e *environment, w io.Writer) (info admin.BackupInfo, err error) {
	var told *progress
	defer func() { told.end() }()
	err = c.connected(e, func(conn *client.Client) error {
		var done int64
		to := writerFunc(func(b []byte) (int, error) {
			n, err := w.Write(b)
			done += int64(n)
			told.to(done)
			return n, err
		})
		begin := func(i admin.BackupInfo) error {
			told = newProgress(e, "backing up", "bytes", 0, int64(i.Bytes))
			return nil
		}
		info, err = admin.Backup(e.ctx, conn, to, begin)
		return err
	})
	if err != nil && e.ctx.Err() != nil {
		return info, context.Cause(e.ctx)
	}
	if refusal, ok := errors.AsType[*failure.Error](err); ok && refusal.ConnectCode == connect.CodeResourceExhausted {
		err = fail(exitFailed, "nothing was backed up; run it again later", "%w", err)
	}
	return info, err
}

// writerFunc makes a function an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
