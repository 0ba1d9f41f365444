package writer_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
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

// TestEveryAnswerThatAsksForARetryGetsOne: the write is sent again under the
// same number and key until it is committed, once, whether its first copy was
// executed or not, and those behind it follow in order.
func TestEveryAnswerThatAsksForARetryGetsOne(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fault{
		"broken": faultDrop, "answer lost": faultLost, "copy under way": faultGhost,
		"unknown, executed": faultUnknownDone, "unknown, not executed": faultUnknownLost,
		"unknown, under way": faultUnknownGhost, "draining": faultDraining, "queue full": faultQueueFull,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := start(t)
			var sent atomic.Int32
			release := hold(s, func(r *seqledgerv1.WriteRequest) fault {
				if r.GetSequence() == 2 && sent.Add(1) == 1 {
					return what
				}
				return faultNone
			})
			w := newWriter(t, c, "w")
			p := burst(t, w, payload("1"), payload("2"), payload("3"))
			release(w, len(p))
			for i := range p {
				wantCommitted(t, p[i], uint64(i+1))
			}
			for s.releaseGhost(func(int) int { return 0 }) {
			}
			history := s.ledger.history()
			if len(history) != 3 || history[1].key != p[1].Key() {
				t.Errorf("want three commits, the second under its first key, got %v", history)
			}
			if n := s.openCount(); n != 1 {
				t.Errorf("nothing was refused, so no session has to be opened; %d were", n)
			}
		})
	}
}

// TestEveryRefusalIsFinalAndResumable: each code that leaves the sequence free is reported
// unchanged, and the Writer continues after Resume.
func TestEveryRefusalIsFinalAndResumable(t *testing.T) {
	t.Parallel()
	for _, c := range []code{
		codeKeyExists, codeKeyNotFound, codeInvalid,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VERSION_MISMATCH,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VALUE_MISMATCH,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS,
	} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s, cl := start(t)
			// must_exist makes the ledger refuse; the code is replaced.
			missing := create("missing")
			missing.GetSetEntity().Condition = &seqledgerv1.Condition{
				Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}
			firstAnswer(s, 1, c)
			w := newWriter(t, cl, "w")
			_, err := burst(t, w, missing)[0].Wait(t.Context())
			if failure.CodeOf(err) != c || !errors.Is(err, failure.ErrNotExecuted) {
				t.Errorf("want a final %v, got %v", c, err)
			}
			if err := w.Flush(t.Context()); !errors.Is(err, writer.ErrStopped) {
				t.Errorf("Flush must report that the Writer has stopped, got %v", err)
			}
			if err := w.Resume(t.Context()); err != nil {
				t.Errorf("resuming: %v", err)
			}
			if receipt, err := w.Write(t.Context(), payload("next")); err != nil || receipt.GetSequence() != 1 {
				t.Errorf("the number must be free, got %v, %v", receipt, err)
			}
		})
	}
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

// TestMoreResultsThanWritesBreakTheStream, because nothing says which of them
// belong to what; the write is settled by sending it again.
func TestMoreResultsThanWritesBreakTheStream(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	var frames, streams atomic.Int32
	s.set(func(s *fakeServer) {
		s.onStream = func() error { streams.Add(1); return nil }
		s.onResults = func(results []*seqledgerv1.WriteResult) []*seqledgerv1.WriteResult {
			if frames.Add(1) == 1 {
				return append(results, results...)
			}
			return results
		}
	})
	w := newWriter(t, c, "w")
	for i := range 3 {
		if receipt, err := w.Write(t.Context(), payload("x")); err != nil || receipt.GetSequence() != uint64(i+1) {
			t.Errorf("want sequence %d, got %v, %v", i+1, receipt, err)
		}
	}
	if n := streams.Load(); n != 2 {
		t.Errorf("want the stream closed and opened once more, got %d streams", n)
	}
}

// TestALastSequenceThatCannotBeRight: after fencing its own copies a Writer must not accept
// that another client wrote in its session.
func TestALastSequenceThatCannotBeRight(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.toggle("taken")
	w := newWriter(t, c, "w")
	var sent atomic.Int32
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault {
			if sent.Add(1) == 1 {
				return faultDrop
			}
			return faultNone
		}
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

// TestTheTokenGoesWithEverything: with calls and with the write stream.
func TestTheTokenGoesWithEverything(t *testing.T) {
	t.Parallel()
	s := &fakeServer{ledger: newFakeLedger()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.serve(listener))
	c, err := client.New(client.Options{Server: "http://" + listener.Addr().String() + "/",
		Token: client.StaticToken("secret")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := newWriter(t, c, "w").Write(t.Context(), payload("1")); err != nil {
		t.Fatal(err)
	}
	if got := s.header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("the stream carried %q", got)
	}
}

// TestACallerThatIsGoneIsToldForCertain: nothing was sent, so the outcome is not
// unknown.
func TestACallerThatIsGoneIsToldForCertain(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	w := newWriter(t, c, "w")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.Write(ended, payload("1"))
	if !errors.Is(err, failure.ErrNotExecuted) || errors.Is(err, failure.ErrOutcomeUnknown) ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("want not executed because of context.Canceled, got %v", err)
	}
	if _, err := writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: "x", MaxPending: -1}); err == nil {
		t.Error("a negative bound must be refused")
	}
	if n := len(s.ledger.history()); n != 0 {
		t.Errorf("want no commit, got %d", n)
	}
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
		"INVALID_ARGUMENT (operations[0].key): empty": refused,
		"write not executed":                          &failure.NotExecutedError{Cause: refused},
		"call Resume":                                 &writer.StoppedError{Sequence: 3, Refusal: refused},
		"repeat the same sequence and key": &failure.OutcomeUnknownError{Sequence: 3, IdempotencyKey: "k",
			Cause: refused},
		"every write settled":          &writer.UnsettledError{Cause: failure.ErrClosed},
		"1 unsettled writes from 0 on": &writer.UnsettledError{Cause: failure.ErrClosed, Writes: []*writer.Pending{{}}},
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q must contain %q", err.Error(), want)
		}
	}
}
