package ledger

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A rate is a rate over every stretch of time: what was slow for a while is not
// made up for.
func TestPacer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pacer{rate: 1000}
		send := func(n int) {
			if err := p.wait(context.Background(), n); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		for range 11 {
			send(500)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("5,500 bytes, the last 500 of them behind the wait, at 1,000 a second took %v", took)
		}
		<-time.After(time.Hour) // the reader was slow
		began = time.Now()
		for range 11 {
			send(500)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("after an hour's pause the same took %v", took)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		send(1 << 30)
		if err := p.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that is cancelled: %v", err)
		}
	})
}
