package ledger

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// RestoreOptions say where to restore to. Only Dir is required.
type RestoreOptions struct {
	// Dir is the data directory to make. It must be absent or empty, or hold
	// nothing but a restore that was interrupted.
	Dir string
	// Logger receives what operators should know. Default: slog.Default().
	Logger *slog.Logger
	// Progress is told how many bytes of the state have been written, of how
	// many; may be nil.
	Progress func(done, total int64)
	// Time is the ledger time to go on with, from 1970 to 2200. It may be before the
	// last command, which repairs a ledger that a wrong clock has moved ahead: what
	// has expired stays expired, and everything else has its time again. The zero
	// Time keeps ledger time as it is.
	Time time.Time

	// disk lets a test fail the disk below the state file.
	disk func(io.Writer) io.Writer
}

// RestoreInfo tells what Restore has made.
type RestoreInfo struct {
	// Backup is what was restored. Bytes and SHA256 are 0 for a data directory.
	Backup   backupfile.Info
	LedgerID machine.LedgerID // of the transactions from now on
	Index    uint64           // the ledger begins anew after it
	Digest   machine.Hash     // at that index
}

// Restore makes a data directory from a backup. Nothing of the backup is
// used before all of it has been checked (see backupfile.DamageError). The
// first command of the restored ledger is an EPOCH: it gets a random id for
// what comes, an index beyond those that were given out after the backup, and
// refuses every session from before.
//
// The directory is a ledger only when all of that is on disk. One in which
// Restore was killed or failed is refused by Open; Restore begins it anew.
// Ledger time stands still meanwhile: no clock is looked at.
func Restore(ctx context.Context, backup io.Reader, o RestoreOptions) (RestoreInfo, error) {
	return restore(ctx, &o, func(d *datadir.Directory) (backupfile.Info, error) {
		return receiveBackup(ctx, d, backup, &o)
	})
}

// RestoreDirectory is Restore with a data directory in place of a backup: one
// that no process has open, or a copy of one. It changes nothing in source.
//
// A copy must not be opened as it is once the ledger that it was made of has
// gone on: both would give out the same indexes, and so the same transaction
// ids and sessions. The EPOCH prevents that, as it does for a backup.
//
// A data directory has no checksum over the whole, so everything in it is
// audited as package verify does; damage is an error for which IsDamage is true. The
// log is copied into the system's directory for temporary files to be read.
func RestoreDirectory(ctx context.Context, source string, o RestoreOptions) (info RestoreInfo, err error) {
	// Before anything is made, so that a mistyped source leaves nothing behind.
	from, err := datadir.OpenLedger(source)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	return restore(ctx, &o, func(d *datadir.Directory) (backupfile.Info, error) {
		return receiveDirectory(ctx, d, from, &o)
	})
}

// restore makes a data directory of the state that receive puts into it.
func restore(
	ctx context.Context, o *RestoreOptions, receive func(*datadir.Directory) (backupfile.Info, error),
) (info RestoreInfo, err error) {
	options := Options{
		Dir: o.Dir, Logger: o.Logger, CacheBytes: -1,
		// Before the year 1970, so that ledger time goes on where it was. The
		// first start afterwards looks at the clock, and says so if it jumps.
		Clock: func() time.Time { return time.Time{} },
		// A tick would stamp the time of before the EPOCH on what comes behind it.
		idleInterval: math.MaxInt64,
	}
	if err := options.validate(); err != nil {
		return info, err
	}
	if y := o.Time.Year(); !o.Time.IsZero() && (y < 1970 || y > decide.LastYear) {
		return info, fmt.Errorf("ledger: RestoreOptions.Time is %s, want a year from 1970 to %d",
			o.Time.Format(time.DateOnly), decide.LastYear)
	}
	o.Logger = options.Logger // which is the default for none
	l := newLedger(options)
	if l.directory, err = datadir.Open(o.Dir, datadir.Restored); err != nil {
		return info, errors.Join(err, l.release())
	}
	if info.Backup, err = receive(l.directory); err != nil {
		return info, errors.Join(err, l.release())
	}
	if err := l.beginEpoch(ctx, o.Time, &info); err != nil {
		return info, errors.Join(err, l.release())
	}
	return info, l.Close()
}

