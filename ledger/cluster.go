package ledger

import (
	"context"
	"slices"

	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Cluster returns this node's part in its cluster.
func (l *Ledger) Cluster() *cluster.Node { return &l.cluster.Node }

// clusterHost returns what the node may do with the ledger.
func (l *Ledger) clusterHost() cluster.Host {
	return cluster.Host{
		Options: l.options.Cluster, Logger: l.options.Logger, Clock: l.options.Clock,
		Stopping: l.stopping, Failed: l.failed, Fail: l.fail,
		State: func() (cluster.State, error) {
			h := l.Head()
			return cluster.State{Created: h.Created, Ledger: h.Ledger, Config: h.Config}, nil
		},
		Tick: func(ctx context.Context) error {
			_, err := l.one(ctx, engine.Origin{}, machine.AppendTick(nil))
			return err
		},
		BeginTerm:   l.beginTerm,
		EndTerm:     l.keys.wakeAll,
		Now:         l.clock.now,
		SetTime:     l.setTime,
		AcceptClock: l.options.AcceptClock,
	}
}

// differs is called by the machine if the node that proposed an entry had another digest than this node. In a cluster
// the fault may be this node's or the other node's, so the ledger continues until the nodes have compared their states.
// On a sole voter, the fault is in this program or this state, so differs returns the error.
func (l *Ledger) differs(err error) error {
	if log := l.opened.Load(); log != nil {
		members, own := log.Members(), []uint64{l.directory.Node()}
		if slices.Equal(members.Voters, own) && len(members.Outgoing) == 0 {
			return err
		}
	}
	l.cluster.Object(err)
	return nil
}

// ID returns the ledger's id, which stays the same while it is open. It asks no other node.
func (l *Ledger) ID() (id machine.LedgerID, err error) {
	err = l.store.View(func(r machine.Reader) error {
		id = l.machine.View(r).LedgerID()
		return nil
	})
	return id, err
}
