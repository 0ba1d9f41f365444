package keyed

import (
	"math"
	"testing"
)

// A stated validity is kept, however late a copy arrives; one too far ahead is refused.
func TestResolveValidity(t *testing.T) {
	t.Parallel()
	const now = 1_000_000 * second
	for _, test := range []struct {
		until, want int64
		ok          bool
	}{
		{0, now + int64(MaxValidity), true}, {1, 1, true}, {now, now, true}, {now + second, now + second, true},
		{now + int64(MaxAhead), now + int64(MaxAhead), true}, {now + int64(MaxAhead) + 1, 0, false},
		{math.MaxInt64, 0, false},
	} {
		if got, ok := ResolveValidity(test.until, now); got != test.want || ok != test.ok {
			t.Errorf("valid until %d: %d, %t, want %d, %t", test.until, got, ok, test.want, test.ok)
		}
	}
}
