package ledger

import (
	"sync/atomic"
	"time"
)

// Distribution says how often something was how large, since Open. It has the
// shape that a histogram of Prometheus has, without the ledger knowing it.
type Distribution struct {
	Count uint64
	Sum   float64
	// Buckets has, for each upper bound, how many were at most that large.
	Buckets map[float64]uint64
}

// maxBuckets bounds the memory of a histogram.
const maxBuckets = 20

// histogram counts into buckets whose bounds double. Counting takes some
// comparisons and three atomic additions, and is done for a log entry or a
// checkpoint, never for a write.
type histogram struct {
	scale   scale
	buckets [maxBuckets]atomic.Uint64
	count   atomic.Uint64
	sum     atomic.Int64
	largest atomic.Int64
}

// scale is where a histogram begins, and the unit that it is given out in.
type scale struct {
	first int64
	unit  float64
}

var (
	// durations begin at 50 µs, which is less than any disk needs, and end at
	// 26 s.
	durations = scale{first: int64(50 * time.Microsecond), unit: 1e-9}
	// sizes begin at 1 and end at half a million.
	sizes = scale{first: 1, unit: 1}
)

func (h *histogram) observe(value int64) {
	h.count.Add(1)
	h.sum.Add(value)
	for {
		largest := h.largest.Load()
		if value <= largest || h.largest.CompareAndSwap(largest, value) {
			break
		}
	}
	for i, bound := 0, h.scale.first; i < maxBuckets; i, bound = i+1, 2*bound {
		if value <= bound {
			h.buckets[i].Add(1)
			return
		}
	}
}

func (h *histogram) since(began time.Time) { h.observe(int64(time.Since(began))) }

func (h *histogram) distribution() Distribution {
	d := Distribution{Buckets: make(map[float64]uint64, maxBuckets)}
	upTo := uint64(0)
	for i := range h.buckets {
		upTo += h.buckets[i].Load()
		d.Buckets[float64(h.scale.first<<i)*h.scale.unit] = upTo
	}
	// Read last: what is counted meanwhile must not make a bucket larger than
	// the whole.
	d.Sum, d.Count = float64(h.sum.Load())*h.scale.unit, h.count.Load()
	return d
}
