package writer_test

import (
	"errors"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// sharedSession opens two Writers with one AttemptID: both get one session, as a
// restarted process does that did not drop the id before it wrote.
func sharedSession(t *testing.T, c *client.Client) (first, second *writer.Writer) {
	t.Helper()
	options := writer.Options{Scope: org, ClientID: "w", AttemptID: []byte("0123456789abcdef")}
	var writers []*writer.Writer
	for range 2 {
		w, err := writer.Open(t.Context(), c, options)
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	if writers[0].State().Session != writers[1].State().Session {
		t.Fatal("a repeated attempt must get the same session")
	}
	return writers[0], writers[1]
}

// wantEnded fails unless w has ended with so many unsettled writes.
func wantEnded(t *testing.T, w *writer.Writer, unsettled int) {
	t.Helper()
	end, ok := errors.AsType[*writer.UnsettledError](w.Err())
	if !ok || len(end.Writes) != unsettled {
		t.Errorf("want the Writer ended with %d unsettled writes, got %v", unsettled, w.Err())
	}
}

// TestAlreadyCommittedOfAnOnlyCopyIsNoCommit: another client took the number under the same
// session, so the write never ran and must not look paid.
func TestAlreadyCommittedOfAnOnlyCopyIsNoCommit(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.setWindow(4)
	first, second := sharedSession(t, c)
	for range 5 {
		if _, err := first.Write(t.Context(), payload("old")); err != nil {
			t.Fatal(err)
		}
	}
	wantNotExecuted(t, burst(t, second, payload("new"))[0], failure.ErrProtocol)
	wantEnded(t, second, 0)
}

// TestACommitProvesNothingInASharedSession: number 1 holds another client's write, so the
// commit of number 2 does not prove that our 1 has committed.
func TestACommitProvesNothingInASharedSession(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		s, c := start(t)
		first, second := sharedSession(t, c)
		if _, err := first.Write(t.Context(), payload("old")); err != nil {
			t.Fatal(err)
		}
		dropped := !lost
		release := hold(s, func(*seqledgerv1.WriteRequest) fault {
			if !dropped {
				dropped = true
				return faultDrop
			}
			return faultNone
		})
		p := burst(t, second, payload("1"), payload("2"))
		release(second, 2)
		_, err := p[0].Wait(t.Context())
		if errors.Is(err, failure.ErrNotExecuted) == lost || errors.Is(err, failure.ErrOutcomeUnknown) != lost {
			t.Errorf("lost %v: our 1 must not be reported as committed, got %v", lost, err)
		}
		wantCommitted(t, p[1], 2)
	}
}

// TestAReceiptOfAnotherLedgerEndsTheWriter: behind the same address stands
// another ledger with the same session and the same numbers. What is known is
// that the stream is not the one that the Writer opened.
func TestAReceiptOfAnotherLedgerEndsTheWriter(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	w := newWriter(t, c, "w")
	wantCommitted(t, burst(t, w, payload("1"))[0], 1)
	s.ledger.becomesAnother()
	_, err := w.Write(t.Context(), payload("2"))
	if !errors.Is(err, failure.ErrOutcomeUnknown) || !errors.Is(err, failure.ErrProtocol) {
		t.Errorf("want an open outcome because of the other ledger, got %v", err)
	}
	wantEnded(t, w, 1)
	if _, err := w.Write(t.Context(), payload("3")); !errors.Is(err, failure.ErrNotExecuted) ||
		errors.Is(err, failure.ErrOutcomeUnknown) {
		t.Errorf("a write that was not taken has a certain outcome, got %v", err)
	}
}

// TestAReplayOfAnOnlyCopyEndsTheWriter: whose receipt that is cannot be known,
// so it is neither a commit nor free to be submitted again.
func TestAReplayOfAnOnlyCopyEndsTheWriter(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.set(func(s *fakeServer) {
		s.onAnswer = func(_ *seqledgerv1.WriteRequest, right *seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
			right.GetReceipt().Replayed = true
			return right
		}
	})
	w := newWriter(t, c, "w")
	_, err := w.Write(t.Context(), payload("1"))
	if !errors.Is(err, failure.ErrOutcomeUnknown) || !errors.Is(err, failure.ErrProtocol) {
		t.Errorf("want an open outcome, got %v", err)
	}
	wantEnded(t, w, 1)
}
