package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func TestLimiterHoldsItsLimit(t *testing.T) {
	t.Parallel()
	const limit, callers = 3, 50
	var l Limiter
	var inside, refused atomic.Int64
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range 100 {
				if !l.Enter(limit) {
					refused.Add(1)
					continue
				}
				if inside.Add(1) > limit {
					t.Error("more inside than the limit")
				}
				inside.Add(-1)
				l.Leave()
			}
		})
	}
	group.Wait()
	if l.Count() != 0 {
		t.Error("a refused caller must not count:", l.Count(), "after", refused.Load(), "refusals")
	}
}

func TestLimiterAwaitEmpty(t *testing.T) {
	t.Parallel()
	var l Limiter
	if err := l.AwaitEmpty(t.Context()); err != nil {
		t.Error("nothing to wait for:", err)
	}
	l.Enter(1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.AwaitEmpty(ended); !errors.Is(err, context.Canceled) {
		t.Error("a wait that its context ends:", err)
	}
	left := make(chan error)
	go func() { left <- l.AwaitEmpty(t.Context()) }() // ends with Leave; received below
	l.Leave()
	if err := <-left; err != nil {
		t.Error(err)
	}
}
