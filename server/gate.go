package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// gate counts what is inside and bounds it.
type gate struct{ inside atomic.Int64 }

// enter tells whether there was room.
func (g *gate) enter(limit int) bool {
	if g.inside.Add(1) > int64(limit) {
		g.inside.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave() { g.inside.Add(-1) }

func (g *gate) count() int64 { return g.inside.Load() }

// awaitEmpty returns once nothing is inside. It looks now and then, because it
// is used once in a server's life, and leave for every request.
func (g *gate) awaitEmpty(ctx context.Context) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for g.count() > 0 {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%d are still open: %w", g.count(), context.Cause(ctx))
		}
	}
	return nil
}
