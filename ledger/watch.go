package ledger

import (
	"context"
	"errors"
	"iter"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Watch yields the headers of a scope's blocks from a height on, in order and
// without gaps: first the existing ones, then each as it is committed. It ends with
// an error: that of ctx, ErrClosed, or a failure. [Ledger.VisitBlock] reads the
// content of a block.
func (l *Ledger) Watch(ctx context.Context, scope machine.Scope, from uint64) iter.Seq2[machine.BlockHeader, error] {
	return func(yield func(machine.BlockHeader, error) bool) {
		w := chainWatch{l, &machine.Chain{Scope: scope}}
		for height := max(from, 1); ; height++ {
			header, err := w.next(ctx, height)
			if !yield(header, err) || err != nil {
				return
			}
		}
	}
}

// chainWatch reads a chain of blocks that grows. It looks where the chain ends, under the
// lock of the applier, only once it has read as far as it knows.
type chainWatch struct {
	*Ledger

	chain *machine.Chain
}

// next returns the header of a block as soon as the block exists.
func (w *chainWatch) next(ctx context.Context, height uint64) (machine.BlockHeader, error) {
	for {
		header, err := w.headerAt(ctx, height)
		if !errors.Is(err, machine.ErrNotFound) {
			return header, err
		}
		waiters := w.watchers.join(w.chain.Scope)
		// Looked at again after joining, so that no block is missed in between.
		header, err = w.headerAt(ctx, height)
		if errors.Is(err, machine.ErrNotFound) {
			select {
			case <-waiters.next:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		w.watchers.leave(w.chain.Scope, waiters)
		if !errors.Is(err, machine.ErrNotFound) {
			return header, err
		}
	}
}

func (w *chainWatch) headerAt(ctx context.Context, height uint64) (header machine.BlockHeader, err error) {
	if w.draining.Load() {
		return header, ErrClosed
	}
	if height > w.chain.Height {
		if w.chain, err = w.StoredChain(ctx, w.chain.Scope); err != nil {
			return header, err
		}
	}
	err = w.Blocks(ctx, func(b machine.Blocks) (err error) {
		header, err = b.BlockHeader(w.chain, height)
		return err
	})
	return header, err
}
