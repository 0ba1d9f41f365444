package ledger

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/internal/decide"
)

// maxQuietJump is how far ledger time may move at a start without a log message.
const maxQuietJump = time.Hour

// clock stamps log entries with base plus elapsed monotonic time. It reads wall time only when a term begins, so that a
// jump of the wall clock while the server runs has no effect.
type clock struct {
	mu    sync.Mutex
	base  int64     // ledger time in Unix nanoseconds
	began time.Time // holds the monotonic reading that corresponds to base
}

// begin starts a term and returns how far wall time is ahead of the last ledger time. See [decide.TermBase].
func (c *clock) begin(last int64, longest time.Duration, wall time.Time, accept bool) (ahead time.Duration, err error) {
	base, err := decide.TermBase(last, longest, wall, accept)
	if _, refused := errors.AsType[*decide.ClockError](err); refused {
		return 0, fmt.Errorf("%w: %w", datadir.ErrClock, err)
	}
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = base
	// time.Now rather than wall, because Options.Clock need not give a monotonic reading.
	c.began = time.Now()
	return time.Duration(c.base - last), nil
}

// now returns ledger time. Before this node's first term it returns wall time, because base and began are not set yet,
// and their sum would be the end of time.
func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		return time.Now().UnixNano()
	}
	return c.base + int64(time.Since(c.began))
}
