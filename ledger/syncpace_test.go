package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/ledger/internal/decide"
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

// takesSlot lets l take a slot, and returns a channel that is closed once it has it.
func takesSlot(l *Ledger) <-chan struct{} {
	taken := make(chan struct{})
	go func() { // ends when the slot is there; the caller receives
		l.takeSlot()
		close(taken)
	}()
	synctest.Wait()
	return taken
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A full entry gains nothing by waiting for the one before, however long a sync takes: not one that is full at once,
// and not one that gets full while it waits, by its commands or by its bytes.
func TestAFullEntryWaitsForNoSync(t *testing.T) {
	t.Parallel()
	const limit = 100
	some := func(commands, bytes int) *Submission {
		return &Submission{commands: make([]queuedCommand, commands), frames: make([]byte, bytes)}
	}
	for name, test := range map[string]struct{ first, second *Submission }{
		"commands":      {some(limit, 10), some(0, 0)},
		"bytes":         {some(3, decide.MaxEntryBytes), some(0, 0)},
		"commands come": {some(limit-1, 10), some(1, 1)},
		"bytes come":    {some(3, decide.MaxEntryBytes-1), some(1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &Ledger{slots: make(chan struct{}, maxInFlight), queue: queue{filled: make(chan struct{}, 1)}}
				l.syncs.nanos.Store(int64(2 * slowSync))
				l.entryCommands.Store(limit)
				l.takeSlot() // of the entry before
				l.queue.add(test.first, limit)
				taken := takesSlot(l)
				if full := len(test.second.commands) == 0; isClosed(taken) != full {
					t.Errorf("the slot is taken: %t, want %t", !full, full)
				}
				l.queue.add(test.second, limit)
				synctest.Wait()
				if !isClosed(taken) {
					t.Error("a full entry waits")
				}
				if n := len(l.slots); n != 2 {
					t.Errorf("%d entries are counted, want 2", n)
				}
				<-l.slots // the first is answered, so that nothing is left behind
				<-taken
			})
		})
	}
}

// What is taken no longer waits.
func TestTakenCommandsFillNoEntry(t *testing.T) {
	t.Parallel()
	var q queue
	for range 3 {
		s := new(Submission)
		for range 4 {
			s.add(make([]byte, 10), 1)
		}
		q.add(s, 5)
	}
	for _, want := range []bool{true, true, false, false} {
		if q.fills(5) != want {
			t.Errorf("%d commands of %d bytes: fills %t", q.commands, q.bytes, !want)
		}
		q.take(5)
	}
	if q.commands != 0 || q.bytes != 0 {
		t.Errorf("%d commands and %d bytes are counted in an empty queue", q.commands, q.bytes)
	}
}

// Small commands may pass a large one, so that what waits behind it need not be an entry.
func TestALargeCommandFillsNoEntry(t *testing.T) {
	t.Parallel()
	var q queue
	for _, size := range []int{largeCommand, 10, 10, 10} {
		s := new(Submission)
		s.add(make([]byte, size), 1)
		q.add(s, 2)
	}
	if q.fills(2) {
		t.Error("a large command in front and three small ones fill an entry of two commands")
	}
}

// Where a sync takes long, an entry waits for the one before; otherwise two may be in
// flight.
func TestEntriesInFlight(t *testing.T) {
	t.Parallel()
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &Ledger{slots: make(chan struct{}, maxInFlight)}
			l.entryCommands.Store(decide.MaxEntryCommands)
			if slow {
				l.syncs.nanos.Store(int64(2 * slowSync))
			}
			l.takeSlot()
			taken := takesSlot(l)
			if isClosed(taken) == slow {
				t.Errorf("slow %t: a second entry is in flight: %t", slow, !slow)
			}
			<-l.slots // the first is answered
			<-taken
			if n := len(l.slots); n != 1 {
				t.Errorf("slow %t: %d entries are counted, want 1", slow, n)
			}
		})
	}
}
