package writer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// openJournal opens a journal that ends with the test.
func openJournal(t testing.TB, path string, options journal.Options) *journal.File {
	t.Helper()
	j, err := journal.Open(path, options)
	must.Do(t, err, "opening the journal")
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// till is the stream of these tests.
var till = journal.Name{Organization: "acme", ClientID: "till"}

// journaled opens a Writer with a journal.
func journaled(t testing.TB, c *client.Client, j writer.JournalFile) (*writer.Writer, error) {
	t.Helper()
	return writer.Open(t.Context(), c, writer.WithJournal(writer.Options{Scope: org, ClientID: "till"}, j))
}

// mustJournaled opens one that must open.
func mustJournaled(t testing.TB, c *client.Client, j writer.JournalFile) *writer.Writer {
	t.Helper()
	w, err := journaled(t, c, j)
	must.Do(t, err, "opening a writer with a journal")
	return w
}

// crash ends a client as a kill would, as far as the journal is concerned: it copies only what
// was durable for the next process.
func crash(t testing.TB, c *client.Client, j *journal.File, path string) string {
	t.Helper()
	next := filepath.Join(t.TempDir(), "journal")
	// First, so that nothing is sent that the copy does not know.
	_ = c.Close()
	copyFile(t, path, next)
	_ = j.Close() // would add the outcomes that were noted without waiting
	return next
}

// dial returns a further client of s.
func dial(t testing.TB, s *fakeServer, change ...func(*client.Options)) *client.Client {
	t.Helper()
	o := client.Options{Server: s.address}
	for _, change := range change {
		change(&o)
	}
	c := must.Get(client.New(o))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// told writes and waits for the receipt.
func told(t testing.TB, w *writer.Writer, tag string) *writer.Pending {
	t.Helper()
	p, err := w.SubmitTagged(t.Context(), tag, payload(tag))
	if err == nil {
		_, err = p.Wait(t.Context())
	}
	must.Do(t, err, "writing %s", tag)
	return p
}

// expectHistory compares what was committed, in order.
func expectHistory(t testing.TB, s *fakeServer, want ...string) {
	t.Helper()
	var got []string
	for _, c := range s.ledger.history() {
		got = append(got, string(c.operations[0].GetAppend().GetPayload()))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("want %v committed, got %v", want, got)
	}
}

// TestJournalHandsOver: a stream that was taken leaves the unsettled writes to the application, and nothing is sent
// again before or after it has taken them over. recover.json has the other reasons.
func TestJournalHandsOver(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path, journal.Options{})
	w := mustJournaled(t, c, j)
	told(t, w, "told")
	// By its session, because a copy may still be on its way when the client is gone, and the next life must not send
	// any.
	first := w.State().Session
	s.set(func(s *fakeServer) {
		s.onWrite = func(r *seqledgerv1.WriteRequest) fault {
			if r.GetSession() == first {
				return faultDrop
			}
			return faultNone
		}
	})
	must.Get(w.SubmitTagged(t.Context(), "lost", payload("lost")))(t)
	must.Do(t, j.Sync())
	path = crash(t, c, j, path)
	must.Do(t, newWriter(t, dial(t, s), "till").Close(t.Context()))
	j = openJournal(t, path, journal.Options{})
	for range 2 { // until the application says so, they are handed over
		_, err := journaled(t, dial(t, s), j)
		unsettled, ok := errors.AsType[*writer.UnsettledError](err)
		if !ok || !errors.Is(err, failure.ErrFenced) || !errors.Is(err, failure.ErrOutcomeUnknown) {
			t.Fatalf("want an UnsettledError with ErrFenced, got %v", err)
		}
		if len(unsettled.Writes) != 1 || unsettled.Writes[0].Tag() != "lost" || unsettled.Writes[0].Sequence() != 2 {
			t.Errorf("want the lost write handed over, got %v", unsettled.Writes)
		}
	}
	must.Do(t, j.Forget(till))
	w = mustJournaled(t, dial(t, s), j)
	recovered := w.Recovered()
	if len(recovered) != 1 || recovered[0].Tag() != "told" {
		t.Errorf("an outcome that was not acknowledged must stay, got %v", recovered)
	}
	told(t, w, "new")
	expectHistory(t, s, "told", "new")
}

// TestJournalRefusal: what was reported as not executed is out of the journal
// by then, so that a crash after the report sends none of it.
func TestJournalRefusal(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path, journal.Options{})
	w := mustJournaled(t, c, j)
	s.ledger.toggle("taken")
	refused := must.Get(w.SubmitTagged(t.Context(), "refused", payload("refused"), create("taken")))(t)
	if _, err := refused.Wait(t.Context()); !errors.Is(err, failure.ErrConditionFailed) ||
		!errors.Is(err, failure.ErrNotExecuted) {
		t.Fatalf("want the refusal, got %v", err)
	}
	path = crash(t, c, j, path)
	s.ledger.toggle("taken") // now it would succeed
	j = openJournal(t, path, journal.Options{})
	w = mustJournaled(t, dial(t, s), j)
	if got := w.Recovered(); len(got) != 0 {
		t.Errorf("want nothing recovered, got %d", len(got))
	}
	told(t, w, "refused") // the tag is free, and so is the number
	if next := w.State().NextSequence; next != 2 {
		t.Errorf("want 2 as the next sequence, got %d", next)
	}
	expectHistory(t, s, "refused")
}

// TestJournalFull: Submit waits for room, and a write that can never fit is
// refused for certain.
func TestJournalFull(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{MaxBytes: 16 << 10})
	w := mustJournaled(t, c, j)
	big := string(make([]byte, 2<<10))
	first := told(t, w, "first")
	if p, err := w.SubmitTagged(t.Context(), "second", payload(big[:100])); err != nil {
		t.Fatal(err)
	} else if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	withMoreTime(t, func(impatient context.Context) bool {
		_, err = w.Submit(impatient, payload(big))
		return errors.Is(err, journal.ErrFull)
	})
	if !errors.Is(err, failure.ErrNotExecuted) || !errors.Is(err, context.DeadlineExceeded) ||
		!errors.Is(err, journal.ErrFull) {
		t.Errorf("want to be told that the journal had no room, got %v", err)
	}
	accepted := make(chan error, 1)
	// Ends when there is room; the test waits for it.
	go func() {
		_, err := w.Submit(t.Context(), payload(big))
		accepted <- err
	}()
	must.Do(t, first.Acknowledge())
	must.Do(t, <-accepted, "room became free, but")
	_, err = w.Submit(t.Context(), payload(string(make([]byte, 5<<10))))
	if !errors.Is(err, journal.ErrTooLarge) || !errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("want ErrTooLarge, got %v", err)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	must.Do(t, err)
}

// eventually polls, because what it waits for happens in a server.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	must.Await(t, condition, what)
}
