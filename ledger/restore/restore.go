// Package restore makes a data directory of a backup, or of another data directory.
//
// The result is an independent ledger. Writes made after the backup are gone, and the ids that
// they were given are unknown. So the restored ledger begins an epoch, in which none of their
// transaction ids and sessions is issued again: see ledger.BeginEpoch.
//
// A restore is killed at every step by the tests of package ledger, which has the processes
// for it.
package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/verify"
)

// Options say where to restore to. Only Dir is required.
type Options struct {
	// Dir is the data directory to make. It must be absent or empty, or hold
	// nothing but a restore that was interrupted.
	Dir string
	// Logger receives what operators should know. Default: slog.Default().
	Logger *slog.Logger
	// Progress is told how many bytes of the state have been written, of how
	// many; may be nil.
	Progress func(done, total int64)
	// Replayed is told each ledger index that the log of an archive has led to; may be nil.
	Replayed func(index uint64)
	// Time is the ledger time to go on with, from 1970 to 2200. It may be before the
	// last command, which repairs a ledger that a wrong clock has moved ahead: what
	// has expired stays expired, and everything else has its time again. The zero
	// Time keeps ledger time as it is.
	Time time.Time

	// disk lets a test fail the disk below the state file.
	disk func(io.Writer) io.Writer
}

// Info tells what a restore has made.
type Info struct {
	// Backup is what was restored. Bytes and SHA256 are 0 for a data directory.
	Backup   backupfile.Info
	LedgerID machine.LedgerID // of the transactions from now on
	Index    uint64           // the ledger begins anew after it
	Digest   machine.Hash     // at that index
}

// Backup makes a data directory from a backup. Nothing of the backup is used before
// all of it has been checked (see backupfile.DamageError).
//
// The directory is a ledger only when the EPOCH is on disk, too. One in which a restore
// was killed or failed is refused by ledger.Open; a restore begins it anew. Ledger time
// stands still meanwhile: no clock is looked at.
func Backup(ctx context.Context, backup io.Reader, o Options) (Info, error) {
	return State(ctx, []verify.Source{verify.FromBackup(ctx, backup)}, o)
}

// State is Backup for states of which the first one that is not damaged is restored, such as those of an archive.
func State(ctx context.Context, from []verify.Source, o Options) (info Info, err error) {
	for i := 0; i < len(from); {
		info, err = restore(ctx, &o, func(d *datadir.Directory) (backupfile.Info, error) {
			return receiveState(ctx, d, &from[i], &o)
		})
		switch {
		case err == nil || ctx.Err() != nil:
			return info, err
		case from[i].Again(err):
			continue
		case !from[i].Damaged(err) || i+1 == len(from):
			return info, err
		}
		o.Logger.Warn("a state is damaged; an older one is restored, and the log that follows it",
			"damaged", from[i].Name, "error", err)
		i++
	}
	return info, err
}

// receiveState puts a state into a directory that is being restored.
func receiveState(
	ctx context.Context, d *datadir.Directory, from *verify.Source, o *Options,
) (info backupfile.Info, err error) {
	fill := func(open verify.Opener) (err error) {
		info, err = from.Read(o.opener(open), o.Progress)
		return err
	}
	return info, d.MakeState(fill, func(path string) error {
		if err := from.Replay(ctx, path, d.Identity(), &info, o.Replayed); err != nil {
			return fmt.Errorf("%s: %w", from.Name, err)
		}
		return boltstore.Adopt(path, d.Identity())
	})
}

