package demo

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestPayGivesUp: a client that is told to finish while the ledger is gone does
// not try for ever. Nothing listens where it looks for the ledger, and the
// clock is a false one.
func TestPayGivesUp(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			stop := make(chan struct{})
			close(stop)
			l, err := payments.OpenLog(filepath.Join(dir, logName), false)
			must.Do(t, err)
			if plain { // something to settle
				err = l.Intend(&payments.Payment{Tag: "a/1", Cents: 1})
			}
			must.Do(t, errors.Join(err, l.Close()))
			var group errgroup.Group
			// Port 1 of the loopback refuses every connection. Ends by itself,
			// which is what is tested.
			group.Go(func() error {
				return Pay(t.Context(), stop, PayerOptions{Server: "127.0.0.1:1", Dir: dir, Name: "a", Plain: plain})
			})
			if err := group.Wait(); err == nil {
				t.Errorf("plain %t: want an error", plain)
			} else {
				t.Logf("plain %t: %v", plain, err)
			}
		})
	}
}
