package ledger

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/seqledger/seqledger/ledger/machine"
)

// watchers wakes the calls that wait for the next block of a scope. It holds no
// blocks: a watcher reads them from the state, at its own pace, so that a slow
// one costs nothing. It has an entry for each scope that a call waits for.
type watchers struct {
	mu      sync.Mutex
	waiting map[machine.Scope]*scopeWaiters
	closed  bool
}

// scopeWaiters are the calls that wait for one scope.
type scopeWaiters struct {
	next  chan struct{} // closed with the next block
	count int
}

// join returns a channel that is closed with the next block of the scope, or
// with the ledger. A call that stops waiting must call leave.
func (w *watchers) join(scope machine.Scope) *scopeWaiters {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiters := w.waiting[scope]
	if waiters == nil {
		waiters = &scopeWaiters{next: make(chan struct{})}
		if w.closed {
			close(waiters.next)
			return waiters
		}
		if w.waiting == nil {
			w.waiting = map[machine.Scope]*scopeWaiters{}
		}
		w.waiting[scope] = waiters
	}
	waiters.count++
	return waiters
}

// leave forgets a call that waited, and the scope with the last of them: scopes
// that never get a block must not pile up.
func (w *watchers) leave(scope machine.Scope, waiters *scopeWaiters) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waiters.count--; waiters.count == 0 && w.waiting[scope] == waiters {
		delete(w.waiting, scope)
	}
}

// wake wakes the watchers of the scopes in which an entry made blocks.
func (w *watchers) wake(m *machine.Machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		return
	}
	m.CommittedScopes(func(s machine.Scope) {
		if waiters := w.waiting[s]; waiters != nil {
			close(waiters.next)
			delete(w.waiting, s)
		}
	})
}

// close wakes all calls for the last time.
func (w *watchers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for s, waiters := range w.waiting {
		close(waiters.next)
		delete(w.waiting, s)
	}
}

// Watch yields the blocks of a scope from a height on, in order and without a
// hole: those that are there, then each as it is committed. It ends with an
// error: that of ctx, ErrClosed, or a failure.
func (l *Ledger) Watch(ctx context.Context, scope machine.Scope, from uint64) iter.Seq2[machine.Block, error] {
	return func(yield func(machine.Block, error) bool) {
		for header, err := range l.WatchHeaders(ctx, scope, from) {
			var block machine.Block
			if err == nil {
				block, err = l.Block(ctx, scope, header.Height)
			}
			if !yield(block, err) || err != nil {
				return
			}
		}
	}
}

// WatchHeaders is Watch of the headers alone. [Ledger.VisitBlock] reads what is in
// a block.
func (l *Ledger) WatchHeaders(
	ctx context.Context, scope machine.Scope, from uint64,
) iter.Seq2[machine.BlockHeader, error] {
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