// receiveBackup puts the state of a backup into a directory that is being restored.
func receiveBackup(
	ctx context.Context, d *datadir.Directory, backup io.Reader, o *RestoreOptions,
) (info backupfile.Info, err error) {
	fill := func(disk io.Writer) (err error) {
		info, err = backupfile.Read(ctx, backup, o.writer(disk), o.Progress)
		return err
	}
	return info, d.MakeState(fill, func(path string) error {
		if err := boltstore.Adopt(path, d.Identity()); err != nil {
			return fmt.Errorf("state in the backup: %w", err)
		}
		return nil
	})
}

// receiveDirectory puts the state of another directory into one that is being
// restored, with everything that the other's log has.
func receiveDirectory(
	ctx context.Context, d, from *datadir.Directory, o *RestoreOptions,
) (info backupfile.Info, err error) {
	fill := func(disk io.Writer) (err error) {
		info.StateBytes, err = copyFile(ctx, o.writer(disk), from.State(), o.Progress)
		return err
	}
	return info, d.MakeState(fill, func(path string) error {
		o.Logger.Info("the state file is copied; its log is replayed and everything is checked",
			"from", from.Path(), "bytes", info.StateBytes)
		report, err := verify.ReplayInto(ctx, path, from)
		if err != nil {
			return err
		}
		if report.Index == 0 {
			return fmt.Errorf("%s holds no ledger: its creation did not reach the first command", from.Path())
		}
		info.LedgerID, info.Index, info.Digest = report.LedgerID, report.Index, report.Digest
		o.Logger.Info("everything is checked", "ledger", info.LedgerID, "index", info.Index)
		return boltstore.Adopt(path, d.Identity())
	})
}

// writer returns what writes to the disk below the state file.
func (o *RestoreOptions) writer(disk io.Writer) io.Writer {
	if o.disk != nil {
		return o.disk(disk)
	}
	return disk
}

// copyBytes is how many bytes a copy of a file has in memory.
const copyBytes = 256 << 10

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
	buffer := make([]byte, copyBytes)
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

// beginEpoch makes a ledger of the restored state: it gives it a log that
// begins with the EPOCH command, and marks the directory as whole when that is
// durable. at is the ledger time to go on with, the zero Time for the same.
func (l *Ledger) beginEpoch(ctx context.Context, at time.Time, info *RestoreInfo) error {
	if err := l.openState(); err != nil {
		return err
	}
	if err := l.mustHold(&info.Backup); err != nil {
		return err
	}
	if err := l.openLog(); err != nil {
		return err
	}
	if err := l.run(ctx); err != nil {
		return err
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("random ledger id: %w", err)
	}
	id := machine.LedgerID(binary.BigEndian.Uint64(random[:]))
	l.options.Logger.Info("the state is restored; a new epoch begins", "ledger", id, "before", info.Backup.LedgerID)
	var nanos int64
	if !at.IsZero() {
		nanos = at.UnixNano()
	}
	out, err := l.exclusive(ctx, machine.AppendEpoch(nil, id, nanos))
	if err != nil {
		return err
	}
	info.LedgerID, info.Index = id, out.Index
	err = l.store.View(func(r machine.Reader) error {
		info.Digest = l.machine.View(r).Digest()
		return nil
	})
	if err != nil {
		return err
	}
	return l.directory.Finish()
}

// mustHold compares the restored state with the header of its backup.
func (l *Ledger) mustHold(backup *backupfile.Info) error {
	return l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		if !v.Created() || v.LedgerID() != backup.LedgerID || v.Index() != backup.Index || v.Digest() != backup.Digest {
			return errors.New("the restored state is not the one that was to be restored; use another backup")
		}
		return nil
	})
}
