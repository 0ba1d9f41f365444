package writer_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestClosedTwice: closing a Writer a second time, as a deferred Close does,
// must not take the journal's claim from the Writer that has the stream since.
func TestClosedTwice(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	first := mustJournaled(t, c, j)
	told(t, first, "a")
	must.Do(t, first.Close(t.Context()))
	second := mustJournaled(t, c, j)
	told(t, second, "b")
	must.Do(t, first.Close(t.Context())) // what a defer does
	if third, err := journaled(t, dial(t, s), j); err == nil {
		t.Error("two Writers of one process have the same stream of one journal")
		_ = third.Close(t.Context())
	} else if !errors.Is(err, journal.ErrClaimed) {
		t.Errorf("want ErrClaimed, got %v", err)
	}
	must.Do(t, check.Err(second.Write(t.Context(), payload("c"))), "the second Writer is ended by closing the first")
}

// staleCopy leaves the copy of a journal that holds writes 1 and 2, which were
// refused and reported so afterwards; the ledger then committed "new" writes under
// the same session and the same numbers.
func staleCopy(t *testing.T, s *fakeServer, c *client.Client, news ...string) (copied string) {
	t.Helper()
	s.ledger.toggle("taken")
	path, copied := filepath.Join(t.TempDir(), "journal"), filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path, journal.Options{})
	w := mustJournaled(t, c, j)
	gate := make(chan struct{})
	var seen atomic.Int32
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault { seen.Add(1); <-gate; return faultNone }
	})
	refused := burst(t, w, create("taken"), payload("behind"), payload("behind it"))
	eventually(t, "the write to arrive", func() bool { return seen.Load() > 0 })
	must.Do(t, j.Sync())
	copyFile(t, path, copied)
	close(gate)
	for _, p := range refused {
		must.Is(t, check.Err(p.Wait(t.Context())), failure.ErrNotExecuted, "want a refusal")
	}
	must.Do(t, w.Resume(t.Context()))
	for _, name := range news {
		told(t, w, name)
	}
	must.Do(t, w.Close(t.Context()))
	return copied
}

// TestUnprovenCommitsAtTheEnd: what the ledger has committed under the
// numbers of a recovered journal is only proven to be the journal's by receipts.
// A Writer that ends before they came must not report commits.
func TestUnprovenCommitsAtTheEnd(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	copied := staleCopy(t, s, c, "new")
	// Nothing is answered in this life.
	gate := make(chan struct{})
	defer close(gate)
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault { <-gate; return faultDrop }
	})
	w := mustJournaled(t, dial(t, s), openJournal(t, copied, journal.Options{}))
	recovered := w.Recovered()
	ended := over(t)
	_ = w.Close(ended)
	receipt, err := recovered[0].Wait(t.Context())
	if err == nil {
		t.Errorf("write 1 was refused, never executed, and is reported as committed: %v", receipt)
	}
	expectHistory(t, s, "new")
}

// TestACommitThatIsTakenBack: a receipt for 2 came, and then the ledger says
// that it has committed nothing. That contradicts itself, and write 2, whose receipt
// is here, must not be reported as not executed.
func TestACommitThatIsTakenBack(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	firstAnswer(s, 1, codeKeyExists)
	w := newWriter(t, c, "w")
	release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
	s.set(func(s *fakeServer) {
		s.onOpen = func(*seqledgerv1.OpenSessionRequest) error {
			s.ledger.loses("w")
			return nil
		}
	})
	p := burst(t, w, payload("1"), payload("2"))
	release(w, len(p))
	if _, err := p[1].Wait(t.Context()); errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("write 2 has a receipt, and is reported as not executed: %v", err)
	}
}

// TestCallsOfAClosedClient send nothing, and must say so.
func TestCallsOfAClosedClient(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	must.Do(t, c.Close())
	_, err := c.Write(t.Context(), &seqledgerv1.WriteRequest{
		Scope: org, ClientId: "w", Sequence: 1, Operations: []*seqledgerv1.Operation{payload("x")},
	})
	if errors.Is(err, failure.ErrOutcomeUnknown) || !errors.Is(err, failure.ErrClosed) {
		t.Errorf("nothing was sent, and the outcome is told to be unknown: %v", err)
	}
	expectHistory(t, s)
}

// TestARefusalThatNeverFits: write 1 is committed, its answer was lost, and
// from then on the server refuses it before the log, as one with stricter limits
// does. The Writer must not open sessions, each an entry in the ledger's log, as
// fast as it can for ever.
func TestARefusalThatNeverFits(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.set(func(s *fakeServer) {
		s.onWrite = first(faultLost)
		s.onAnswer = func(*seqledgerv1.WriteRequest, *seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
			return refusal(&seqledgerv1.WriteError{Code: codeInvalid, Field: "operations"})
		}
	})
	w := newWriter(t, c, "w")
	// As long as it takes to count sessions that are opened without end, and more than a busy
	// machine needs otherwise.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	receipt, err := w.Write(ctx, payload("x"))
	if err != nil || !writer.ReceiptGone(receipt) {
		t.Errorf("want a commit without its receipt, got %v, %v", receipt, err)
	}
	if p, err := w.Submit(t.Context(), payload("y")); err != nil || p.Sequence() != 2 {
		t.Errorf("the Writer does not go on: %v", err)
	}
	if n := s.openCount(); n > 20 {
		t.Errorf("%d sessions were opened without end; the caller got: %v", n, err)
	}
}
