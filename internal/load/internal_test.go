package load

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestOpenLoopsAreComplete: every operation that is due in the measured time is served or counted as not served, for
// any number of workers, rate and time of an operation; none of the warm-up is counted.
func TestOpenLoopsAreComplete(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 3, 8} {
		for _, rate := range []float64{7, 50, 1000} {
			for _, took := range []time.Duration{0, time.Millisecond, 400 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					var begun atomic.Int64
					r, err := Run(t.Context(), Load{Workers: workers, Rate: rate, Warmup: time.Second,
						Duration: 2 * time.Second}, func(ctx context.Context, _ int) error {
						begun.Add(1)
						Pause(ctx, took)
						return nil
					})
					what := fmt.Sprintf("%d workers, %v a second, %v each", workers, rate, took)
					must.Do(t, err, "%s", what)
					due := int64(math.Ceil(3*rate)) - int64(math.Ceil(rate))
					check.Equal(t, r.Operations+r.Unserved, due, "%s: %d served and %d not, of %d: %v", what,
						r.Operations, r.Unserved, due)
					possible := float64(workers) * 3 / max(took.Seconds(), 1e-9)
					if float64(begun.Load()) > possible+float64(workers) {
						t.Errorf("%s: %d operations were begun, with one at a time for each worker", what, begun.Load())
					}
					if r.Unserved > 0 && rate*took.Seconds() < float64(workers)*0.9 {
						t.Errorf("%s: %d were not served, though the workers suffice", what, r.Unserved)
					}
				})
			}
		}
	}
}

// TestLatenciesAreKeptInTheirRange: what is too short or too long for the histogram counts as its end, and is not lost.
func TestLatenciesAreKeptInTheirRange(t *testing.T) {
	t.Parallel()
	l := NewLatencies()
	for _, d := range []time.Duration{-time.Second, 0, time.Nanosecond, time.Millisecond, time.Hour, math.MaxInt64} {
		l.Record(d)
	}
	check.Equal(t, l.TotalCount(), 6, "%d of 6 are there")
	longest := time.Duration(maxLatency).Seconds() * 1e3
	if got := l.Milliseconds(100); got < longest*0.99 || got > longest*1.01 {
		t.Errorf("the longest is %v ms, want about %v", got, longest)
	}
	if got := l.Milliseconds(1); got > 0.001 {
		t.Errorf("the shortest is %v ms", got)
	}
}

// TestRatesOfNothing are 0, and no division by it.
func TestRatesOfNothing(t *testing.T) {
	t.Parallel()
	r := Result{Operations: 5, Latency: NewLatencies()}
	check.Equal(t, r.PerSecond(), 0, "in no time: %v a second")
	r.Elapsed = 2 * time.Second
	r.Used = map[string]float64{"bytes": 50}
	if v := r.Values(); v["throughput_per_s"] != 2.5 || v["bytes"] != 10 {
		t.Errorf("%v", v)
	}
}
