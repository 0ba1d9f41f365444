// Package recovery makes a ledger of one node whose cluster has lost its majority for good. Look at every node that is
// left with [Inspect] first: of several survivors, one has the longest log.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
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
	Time      time.Time        // ledger time of the last command in the log, or of the state if the log has none
	Members   []cluster.Member // as of the end of the log; Active and Matched are unknown
	// Interrupted reports that a recovery has begun, which must be completed.
	Interrupted bool
}

// Result is the result of a recovery.
type Result struct {
	Before   Survivor         // the node before the recovery
	LedgerID machine.LedgerID // ledger id of later transactions
	Index    uint64           // the index after which the new epoch begins
	Digest   machine.Hash     // at that index
}

// Inspect reads the directory of a node that no process has open. It changes nothing.
func Inspect(dir string) (s Survivor, err error) {
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
	return inspect(d)
}

func inspect(d *datadir.Directory) (s Survivor, err error) {
	s.Node = d.Node()
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
			s.Members = append(s.Members, cluster.Member{ID: id, Voter: voter, Peer: a.Peer, Client: a.Client})
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

// Run turns the directory of a node whose cluster has lost its majority for good into a ledger with one node.
// Everything in the node's log counts as committed. Entries that only the lost nodes had are lost, even if they were
// acknowledged. The ledger therefore begins an epoch, like a restored one: transaction ids and sessions of lost entries
// are never issued again, and clients notice that it is another ledger. The other nodes of the old cluster are no
// longer members, and must never be started again. The node keeps its number.
//
// Until the EPOCH command is durable, neither ledger.Open nor any reader accepts the directory. If Run was
// interrupted or failed, call it again.
func Run(ctx context.Context, dir string, logger *slog.Logger) (r Result, err error) {
	if logger == nil {
		logger = slog.Default()
	}
	d, err := datadir.OpenSurvivor(dir)
	if err != nil {
		return r, err
	}
	private.Narrow(logger, dir)
	interrupted, err := d.Recovering()
	if err == nil && !interrupted {
		if r.Before, err = inspect(d); err == nil && len(r.Before.Members) == 1 &&
			r.Before.Members[0].ID == d.Node() {
			err = ErrNothingToRecover
		}
	}
	if err != nil {
		return r, errors.Join(err, d.Close())
	}
	r.Before.Node, r.Before.Interrupted = d.Node(), interrupted
	r.LedgerID, r.Index, r.Digest, err = ledger.BeginEpoch(ctx, ledger.Epoch{
		Directory: d, Logger: logger,
		Prepare: func(_ machine.View, at raftlog.Position) error {
			// Before anything is changed, so that an interrupted recovery is recognized.
			logger.Debug("an epoch is being begun", "next", "mark")
			if err := d.BeginRecovery(); err != nil {
				return err
			}
			logger.Debug("an epoch is being begun", "next", "log")
			return raftlog.Alone(raftlog.Options{
				Dir: d.Log(), Identity: d.Identity(), Node: d.Node(), Checkpoint: at, Logger: logger,
			})
		},
		Finish: d.EndRecovery,
	})
	return r, err
}
