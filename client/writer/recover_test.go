package writer_test

import (
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestJournalStartedAnewAndCrashed: the stream of an idle Writer was evicted. The Writer starts it anew, and crashes
// before it gets the answer. The ledger has applied that, the journal does not know it, and the next Writer finds out.
func TestJournalStartedAnewAndCrashed(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.setTTL(time.Second) // the keeper asks every third of it
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	w := mustJournaled(t, c, j)
	must.Do(t, told(t, w, "a").Acknowledge())
	s.set(func(s *fakeServer) {
		s.afterOpen = func(r *seqledgerv1.OpenSessionRequest) error {
			if r.GetExpectedSession() == 0 {
				return withDetail(connect.CodeInvalidArgument, &seqledgerv1.WriteError{Code: codeInvalid})
			}
			return nil
		}
	})
	s.ledger.evictAll()
	<-w.Done()
	_ = w.Close(t.Context()) // says why it ended
	s.set(func(s *fakeServer) { s.afterOpen = nil })
	if head := j.Streams()[0].Head; len(head.Attempt) == 0 || head.Session == 0 {
		t.Fatalf("want the attempt and the old session in the journal, got %+v", head)
	}
	w = mustJournaled(t, c, j)
	check.Equal(t, w.State().NextSequence, 1, "want the numbers begun anew, got %d")
	told(t, w, "b")
	expectHistory(t, s, "a", "b")
}

// TestJournalIsLetGo: a Client keeps nothing of a journal whose Writers are all closed, and
// keeps using it while one is open.
func TestJournalIsLetGo(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for range 3 {
		j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
		must.Do(t, j.Forget(till))
		w := mustJournaled(t, c, j)
		other := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: "other", Journal: j}))(t)
		for range 2 { // the second does nothing
			must.Do(t, other.Close(t.Context()))
		}
		told(t, w, "a")
		check.Equal(t, writer.Syncers(c), 1, "want one journal in use, got %d")
		must.Do(t, w.Close(t.Context()))
		check.Equal(t, writer.Syncers(c), 0, "want no journal in use, got %d")
	}
	expectHistory(t, s, "a", "a", "a")
}
