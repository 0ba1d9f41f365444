package admission

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Limiter counts open items and bounds them. The zero value has none open.
type Limiter struct{ open atomic.Int64 }

// Enter opens one more and returns true, unless limit of them are open.
func (l *Limiter) Enter(limit int) bool {
	if l.open.Add(1) > int64(limit) {
		l.open.Add(-1)
		return false
	}
	return true
}

// Leave closes an item that Enter opened.
func (l *Limiter) Leave() { l.open.Add(-1) }

// Count returns how many are open.
func (l *Limiter) Count() int64 { return l.open.Load() }

// AwaitEmpty returns once nothing is open, or the cause of ctx. It polls, because
// it runs once in a server's life and Leave for every request.
func (l *Limiter) AwaitEmpty(ctx context.Context) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for l.Count() > 0 {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%d are still open: %w", l.Count(), context.Cause(ctx))
		}
	}
	return nil
}
