package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// keyedService counts what it did for each body.
type keyedService struct {
	*httptest.Server

	mu       sync.Mutex
	executed map[string]int
}

func newKeyedService(t *testing.T) *keyedService {
	t.Helper()
	s := &keyedService{executed: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.executed[string(b)]++
		n := s.executed[string(b)]
		s.mu.Unlock()
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d of %s", n, b)
	}))
	t.Cleanup(s.Close)
	return s
}

// times returns how often something was done for a body.
func (s *keyedService) times(body string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.executed[body]
}
