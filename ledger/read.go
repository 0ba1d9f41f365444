package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/boltstore"
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
		return l.notLeading()
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

// headView is the head of the state by itself.
type headView struct {
	Created bool
	Level   uint64
	Config  machine.Config
}

func (l *Ledger) head() (h headView, err error) {
	err = l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		h = headView{v.Created(), v.Level(), v.Config()}
		return nil
	})
	return h, err
}
