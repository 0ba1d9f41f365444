package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// RestoreDirectory is Restore with a data directory in place of a backup: one
// that no process has open, or a copy of one. It changes nothing in source.
//
// A copy must not be opened as it is once the ledger that it was made of has
// gone on: both would give out the same indexes, and so the same transaction
// ids and sessions. The EPOCH prevents that, as it does for a backup.
//
// A data directory has no checksum over the whole, so everything in it is
// audited as Verify does; damage is an error for which IsDamage is true. The
// log is copied into the system's directory for temporary files to be read.
func RestoreDirectory(ctx context.Context, source string, o RestoreOptions) (info RestoreInfo, err error) {
	// Before anything is made, so that a mistyped source leaves nothing behind.
	from, err := lockLedger(source)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	return restore(ctx, &o, func(d *directory) (BackupInfo, error) { return d.copyLedger(ctx, from, &o) })
}

// copyLedger puts the state of another directory into one that is being
// restored, with everything that the other's log has.
func (d *directory) copyLedger(ctx context.Context, from *directory, o *RestoreOptions) (info BackupInfo, err error) {
	fill := func(disk io.Writer) (err error) {
		info.StateBytes, err = copyFile(ctx, disk, from.file(stateName), o.Progress)
		return err
	}
	return info, d.makeState(o, fill, func(path string) error {
		o.Logger.Info("the state file is copied; its log is replayed and everything is checked",
			"from", from.path, "bytes", info.StateBytes)
		if err := replayCopy(ctx, path, from, &info); err != nil {
			return err
		}
		o.Logger.Info("everything is checked", "ledger", info.LedgerID, "index", info.Index)
		return boltstore.Adopt(path, d.identity)
	})
}

// replayCopy brings the copy of a directory's state to the end of the
// directory's log, audits it, and tells what it holds.
func replayCopy(ctx context.Context, path string, from *directory, info *BackupInfo) (err error) {
	store, err := boltstore.Open(path, boltstore.Options{Identity: from.identity})
	if err != nil {
		return fmt.Errorf("state in %s: %w", from.path, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	report := new(VerifyReport)
	m, err := report.replay(ctx, from, store, func() error {
		if store.PendingBytes() < minCheckpointBytes {
			return nil
		}
		return store.Flush()
	})
	if err == nil && m != nil {
		err = report.audit(ctx, store, m, nil)
	}
	if err != nil {
		return err
	}
	if err := report.problem(from.path); err != nil {
		return err
	}
	if report.Index == 0 {
		return fmt.Errorf("%s holds no ledger: its creation did not reach the first command", from.path)
	}
	info.LedgerID, info.Index, info.Digest = report.LedgerID, report.Index, report.Digest
	return store.Flush()
}

// problem makes an error of what Verify would report about a directory; nil
// when that is nothing.
func (p *VerifyReport) problem(dir string) error {
	if len(p.Problems) == 0 {
		return nil
	}
	first := p.Problems[0]
	return fmt.Errorf("%w: %s has %d problems, the first of them: %s: %s",
		machine.ErrCorrupt, dir, uint64(len(p.Problems))+p.Omitted, first.Where, first.What)
}

// copyFile copies a file and returns how many bytes it has.
func copyFile(
	ctx context.Context, to io.Writer, path string, progress func(done, total int64),
) (size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	stat, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buffer := make([]byte, backupChunkBytes)
	for {
		if ctx.Err() != nil {
			return size, context.Cause(ctx)
		}
		n, readErr := f.Read(buffer)
		if _, err := to.Write(buffer[:n]); err != nil {
			return size, err
		}
		size += int64(n)
		if progress != nil {
			progress(size, stat.Size())
		}
		if errors.Is(readErr, io.EOF) {
			return size, nil
		}
		if readErr != nil {
			return size, readErr
		}
	}
}
