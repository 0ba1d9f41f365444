package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// fresh returns once a read on this node sees every write that was acknowledged before the call, by any node.
func (l *Ledger) fresh(ctx context.Context) error {
	if !l.log.ReadsAlone() {
		l.counters.readChecks.Add(1)
	}
	err := l.log.ReadBarrier(ctx)
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

// head returns the head of the state, as this node has it.
func (l *Ledger) head() (s cluster.State, err error) {
	err = l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		s = cluster.State{Created: v.Created(), Level: v.Level(), Config: v.Config()}
		if s.Created {
			s.Ledger = v.LedgerID()
		}
		return nil
	})
	return s, err
}
