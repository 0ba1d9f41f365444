package writer_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var errDisk = errors.New("the test's disk fails")

// shaky is a journal whose disk fails when it is told to. It notes what was
// durable at which moment.
type shaky struct {
	*journal.File
	mu     sync.Mutex
	broken bool
	// onSync runs before each Sync, which it may hold up.
	onSync func()
}

func (s *shaky) breakDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
}

func (s *shaky) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return fmt.Errorf("%w: %w", journal.ErrFailed, errDisk)
	}
	return nil
}

func (s *shaky) Sync() error {
	s.mu.Lock()
	hold := s.onSync
	s.mu.Unlock()
	if hold != nil {
		hold()
	}
	if err := s.failed(); err != nil {
		return err
	}
	return s.File.Sync()
}

func (s *shaky) Append(name journal.Name, r journal.Record) error {
	if err := s.failed(); err != nil {
		return err
	}
	return s.File.Append(name, r)
}

// TestJournalFaultStopsTheWriter: when a write cannot be made durable it is not
// sent, its outcome counts as unknown, and the Writer takes nothing more.
func TestJournalFaultStopsTheWriter(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	j := &shaky{File: openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})}
	w := mustJournaled(t, c, j)
	told(t, w, "durable")
	j.mu.Lock()
	j.onSync = j.breakDown
	j.mu.Unlock()
	p, err := w.SubmitTagged(t.Context(), "lost", payload("lost"))
	must.Do(t, err)
	if _, err := p.Wait(t.Context()); !errors.Is(err, failure.ErrOutcomeUnknown) ||
		!errors.Is(err, journal.ErrFailed) ||
		errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("what the disk has of the write is not known, so its outcome is unknown; got %v", err)
	}
	if err := p.Acknowledge(); err == nil {
		t.Error("a write without an outcome was acknowledged")
	}
	_, err = w.Submit(t.Context(), payload("later"))
	if !errors.Is(err, failure.ErrNotExecuted) || !errors.Is(err, journal.ErrFailed) {
		t.Errorf("want the writer to take nothing more, got %v", err)
	}
	unsettled, ok := errors.AsType[*writer.UnsettledError](w.Close(t.Context()))
	if !ok || len(unsettled.Writes) != 1 || unsettled.Writes[0].Tag() != "lost" {
		t.Errorf("want the lost write listed, got %v", unsettled)
	}
	expectHistory(t, s, "durable")
}

// TestJournalFaultBeforeARefusalIsReported: a refusal that cannot be taken out
// of the journal must not be reported as not executed, because the next Writer
// sends it again.
func TestJournalFaultBeforeARefusalIsReported(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "journal")
	j := &shaky{File: openJournal(t, path, journal.Options{})}
	w := mustJournaled(t, c, j)
	s.ledger.toggle("taken")
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault { j.breakDown(); return faultNone }
	})
	p := must.Get(w.SubmitTagged(t.Context(), "refused", payload("refused"), create("taken")))(t)
	if _, err := p.Wait(t.Context()); !errors.Is(err, failure.ErrOutcomeUnknown) ||
		errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("want an unknown outcome, got %v", err)
	}
	path = crash(t, c, j.File, path)
	s.set(func(s *fakeServer) { s.onWrite = nil })
	s.ledger.toggle("taken")
	w = mustJournaled(t, dial(t, s), openJournal(t, path, journal.Options{}))
	if recovered := w.Recovered(); len(recovered) != 1 {
		t.Fatalf("want the refused write again, got %d", len(recovered))
	} else if _, err := recovered[0].Wait(t.Context()); err != nil {
		t.Error(err)
	}
	expectHistory(t, s, "refused")
}

