package writer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// limitFrames makes the fake end a stream at a message of more than so many bytes, as a
// server does that takes less than others.
func limitFrames(s *fakeServer, limit int) (refused *atomic.Int32) {
	refused = new(atomic.Int32)
	s.set(func(s *fakeServer) {
		s.onFrame = func(f *seqledgerv1.WriteStreamRequest) error {
			if f.SizeVT() <= limit {
				return nil
			}
			refused.Add(1)
			return withDetail(connect.CodeInvalidArgument, &seqledgerv1.WriteError{
				Code: codeInvalid, Field: "operations",
				Message: fmt.Sprintf("must be fewer: a message has at most %d bytes", limit),
			})
		}
	})
	return refused
}

// TestAServerThatTakesSmallerMessages gets them: no Writer ends, and every write that it
// could take is committed, in order.
func TestAServerThatTakesSmallerMessages(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"own connection": false, "shared connection": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &fakeServer{ledger: newFakeLedger(), sharedOnly: shared}
			c := startFake(t, s)
			release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
			first, second := newWriter(t, c, "first"), newWriter(t, c, "second")
			refused := limitFrames(s, 40<<10)
			head := burst(t, first, payload("0"))
			var p []*writer.Pending
			for range 30 {
				p = append(p, burst(t, first, sized(30))...)
				p = append(p, burst(t, second, sized(1), sized(5))...)
			}
			release(first, 1)
			wantCommitted(t, head[0], 1)
			for _, p := range p {
				must.Get(p.Wait(t.Context()))(t)
			}
			// 1 MiB halved until it is below 40 KiB, and once more for those in between.
			if n := refused.Load(); n == 0 || n > 8 {
				t.Errorf("%d messages were refused", n)
			}
			check.Equal(t, s.openCount(), 2, "no write was refused, so no session has to be opened; %d were")
		})
	}
}

// TestAWriteThatIsTooLargeAlone is refused, for certain, and nothing else is: neither
// another Writer's writes nor this one's later ones.
func TestAWriteThatIsTooLargeAlone(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
	w, other := newWriter(t, c, "w"), newWriter(t, c, "other")
	limitFrames(s, 40<<10)
	head := burst(t, w, payload("head"))
	large := burst(t, w, sized(2), sized(100), payload("behind"))
	var rest []*writer.Pending
	for range 20 {
		rest = append(rest, burst(t, other, sized(10))...)
	}
	release(w, 1)
	wantCommitted(t, head[0], 1)
	wantCommitted(t, large[0], 2)
	wantNotExecuted(t, large[2], writer.ErrStopped)
	_, err := large[1].Wait(t.Context())
	if !errors.Is(err, failure.ErrNotExecuted) || failure.CodeOf(err) != codeInvalid ||
		!strings.Contains(err.Error(), "40960 bytes") {
		t.Errorf("want the server's refusal, got %v", err)
	}
	for _, p := range rest {
		must.Do(t, check.Err(p.Wait(t.Context())), "another Writer's write")
	}
	must.Do(t, w.Resume(t.Context()))
	check.Equal(t, must.Get(w.Write(t.Context(), payload("after")))(t).GetSequence(), 3, "the number is free, got %v")
	if n := slices.IndexFunc(s.ledger.history(),
		func(c committed) bool { return len(c.operations[0].GetAppend().GetPayload()) == 100<<10 }); n >= 0 {
		t.Error("what was reported as not executed is in the ledger")
	}
}

// TestAMessageRefusedThoughItWasExecuted: nothing rests on the server's word about a whole
// message. A session is opened before the refusal is reported, and that finds the commit.
func TestAMessageRefusedThoughItWasExecuted(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	w := newWriter(t, c, "w")
	s.set(func(s *fakeServer) {
		s.onFrame = func(f *seqledgerv1.WriteStreamRequest) error {
			s.set(func(s *fakeServer) { s.onFrame = nil })
			s.ledger.apply(f.GetWrites()[0])
			return withDetail(connect.CodeInvalidArgument, &seqledgerv1.WriteError{Code: codeInvalid})
		}
	})
	wantCommitted(t, burst(t, w, payload("paid"))[0], 1)
	expectHistory(t, s, "paid")
}
