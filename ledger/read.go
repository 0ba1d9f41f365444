package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// fresh returns once a read on this node sees every write that was acknowledged before the call, by any node. If that
// takes longer than readTicks, the error is a *cluster.NotLeaderError: this node may be cut off from the others, or lag
// far, while its callers can reach another.
func (l *Ledger) fresh(ctx context.Context) error {
	err := l.readBarrier(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrNotLeader):
		return l.cluster.NotLeading()
	case errors.Is(err, raftlog.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("read: %w", err)
}

// readTicks is how many heartbeat intervals a read waits for an answer of the others: longer than they take to elect a
// leader, so that a read survives that.
const readTicks = 40

// readBarrier is raftlog.Log.ReadBarrier, but a node that has others gives up when they do not answer. A leader
// keeps asking, because it stops leading when it is cut off.
func (l *Ledger) readBarrier(ctx context.Context) error {
	if l.log.ReadsAlone() || l.options.Cluster == nil {
		return l.log.ReadBarrier(ctx)
	}
	l.counters.readChecks.Add(1)
	for {
		limited, cancel := context.WithTimeout(ctx, readTicks*tickOf(l.options.Cluster))
		err := l.log.ReadBarrier(limited)
		cancel()
		// The caller's deadline is no sign of the other nodes' state, and must not become a NotLeaderError.
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if leader, _ := l.cluster.Leader(); !leader.Self {
			return l.cluster.NotLeading()
		}
	}
}

// tickOf returns the heartbeat interval of a cluster.
func tickOf(o *cluster.Options) time.Duration { return cmp.Or(o.Tick, 50*time.Millisecond) }

// readFailed stops the ledger when a read found damage: going on could answer
// from what was never written.
func (l *Ledger) readFailed(err error) error {
	if errors.Is(err, boltstore.ErrClosed) {
		return ErrClosed
	}
	if err != nil && (errors.Is(err, machine.ErrCorrupt) || l.store.Err() != nil) {
		l.fail(err)
	}
	return err
}
