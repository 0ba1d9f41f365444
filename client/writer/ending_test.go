package writer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

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