// TestJournalNothingIsSentBeforeItIsDurable holds the fsync up and looks what
// reaches the server meanwhile.
func TestJournalNothingIsSentBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	j := &shaky{File: openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})}
	w := mustJournaled(t, c, j)
	var arrived atomic.Int32
	s.set(func(s *fakeServer) {
		s.onWrite = func(r *seqledgerv1.WriteRequest) fault {
			if string(r.GetOperations()[0].GetAppend().GetPayload()) != "other" {
				arrived.Add(1)
			}
			return faultNone
		}
	})
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	j.mu.Lock()
	j.onSync = func() { once.Do(func() { close(entered); <-release }) }
	j.mu.Unlock()
	p := must.Get(w.Submit(t.Context(), payload("held")))(t)
	<-entered
	// A Writer without a journal does not wait for it; what it sends would have
	// taken the other write along.
	must.Get(newWriter(t, c, "other").Write(t.Context(), payload("other")))(t)
	check.Equal(t, arrived.Load(), 0, "a write was sent before it was durable: got %v")
	close(release)
	must.Get(p.Wait(t.Context()))(t)
}

// TestJournalSessionOrder: an attempt is in the journal before it is sent, and
// out of it before the first write is; a crash at either point takes the same
// session or a new one, and never fences itself.
func TestJournalSessionOrder(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path, journal.Options{})
	var attempts [][]byte
	s.set(func(s *fakeServer) {
		s.onOpen = func(r *seqledgerv1.OpenSessionRequest) error {
			report, err := journal.Inspect(path)
			if err != nil || len(report.Streams) != 1 ||
				string(report.Streams[0].Head.Attempt) != string(r.GetAttemptId()) {
				t.Errorf("the attempt is not in the journal when it arrives: %+v, %v", report, err)
			}
			attempts = append(attempts, r.GetAttemptId())
			return nil
		}
		s.afterOpen = func(*seqledgerv1.OpenSessionRequest) error {
			return withDetail(3, &seqledgerv1.WriteError{Code: codeInvalid})
		}
		s.onWrite = func(*seqledgerv1.WriteRequest) fault {
			if report, err := journal.Inspect(path); err != nil || len(report.Streams[0].Head.Attempt) != 0 ||
				report.Streams[0].Head.Session == 0 {
				t.Errorf("the session is not in the journal when a write arrives: %+v, %v", report, err)
			}
			return faultNone
		}
	})
	if _, err := journaled(t, c, j); err == nil {
		t.Fatal("want the answer lost")
	}
	s.set(func(s *fakeServer) { s.afterOpen = nil })
	path2 := crash(t, c, j, path)
	path = path2
	w := mustJournaled(t, dial(t, s), openJournal(t, path, journal.Options{}))
	told(t, w, "a")
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(attempts) != 2 || string(attempts[0]) != string(attempts[1]) {
		t.Errorf("want the same attempt again after the crash, got %x", attempts)
	}
}

// TestJournalOptions: the options that a journal provides must not be set with it.
func TestJournalOptions(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	for name, o := range map[string]writer.Options{
		"ExpectedSession": {Scope: org, ClientID: "till", Journal: j, ExpectedSession: 1},
		"AttemptID":       {Scope: org, ClientID: "till", Journal: j, AttemptID: make([]byte, 16)},
	} {
		if _, err := writer.Open(t.Context(), c, o); err == nil {
			t.Errorf("%s was taken together with a journal", name)
		}
	}
	w := mustJournaled(t, c, j)
	check.Is(t, check.Err(journaled(t, c, j)), journal.ErrClaimed, "two writers of one stream")
	for _, tag := range []string{"", "\xff", string(make([]byte, 257))} {
		check.Is(t, check.Err(w.SubmitTagged(t.Context(), tag, payload("x"))), failure.ErrNotExecuted, "tag %q", tag)
	}
	check.Is(t, check.Err(newWriter(t, c, "other").SubmitTagged(t.Context(), "tag",
		payload("x"))), failure.ErrNotExecuted, "a tag without a journal")
	must.Do(t, w.Close(t.Context()))
	must.Do(t, mustJournaled(t, c, j).Close(t.Context()), "the stream of a closed writer is free, but")
}

// TestJournalExactlyOnceUnderFaults is TestExactlyOnceUnderFaults with Writers
// that share a journal, and crashes of their process between its rounds.
func TestJournalExactlyOnceUnderFaults(t *testing.T) {
	t.Parallel()
	withSeeds(t, journalUnderFaults)
}

