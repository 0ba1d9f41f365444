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

// ErrNothingToRecover means that the ledger has only one node, so that there is nothing to recover.
var ErrNothingToRecover = errors.New("this ledger has no other node, and lost no majority: start it")

// Survivor describes the directory of one node of a cluster that has lost its majority.
type Survivor struct {
	Node     uint64 // id of the node
	LedgerID machine.LedgerID
	// Last is the last position in the node's log. Of several survivors, the one with the highest term, and within a
	// term the one with the highest index, has every acknowledged entry that is left.
	Last raftlog.Position
	// Committed is the log index up to which the node knew that a majority had the log. Entries after it may or may not
	// have been acknowledged.
	Committed uint64
	Time      time.Time // ledger time of the last command in the log, or of the state if the log has none
	Members   []Member  // as of the end of the log; Active and Matched are unknown
	// Interrupted reports that a recovery has begun, which must be completed.
	Interrupted bool
}

// Recovery is the result of Recover.
type Recovery struct {
	Before   Survivor         // the node before the recovery
	LedgerID machine.LedgerID // ledger id of later transactions
	Index    uint64           // the index after which the new epoch begins
	Digest   machine.Hash     // at that index
}

// InspectSurvivor reads the directory of a node that no process has open. It changes nothing.
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
	if d.HasOldLog() { // programs with the old log format had no clusters
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

// survivingState reads the ledger's id, its time, and the log position from the state file.
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

// Recover turns the directory of a node whose cluster has lost its majority for good into a ledger with one node.
// Everything in the node's log counts as committed. Entries that only the lost nodes had are lost, even if they were
// acknowledged. The ledger therefore begins an epoch, like a restored one: transaction ids and sessions of lost entries
// are never issued again, and clients notice that it is another ledger. The other nodes of the old cluster are no
// longer members, and must never be started again. The node keeps its number.
//
// Until the EPOCH file is durable, neither Open nor any reader accepts the directory. If Recover was interrupted or
// failed, call it again.
func Recover(ctx context.Context, dir string, logger *slog.Logger) (r Recovery, err error) {
	return recoverWith(ctx, dir, logger, func(string) error { return nil })
}

// recoverWith calls step before each step. If step returns an error, the recovery ends there, as in a crash.
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
