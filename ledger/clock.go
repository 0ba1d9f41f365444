package ledger

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/engine"
)

// maxQuietJump is how far ledger time may move to a wall clock without a log message.
const maxQuietJump = time.Hour

// clock is ledger time: a time that is known to be of the ledger plus the monotonic time elapsed since. On every node
// it follows the applied entries, so it never runs ahead of the leader's. Wall time
// moves it forward when a term begins, or once clocks agree; a wall clock that jumps meanwhile has no effect.
type clock struct {
	mu    sync.Mutex
	base  int64     // ledger time in Unix nanoseconds
	began time.Time // holds the monotonic reading that corresponds to base; zero: ledger time is not known
}

// learn takes in the ledger time of an entry that was applied at a moment; 0 is no time. Only an epoch sets it back.
func (c *clock) learn(applied int64, at time.Time, back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if applied != 0 && (back || c.began.IsZero() || applied > c.base+int64(at.Sub(c.began))) {
		c.base, c.began = applied, at
	}
}

// set moves ledger time to a wall clock unless that would set it back, and returns the step; see [engine.TermBase]. It
// is 0 for a new ledger.
func (c *clock) set(wall time.Time, longest time.Duration, accept bool) (step time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// time.Now rather than wall, because Options.Clock need not give a monotonic reading.
	last, now := int64(0), time.Now()
	if !c.began.IsZero() {
		last = c.base + int64(now.Sub(c.began))
	}
	base, err := engine.TermBase(last, longest, wall, accept)
	if _, refused := errors.AsType[*engine.ClockError](err); refused {
		return 0, fmt.Errorf("%w: %w", datadir.ErrClock, err)
	}
	if err != nil {
		return 0, err
	}
	c.base, c.began = base, now
	if last == 0 {
		return 0, nil
	}
	return time.Duration(base - last), nil
}

// now returns ledger time. While that is not known it returns wall time, because base and began are not set yet, and
// their sum would be the end of time.
func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		return time.Now().UnixNano()
	}
	return c.base + int64(time.Since(c.began))
}
