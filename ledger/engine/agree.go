package engine

import (
	"slices"
	"time"
)

// MaxClockSkew is how far the clocks of two nodes may be apart and still agree.
const MaxClockSkew = 10 * time.Second

// AgreedClock returns the clock on which a majority of all voters agrees, or ok = false. clocks are those that are
// known, each as how far it is ahead of one that they have in common. The largest group of clocks that are all within
// MaxClockSkew of each other decides, and of equally large ones the earliest, because ledger time that is too late by
// some seconds does no harm. The result is the median of the group, the lower one of two.
func AgreedClock(clocks []time.Duration, voters int) (agreed time.Duration, ok bool) {
	sorted := slices.Sorted(slices.Values(clocks))
	var group []time.Duration
	for from, to := 0, 0; to < len(sorted); to++ {
		for sorted[to]-sorted[from] > MaxClockSkew {
			from++
		}
		if to+1-from > len(group) {
			group = sorted[from : to+1]
		}
	}
	if len(group) < voters/2+1 {
		return 0, false
	}
	return group[(len(group)-1)/2], true
}