// lives is how often the process of journalUnderFaults crashes.
const lives = 12

func journalUnderFaults(t *testing.T, d *dice) {
	s, c := start(t)
	s.set(func(s *fakeServer) { s.onWrite = d.faults(s) })
	path := filepath.Join(t.TempDir(), "journal")
	streams := []*bookkeeper{{name: "w0"}, {name: "w1"}}
	for life := range lives {
		j := openJournal(t, path, journal.Options{MaxBytes: 512 << 10})
		var group sync.WaitGroup
		for _, b := range streams {
			// Ends after its writes; the test waits for it.
			group.Go(func() { b.live(t, c, j, d, life == lives-1) })
		}
		group.Wait()
		path = crash(t, c, j, path)
		c = dial(t, s)
	}
	for s.releaseGhost(d.n) {
	}
	for _, b := range streams {
		b.audit(t, s.ledger.history())
	}
}

// bookkeeper is an application with a memory of its own: what it has been told.
type bookkeeper struct {
	name string
	next int
	// intended is everything; told has the outcomes that are settled for good.
	intended []string
	told     map[string]error
}

// live settles the journal's writes, submits the missing ones, and then some more. The last
// burst is still under way at the crash.
func (b *bookkeeper) live(t *testing.T, c *client.Client, j writer.JournalFile, d *dice, last bool) {
	if b.told == nil {
		b.told = make(map[string]error)
	}
	w, err := writer.Open(t.Context(), c, writer.WithJournal(writer.Options{Scope: org, ClientID: b.name}, j))
	if err != nil {
		t.Errorf("%s: %v", b.name, err)
		return
	}
	b.settle(t, w, w.Recovered())
	for burst := range 3 {
		var tags []string
		for _, tag := range b.intended {
			if _, known := b.told[tag]; !known {
				tags = append(tags, tag)
			}
		}
		for range 1 + d.n(8) {
			b.next++
			tags = append(tags, fmt.Sprint(b.name, "-", b.next))
			b.intended = append(b.intended, tags[len(tags)-1])
		}
		var sent []*writer.Pending
		for _, tag := range tags {
			operations := []*seqledgerv1.Operation{payload(tag)}
			if d.n(5) == 0 {
				operations = append(operations, create(fmt.Sprint("contended-", d.n(2))))
			}
			p, err := w.SubmitTagged(t.Context(), tag, operations...)
			if err != nil && !errors.Is(err, writer.ErrStopped) {
				t.Errorf("%s: %v", tag, err)
			} else if err == nil {
				sent = append(sent, p)
			}
		}
		if burst == 2 && !last {
			return
		}
		b.settle(t, w, sent)
	}
}

func (b *bookkeeper) settle(t *testing.T, w *writer.Writer, sent []*writer.Pending) {
	for _, p := range sent {
		_, err := p.Wait(t.Context())
		if before, known := b.told[p.Tag()]; known && before != nil != (err != nil) {
			t.Errorf("%s was told as %v and then as %v", p.Tag(), before, err)
		}
		if err != nil && !errors.Is(err, failure.ErrNotExecuted) {
			t.Errorf("%s: %v", p.Tag(), err)
		}
		b.told[p.Tag()] = err
		must.Do(t, p.Acknowledge())
	}
	must.Do(t, w.Resume(t.Context()), "%s", b.name)
}

// audit: what was told as committed is there once, everything else is not.
func (b *bookkeeper) audit(t *testing.T, history []committed) {
	found := make(map[string]int)
	for _, c := range history {
		found[string(c.operations[0].GetAppend().GetPayload())]++
	}
	commits := 0
	for _, tag := range b.intended {
		err, known := b.told[tag]
		want := 0
		if known && err == nil {
			want, commits = 1, commits+1
		}
		check.Equal(t, found[tag], want, "%s was told as %v (%v) and is there %d times", tag, err, known)
	}
	if commits == 0 || commits == len(b.intended) {
		t.Errorf("%d of %d committed: the test must see commits and refusals", commits, len(b.intended))
	}
}
