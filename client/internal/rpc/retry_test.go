package rpc

import (
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// TestBackoffGrowsWithinItsBounds and honours the server's retry_after, up to a limit.
func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	t.Parallel()
	for attempt := range 100 {
		ceiling := min(backoffMax, backoffFirst<<min(attempt, 20))
		if d := Backoff(attempt, 0); d < ceiling/2 || d > ceiling {
			t.Errorf("attempt %d waits %v, want between %v and %v", attempt, d, ceiling/2, ceiling)
		}
	}
	check.Equal(t, Backoff(0, 5*time.Second), 5*time.Second, "a retry_after of 5 s became %v")
	check.Equal(t, Backoff(0, 24*time.Hour), retryAfterMax, "a retry_after of a day became %v")
}

// TestBackoffAmongServers stays short for as long as an election takes many times over, and grows after that: a
// ledger that is away for long is not to be pressed by all of its clients.
func TestBackoffAmongServers(t *testing.T) {
	t.Parallel()
	for servers := range 4 {
		c := &Client{endpoints: &endpoints{all: make([]*Endpoint, servers+1)}}
		var waited time.Duration
		attempts := 0
		// Not longer, because two servers may be asked for as little as 3.51 s before the waits grow.
		for ; waited < 3500*time.Millisecond; attempts++ {
			wait := c.Backoff(attempts, 0)
			if waited += wait; servers > 0 && wait > 250*time.Millisecond {
				t.Fatalf("of %d servers, attempt %d waits %v", servers+1, attempts, wait)
			}
		}
		if servers == 0 && attempts > 15 {
			t.Errorf("one server gets %d attempts in %v", attempts, waited)
		}
		if wait := c.Backoff(1000, 0); wait < backoffMax/2 {
			t.Errorf("after 1,000 attempts, one of %d servers waits %v", servers+1, wait)
		}
		check.Equal(t, c.Backoff(0, 7*time.Second), 7*time.Second, "the wait that the server asks for became %v")
	}
}
