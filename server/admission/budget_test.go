package admission

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A budget never hands out more than its limit, but to a call that is alone.
func TestBudget(t *testing.T) {
	t.Parallel()
	var b Budget
	if !b.TryAcquire(3, 10) || !b.TryAcquire(7, 10) || b.TryAcquire(1, 10) {
		t.Error("want ten, and no more")
	}
	if !b.TryAcquire(1, 11) {
		t.Error("a larger limit must hold at once")
	}
	b.Release(11)
	if !b.TryAcquire(100, 10) || b.TryAcquire(1, 10) {
		t.Error("a call that asks for more than the limit must be served, alone")
	}
	b.Release(100)
	check.Equal(t, b.Used(), 0, "still in use: %v")
}

// Calls that wait are served in their order, and none that does not wait passes them.
func TestBudgetServesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		b.TryAcquire(10, 10)
		var mu sync.Mutex
		var served []int
		for i, n := range []int64{8, 5, 1} {
			go func() { // ends when it is served
				check.Is(t, b.Acquire(t.Context(), n, 10), nil)
				mu.Lock()
				defer mu.Unlock()
				served = append(served, i)
			}()
			synctest.Wait()
		}
		b.Release(2)
		if b.TryAcquire(1, 10) {
			t.Error("a call has passed those that wait")
		}
		synctest.Wait()
		if len(served) != 0 {
			t.Error("two are not enough for the first, and yet served:", served)
		}
		b.Release(8)
		synctest.Wait()
		if len(served) != 1 || served[0] != 0 {
			t.Fatal("the first must be served, and no other:", served)
		}
		b.Release(8)
		synctest.Wait()
		if len(served) != 3 || b.Used() != 6 {
			t.Errorf("served %v, %d in use", served, b.Used())
		}
	})
}

// A wait that its context ends takes nothing, and the calls behind it go on.
func TestBudgetWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		b.TryAcquire(10, 10)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- b.Acquire(ctx, 9, 10) }() // ends with cancel
		synctest.Wait()
		go func() { second <- b.Acquire(t.Context(), 2, 10) }() // ends when the first has gone
		synctest.Wait()
		b.Release(2)
		cancel()
		check.Is(t, <-first, context.Canceled)
		must.Do(t, <-second)
		check.Equal(t, b.Used(), 10, "in use: %v")
	})
}

// Whatever happens at once, everything is given back and the limit holds.
func TestBudgetUnderLoad(t *testing.T) {
	t.Parallel()
	const limit = 10
	var b Budget
	var used atomic.Int64
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 200 {
				n := int64(1 + (i+j)%4)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(j%3)*time.Microsecond*50)
				if j%2 == 0 && b.TryAcquire(n, limit) || j%2 == 1 && b.Acquire(ctx, n, limit) == nil {
					if now := used.Add(n); now > limit {
						t.Error("in use:", now)
					}
					used.Add(-n)
					b.Release(n)
				}
				cancel()
			}
		})
	}
	group.Wait()
	if b.Used() != 0 || b.waiting.Len() != 0 {
		t.Errorf("%d are in use and %d wait", b.Used(), b.waiting.Len())
	}
}

func TestBudgetAwaitEmpty(t *testing.T) {
	t.Parallel()
	var b Budget
	must.Do(t, b.AwaitEmpty(t.Context(), "bytes are left"), "nothing to wait for")
	b.TryAcquire(7, 7)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := b.AwaitEmpty(ended, "bytes are left")
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "7 bytes are left: ") {
		t.Error("a wait that its context ends:", err)
	}
	left := make(chan error)
	go func() { left <- b.AwaitEmpty(t.Context(), "bytes are left") }() // ends with Release; received below
	b.Release(7)
	must.Do(t, <-left)
}
