package engine

import (
	"fmt"
	"time"
)

// LastYear is the last one that a wall clock may say, because the times of the log end
// in the year 2262.
const LastYear = 2200

// MaxPause is how far ledger time may move at the start of a term without
// the operator saying that the clock is right.
const MaxPause = 30 * 24 * time.Hour

// ClockError says that a wall clock is too far ahead of ledger time to be
// right. It is refused because a wrong one would expire everything at once.
type ClockError struct {
	Wall, Ledger time.Time
}

// Error tells both times.
func (e *ClockError) Error() string {
	return fmt.Sprintf("the clock says %s, %d days after the last command of the ledger (%s)",
		e.Wall.UTC().Format(time.DateOnly), int(e.Wall.Sub(e.Ledger).Hours()/24), e.Ledger.UTC().Format(time.DateOnly))
}

// TermBase returns the ledger time, in Unix nanoseconds, that a term begins
// with: the later of the last ledger time and the wall clock. A step of more
// than MaxPause, and of more than the longest one of the ledger so far, is a
// *ClockError unless it is accepted.
func TermBase(last int64, longest time.Duration, wall time.Time, accept bool) (int64, error) {
	if wall.Year() > LastYear {
		return 0, fmt.Errorf("the clock says %s, which cannot be right: set it and start again",
			wall.Format(time.DateOnly))
	}
	if wall.Year() < 1970 { // UnixNano is not defined for all years before
		return last, nil
	}
	now := wall.UnixNano()
	if last != 0 && now-last > int64(max(MaxPause, longest)) && !accept {
		return 0, &ClockError{Wall: wall, Ledger: time.Unix(0, last)}
	}
	return max(last, now), nil
}
