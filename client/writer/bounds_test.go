package writer_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestAReopenOutlivesAStatusThatNeverComes: the stream of an idle Writer with a journal was
// evicted, and the call that asks for the ledger's id hangs once. The Writer asks again.
func TestAReopenOutlivesAStatusThatNeverComes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		j := must.Get(journal.Open(path, journal.Options{}))(t)
		defer func() { _ = j.Close() }()
		w := mustJournaled(t, c, j)
		must.Get(w.Write(t.Context(), payload("a")))(t)
		never := make(chan struct{})
		defer close(never)
		var hung atomic.Bool
		s.set(func(s *fakeServer) {
			s.onStatus = func() {
				if hung.CompareAndSwap(false, true) {
					<-never
				}
			}
		})
		s.ledger.evictAll()
		pass(17 * time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if receipt, err := w.Write(ctx, payload("b")); err != nil || receipt.GetSequence() != 1 || !hung.Load() {
			t.Errorf("want the first write of the new stream, got %v, %v; a call has hung: %v", receipt, err,
				hung.Load())
		}
		_ = w.Close(t.Context()) // before its journal
	})
}

// hangs is a journal whose disk does not answer while hang is open.
type hangs struct {
	*journal.File
	armed atomic.Bool
	hang  chan struct{}
}

func (h *hangs) Sync() error {
	if h.armed.Load() {
		<-h.hang
	}
	return h.File.Sync()
}

// hanging returns a Writer whose journal's disk does not answer any more, while the
// Writer takes a refused write out of it.
func hanging(t *testing.T) (*client.Client, *writer.Writer, *hangs, *writer.Pending) {
	t.Helper()
	s, c := start(t)
	j := &hangs{File: openJournal(t, filepath.Join(t.TempDir(), "journal"), journal.Options{}),
		hang: make(chan struct{})}
	t.Cleanup(func() { close(j.hang) }) // before the journal is closed
	w := mustJournaled(t, c, j)
	s.ledger.toggle("taken")
	answered := make(chan struct{})
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault { j.armed.Store(true); return faultNone }
		s.onAnswer = func(_ *seqledgerv1.WriteRequest, right *seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
			close(answered)
			return right
		}
	})
	p := burst(t, w, create("taken"))[0]
	<-answered
	return c, w, j, p
}

// returns fails the test when do does not return, in a time that is far beyond what it
// may take and far below for ever.
func returns(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	// Ends with do; the select waits for it, and so does the cleanup of what holds it.
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Errorf("%s does not return", what)
	}
}

// TestCloseDoesNotWaitForTheDisk: Close waits for a journal's disk no longer than its context,
// reports the writes as unsettled, and lets the stream go.
func TestCloseDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	_, w, j, p := hanging(t)
	ended := over(t)
	var err error
	returns(t, "Close", func() { err = w.Close(ended) })
	unsettled, ok := errors.AsType[*writer.UnsettledError](err)
	if !ok || len(unsettled.Writes) != 1 {
		t.Errorf("want the write listed, got %v", err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, failure.ErrOutcomeUnknown) ||
		errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("the journal may still hold the write, so its outcome is unknown; got %v", err)
	}
	select {
	case <-w.Done():
	default:
		t.Error("the Writer has not ended")
	}
	must.Do(t, check.Err(j.Claim(till)), "the stream of a closed Writer is taken")
}

// TestClientCloseDoesNotWaitForTheDisk for ever, and says so; nor does Open beyond
// its context.
func TestClientCloseDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	c, _, j, _ := hanging(t)
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	returns(t, "Open", func() {
		o := writer.WithJournal(writer.Options{Scope: org, ClientID: "another"}, j)
		check.Is(t, check.Err(writer.Open(limited, c, o)), context.DeadlineExceeded, "want the end of the context")
	})
	returns(t, "Close", func() {
		check.Is(t, c.Close(), failure.ErrOutcomeUnknown, "want the open write listed")
	})
}

// TestClientCloseLeavesADiskBehind: a write waits for a disk that does not answer, and
// nothing can interrupt that. Close waits for five seconds, says why it goes, and the
// goroutine ends with the disk.
func TestClientCloseLeavesADiskBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	inBubble(t, func(t *testing.T, _ *fakeServer, c *client.Client) {
		file, err := journal.Open(path, journal.Options{})
		must.Do(t, err)
		j := &hangs{File: file, hang: make(chan struct{})}
		w := mustJournaled(t, c, j)
		j.armed.Store(true)
		p := burst(t, w, payload("a"))[0]
		synctest.Wait()
		began := time.Now()
		err = c.Close()
		check.Equal(t, time.Since(began), 5*time.Second, "Close waited %v")
		if !errors.Is(err, failure.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "disk") {
			t.Errorf("want the open write and the disk told, got %v", err)
		}
		check.Is(t, check.Err(p.Wait(t.Context())), failure.ErrOutcomeUnknown, "want no outcome")
		close(j.hang)
		synctest.Wait()
		_ = file.Close()
	})
}
