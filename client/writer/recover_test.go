package writer_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// loseTheNewStart makes s swallow the answer to every OpenSession that may start
// a stream anew. before runs ahead of it.
func loseTheNewStart(s *fakeServer, before func()) {
	s.set(func(s *fakeServer) {
		s.onOpen = func(r *seqledgerv1.OpenSessionRequest) error {
			if r.GetExpectedSession() == 0 && before != nil {
				before()
			}
			return nil
		}
		s.afterOpen = func(r *seqledgerv1.OpenSessionRequest) error {
			if r.GetExpectedSession() == 0 {
				return withDetail(connect.CodeInvalidArgument, &seqledgerv1.WriteError{Code: codeInvalid})
			}
			return nil
		}
	})
}

// evictedLife lets a Writer with a journal start its evicted stream anew and crash before it
// gets the answer: in Open, or as an idle Writer.
func evictedLife(t *testing.T, idle bool, before func(*fakeServer)) (*fakeServer, *client.Client, *journal.File) {
	t.Helper()
	s, c := start(t)
	if idle {
		s.ledger.setTTL(time.Second) // the keeper asks every third of it
	}
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	w := mustJournaled(t, c, j)
	if err := told(t, w, "a").Acknowledge(); err != nil {
		t.Fatal(err)
	}
	if !idle {
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	loseTheNewStart(s, func() {
		if before != nil {
			before(s)
		}
	})
	s.ledger.evictAll()
	if idle {
		eventually(t, "the writer to end", func() bool { return w.Err() != nil })
		_ = w.Close(t.Context()) // says why it ended
	} else if _, err := journaled(t, c, j); err == nil {
		t.Fatal("want the answer lost")
	}
	s.set(func(s *fakeServer) { s.onOpen, s.afterOpen = nil, nil })
	if head := j.Streams()[0].Head; len(head.Attempt) == 0 || head.Session == 0 {
		t.Fatalf("want the attempt and the old session in the journal, got %+v", head)
	}
	return s, c, j
}

// TestJournalStartedAnewAndCrashed: the ledger has applied the new start and the journal does
// not know it. The next Writer finds that out and continues.
func TestJournalStartedAnewAndCrashed(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]bool{"opening": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c, j := evictedLife(t, idle, nil)
			w := mustJournaled(t, c, j)
			if next := w.State().NextSequence; next != 1 {
				t.Errorf("want the numbers begun anew, got %d", next)
			}
			told(t, w, "b")
			expectHistory(t, s, "a", "b")
		})
	}
}

// TestJournalStartedAnewBySomebodyElse: between the eviction and the new start another client
// had the stream. Every later process refuses that too.
func TestJournalStartedAnewBySomebodyElse(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]bool{"opening": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c, j := evictedLife(t, idle, func(s *fakeServer) {
				s.ledger.openSession(&seqledgerv1.OpenSessionRequest{Scope: org, ClientId: "till",
					AttemptId: []byte("somebody else's.")})
			})
			for range 2 {
				_, err := journaled(t, c, j)
				if unsettled, ok := errors.AsType[*writer.UnsettledError](err); !ok || len(unsettled.Writes) != 0 ||
					!errors.Is(err, failure.ErrFenced) {
					t.Errorf("want an error that another client has the stream, got %v", err)
				}
			}
			if err := j.Forget(till); err != nil {
				t.Fatal(err)
			}
			told(t, mustJournaled(t, c, j), "b")
			expectHistory(t, s, "a", "b")
		})
	}
}

// TestJournalIsLetGo: a Client keeps nothing of a journal whose Writers are all closed, and
// keeps using it while one is open.
func TestJournalIsLetGo(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for range 3 {
		j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
		if err := j.Forget(till); err != nil {
			t.Fatal(err)
		}
		w := mustJournaled(t, c, j)
		other, err := writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: "other", Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second does nothing
			if err := other.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		told(t, w, "a")
		if n := writer.Syncers(c); n != 1 {
			t.Errorf("want one journal in use, got %d", n)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := writer.Syncers(c); n != 0 {
			t.Errorf("want no journal in use, got %d", n)
		}
	}
	expectHistory(t, s, "a", "a", "a")
}
