package demo

import (
	"math/rand/v2"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// TestSchedule: every mix has the same faults, two schedules with one seed have them in one
// order, and a schedule that was stopped has none.
func TestSchedule(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	one, other, third := newProxy(seed, nil), newProxy(seed, nil), newProxy(seed+1, nil)
	size := 0
	for _, m := range mix {
		size += m.times
	}
	differ := false
	for round := range 3 {
		met := map[faultproxy.Kind]int{}
		for range size {
			kind, wait := one.next()
			met[kind]++
			if wait <= 0 || wait > maxDelay {
				t.Errorf("want a time up to %s, got %s", maxDelay, wait)
			}
			if k, w := other.next(); k != kind || w != wait {
				t.Fatalf("one seed, but fault %d for %s and fault %d for %s", kind, wait, k, w)
			}
			k, w := third.next()
			differ = differ || k != kind || w != wait
		}
		for _, m := range mix {
			if met[m.kind] != m.times {
				t.Errorf("round %d: want fault %d %d times, got %d", round, m.kind, m.times, met[m.kind])
			}
		}
	}
	if !differ {
		t.Error("another seed gives the same")
	}
	one.stop()
	for range size {
		if kind, _ := one.next(); kind != faultproxy.Pass {
			t.Fatalf("a stopped schedule has fault %d", kind)
		}
	}
}
