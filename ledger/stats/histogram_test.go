package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// TestHistogramAgainstAList: whatever is observed, each bucket, the sum, the count and the largest value are those of
// the plain list. A failure prints the seed that repeats it.
func TestHistogramAgainstAList(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for _, scale := range []Scale{Durations, Sizes, {first: 3, unit: 0.5}} {
		h := Histogram{Scale: scale}
		var values []int64
		last := scale.first << (maxBuckets - 1)
		for i := range 400 {
			value := random.Int64N(3 * last)
			switch i % 4 {
			case 0: // in the small buckets, too, which even draws would miss
				value >>= random.IntN(62)
			case 1: // at a bound and beside it
				value = scale.first<<random.IntN(maxBuckets) + random.Int64N(3) - 1
			}
			h.Observe(value)
			values = append(values, value)
		}
		d := h.Distribution()
		if d.Count != uint64(len(values)) || len(d.Buckets) != maxBuckets {
			t.Errorf("seed %d: want %d values in %d buckets, got %+v", seed, len(values), maxBuckets, d)
		}
		sum, largest := 0.0, int64(0)
		for _, value := range values {
			sum += float64(value) * scale.unit
			largest = max(largest, value)
		}
		if math.Abs(d.Sum-sum) > 1e-9*sum || h.Largest() != largest {
			t.Errorf("seed %d: want the sum %g and the largest %d, got %g and %d",
				seed, sum, largest, d.Sum, h.Largest())
		}
		for i := range maxBuckets {
			bound := scale.first << i
			want := uint64(0)
			for _, value := range values {
				if value <= bound {
					want++
				}
			}
			if got, ok := d.Buckets[float64(bound)*scale.unit]; !ok || got != want {
				t.Errorf("seed %d: want %d up to %d, got %d", seed, want, bound, got)
			}
		}
	}
}

// TestScales: the bounds that dashboards and alerts are written for, and the documentation of the scales names.
func TestScales(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		scale       Scale
		first, last float64
	}{
		{"seconds", Durations, 50e-6, 26.2144},
		{"sizes", Sizes, 1, 524_288},
	} {
		h := Histogram{Scale: test.scale}
		lowest, highest := math.Inf(1), 0.0
		for bound := range h.Distribution().Buckets {
			lowest, highest = min(lowest, bound), max(highest, bound)
		}
		if math.Abs(lowest-test.first) > 1e-12 || math.Abs(highest-test.last) > 1e-9 {
			t.Errorf("%s: want bounds from %g to %g, got %g to %g", test.name, test.first, test.last, lowest, highest)
		}
	}
}

// TestEmptyHistogram: before anything is counted every bucket is there and is zero, because a bucket that appears
// later would look like a jump to a monitoring system.
func TestEmptyHistogram(t *testing.T) {
	t.Parallel()
	h := Histogram{Scale: Durations}
	d := h.Distribution()
	if d.Count != 0 || d.Sum != 0 || h.Largest() != 0 || len(d.Buckets) != maxBuckets {
		t.Errorf("want nothing counted, got %+v", d)
	}
	for bound, n := range d.Buckets {
		check.Equal(t, n, 0, "want nothing up to %g, got %d", bound)
	}
}

// TestHistogramSince: the time since a moment is counted in the scale's unit. The moment is long ago, so that the
// speed of the machine does not matter.
func TestHistogramSince(t *testing.T) {
	t.Parallel()
	h := Histogram{Scale: Durations}
	h.Since(time.Now().Add(-time.Hour))
	if d := h.Distribution(); d.Count != 1 || d.Sum < 3600 || h.Largest() < int64(time.Hour) {
		t.Errorf("want an hour counted, got %+v", d)
	}
	for bound, n := range h.Distribution().Buckets {
		if n != 0 {
			t.Errorf("an hour is above all bounds, but %d were counted up to %g", n, bound)
		}
	}
}
