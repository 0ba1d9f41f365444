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

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
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
	Backup   BackupInfo
	LedgerID machine.LedgerID // of the transactions from now on
	Index    uint64           // the ledger begins anew after it
	Digest   machine.Hash     // at that index
}

// Restore makes a data directory from a backup. Nothing of the backup is
// believed before all of it has been checked (see BackupDamageError). The
// first command of the restored ledger is an EPOCH: it gets a random id for
// what comes, an index beyond those that were given out after the backup, and
// refuses every session from before.
//
// The directory is a ledger only when all of that is on disk. One in which
// Restore was killed or failed is refused by Open; Restore begins it anew.
// Ledger time stands still meanwhile: no clock is looked at.
func Restore(ctx context.Context, backup io.Reader, o RestoreOptions) (RestoreInfo, error) {
	return restore(ctx, &o, func(d *directory) (BackupInfo, error) { return d.receiveState(ctx, backup, &o) })
}

// restore makes a data directory of the state that receive puts into it.
func restore(
	ctx context.Context, o *RestoreOptions, receive func(*directory) (BackupInfo, error),
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
		return info, fmt.Errorf("ledger: RestoreOptions.Time is %s, want a year from 1970 to %d", o.Time.Format(time.DateOnly), decide.LastYear)
	}
	o.Logger = options.Logger // which is the default for none
	l := newLedger(options)
	if l.directory, err = openDirectory(o.Dir, restored); err != nil {
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

// receiveState puts the state of a backup into a directory that is being
// restored.
func (d *directory) receiveState(ctx context.Context, backup io.Reader, o *RestoreOptions) (info BackupInfo, err error) {
	fill := func(disk io.Writer) (err error) {
		info, err = copyState(ctx, backup, disk, o.Progress)
		return err
	}
	return info, d.makeState(o, fill, func(path string) error {
		if err := boltstore.Adopt(path, d.identity); err != nil {
			return fmt.Errorf("state in the backup: %w", err)
		}
		return nil
	})
}

// makeState makes the state of a directory that is being restored: fill writes
// it, and prepare makes it the directory's own once it is on disk. It gets its
// final name only then.
func (d *directory) makeState(
	o *RestoreOptions, fill func(io.Writer) error, prepare func(path string) error,
) (err error) {
	f, err := os.CreateTemp(d.path, stateName+newSuffix+"*")
	if err != nil {
		return fmt.Errorf("restored state: %w", err)
	}
	defer func() {
		if err != nil { // the marker stays: the directory must not pass for an empty one
			_ = os.Remove(f.Name())
		}
	}()
	var disk io.Writer = f
	if o.disk != nil {
		disk = o.disk(f)
	}
	if err = fill(disk); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := prepare(f.Name()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), d.file(stateName)); err != nil {
		return fmt.Errorf("restored state: %w", err)
	}
	return d.sync()
}

// copyState checks a backup and writes the state in it to disk.
func copyState(ctx context.Context, backup io.Reader, disk io.Writer, progress func(done, total int64)) (BackupInfo, error) {
	var done, total int64
	begin := func(info BackupInfo) error {
		total = info.StateBytes
		return nil
	}
	return readBackup(ctx, backup, begin, func(chunk []byte) error {
		if _, err := disk.Write(chunk); err != nil {
			return err
		}
		done += int64(len(chunk))
		if progress != nil {
			progress(done, total)
		}
		return nil
	})
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
	return l.directory.finish()
}

// mustHold compares the restored state with the header of its backup.
func (l *Ledger) mustHold(backup *BackupInfo) error {
	return l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		if !v.Created() || v.LedgerID() != backup.LedgerID || v.Index() != backup.Index || v.Digest() != backup.Digest {
			return errors.New("the restored state is not the one that was to be restored; use another backup")
		}
		return nil
	})
}
