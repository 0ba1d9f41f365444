package ledger

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
)

// BeginEpoch makes a ledger of a directory that was opened as datadir.Restored and has
// its state: that of restored. It is the last step of package restore. d is closed when
// BeginEpoch returns.
//
// The first command of the ledger is an EPOCH. It gives the ledger a random id for what
// comes, which BeginEpoch returns with the index and the digest of the command, moves the
// index beyond those that may have been given out since restored, and refuses every session
// from before. at is the ledger time to go on with; the zero Time keeps that of the state.
// The directory is a ledger once the EPOCH is durable, and not before.
func BeginEpoch(
	ctx context.Context, d *datadir.Directory, restored backupfile.Info, at time.Time, logger *slog.Logger,
) (id machine.LedgerID, index uint64, digest machine.Hash, err error) {
	l, err := newEpoch(d, logger)
	if err != nil {
		return 0, 0, digest, err
	}
	id, index, digest, err = l.beginEpoch(ctx, restored, at)
	if err != nil {
		return 0, 0, digest, errors.Join(err, l.release())
	}
	return id, index, digest, l.Close()
}

// newEpoch returns a ledger that is to begin an epoch in a directory. It closes the directory when it fails.
func newEpoch(d *datadir.Directory, logger *slog.Logger) (*Ledger, error) {
	o := Options{
		Dir: d.Path(), Logger: logger, CacheBytes: -1,
		// Before the year 1970, so that ledger time goes on where it was. The
		// first start afterwards looks at the clock, and says so if it jumps.
		Clock: func() time.Time { return time.Time{} },
		// A tick would stamp the time of before the EPOCH on what comes behind it.
		idleInterval: math.MaxInt64,
	}
	if err := o.validate(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	l := newLedger(o)
	l.directory = d
	return l, nil
}

func (l *Ledger) beginEpoch(
	ctx context.Context, restored backupfile.Info, at time.Time,
) (id machine.LedgerID, index uint64, digest machine.Hash, err error) {
	if err := l.openState(); err != nil {
		return 0, 0, digest, err
	}
	if err := l.mustHold(restored); err != nil {
		return 0, 0, digest, err
	}
	if err := l.openLog(); err != nil {
		return 0, 0, digest, err
	}
	if err := l.run(ctx); err != nil {
		return 0, 0, digest, err
	}
	l.options.Logger.Info("the state is restored; a new epoch begins", "before", restored.LedgerID)
	if id, index, digest, err = l.appendEpoch(ctx, at); err != nil {
		return 0, 0, digest, err
	}
	err = l.directory.Finish()
	l.options.Logger.Debug("the directory has its marker", "ledger", id, "error", err)
	return id, index, digest, err
}

// appendEpoch commits an EPOCH with a random ledger id, and returns that, its index and the digest behind it.
func (l *Ledger) appendEpoch(
	ctx context.Context, at time.Time,
) (id machine.LedgerID, index uint64, digest machine.Hash, err error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, 0, digest, fmt.Errorf("random ledger id: %w", err)
	}
	id = machine.LedgerID(binary.BigEndian.Uint64(random[:]))
	var nanos int64
	if !at.IsZero() {
		nanos = at.UnixNano()
	}
	out, err := l.exclusive(ctx, machine.AppendEpoch(nil, id, nanos))
	if err != nil {
		return 0, 0, digest, err
	}
	err = l.store.View(func(r machine.Reader) error {
		digest = l.machine.View(r).Digest()
		return nil
	})
	return id, out.Index, digest, err
}

// mustHold compares the restored state with what its backup says of itself.
func (l *Ledger) mustHold(restored backupfile.Info) error {
	return l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		if !v.Created() || v.LedgerID() != restored.LedgerID || v.Index() != restored.Index ||
			v.Digest() != restored.Digest {
			return errors.New("the restored state is not the one that was to be restored; use another backup")
		}
		return nil
	})
}
