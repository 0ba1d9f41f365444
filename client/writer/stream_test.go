package writer_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestTheStreamHasAConnectionToItself: the stream uses an upgraded connection if the server
// offers one, otherwise an ordinary stream.
func TestTheStreamHasAConnectionToItself(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server *fakeServer
		want   bool
	}{
		"given":              {new(fakeServer), true},
		"not given":          {&fakeServer{sharedOnly: true}, false},
		"a server of HTTP/2": {&fakeServer{http2Only: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := test.server
			s.ledger = newFakeLedger()
			c := startFake(t, s)
			w := newWriter(t, c, "w")
			for i := range 3 {
				must.Equal(t, must.Get(w.Write(t.Context(), payload("x")))(t).GetSequence(), uint64(i)+1)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			check.Equal(t, s.upgraded, test.want, "the stream had an upgraded connection: %v")
		})
	}
}

// TestARefusedStreamTellsWhy: an error that ends the stream, and would do so every time, ends
// the Writer.
func TestARefusedStreamTellsWhy(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*fakeServer{"given": {}, "not given": {sharedOnly: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.ledger = newFakeLedger()
			s.onStream = func() error {
				return withDetail(connect.CodePermissionDenied,
					&seqledgerv1.WriteError{Code: codeDenied, Message: "who are you"})
			}
			w := newWriter(t, startFake(t, s), "w")
			_, err := w.Write(t.Context(), payload("x"))
			open, ok := errors.AsType[*failure.OutcomeUnknownError](err)
			if !ok || open.Refusal == nil || open.Refusal.Code != codeDenied || open.Refusal.Message != "who are you" {
				t.Errorf("%v, want the server's reason", err)
			}
			wantEnded(t, w, 1)
		})
	}
}

// TestLoneWritesAmongOthers: writes sent by their callers' own goroutines and by the sender
// keep their order in each stream, whatever breaks.
func TestLoneWritesAmongOthers(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	const writers, writes = 3, 80
	var seen atomic.Int32
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault {
			if n := seen.Add(1); n%101 == 0 {
				return faultLost
			} else if n%67 == 0 {
				return faultDrop
			}
			return faultNone
		}
	})
	var group sync.WaitGroup
	for i := range writers {
		w := newWriter(t, c, string(rune('a'+i)))
		// Ends with its writes; joined below.
		group.Go(func() {
			for n := range writes {
				if r, err := w.Write(t.Context(), payload("x")); err != nil || r.GetSequence() != uint64(n)+1 {
					t.Errorf("write %d: %v, %v", n+1, r, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// wantEnded fails unless w has ended with so many unsettled writes.
func wantEnded(t *testing.T, w *writer.Writer, unsettled int) {
	t.Helper()
	end, ok := errors.AsType[*writer.UnsettledError](w.Err())
	if !ok || len(end.Writes) != unsettled {
		t.Errorf("want the Writer ended with %d unsettled writes, got %v", unsettled, w.Err())
	}
}
