package writer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestATakeoverFencesTheFirstWriter: the second process continues the numbers,
// the first ends without having executed its write.
func TestATakeoverFencesTheFirstWriter(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	first := newWriter(t, c, "w")
	must.Get(first.Write(t.Context(), payload("1")))(t)
	second := newWriter(t, c, "w")
	wantNotExecuted(t, burst(t, first, payload("late"))[0], failure.ErrFenced)
	<-first.Done()
	must.Do(t, second.Err(), "the second Writer has ended, too")
	if receipt, err := second.Write(t.Context(), payload("2")); err != nil || receipt.GetSequence() != 2 {
		t.Errorf("the second Writer must go on at 2, got %v, %v", receipt, err)
	}
	check.Equal(t, len(s.ledger.history()), 2, "%d commits")
	// A third that expects the first session must not take anything over.
	_, err := writer.Open(t.Context(),
		c, writer.Options{Scope: org, ClientID: "w", ExpectedSession: first.State().Session})
	check.Is(t, err, failure.ErrFenced, "want ErrFenced for an old ExpectedSession")
}

// TestCloseSettlesWhatItCan: Close with a live context waits for the answers; with an ended
// context it lists the open writes. Neither takes more writes.
func TestCloseSettlesWhatItCan(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	patient, hasty := newWriter(t, c, "patient"), newWriter(t, c, "hasty")
	p := burst(t, patient, payload("1"))[0]
	check.Is(t, patient.Close(t.Context()), nil, "everything was settled, but Close says")
	wantCommitted(t, p, 1)
	if _, err := patient.Submit(t.Context(), payload("2")); !errors.Is(err, failure.ErrNotExecuted) ||
		!errors.Is(err, failure.ErrClosed) {
		t.Errorf("a closed Writer must refuse, got %v", err)
	}
	check.Is(t, patient.Close(t.Context()), nil, "closing twice must be harmless")
	seen := make(chan struct{})
	gate := make(chan struct{})
	defer close(gate)
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault { close(seen); <-gate; return faultNone }
	})
	open := burst(t, hasty, payload("1"))[0]
	<-seen
	ended := over(t)
	if _, err := open.Wait(ended); !errors.Is(err, failure.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that stops waiting must learn that the outcome is open, got %v", err)
	}
	end, ok := errors.AsType[*writer.UnsettledError](hasty.Close(ended))
	if !ok || len(end.Writes) != 1 || !errors.Is(end, failure.ErrClosed) || !errors.Is(end, failure.ErrOutcomeUnknown) {
		t.Errorf("want the open write listed, got %v", end)
	}
	if _, err := open.Wait(t.Context()); !errors.Is(err, failure.ErrOutcomeUnknown) ||
		!errors.Is(err, failure.ErrClosed) {
		t.Errorf("want the open write's outcome unknown, got %v", err)
	}
}
