package decide

import (
	"fmt"
	"time"
)

// LastYear is the last one that a wall clock may say. Ledger time never goes
// back, so that one wrong reading would expire everything for ever; and the
// times of the log end in the year 2262.
const LastYear = 2200

// TermBase returns the ledger time, in Unix nanoseconds, that a term begins
// with: the later of the last ledger time and the wall clock.
func TermBase(last int64, wall time.Time) (int64, error) {
	if wall.Year() > LastYear {
		return 0, fmt.Errorf("the clock says %s, which cannot be right: set it and start again", wall.Format(time.DateOnly))
	}
	if wall.Year() < 1970 { // UnixNano is not defined for all years before
		return last, nil
	}
	return max(last, wall.UnixNano()), nil
}
