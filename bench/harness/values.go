package harness

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Values are named figures, such as throughput_per_s. Reports have them by these names.
type Values map[string]float64

// Medians takes the median of each value over some rounds.
func Medians(rounds []Values) Values {
	m := Values{}
	for _, round := range rounds {
		for name := range round {
			m[name] = Median(Of(rounds, name))
		}
	}
	return m
}

// Of returns one value of each round.
func Of(rounds []Values, name string) []float64 {
	list := make([]float64, len(rounds))
	for i := range rounds {
		list[i] = rounds[i][name]
	}
	return list
}

// Median returns the middle of some values, 0 of none.
func Median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Ratios divides rounds by rounds, pair by pair, because what disturbs a machine for a minute disturbs
// both of a pair.
func Ratios(ours, theirs []float64) []float64 {
	ratios := make([]float64, min(len(ours), len(theirs)))
	for i := range ratios {
		ratios[i] = ours[i] / theirs[i]
	}
	return ratios
}

// Interval returns the narrowest pair of values, equally far from both ends,
// that encloses the true median with a probability of at least 93 %, or the
// extremes. It needs no distribution, because each value is above the true
// median with probability one half; rounds must be independent.
func Interval(list []float64) (low, high, coverage float64) {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	encloses := func(k int) float64 { // both ends k values in
		outside, ways := 0.0, 1.0 // ways to choose i of n
		for i := range k + 1 {
			outside += ways * math.Pow(0.5, float64(n))
			ways *= float64(n-i) / float64(i+1)
		}
		return max(0, 1-2*outside)
	}
	k := 0
	for 2*(k+1) < n && encloses(k+1) >= 0.93 {
		k++
	}
	return sorted[k], sorted[n-1-k], encloses(k)
}

// Turns measures sides in rounds, forwards in one round and backwards in the next, so that no side is always first.
func Turns(rounds, sides int, measure func(round, side int) error) error {
	for round := range rounds {
		for i := range sides {
			side := i
			if round%2 == 1 {
				side = sides - 1 - i
			}
			if err := measure(round, side); err != nil {
				return err
			}
		}
	}
	return nil
}

// Numbers reads the list of a flag, separated by commas; nothing has none.
func Numbers(flag, list string, least int) (numbers []int, err error) {
	for field := range strings.SplitSeq(list, ",") {
		if field == "" {
			continue
		}
		n, err := strconv.Atoi(field)
		if err != nil || n < least {
			return nil, fmt.Errorf("%s: %q is not a number of at least %d", flag, field, least)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
