package demo

import (
	"math/rand/v2"
	"testing"
)

// TestDeck: every pack has the same cards, two decks with one seed deal them in
// one order, and a deck that rests deals none.
func TestDeck(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	one, other, third := newDeck(seed), newDeck(seed), newDeck(seed+1)
	size := 0
	for _, n := range pack {
		size += n
	}
	differ := false
	for round := range 3 {
		dealt := map[fault]int{}
		for range size {
			kind, wait := one.draw()
			dealt[kind]++
			if wait <= 0 || wait > maxDelay {
				t.Errorf("want a time up to %s, got %s", maxDelay, wait)
			}
			if k, w := other.draw(); k != kind || w != wait {
				t.Fatalf("one seed, but fault %d for %s and fault %d for %s", kind, wait, k, w)
			}
			k, w := third.draw()
			differ = differ || k != kind || w != wait
		}
		for kind, want := range pack {
			if dealt[kind] != want {
				t.Errorf("round %d: want fault %d dealt %d times, got %d", round, kind, want, dealt[kind])
			}
		}
	}
	if !differ {
		t.Error("another seed deals the same")
	}
	one.rest()
	for range size {
		if kind, _ := one.draw(); kind != faultNone {
			t.Fatalf("a deck that rests deals fault %d", kind)
		}
	}
}
