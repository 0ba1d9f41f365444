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

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Epoch says where a ledger begins an epoch: in a directory that has the state of another ledger, or of the same one
// that has lost commands.
type Epoch struct {
	// Directory has the state. BeginEpoch closes it.
	Directory *datadir.Directory
	Logger    *slog.Logger
	// Time is the ledger time to go on with. The zero Time keeps that of the state.
	Time time.Time
	// Prepare is called before the log is opened, with the state and its position in the log. Its
	// error ends BeginEpoch.
	Prepare func(v machine.View, at raftlog.Position) error
	// Finish is called once the EPOCH is durable. Only then may the directory become one that Open accepts.
	Finish func() error
}

// BeginEpoch makes a ledger of a directory. It is the last step of package restore, and of package recovery.
//
// The first command of the ledger is an EPOCH. It gives the ledger a random id for what comes, which BeginEpoch returns
// with the index and the digest of the command, moves the index beyond those that may have been given out since the
// state, and refuses every session from before.
func BeginEpoch(ctx context.Context, e Epoch) (id machine.LedgerID, index uint64, digest machine.Hash, err error) {
	l, err := newEpoch(e.Directory, e.Logger)
	if err != nil {
		return 0, 0, digest, err
	}
	id, index, digest, err = l.beginEpoch(ctx, &e)
	if err != nil {
		return 0, 0, digest, errors.Join(err, l.release())
	}
	return id, index, digest, l.Close()
}

// newEpoch returns a ledger that is to begin an epoch in a directory. It closes the directory when it fails.
func newEpoch(d *datadir.Directory, logger *slog.Logger) (*Ledger, error) {
	o := Options{
		Dir: d.Path(), Logger: logger, CacheBytes: -1,
		// Before the year 1970, so that ledger time continues from its last value. The
		// first start afterwards looks at the clock, and says so if it jumps.
		Clock: func() time.Time { return time.Time{} },
		// A tick would carry the time before the EPOCH into later commands.
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
	ctx context.Context, e *Epoch,
) (id machine.LedgerID, index uint64, digest machine.Hash, err error) {
	if err := l.openState(); err != nil {
		return 0, 0, digest, err
	}
	at := raftlog.Position(l.store.Checkpoint())
	if err := l.store.View(func(r machine.Reader) error { return e.Prepare(l.machine.View(r), at) }); err != nil {
		return 0, 0, digest, err
	}
	debug := func(next string) { l.options.Logger.Debug("an epoch is being begun", "next", next) }
	debug("open") // a test looks at what a kill would leave here
	if err := l.openLog(); err != nil {
		return 0, 0, digest, err
	}
	debug("replay")
	if err := l.run(ctx); err != nil {
		return 0, 0, digest, err
	}
	debug("epoch")
	if id, index, digest, err = l.appendEpoch(ctx, e.Time); err != nil {
		return 0, 0, digest, err
	}
	debug("end")
	if err = e.Finish(); err == nil {
		l.options.Logger.Debug("the directory has its marker", "ledger", id)
	}
	return id, index, digest, err
}

// appendEpoch commits an EPOCH with a random ledger id, and returns it, its index and the digest after it.
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
