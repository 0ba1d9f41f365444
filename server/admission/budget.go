package admission

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Budget counts units that are in use, such as requests or bytes. It is a semaphore whose limit comes with each call,
// because the auth file may change it while units are in use. Calls that wait are served in their order. The zero value
// has no unit in use.
//
// A call for more than the limit is served when nothing is in use, so no limit can exclude a single large call.
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

// TryAcquire takes n units if they are available and no call waits.
func (b *Budget) TryAcquire(n, limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Len() == 0 && b.take(n, limit)
}

// take is called with mu held.
func (b *Budget) take(n, limit int64) bool {
	if !b.mayAcquire(n, limit) {
		return false
	}
	b.used.Add(n)
	return true
}

// mayAcquire reports whether n units are available. It takes none.
func (b *Budget) mayAcquire(n, limit int64) bool {
	used := b.Used()
	return used == 0 || used+n <= limit
}

// Acquire takes n units and waits until they are available. The error is the cause of ctx.
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
	// Also if the call has only left the queue, because a smaller one after it may fit.
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

// wake serves waiting calls while units are available. It is called with mu held.
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

// AwaitEmpty returns once nothing is in use, or the cause of ctx with the number of units in use, which left names. It
// polls, because it runs once in a server's life and Release for every request.
func (b *Budget) AwaitEmpty(ctx context.Context, left string) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for b.Used() > 0 {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%d %s: %w", b.Used(), left, context.Cause(ctx))
		}
	}
	return nil
}
