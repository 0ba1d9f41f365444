package stats

import (
	"math"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

func TestHistogram(t *testing.T) {
	t.Parallel()
	h := Histogram{Scale: Scale{first: 10, unit: 0.1}}
	for _, value := range []int64{0, 10, 11, 20, 21, math.MaxInt32} {
		h.Observe(value)
	}
	d := h.Distribution()
	if len(d.Buckets) != maxBuckets || d.Count != 6 {
		t.Fatalf("%+v", d)
	}
	// Each has what the ones below have, bounds included.
	for bound, want := range map[float64]uint64{1: 2, 2: 4, 4: 5, 0.1 * (10 << (maxBuckets - 1)): 5} {
		check.Equal(t, d.Buckets[bound], want, "at most %g: %d", bound)
	}
	if want := 0.1 * (62 + math.MaxInt32); math.Abs(d.Sum-want) > 1 {
		t.Errorf("the sum is %g, want %g", d.Sum, want)
	}
}

// TestHistogramIsNeverTornApart reads while others count: no bucket may say
// more than the whole does, because Prometheus refuses such a Histogram.
func TestHistogramIsNeverTornApart(t *testing.T) {
	t.Parallel()
	h := Histogram{Scale: Sizes}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range int64(10_000) {
				h.Observe(i % 100)
			}
		})
	}
	for range 100 {
		d := h.Distribution()
		for bound, n := range d.Buckets {
			if n > d.Count {
				t.Fatalf("%d at most %g, of %d", n, bound, d.Count)
			}
		}
	}
	group.Wait()
	if d := h.Distribution(); d.Count != 40_000 || d.Buckets[128] != 40_000 {
		t.Errorf("%+v", d)
	}
}
