package admission

import (
	"sync"
	"time"
)

// StallTimer interrupts a handler that waits for its client for too long: a client
// that does not read would keep its handler, and what the handler holds, for as long
// as its connection answers pings. What the client has written stands, and a retry
// gets the same receipts.
type StallTimer struct {
	timer *time.Timer

	mu       sync.Mutex // held by the interrupt
	limit    time.Duration
	waiting  bool
	deadline time.Time // of the wait
	// fires is when the timer does; zero when it is not set. It is left to run when
	// a wait is over, and set again only to come earlier: a stream waits some
	// thousand times a second, and each setting may wake up a thread of the runtime.
	fires  time.Time
	closed bool
}

// NewStallTimer returns a timer that waits for nothing yet. The caller must call
// Close before the handler ends, because an interrupt must not come after it.
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

// Begin says that from now on the handler waits for its client.
func (s *StallTimer) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = true
	s.deadline = time.Now().Add(s.limit)
	if s.fires.IsZero() || s.deadline.Before(s.fires) {
		s.set()
	}
}

// Running tells whether the handler waits for its client.
func (s *StallTimer) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// End says that the handler no longer waits.
func (s *StallTimer) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
}

// Shorten sets the limit from now on. A wait that is under way begins anew.
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
