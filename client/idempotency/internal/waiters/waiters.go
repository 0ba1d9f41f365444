// Package waiters wakes the callers in this process that wait for database keys to change.
package waiters

import (
	"errors"
	"sync"
)

// The limits on waiting callers. Callers beyond them poll the database instead.
const (
	maxPerKey = 64
	maxInAll  = 10_000
)

// ErrFull is returned when too many callers wait.
var ErrFull = errors.New("too many callers wait for notifications")

// Set holds the waiting callers by key. The zero value is ready for use.
type Set struct {
	mu   sync.Mutex
	keys map[string]map[chan struct{}]struct{}
	all  int
}

// Add registers a caller. The channel is closed when its key may have changed. The caller must call leave once, at the
// end of the wait.
func (s *Set) Add(key string) (woken <-chan struct{}, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxInAll || len(s.keys[key]) >= maxPerKey {
		return nil, nil, ErrFull
	}
	if s.keys == nil {
		s.keys = map[string]map[chan struct{}]struct{}{}
	}
	if s.keys[key] == nil {
		s.keys[key] = map[chan struct{}]struct{}{}
	}
	ch := make(chan struct{})
	s.keys[key][ch] = struct{}{}
	s.all++
	return ch, func() { s.leave(key, ch) }, nil
}

func (s *Set) leave(key string, ch chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, waiting := s.keys[key][ch]; !waiting {
		return // already woken
	}
	delete(s.keys[key], ch)
	s.all--
	if len(s.keys[key]) == 0 {
		delete(s.keys, key)
	}
}

// Wake wakes the callers that wait for a key.
func (s *Set) Wake(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(key)
}

// WakeAll wakes every caller, because notifications may have been lost.
func (s *Set) WakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.keys {
		s.wake(key)
	}
}

// wake closes the channels of a key. The caller holds mu.
func (s *Set) wake(key string) {
	for ch := range s.keys[key] {
		close(ch)
		s.all--
	}
	delete(s.keys, key)
}
