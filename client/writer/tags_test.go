package writer_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestATagInUseIsNoWordAboutTheWrite: an application that has lost track submits a
// payment again, under way, committed, or acknowledged, and does what the package
// says about ErrNotExecuted. It must not pay twice.
func TestATagInUseIsNoWordAboutTheWrite(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path, journal.Options{})
	w := mustJournaled(t, c, j)
	again := func(when string) {
		t.Helper()
		_, err := w.SubmitTagged(t.Context(), "payment-4711", payload("100"))
		if !errors.Is(err, journal.ErrTagInUse) || errors.Is(err, failure.ErrNotExecuted) {
			t.Errorf("%s: want ErrTagInUse and no claim that nothing was executed, got %v", when, err)
		}
		if errors.Is(err, failure.ErrNotExecuted) {
			_, _ = w.Write(t.Context(), payload("100")) // as it may then
		}
	}
	arrived, release := loseFirst(s)
	p := must.Get(w.SubmitTagged(t.Context(), "payment-4711", payload("100")))(t)
	<-arrived
	again("under way")
	close(release)
	must.Get(p.Wait(t.Context()))(t)
	again("committed")
	must.Do(t, p.Acknowledge())
	again("acknowledged")
	must.Do(t, errors.Join(w.Close(t.Context()), j.Close()))
	w = mustJournaled(t, dial(t, s), openJournal(t, path, journal.Options{MustExist: true}))
	if got := w.Recovered(); len(got) != 0 {
		t.Errorf("an acknowledged write is recovered: %v", got)
	}
	again("run again")
	expectHistory(t, s, "100")
}
