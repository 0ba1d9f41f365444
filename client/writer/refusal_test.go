package writer_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// hold makes the server keep the first write until the test lets go. The
// returned function waits until n writes of w are on their way before it does,
// so that they are answered in one round, whatever the scheduler does.
func hold(s *fakeServer, then func(*seqledgerv1.WriteRequest) fault) (release func(w *writer.Writer, n int)) {
	gate := make(chan struct{})
	s.set(func(s *fakeServer) {
		s.onWrite = func(request *seqledgerv1.WriteRequest) fault {
			if request.GetSequence() == 1 {
				<-gate
			}
			return then(request)
		}
	})
	return func(w *writer.Writer, n int) {
		for writer.InFlight(w) < n {
			runtime.Gosched()
		}
		close(gate)
	}
}

// first makes what happen to the first write, and nothing to the later ones.
func first(what fault) func(*seqledgerv1.WriteRequest) fault {
	var once atomic.Bool
	return func(*seqledgerv1.WriteRequest) fault {
		if once.CompareAndSwap(false, true) {
			return what
		}
		return faultNone
	}
}

// over returns a context that has ended.
func over(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// burst submits writes one behind the other without waiting.
func burst(t *testing.T, w *writer.Writer, operations ...*seqledgerv1.Operation) []*writer.Pending {
	t.Helper()
	var pendings []*writer.Pending
	for _, operation := range operations {
		p, err := w.Submit(t.Context(), operation)
		must.Do(t, err, "submitting")
		pendings = append(pendings, p)
	}
	return pendings
}

// wantCommitted fails unless p is committed under sequence.
func wantCommitted(t *testing.T, p *writer.Pending, sequence uint64) {
	t.Helper()
	receipt, err := p.Wait(t.Context())
	if err != nil || receipt.GetSequence() != sequence {
		t.Fatalf("want sequence %d committed, got %v, %v", sequence, receipt, err)
	}
}

// wantNotExecuted fails unless p was not executed because of cause.
func wantNotExecuted(t *testing.T, p *writer.Pending, cause error) {
	t.Helper()
	if _, err := p.Wait(t.Context()); !errors.Is(err, failure.ErrNotExecuted) || !errors.Is(err, cause) {
		t.Fatalf("want not executed because of %v, got %v", cause, err)
	}
}

// TestARefusalStopsTheWriterUntilResume: the refused write and those behind it
// are told apart, nothing is taken until Resume, and the numbers are used again
// without a new session, because no copy can be under way.
func TestARefusalStopsTheWriterUntilResume(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.toggle("taken")
	release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
	w := newWriter(t, c, "w")
	p := burst(t, w, payload("1"), create("taken"), payload("3"), payload("4"))
	release(w, len(p))
	wantCommitted(t, p[0], 1)
	wantNotExecuted(t, p[1], failure.ErrConditionFailed)
	wantNotExecuted(t, p[2], writer.ErrStopped)
	wantNotExecuted(t, p[3], writer.ErrStopped)
	if _, err := p[2].Wait(t.Context()); errors.Is(err, failure.ErrConditionFailed) {
		t.Error("a write behind the refused one must not look refused itself")
	}
	stopped, ok := errors.AsType[*writer.StoppedError](w.Err())
	if !ok || stopped.Sequence != 2 || failure.CodeOf(stopped.Refusal) != codeKeyExists {
		t.Errorf("the state must name the refused write and why, got %v", w.Err())
	}
	if _, err := w.Write(t.Context(), payload("5")); !errors.Is(err, writer.ErrStopped) ||
		!errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("before Resume a write must be refused as stopped, got %v", err)
	}
	must.Do(t, w.Resume(t.Context()), "resuming")
	if receipt, err := w.Write(t.Context(), payload("6")); err != nil || receipt.GetSequence() != 2 {
		t.Errorf("after Resume the refused number is next, got %v, %v", receipt, err)
	}
	check.Equal(t, s.openCount(), 1, "no copy was under way, so one session must do; %d were opened")
}

// TestARefusalWaitsForItsSession: while the new session cannot be opened the
// refusal must not be reported, because it is not final.
func TestARefusalWaitsForItsSession(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.toggle("taken")
	w := newWriter(t, c, "w")
	var opens, drops atomic.Int32
	early := make(chan bool, 1)
	var p *writer.Pending
	ready := make(chan struct{})
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault {
			if drops.Add(1) == 1 {
				return faultDrop
			}
			return faultNone
		}
		s.onOpen = func(*seqledgerv1.OpenSessionRequest) error {
			<-ready
			if opens.Add(1) < 3 {
				return errLost
			}
			select {
			case <-p.Done():
				early <- true
			default:
				early <- false
			}
			return nil
		}
	})
	p = burst(t, w, create("taken"))[0]
	close(ready)
	wantNotExecuted(t, p, failure.ErrConditionFailed)
	if <-early {
		t.Error("the refusal was reported before the copies were fenced")
	}
	for i, open := range s.opens[2:] {
		check.Equal(t, string(open.GetAttemptId()), string(s.opens[1].GetAttemptId()),
			"repeat %d of OpenSession has another attempt_id: got %v", i+1)
	}
	if s.opens[1].GetExpectedSession() == 0 {
		t.Error("fencing its own copies, a Writer must expect its own session")
	}
}
