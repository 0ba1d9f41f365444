package harness

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestIntervalByCounting: the coverage is that of counting, over all ways in which so many values may lie below and
// above the true median; and no narrower interval would do.
func TestIntervalByCounting(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 14; n++ {
		values := make([]float64, n)
		for i := range values {
			values[i] = float64((i*7 + 3) % n) // in another order
			if n%7 == 0 {
				values[i] = float64(n - i)
			}
		}
		slices.Sort(values)
		low, high, coverage := Interval(values)
		k := slices.Index(values, low)
		// enclosed counts the ways in which the median is not outside of the kth value from both ends.
		enclosed := func(k int) float64 {
			ways := 0
			for mask := range 1 << n {
				if below := bits.OnesCount(uint(mask)); below > k && n-below > k {
					ways++
				}
			}
			return float64(ways) / float64(int(1)<<n)
		}
		if values[n-1-k] != high || math.Abs(coverage-enclosed(k)) > 1e-9 {
			t.Errorf("of %d: %v to %v with %v, by counting %v", n, low, high, coverage, enclosed(k))
		}
		if k > 0 && coverage < 0.93 || 2*(k+1) < n && enclosed(k+1) >= 0.93 {
			t.Errorf("of %d: %d values from the ends are left out, with %v; one more would have %v", n, k, coverage,
				enclosed(k+1))
		}
	}
}

// TestMedianByItsDefinition: as many values are below it as are above, and the order does not matter.
func TestMedianByItsDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 20).Draw(t, "values")
		was := slices.Clone(list)
		m := Median(list)
		must.EqualSlices(t, list, was, "the values were sorted in place: got %v")
		below, above := 0, 0
		for _, v := range list {
			if v < m {
				below++
			}
			if v > m {
				above++
			}
		}
		if 2*below > len(list) || 2*above > len(list) {
			t.Fatalf("%d of %d are below %v, and %d above", below, len(list), m, above)
		}
		slices.Reverse(list)
		must.Equal(t, Median(list), m, "backwards it is %v")
	})
	check.Equal(t, Median(nil), 0, "of nothing: %v")
}

// TestRatiosAreOfPairs: what one side has more rounds of is left out.
func TestRatiosAreOfPairs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ ours, theirs, want []float64 }{
		"pairs":        {[]float64{2, 9}, []float64{1, 3}, []float64{2, 3}},
		"more of ours": {[]float64{2, 9, 5}, []float64{1}, []float64{2}},
		"none":         {nil, []float64{1}, []float64{}},
	} {
		check.EqualSlices(t, Ratios(test.ours, test.theirs), test.want, "%s: %v", name)
	}
}

// TestTurnsAreFair: every side has every round once, and is first and last as often as another, within one.
func TestTurnsAreFair(t *testing.T) {
	t.Parallel()
	for rounds := range 6 {
		for sides := 1; sides < 5; sides++ {
			seen, first := map[[2]int]int{}, make([]int, sides)
			last := -1
			err := Turns(rounds, sides, func(round, side int) error {
				seen[[2]int{round, side}]++
				if round != last {
					first[side]++
				}
				last = round
				return nil
			})
			if err != nil || len(seen) != rounds*sides {
				t.Fatalf("%d rounds of %d: %d turns, %v", rounds, sides, len(seen), err)
			}
			if sides > 1 && (first[0]-first[sides-1] > 1 || first[sides-1] > first[0]) {
				t.Errorf("%d rounds of %d: first were %v", rounds, sides, first)
			}
		}
	}
	broken, turns := errors.New("broken"), 0
	err := Turns(5, 2, func(int, int) error { turns++; return broken })
	if !errors.Is(err, broken) || turns != 1 {
		t.Errorf("%v after %d turns", err, turns)
	}
}
