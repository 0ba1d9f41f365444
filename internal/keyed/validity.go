package keyed

import "time"

// MaxAhead is how far ahead of the store's clock the end of a Reserve's validity may be: MaxValidity, plus ten seconds
// for clock skew.
const MaxAhead = MaxValidity + 10*time.Second

// ResolveValidity returns the end of a Reserve's validity: until, or the default if until is 0. It returns false if
// until is too far ahead. Such a Reserve is refused rather than clamped, because a clamp would count from each arrival,
// and a copy would be valid whenever it arrived.
func ResolveValidity(until, now int64) (resolved int64, ok bool) {
	switch {
	case until == 0:
		return now + int64(MaxValidity), true
	case until-now > int64(MaxAhead):
		return 0, false
	}
	return until, true
}
