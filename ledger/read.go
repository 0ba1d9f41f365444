package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// View calls read with a consistent view of the state that is as fresh as
// every write acknowledged before the call. Applying waits while read runs, so
// it must be short: page what is long.
func (l *Ledger) View(ctx context.Context, read func(v machine.View) error) error {
	if err := l.fresh(ctx); err != nil {
		return err
	}
	err := l.store.View(func(r machine.Reader) error { return read(l.machine.View(r)) })
	return l.readFailed(err)
}

// ViewOrdered is View for who reads a table in its order. What has changed in the
// table is sorted first, while the ledger goes on applying.
func (l *Ledger) ViewOrdered(ctx context.Context, table machine.Table, read func(v machine.View) error) error {
	l.store.Presort(table)
	return l.View(ctx, read)
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

// fresh returns once a read of the local state sees every acknowledged write.
func (l *Ledger) fresh(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	err := l.log.ReadBarrier(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrNotLeader):
		_, leader, _ := l.log.Leader()
		return &NotLeaderError{Leader: leader}
	case errors.Is(err, raftlog.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("read: %w", err)
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
