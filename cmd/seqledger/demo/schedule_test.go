package demo

import (
	"math/rand/v2"
	"testing"
)

// TestSchedule: every mix has the same faults, two schedules with one seed have them in one
// order, and a schedule that was stopped has none.
func TestSchedule(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	one, other, third := newSchedule(seed), newSchedule(seed), newSchedule(seed+1)
	size := 0
	for _, n := range mix {
		size += n
	}
	differ := false
	for round := range 3 {
		met := map[fault]int{}
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
		for kind, want := range mix {
			if met[kind] != want {
				t.Errorf("round %d: want fault %d %d times, got %d", round, kind, want, met[kind])
			}
		}
	}
	if !differ {
		t.Error("another seed gives the same")
	}
	one.stop()
	for range size {
		if kind, _ := one.next(); kind != faultNone {
			t.Fatalf("a stopped schedule has fault %d", kind)
		}
	}
}
