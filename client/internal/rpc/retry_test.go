package rpc

import (
	"testing"
	"time"
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
	if d := Backoff(0, 5*time.Second); d != 5*time.Second {
		t.Errorf("a retry_after of 5 s became %v", d)
	}
	if d := Backoff(0, 24*time.Hour); d != retryAfterMax {
		t.Errorf("a retry_after of a day became %v, want %v", d, retryAfterMax)
	}
}
