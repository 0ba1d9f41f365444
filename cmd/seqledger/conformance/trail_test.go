package conformance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/child"
)

// TestLimit checks that a case goes on for as long as something happens, but not forever.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		notes int // one every 50 seconds
		lasts time.Duration
		cause string
	}{
		"nothing happens":      {0, time.Minute, "nothing has happened for 1m0s"},
		"something does":       {3, 210 * time.Second, "nothing has happened for 1m0s"},
		"something never ends": {100, 5 * time.Minute, "after 5m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			seen := newTrail()
			ctx, cancel := limit(t.Context(), time.Minute, seen)
			defer cancel()
			began := time.Now()
			for range test.notes {
				child.Pause(ctx, 50*time.Second)
				seen.note("something")
			}
			<-ctx.Done()
			cause, lasted := context.Cause(ctx), time.Since(began)
			if cause.Error() != test.cause || lasted != test.lasts {
				t.Errorf("%s: %q after %s, want %q after %s", name, cause, lasted, test.cause, test.lasts)
			}
		})
	}
}
