// Package rapidtest has what tests with package rapid share. Only tests use it.
package rapidtest

import (
	"testing"

	"pgregory.net/rapid"
)

// maxRounds is how often CheckUntil draws anew before it says that the generator is too tame. One round that misses
// something in one run of three leaves it out of twenty in one of a billion.
const maxRounds = 20

// CheckUntil is rapid.Check, repeated until missing returns "": a property that was never put to the cases that matter
// has shown nothing, and one round of random draws may leave a rare case out. With -short there is one round, and
// nothing is asked of it.
func CheckUntil(t *testing.T, missing func() string, property func(*rapid.T)) {
	t.Helper()
	for round := 1; ; round++ {
		rapid.Check(t, property)
		what := missing()
		if what == "" || testing.Short() {
			return
		}
		if round == maxRounds {
			t.Fatalf("in %d rounds: %s: the generator is too tame", maxRounds, what)
		}
	}
}
