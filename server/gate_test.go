package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func TestGateHoldsItsLimit(t *testing.T) {
	t.Parallel()
	const limit, visitors = 3, 50
	var g gate
	var inside, refused atomic.Int64
	var group sync.WaitGroup
	for range visitors {
		group.Go(func() {
			for range 100 {
				if !g.enter(limit) {
					refused.Add(1)
					continue
				}
				if inside.Add(1) > limit {
					t.Error("more inside than the limit")
				}
				inside.Add(-1)
				g.leave()
			}
		})
	}
	group.Wait()
	if g.count() != 0 {
		t.Error("a refused visitor must not count:", g.count(), "after", refused.Load(), "refusals")
	}
}

func TestGateAwaitEmpty(t *testing.T) {
	t.Parallel()
	var g gate
	if err := g.awaitEmpty(t.Context()); err != nil {
		t.Error("nothing to wait for:", err)
	}
	g.enter(1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.awaitEmpty(ended); !errors.Is(err, context.Canceled) {
		t.Error("a wait that its context ends:", err)
	}
	left := make(chan error)
	go func() { left <- g.awaitEmpty(t.Context()) }() // ends with leave; received below
	g.leave()
	if err := <-left; err != nil {
		t.Error(err)
	}
}
