package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Syncs are slow when the last ones have taken long, and much longer than the applies beside them.
func TestSyncPace(t *testing.T) {
	t.Parallel()
	var l Ledger
	observe := func(p *pace, n int, took time.Duration) {
		for range n {
			p.observe(took)
		}
	}
	for _, step := range []struct {
		name string
		pace *pace
		n    int
		took time.Duration
		slow bool
	}{
		{"short syncs", &l.syncs, 100, slowSync / 2, false},
		{"one long sync", &l.syncs, 1, 2 * slowSync, false},
		{"long syncs", &l.syncs, 30, 2 * slowSync, true},
		{"short applies", &l.applies, 30, slowSync / 2, true},
		{"one long apply", &l.applies, 1, 2 * slowSync, true},
		{"long applies", &l.applies, 30, 2 * slowSync, false},
		{"syncs that are longer still", &l.syncs, 40, 5 * slowSync, true},
		{"the disk has recovered", &l.syncs, 60, slowSync / 2, false},
	} {
		if observe(step.pace, step.n, step.took); l.syncsAreSlow() != step.slow {
			t.Errorf("%s: slow %t, want %t", step.name, !step.slow, step.slow)
		}
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
				l.syncs.set(2 * slowSync)
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

// An entry waits until the one before is on the disk, and where syncs are slow until it is answered. What was refused
// never comes to the disk, and is answered all the same.
func TestEntriesInFlight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ slow, synced, wait bool }{
		{slow: false, synced: true, wait: false},
		{slow: false, synced: false, wait: true},
		{slow: true, synced: true, wait: true},
		{slow: true, synced: false, wait: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &Ledger{slots: make(chan struct{}, maxInFlight), synced: make(chan struct{}, 1)}
			l.entryCommands.Store(decide.MaxEntryCommands)
			if test.slow {
				l.syncs.set(2 * slowSync)
			}
			l.takeSlot()
			l.unsynced.Store(true)
			taken := takesSlot(l)
			if isClosed(taken) {
				t.Errorf("%+v: a second entry is in flight beside one that is not on the disk", test)
			}
			if test.synced {
				l.stored(l.syncs.last())
				synctest.Wait()
			}
			if isClosed(taken) == test.wait {
				t.Errorf("%+v: a second entry is in flight: %t", test, !test.wait)
			}
			<-l.slots // the first is answered
			<-taken
			if n := len(l.slots); n != 1 {
				t.Errorf("%+v: %d entries are counted, want 1", test, n)
			}
		})
	}
}

// An entry is in flight until all of its callers but the last are woken, so that the next one has what they come back
// with.
func TestAnEntryIsInFlightUntilItsCallersAreWoken(t *testing.T) {
	t.Parallel()
	other := openTest(t, Options{})
	// Without a commit loop, so that no other entry has a slot. The log of the other refuses the entry, and its callers
	// are woken all the same.
	l := &Ledger{
		slots: make(chan struct{}, maxInFlight), inFlight: make(chan inflightEntry), budget: other.budget,
		cluster: other.cluster,
	}
	l.loops.Add(1)
	go l.answerLoop() // ends below
	defer l.loops.Wait()
	defer close(l.inFlight)
	entry := inflightEntry{proposal: other.propose(other.cluster.Term()+1, []byte("never in the log"))}
	const callers = 3
	for range callers {
		// Without room, so that the loop waits until each of them receives.
		s := &Submission{single: true, done: make(chan struct{}), commands: make([]queuedCommand, 1), budget: l.budget}
		entry.spans = append(entry.spans, span{s, 0, 1})
	}
	l.slots <- struct{}{}
	l.inFlight <- entry
	for i, p := range entry.spans[:callers-1] {
		if len(l.slots) != 1 {
			t.Errorf("nothing is in flight, and %d callers are not woken", callers-i)
		}
		<-p.submission.done
	}
	for range maxInFlight { // as many as there are: the entry is no longer in flight
		l.slots <- struct{}{}
	}
	<-entry.spans[callers-1].submission.done
}

// What is proposed is not on the disk until the log has stored it, and is when a write is acknowledged. An entry that
// the log refuses never gets there, and holds up nothing.
func TestProposedIsNotStored(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	for sequence := uint64(1); sequence <= 2; sequence++ {
		if out, err := l.Write(t.Context(), testWrite("c", sequence, 1)); err != nil || out.Code != machine.Committed {
			t.Fatalf("write %d: %v, %v", sequence, out.Code, err)
		}
		if l.unsynced.Load() {
			t.Errorf("write %d is acknowledged and not on the disk", sequence)
		}
		if _, err := l.propose(l.cluster.Term()+1, []byte("never in the log")).Wait(); err == nil {
			t.Fatal("an entry of another term was taken")
		}
		if !l.unsynced.Load() {
			t.Error("what was proposed is taken for stored")
		}
	}
}
