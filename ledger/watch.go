package ledger

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/seqledger/seqledger/ledger/machine"
)

// watchers wakes those who wait for the next block of a scope. It holds no
// blocks: a watcher reads them from the state, at its own pace, so that a slow
// one costs nothing. It has an entry for each scope that somebody waits for.
type watchers struct {
	mu      sync.Mutex
	waiting map[machine.Scope]*waitingRoom
	closed  bool
}

// waitingRoom is where those wait who wait for one scope.
type waitingRoom struct {
	next   chan struct{} // closed with the next block
	people int
}

// join returns a channel that is closed with the next block of the scope, or
// with the ledger. Whoever does not wait any more calls leave.
func (w *watchers) join(scope machine.Scope) *waitingRoom {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := w.waiting[scope]
	if room == nil {
		room = &waitingRoom{next: make(chan struct{})}
		if w.closed {
			close(room.next)
			return room
		}
		if w.waiting == nil {
			w.waiting = map[machine.Scope]*waitingRoom{}
		}
		w.waiting[scope] = room
	}
	room.people++
	return room
}

// leave forgets one who waited, and the room with the last of them: scopes that
// never get a block must not pile up.
func (w *watchers) leave(scope machine.Scope, room *waitingRoom) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room.people--; room.people == 0 && w.waiting[scope] == room {
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
		if room := w.waiting[s]; room != nil {
			close(room.next)
			delete(w.waiting, s)
		}
	})
}

// close wakes everybody for the last time.
func (w *watchers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for s, room := range w.waiting {
		close(room.next)
		delete(w.waiting, s)
	}
}

// Watch yields the blocks of a scope from a height on, in order and without a
// hole: those that are there, then each as it is committed. It ends with an
// error: that of ctx, ErrClosed, or a failure.
func (l *Ledger) Watch(ctx context.Context, scope machine.Scope, from uint64) iter.Seq2[machine.Block, error] {
	return func(yield func(machine.Block, error) bool) {
		for height := max(from, 1); ; {
			block, err := l.nextBlock(ctx, scope, height)
			if !yield(block, err) || err != nil {
				return
			}
			height++
		}
	}
}

// nextBlock returns a block as soon as it is there.
func (l *Ledger) nextBlock(ctx context.Context, scope machine.Scope, height uint64) (machine.Block, error) {
	for {
		block, err := l.blockAt(ctx, scope, height)
		if !errors.Is(err, machine.ErrNotFound) {
			return block, err
		}
		room := l.watchers.join(scope)
		// Looked at again after joining, so that no block is missed in between.
		block, err = l.blockAt(ctx, scope, height)
		if errors.Is(err, machine.ErrNotFound) {
			select {
			case <-room.next:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		l.watchers.leave(scope, room)
		if !errors.Is(err, machine.ErrNotFound) {
			return block, err
		}
	}
}

func (l *Ledger) blockAt(ctx context.Context, scope machine.Scope, height uint64) (block machine.Block, err error) {
	if l.draining.Load() {
		return block, ErrClosed
	}
	err = l.View(ctx, func(v machine.View) (err error) {
		block, err = v.Block(scope, height)
		return err
	})
	return block, err
}
