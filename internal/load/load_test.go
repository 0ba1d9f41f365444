package load_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A closed loop counts what was begun between warm-up and end, once each.
func TestClosedCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 10 * time.Millisecond
		r := must.Get(load.Run(t.Context(), load.Load{Workers: 3, Warmup: 95 * time.Millisecond,
			Duration: time.Second},
			func(context.Context, int) error {
				time.Sleep(took) //nolint:forbidigo // Simulated work and clock.
				return nil
			}))(t)
		if r.Operations != 3*100 || r.Elapsed != time.Second || r.PerSecond() != 300 {
			t.Errorf("want 300 operations in a second, got %d in %s, %v a second", r.Operations, r.Elapsed,
				r.PerSecond())
		}
		if p := r.Latency.Milliseconds(99); p < 9.9 || p > 10.2 {
			t.Errorf("want 10 ms, got %v", p)
		}
	})
}

// A stall of one second in an open loop of 100 a second is seen by about a hundred callers. A closed loop would have
// seen it once.
func TestOpenChargesTheStallToAllWhoWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		r := must.Get(load.Run(t.Context(), load.Load{Workers: 1, Rate: 100, Duration: 10 * time.Second},
			func(context.Context, int) error {
				if calls.Add(1) == 500 {
					time.Sleep(time.Second) //nolint:forbidigo // It is the simulated stall, under a simulated clock.
				}
				return nil
			}))(t)
		if r.Operations != 1000 || r.Unserved != 0 {
			t.Fatalf("want 1000 served operations, got %d and %d unserved", r.Operations, r.Unserved)
		}
		// The 5 % that were due in the first half of the stall waited longer than half of it.
		if p := r.Latency.Milliseconds(96); p < 500 {
			t.Errorf("96 %% waited %v ms at most: those due during the stall are missing", p)
		}
		if p := r.Latency.Milliseconds(85); p > 1 {
			t.Errorf("85 %% waited up to %v ms, although the stall hit 10 %%", p)
		}
	})
}

// What was due and never begun must not vanish from the latencies.
func TestOpenCountsTheUnserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := must.Get(load.Run(t.Context(), load.Load{Workers: 2, Rate: 100, Duration: time.Second},
			func(context.Context, int) error {
				time.Sleep(100 * time.Millisecond) //nolint:forbidigo // Simulated work and clock.
				return nil
			}))(t)
		if total := r.Operations + r.Unserved; total != 100 || r.Unserved < 70 || r.Latency.TotalCount() != 100 {
			t.Errorf("want 100 due, most of them unserved; got %d served, %d unserved, %d latencies",
				r.Operations, r.Unserved, r.Latency.TotalCount())
		}
	})
}

func TestErrorsEndTheLoad(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	fails := func(_ context.Context, worker int) error {
		if worker == 1 {
			return broken
		}
		return nil
	}
	o := load.Load{Workers: 2, Duration: time.Hour}
	check.Is(t, check.Err(load.Run(t.Context(), o, fails)), broken, "closed: want the worker's error")
	o.Rate = 1000
	check.Is(t, check.Err(load.Run(t.Context(), o, fails)), broken, "open: want the worker's error")
	o = load.Load{Workers: 1, Duration: time.Millisecond,
		Meter: func() (map[string]float64, error) { return nil, broken }}
	if _, err := load.Run(t.Context(), o, func(context.Context, int) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("want the meter's error, got %v", err)
	}
}

// What the meter counts between begin and end is told for each operation.
func TestUsedIsForEachOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read := 0.0
		r, err := load.Run(t.Context(), load.Load{Workers: 1, Warmup: 5 * time.Millisecond, Duration: time.Second,
			Group: 10, Meter: func() (map[string]float64, error) {
				read++
				return map[string]float64{"bytes": 5000 * read}, nil
			}},
			func(context.Context, int) error {
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // Simulated work and clock.
				return nil
			})
		if v := r.Values(); err != nil || r.Operations != 1000 || r.Used["bytes"] != 5000 || v["bytes"] != 5 {
			t.Errorf("want 5 bytes for each of 1000 operations, got %v of %d, %v", v["bytes"], r.Operations, err)
		}
	})
}

// A measurement in which nothing was done is made longer.
func TestRunSome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, int) error {
			time.Sleep(time.Second) //nolint:forbidigo // Simulated work and clock.
			return nil
		}
		o := load.Load{Workers: 1, Warmup: time.Millisecond, Duration: 50 * time.Millisecond}
		check.Equal(t, must.Get(load.RunSome(t.Context(), o, slow))(t).Operations, 1, "want one operation: got %d")
		o.Warmup = 0
		never := func(ctx context.Context, _ int) error {
			time.Sleep(time.Minute) //nolint:forbidigo // The same.
			return nil
		}
		if _, err := load.RunSome(t.Context(), o, never); err == nil {
			t.Error("nothing was done in any time, and no error says so")
		}
	})
}

// Work that runs out ends the measurement early.
func TestClosedEndsWhenAllAreDone(t *testing.T) {
	t.Parallel()
	var left atomic.Int64
	left.Store(50)
	r, err := load.Run(t.Context(), load.Load{Workers: 4, Duration: time.Hour}, func(context.Context, int) error {
		if left.Add(-1) < 0 {
			return load.ErrDone
		}
		return nil
	})
	if err != nil || r.Operations != 50 || r.Elapsed > time.Minute {
		t.Errorf("want all 50 operations, because there is no warm-up, and an early end, got %d in %s, %v",
			r.Operations,
			r.Elapsed, err)
	}
}
