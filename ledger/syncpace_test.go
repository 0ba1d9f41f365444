package ledger

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSyncPace(t *testing.T) {
	t.Parallel()
	var p syncPace
	observe := func(n int, took time.Duration) {
		for range n {
			p.observe(took)
		}
	}
	observe(100, slowSync/2)
	if p.slow() {
		t.Error("short syncs are slow")
	}
	observe(1, 2*slowSync) // one alone says nothing
	if p.slow() {
		t.Error("one long sync makes all slow")
	}
	observe(30, 2*slowSync)
	if !p.slow() {
		t.Error("long syncs are not slow")
	}
	observe(30, slowSync/2)
	if p.slow() {
		t.Error("a pause of the disk is never forgotten")
	}
}

// Where a sync takes long, an entry waits for the one before; otherwise two may be in
// flight.
func TestEntriesInFlight(t *testing.T) {
	t.Parallel()
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &Ledger{slots: make(chan struct{}, maxInFlight)}
			if slow {
				l.syncs.nanos.Store(int64(2 * slowSync))
			}
			l.takeSlot()
			taken := make(chan struct{})
			go func() { // ends when the slot is there; received below
				l.takeSlot()
				close(taken)
			}()
			synctest.Wait()
			select {
			case <-taken:
				if slow {
					t.Error("a second entry is in flight on a slow disk")
				}
			default:
				if !slow {
					t.Error("a second entry waits on a fast disk")
				}
			}
			<-l.slots // the first is answered
			<-taken
			if n := len(l.slots); n != 1 {
				t.Errorf("slow %t: %d entries are counted, want 1", slow, n)
			}
		})
	}
}
