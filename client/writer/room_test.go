package writer_test

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// gates holds up the answers of a fake, each until its gate is opened.
type gates struct {
	mu    sync.Mutex
	gates map[uint64]chan struct{}
}

func (g *gates) gate(sequence uint64) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[sequence] == nil {
		g.gates[sequence] = make(chan struct{})
	}
	return g.gates[sequence]
}

// gated returns a Writer with room for 1 MiB whose writes wait for their gates.
func gated(t *testing.T) (*writer.Writer, *gates) {
	t.Helper()
	s, c := start(t)
	s.ledger.setWindow(256)
	g := &gates{gates: make(map[uint64]chan struct{})}
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	s.set(func(s *fakeServer) {
		s.onWrite = func(r *seqledgerv1.WriteRequest) fault {
			select {
			case <-g.gate(r.GetSequence()):
			case <-over:
			}
			return faultNone
		}
	})
	w := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: "w", MaxPendingBytes: 1 << 20}))(t)
	return w, g
}

// sized is a write of about so many KiB.
func sized(kib int) *seqledgerv1.Operation { return payload(strings.Repeat("x", kib<<10)) }

// submitting submits from a goroutine of its own and returns once that waits, or is done.
func submitting(t *testing.T, w *writer.Writer, operation *seqledgerv1.Operation) chan *writer.Pending {
	t.Helper()
	before := writer.Waiting(w)
	taken := make(chan *writer.Pending, 1)
	// Ends once there is room; the channel takes what it found.
	go func() {
		p, err := w.Submit(t.Context(), operation)
		check.Is(t, err, nil, "a write that waits for room")
		taken <- p
	}()
	eventually(t, "a Submit that waits", func() bool { return writer.Waiting(w) > before || len(taken) > 0 })
	return taken
}

// TestASmallWriteFindsRoomBehindALargeOne: 600 KiB of 1 MiB are free, and the waiting large
// write needs more.
func TestASmallWriteFindsRoomBehindALargeOne(t *testing.T) {
	t.Parallel()
	w, g := gated(t)
	burst(t, w, sized(600))
	eventually(t, "a frame of its own", func() bool { return writer.InFlight(w) == 1 })
	burst(t, w, sized(420))
	large := submitting(t, w, sized(900))
	small := submitting(t, w, sized(10))
	must.Equal(t, len(small), 0, "the test must have two writes that wait: got %v")
	close(g.gate(1))
	check.Equal(t, (<-small).Sequence(), 3, "the small write has number %d")
	// One that comes later and fits goes ahead, too.
	if p, err := w.Submit(t.Context(), sized(10)); err != nil || p.Sequence() != 4 {
		t.Errorf("a write that fits has to wait: %v", err)
	}
	check.Equal(t, len(large), 0, "the large write was taken without room for it: got %v")
	for sequence := uint64(2); sequence <= 5; sequence++ {
		close(g.gate(sequence))
	}
	wantCommitted(t, <-large, 5)
}

// TestALargeWriteGetsItsTurn although there is room for small ones all the time: when 64
// have gone ahead, the next ones wait behind it.
func TestALargeWriteGetsItsTurn(t *testing.T) {
	t.Parallel()
	w, g := gated(t)
	burst(t, w, sized(600))
	eventually(t, "a frame of its own", func() bool { return writer.InFlight(w) == 1 })
	large := submitting(t, w, sized(900))
	for n := range 64 {
		if small := submitting(t, w, sized(1)); len(small) == 0 {
			t.Fatalf("small write %d has to wait", n)
		}
	}
	small := submitting(t, w, sized(1))
	must.Equal(t, len(small), 0, "too many small writes go ahead of the large one: got %v")
	for sequence := uint64(1); sequence <= 67; sequence++ {
		close(g.gate(sequence))
	}
	wantCommitted(t, <-large, 66)
	wantCommitted(t, <-small, 67)
}

// TestManyWaitForRoom: writes of all sizes wait and some are cancelled. All others get through,
// in numbers without gaps.
func TestManyWaitForRoom(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	w := must.Get(writer.Open(t.Context(),
		c, writer.Options{Scope: org, ClientID: "w", MaxPendingBytes: 64 << 10, MaxPending: 8}))(t)
	ended := over(t)
	var group sync.WaitGroup
	const writers, writes = 20, 5
	for i := range writers {
		// Ends with its writes; joined below.
		group.Go(func() {
			for n := range writes {
				if (i+n)%5 == 0 {
					_, _ = w.Submit(ended, sized(1)) // is refused, or has no room
				}
				check.Is(t, check.Err(w.Write(t.Context(), sized(1+(i*7+n*13)%63))), nil)
			}
		})
	}
	group.Wait()
	if n := len(s.ledger.history()); n != writers*writes {
		t.Errorf("%d writes committed of %d", n, writers*writes)
	}
}

// TestWaitingEndsWithTheWriter: every call that waits is told.
func TestWaitingEndsWithTheWriter(t *testing.T) {
	t.Parallel()
	w, _ := gated(t)
	burst(t, w, sized(900))
	told := make(chan error, 20)
	for range cap(told) {
		// Ends when the Writer does.
		go func() {
			_, err := w.Submit(t.Context(), sized(200))
			told <- err
		}()
	}
	eventually(t, "all to wait", func() bool { return writer.Waiting(w) == cap(told) })
	ended := over(t)
	_ = w.Close(ended)
	for range cap(told) {
		if err := <-told; !errors.Is(err, failure.ErrNotExecuted) || !errors.Is(err, failure.ErrClosed) {
			t.Errorf("want not executed because of the end, got %v", err)
		}
	}
}

// TestAFullJournalHoldsUpOnlyWhatDoesNotFit: of two writes that wait for the Writer, the first has no room in the
// journal once the Writer has. The second has.
func TestAFullJournalHoldsUpOnlyWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{MaxBytes: 16 << 10})
	w := must.Get(writer.Open(t.Context(), c,
		writer.Options{Scope: org, ClientID: "till", MaxPending: 1, Journal: j}))(t)
	kept := must.Get(w.SubmitTagged(t.Context(), "rent", sized(2)))(t)
	must.Get(kept.Wait(t.Context()))(t) // stays in the journal until it is acknowledged
	hold := make(chan struct{})
	s.set(func(s *fakeServer) { s.onWrite = func(*seqledgerv1.WriteRequest) fault { <-hold; return faultNone } })
	first := must.Get(w.Submit(t.Context(), payload("first")))(t)
	large := submitting(t, w, sized(2))
	small := submitting(t, w, payload("small"))
	must.Equal(t, len(large)+len(small), 0, "the test must have two writes that wait: got %v")
	close(hold)
	wantCommitted(t, first, 2)
	eventually(t, "the small write to be taken", func() bool { return len(small) > 0 })
	wantCommitted(t, <-small, 3)
	must.Do(t, kept.Acknowledge())
	wantCommitted(t, <-large, 4)
}
