package ledger

import (
	"fmt"
	"sync"
	"time"
)

// maxQuietJump is how far ledger time may move at a start without being
// mentioned.
const maxQuietJump = time.Hour

// clock stamps log entries: base + elapsed monotonic time. Wall time is looked
// at once, when a term begins, so that a clock that jumps while the server
// runs has no effect.
type clock struct {
	mu    sync.Mutex
	base  int64     // Unix nanoseconds of ledger time
	began time.Time // carries the monotonic reading that base belongs to
}

// lastYear is the last one that a wall clock may say. Ledger time never goes
// back, so that one wrong reading would expire everything for ever; and the
// times of the log end in the year 2262.
const lastYear = 2200

// begin starts a term and returns how far wall time is ahead of the last
// ledger time.
func (c *clock) begin(last int64, wall time.Time) (ahead time.Duration, err error) {
	if wall.Year() > lastYear {
		return 0, fmt.Errorf("the clock says %s, which cannot be right: set it and start again", wall.Format(time.DateOnly))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = last
	if wall.Year() >= 1970 { // UnixNano is not defined for all years before
		c.base = max(last, wall.UnixNano())
	}
	c.began = time.Now()
	return time.Duration(c.base - last), nil
}

func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base + int64(time.Since(c.began))
}
