package admission

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
)

// Budget counts units that are in use: bytes, or places. It is a semaphore whose limit comes
// with each call, because the auth file may change it while units are in use. Calls that wait
// are served in their order. The zero value has no unit in use.
//
// A call for more than the limit is served when nothing is in use, so no limit can exclude a
// single large call.
type Budget struct {
	mu      sync.Mutex
	used    atomic.Int64 // written with mu held
	waiting list.List    // of *budgetCall
}

// budgetCall is a call that waits.
type budgetCall struct {
	n, limit int64
	ready    chan struct{} // closed with the units taken
}

// Used returns how many units are in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// TryAcquire takes n units if there is room and no call waits.
func (b *Budget) TryAcquire(n, limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Len() == 0 && b.take(n, limit)
}

// take is called with mu held.
func (b *Budget) take(n, limit int64) bool {
	used := b.used.Load()
	if used > 0 && used+n > limit {
		return false
	}
	b.used.Store(used + n)
	return true
}

// Acquire takes n units and waits until there is room. The error is the cause of
// ctx.
func (b *Budget) Acquire(ctx context.Context, n, limit int64) error {
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.take(n, limit) {
		b.mu.Unlock()
		return nil
	}
	call := &budgetCall{n, limit, make(chan struct{})}
	element := b.waiting.PushBack(call)
	b.mu.Unlock()
	select {
	case <-call.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-call.ready: // served in the meantime
		b.used.Add(-n)
	default:
		b.waiting.Remove(element)
	}
	// Also if the call has only left the queue, because a smaller one behind it may fit.
	b.wake()
	return context.Cause(ctx)
}

// Release releases n units.
func (b *Budget) Release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.Add(-n)
	b.wake()
}

// wake serves waiting calls while there is room. It is called with mu held.
func (b *Budget) wake() {
	for front := b.waiting.Front(); front != nil; front = b.waiting.Front() {
		call := front.Value.(*budgetCall) //nolint:forcetypeassert // The list holds nothing else.
		if !b.take(call.n, call.limit) {
			return
		}
		b.waiting.Remove(front)
		close(call.ready)
	}
}

// force takes n units whatever the limit is.
func (b *Budget) force(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.Add(n)
}
