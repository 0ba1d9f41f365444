package admission

import (
	"sync"
	"time"
)

// StallTimer interrupts a handler that waits too long for its client: a client that does not read would otherwise keep
// its handler, and the handler's memory, for as long as its connection answers pings. The client's committed writes
// stand, and a retry gets the same receipts.
type StallTimer struct {
	timer *time.Timer

	mu       sync.Mutex // held by the interrupt
	limit    time.Duration
	waiting  bool
	deadline time.Time // of the wait
	// fires is when the timer fires; zero if it is not set. The timer keeps running after a wait, and is reset only to
	// fire earlier: a stream waits some thousand times a second, and each reset may wake up a thread of the runtime.
	fires  time.Time
	closed bool
}

// NewStallTimer returns a timer that is not running. The caller must call Close before the handler ends, because an
// interrupt must not come after it.
func NewStallTimer(limit time.Duration, interrupt func()) *StallTimer {
	s := &StallTimer{limit: limit}
	s.timer = time.AfterFunc(limit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fires = time.Time{}
		switch {
		case s.closed || !s.waiting:
		case time.Now().Before(s.deadline):
			s.set()
		default:
			interrupt()
		}
	})
	s.timer.Stop()
	return s
}

// set makes the timer fire at the deadline. mu is held.
func (s *StallTimer) set() {
	s.fires = s.deadline
	s.timer.Reset(time.Until(s.deadline))
}

// Begin starts a wait for the client.
func (s *StallTimer) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = true
	s.deadline = time.Now().Add(s.limit)
	if s.fires.IsZero() || s.deadline.Before(s.fires) {
		s.set()
	}
}

// Running reports whether the handler waits for its client.
func (s *StallTimer) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// End ends the wait.
func (s *StallTimer) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
}

// Shorten sets a new limit. A current wait starts again with it.
func (s *StallTimer) Shorten(limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit = limit; s.waiting && !s.closed {
		s.deadline = time.Now().Add(limit)
		s.set()
	}
}

// Close ends the timer.
func (s *StallTimer) Close() {
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
