package ledger

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// A rate is a rate over every stretch of time: what was slow for a while is not
// made up for.
func TestPacer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pacer{rate: 1000}
		send := func(n int) {
			check.Is(t, p.wait(context.Background(), n), nil)
		}
		began := time.Now()
		for range 11 {
			send(500)
		}
		check.Equal(t, time.Since(began), 5*time.Second,
			"5,500 bytes, the last 500 of them behind the wait, at 1,000 a second took %v")
		<-time.After(time.Hour) // the reader was slow
		began = time.Now()
		for range 11 {
			send(500)
		}
		check.Equal(t, time.Since(began), 5*time.Second, "after an hour's pause the same took %v")
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		send(1 << 30)
		check.Is(t, p.wait(ctx, 1), context.Canceled, "a wait that is cancelled")
	})
}
