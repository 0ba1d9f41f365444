package writer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// firstAnswer replaces the first answer to a sequence, after the ledger has
// decided the write, and leaves the later ones as they are.
func firstAnswer(s *fakeServer, sequence uint64, c code) {
	var answers atomic.Int32
	s.set(func(s *fakeServer) {
		s.onAnswer = func(r *seqledgerv1.WriteRequest, right *seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
			if r.GetSequence() == sequence && answers.Add(1) == 1 {
				return refusal(&seqledgerv1.WriteError{Code: c})
			}
			return right
		}
	})
}

// TestACommitProvesThoseBeforeItAtTheEnd: write 2 has no answer when the Writer
// ends, but 3 is committed: so 2 is, and must not be listed as unsettled.
func TestACommitProvesThoseBeforeItAtTheEnd(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	var second atomic.Int32
	release := hold(s, func(r *seqledgerv1.WriteRequest) fault {
		if r.GetSequence() == 2 && second.Add(1) == 1 {
			return faultUnknownDone
		}
		return faultNone
	})
	s.set(func(s *fakeServer) {
		s.onAnswer = func(r *seqledgerv1.WriteRequest, right *seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
			if r.GetSequence() == 4 {
				return refusal(&seqledgerv1.WriteError{Code: codeFenced})
			}
			return right
		}
	})
	w := newWriter(t, c, "w")
	p := burst(t, w, payload("1"), payload("2"), payload("3"), payload("4"))
	release(w, len(p))
	wantCommitted(t, p[1], 2)
	wantCommitted(t, p[2], 3)
	wantNotExecuted(t, p[3], failure.ErrFenced)
	if receipt, _ := p[1].Wait(t.Context()); !writer.ReceiptGone(receipt) {
		t.Errorf("the receipt of 2 never came, but there is %v", receipt)
	}
}

// TestALastSequenceThatCannotBeRight: after fencing its own copies a Writer must not accept
// that another client wrote in its session.
func TestALastSequenceThatCannotBeRight(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.toggle("taken")
	w := newWriter(t, c, "w")
	s.set(func(s *fakeServer) {
		s.onWrite = first(faultDrop)
		s.onOpen = func(*seqledgerv1.OpenSessionRequest) error {
			s.ledger.runsAhead("w", 9)
			return nil
		}
	})
	_, err := w.Write(t.Context(), create("taken"))
	if !errors.Is(err, failure.ErrProtocol) || errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("want a protocol violation and no claim about the write, got %v", err)
	}
}

// TestACallerThatIsGoneIsToldForCertain: nothing was sent, so the outcome is not
// unknown.
func TestACallerThatIsGoneIsToldForCertain(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	w := newWriter(t, c, "w")
	ended := over(t)
	_, err := w.Write(ended, payload("1"))
	if !errors.Is(err, failure.ErrNotExecuted) || errors.Is(err, failure.ErrOutcomeUnknown) ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("want not executed because of context.Canceled, got %v", err)
	}
	if _, err := writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: "x", MaxPending: -1}); err == nil {
		t.Error("a negative bound must be refused")
	}
	check.Equal(t, len(s.ledger.history()), 0, "%d commits")
}

// TestAWatchEndsWhenTheServerStaysAway, and when the blocks have a hole.
func TestAWatchEndsWhenTheServerStaysAway(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.set(func(s *fakeServer) {
		s.onWatch = func(uint64) error { return connect.NewError(connect.CodePermissionDenied, errors.New("no")) }
	})
	var last error
	for _, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: org, FromHeight: 2}) {
		last = err
	}
	if e, ok := errors.AsType[*failure.Error](last); !ok || e.ConnectCode != connect.CodePermissionDenied {
		t.Errorf("want the watch to end with the server's answer, got %v", last)
	}
}

// TestErrorsTellWhatToDo: the texts name the write and the way out.
func TestErrorsTellWhatToDo(t *testing.T) {
	t.Parallel()
	refused := &failure.Error{Code: codeInvalid, Field: "operations[0].key", Message: "empty"}
	for want, err := range map[string]error{
		"call Resume":                  &writer.StoppedError{Sequence: 3, Refusal: refused},
		"every write settled":          &writer.UnsettledError{Cause: failure.ErrClosed},
		"1 unsettled writes from 0 on": &writer.UnsettledError{Cause: failure.ErrClosed, Writes: []*writer.Pending{{}}},
	} {
		check.Contains(t, err.Error(), want)
	}
}
