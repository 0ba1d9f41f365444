package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// ErrNothingToRecover refuses to recover a ledger that has one node.
var ErrNothingToRecover = errors.New("this ledger has no other node, and lost no majority: start it")

// Survivor is what the directory of one node tells of a cluster whose majority is lost.
type Survivor struct {
	Node     uint64 // id of the node
	LedgerID machine.LedgerID
	// Last is the last position in the node's log. Of several survivors the one with the highest term has
	// everything that was acknowledged and is left, and among those of one term the one with the highest index.
	Last raftlog.Position
	// Committed is the index in the log up to which the node knew that a majority had it. What is behind it may have
	// been acknowledged, or not.
	Committed uint64
	Time      time.Time // ledger time of the last command in the log, or in the state when the log has none
	Members   []Member  // as of the end of the log; Active and Matched are not known
	// Interrupted reports that a recovery was begun, which must come to its end.
	Interrupted bool
}

// Recovery is what Recover has made.
type Recovery struct {
	Before   Survivor         // the node as it was found
	LedgerID machine.LedgerID // of the transactions from now on
	Index    uint64           // the ledger begins anew after it
	Digest   machine.Hash     // at that index
}

// InspectSurvivor reads the directory of a node that no process has open, and changes nothing.
func InspectSurvivor(dir string) (s Survivor, err error) {
	d, err := datadir.OpenSurvivor(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if s.Interrupted, err = d.Recovering(); err != nil {
		return s, err
	}
	if s.Interrupted {
		return s, fmt.Errorf("%w: %s", datadir.ErrRecovering, dir)
	}
	return inspectSurvivor(d)
}

func inspectSurvivor(d *datadir.Directory) (s Survivor, err error) {
	s.Node = d.Node()
	if d.HasOldLog() { // whose programs knew no other nodes
		return s, ErrNothingToRecover
	}
	var at raftlog.Position
	if s.LedgerID, s.Time, at, err = survivingState(d); err != nil {
		return s, err
	}
	outline, err := raftlog.ReadOutline(d.Log(), d.Identity())
	if err != nil {
		return s, err
	}
	s.Last, s.Committed = outline.Last(), max(outline.State.Commit, at.Index)
	add := func(ids []uint64, voter bool) {
		for _, id := range ids {
			a, _ := outline.Members.Address(id)
			s.Members = append(s.Members, Member{ID: id, Voter: voter, Peer: a.Peer, Client: a.Client})
		}
	}
	add(outline.Members.Voters, true)
	add(outline.Members.Learners, false)
	log := raftlog.Options{Dir: d.Log(), Identity: d.Identity(), Node: d.Node(), Checkpoint: at}
	err = raftlog.Read(log, func(_ raftlog.Position, entry []byte, _ bool) error {
		header, _, err := machine.DecodeEntry(entry)
		s.Time = time.Unix(0, header.UnixNanos)
		return err
	})
	return s, err
}

// survivingState reads what the state file has: the ledger's id, its time, and the position in the log.
func survivingState(d *datadir.Directory) (
	id machine.LedgerID, at time.Time, position raftlog.Position, err error,
) {
	store, err := boltstore.OpenReadOnly(d.State(), d.Identity())
	if err != nil {
		return id, at, position, fmt.Errorf("state: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	position = raftlog.Position(store.Checkpoint())
	err = store.View(func(r machine.Reader) error {
		m, err := machine.Open(r)
		if err != nil {
			return err
		}
		v := m.View(r)
		if v.Created() {
			id = v.LedgerID()
		}
		at = time.Unix(0, v.Time())
		return nil
	})
	return id, at, position, err
}

// Recover makes a ledger with one node of the directory of a node whose cluster has lost its majority for good.
// Everything in the node's log counts as committed. What only the lost nodes had is gone, also if it was
// acknowledged. So the ledger begins an epoch, as a restored one does: none of the transaction ids and sessions of
// what is gone is given out again, and clients find another ledger. No other node of the old cluster belongs to
// it, and none must be started again. The node keeps its number.
//
// Until the EPOCH is durable neither Open nor anything that reads takes the directory. Recover is called again
// when it was interrupted or failed.
func Recover(ctx context.Context, dir string, logger *slog.Logger) (r Recovery, err error) {
	return recoverWith(ctx, dir, logger, func(string) error { return nil })
}

// recoverWith calls step before each step; an error of it ends the recovery there, as a crash would.
func recoverWith(
	ctx context.Context, dir string, logger *slog.Logger, step func(what string) error,
) (r Recovery, err error) {
	d, err := datadir.OpenSurvivor(dir)
	if err != nil {
		return r, err
	}
	interrupted, err := d.Recovering()
	if err == nil && !interrupted {
		if r.Before, err = inspectSurvivor(d); err == nil && len(r.Before.Members) == 1 &&
			r.Before.Members[0].ID == d.Node() {
			err = ErrNothingToRecover
		}
	}
	if err != nil {
		return r, errors.Join(err, d.Close())
	}
	r.Before.Node, r.Before.Interrupted = d.Node(), interrupted
	l, err := newEpoch(d, logger)
	if err != nil {
		return r, err
	}
	if err := l.recover(ctx, step, &r); err != nil {
		return r, errors.Join(err, l.release())
	}
	if err := l.Close(); err != nil {
		return r, err
	}
	return r, nil
}

func (l *Ledger) recover(ctx context.Context, step func(what string) error, r *Recovery) error {
	do := func(what string, do func() error) error {
		if err := step(what); err != nil {
			return err
		}
		return do()
	}
	if err := l.openState(); err != nil {
		return err
	}
	if err := do("mark", l.directory.BeginRecovery); err != nil {
		return err
	}
	if err := do("log", func() error {
		return raftlog.Alone(raftlog.Options{
			Dir: l.directory.Log(), Identity: l.directory.Identity(), Node: l.node(),
			Checkpoint: raftlog.Position(l.store.Checkpoint()), Logger: l.options.Logger,
			SegmentBytes: logFileBytes(l.options.LogBytes, segmentBytes),
		})
	}); err != nil {
		return err
	}
	if err := do("open", l.openLog); err != nil {
		return err
	}
	if err := do("replay", func() error { return l.run(ctx) }); err != nil {
		return err
	}
	if err := do("epoch", func() (err error) {
		r.LedgerID, r.Index, r.Digest, err = l.appendEpoch(ctx, time.Time{})
		return err
	}); err != nil {
		return err
	}
	return do("end", l.directory.EndRecovery)
}