// Directory is Backup with a data directory in place of a backup: one that no process
// has open, or a copy of one. It changes nothing in source.
//
// A copy must not be opened as it is once the ledger that it was made of has gone on:
// both would give out the same indexes, and so the same transaction ids and sessions.
// The EPOCH prevents that, as it does for a backup.
//
// A data directory has no checksum over the whole, so everything in it is audited as
// package verify does; damage is an error for which verify.IsDamage is true. The log is
// copied into the system's directory for temporary files to be read.
func Directory(ctx context.Context, source string, o Options) (info Info, err error) {
	// Before anything is made, so that a mistyped source creates nothing.
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
	ctx context.Context, o *Options, receive func(*datadir.Directory) (backupfile.Info, error),
) (info Info, err error) {
	if err := o.validate(); err != nil {
		return info, err
	}
	d, err := datadir.Open(o.Dir, datadir.Restored)
	if err != nil {
		return info, err
	}
	private.Narrow(o.Logger, o.Dir)
	if info.Backup, err = receive(d); err != nil {
		return info, errors.Join(err, d.Close())
	}
	info.LedgerID, info.Index, info.Digest, err = ledger.BeginEpoch(ctx, ledger.Epoch{
		Directory: d, Logger: o.Logger, Time: o.Time,
		Prepare: func(v machine.View, _ raftlog.Position) error {
			if err := mustHold(v, &info.Backup); err != nil {
				return err
			}
			info.Backup.Time = v.Time()
			o.Logger.Info("the state is restored; a new epoch begins", "before", info.Backup.LedgerID)
			return nil
		},
		Finish: d.Finish,
	})
	return info, err
}

// mustHold compares the restored state with what its backup says of itself.
func mustHold(v machine.View, restored *backupfile.Info) error {
	if !v.Created() || v.LedgerID() != restored.LedgerID || v.Index() != restored.Index ||
		v.Digest() != restored.Digest {
		return errors.New("the restored state is not the one that was to be restored; use another backup")
	}
	return nil
}

func (o *Options) validate() error {
	if o.Dir == "" {
		return errors.New("restore: Options.Dir is empty")
	}
	if y := o.Time.Year(); !o.Time.IsZero() && (y < 1970 || y > engine.LastYear) {
		return fmt.Errorf("restore: Options.Time is %s, want a year from 1970 to %d",
			o.Time.Format(time.DateOnly), engine.LastYear)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// receiveDirectory puts the state of another directory into one that is being
// restored, with everything that the other's log has.
func receiveDirectory(
	ctx context.Context, d, from *datadir.Directory, o *Options,
) (info backupfile.Info, err error) {
	fill := func(open verify.Opener) (err error) {
		info.Sizes, info.StateBytes, err = copyState(ctx, from, o.opener(open), o.Progress)
		return err
	}
	return info, d.MakeState(fill, func(path string) error {
		o.Logger.Info("the state is copied; its log is replayed and everything is checked",
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

// opener opens a file and returns what writes to the disk below it.
func (o *Options) opener(open verify.Opener) verify.Opener {
	return func(file uint64) (io.Writer, error) {
		w, err := open(file)
		if err == nil && o.disk != nil {
			w = o.disk(w)
		}
		return w, err
	}
}

// copyBytes is how many bytes a copy of a file has in memory.
const copyBytes = 256 << 10

// copyState copies the state file and the block files of a directory, and returns how
// many bytes each of them has, and all.
func copyState(
	ctx context.Context, from *datadir.Directory, open verify.Opener, progress func(done, total int64),
) (sizes []int64, total int64, err error) {
	numbers, err := blockfile.List(blockfile.Directory{Path: from.Blocks()})
	if err != nil {
		return nil, 0, err
	}
	paths := []string{from.State()}
	for i, number := range numbers {
		if i > 0 && number != numbers[i-1]+1 {
			return nil, 0, fmt.Errorf("%w: block file %s is missing in %s; use a backup",
				machine.ErrCorrupt, blockfile.Name(numbers[i-1]+1), from.Path())
		}
		paths = append(paths, filepath.Join(from.Blocks(), blockfile.Name(number)))
	}
	for _, path := range paths {
		stat, err := os.Stat(path)
		if err != nil {
			return nil, 0, err
		}
		sizes, total = append(sizes, stat.Size()), total+stat.Size()
	}
	done := int64(0)
	for i, number := range append([]uint64{0}, numbers...) {
		w, err := open(number)
		if err != nil {
			return nil, 0, err
		}
		if err := copyFile(paths[i], func(b []byte) (int, error) {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			n, err := w.Write(b)
			if done += int64(n); err == nil && progress != nil {
				progress(done, total)
			}
			return n, err
		}); err != nil {
			return nil, 0, err
		}
	}
	return sizes, total, nil
}

// copyFile copies a file in pieces.
func copyFile(path string, to writerFunc) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	// Not by the file's own WriteTo, which need not use the buffer.
	_, err = io.CopyBuffer(to, struct{ io.Reader }{f}, make([]byte, copyBytes))
	return err
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
