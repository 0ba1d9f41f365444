package outbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// Rows are gathered behind a small batch, for a part of the poll's time since the last numbering, and no longer than
// the relay runs. A batch that is worth its price is not followed by a wait.
func TestGather(t *testing.T) {
	t.Parallel()
	const whole = DefaultPoll / pollGather
	for name, test := range map[string]struct {
		sent int
		ago  time.Duration // since rows got numbers
		ends time.Duration // when the relay ends
		want time.Duration
	}{
		"one row":        {1, 0, time.Hour, whole},
		"few rows":       {fewRows - 1, 0, time.Hour, whole},
		"many rows":      {fewRows, 0, time.Hour, 0},
		"a slow ledger":  {1, whole / 4, time.Hour, whole * 3 / 4},
		"a slower one":   {1, 2 * whole, time.Hour, 0},
		"the relay ends": {1, 0, whole / 2, whole / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.ends)
				defer cancel()
				s := &stream{relay: &Relay{options: Options{Poll: DefaultPoll}}, numbered: time.Now().Add(-test.ago)}
				began := time.Now()
				s.gather(ctx, test.sent)
				check.Equal(t, time.Since(began), test.want, "it took %v")
			})
		})
	}
}

// A place that becomes free when the relay is stopped is taken, and will be given back, or it is free.
func TestStopWhileAStreamWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // to see both
		places := make(chan struct{}, 1)
		if taken := new(Relay).awaitPlace(ctx, places); taken != (len(places) == 1) {
			t.Fatalf("taken %v, with %d places in use", taken, len(places))
		}
	}
}
