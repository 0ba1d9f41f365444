package keyed

import "time"

// MaxAhead is how far ahead of the store's time a Reserve may say that it ends to be valid:
// MaxValidity, and ten seconds for clocks that differ.
const MaxAhead = MaxValidity + 10*time.Second

// ResolveValidity returns until when a Reserve is valid that says so, or, with 0, says nothing. It
// returns false for one that is too far ahead. That is refused rather than clamped: a clamp counts from
// each arrival, so that a copy would be valid whenever it comes.
func ResolveValidity(until, now int64) (resolved int64, ok bool) {
	switch {
	case until == 0:
		return now + int64(MaxValidity), true
	case until-now > int64(MaxAhead):
		return 0, false
	}
	return until, true
}
