package ledger

import (
	"context"
	"errors"
	"iter"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Watch yields the headers of a scope's blocks from a height on, in order and
// without a hole: those that are there, then each as it is committed. It ends with
// an error: that of ctx, ErrClosed, or a failure. [Ledger.VisitBlock] reads what is
// in a block.
func (l *Ledger) Watch(ctx context.Context, scope machine.Scope, from uint64) iter.Seq2[machine.BlockHeader, error] {
	return func(yield func(machine.BlockHeader, error) bool) {
		for height := max(from, 1); ; height++ {
			header, err := l.nextHeader(ctx, scope, height)
			if !yield(header, err) || err != nil {
				return
			}
		}
	}
}

// nextHeader returns the header of a block as soon as the block is there.
func (l *Ledger) nextHeader(ctx context.Context, scope machine.Scope, height uint64) (machine.BlockHeader, error) {
	for {
		header, err := l.headerAt(ctx, scope, height)
		if !errors.Is(err, machine.ErrNotFound) {
			return header, err
		}
		waiters := l.watchers.join(scope)
		// Looked at again after joining, so that no block is missed in between.
		header, err = l.headerAt(ctx, scope, height)
		if errors.Is(err, machine.ErrNotFound) {
			select {
			case <-waiters.next:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		l.watchers.leave(scope, waiters)
		if !errors.Is(err, machine.ErrNotFound) {
			return header, err
		}
	}
}

func (l *Ledger) headerAt(
	ctx context.Context, scope machine.Scope, height uint64,
) (header machine.BlockHeader, err error) {
	if l.draining.Load() {
		return header, ErrClosed
	}
	err = l.View(ctx, func(v machine.View) (err error) {
		header, err = v.BlockHeader(scope, height)
		return err
	})
	return header, err
}
