package writer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestWritesAtOnceNeedNoResume: concurrent writes need no Resume if all their callers wait. A
// write from Submit, refused or behind a refused one, stops the Writer.
func TestWritesAtOnceNeedNoResume(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		submitFirst, submitSecond, stops bool
	}{
		"both wait": {false, false, false}, "the refused one was submitted": {true, false, true},
		"the one behind was submitted": {false, true, true}, "both were submitted": {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := start(t)
			s.ledger.toggle("taken")
			w := newWriter(t, c, "w")
			release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
			var group sync.WaitGroup
			send := func(submit bool, operation *seqledgerv1.Operation) {
				if submit {
					burst(t, w, operation)
					return
				}
				before := w.State().Pending
				// Ends with its outcome; joined below.
				group.Go(func() {
					if _, err := w.Write(t.Context(), operation); !errors.Is(err, failure.ErrNotExecuted) {
						t.Errorf("want not executed, got %v", err)
					}
				})
				eventually(t, "the write to be taken", func() bool { return w.State().Pending > before })
			}
			send(test.submitFirst, create("taken"))
			send(test.submitSecond, payload("behind"))
			release(w, 2)
			group.Wait()
			eventually(t, "the outcome", func() bool { return w.State().Pending == 0 })
			if stopped := errors.Is(w.Err(), writer.ErrStopped); stopped != test.stops {
				t.Errorf("stopped: %v, want %v: %v", stopped, test.stops, w.Err())
			}
		})
	}
}

// TestAWriteThatNobodyWaitsForAnyMore stops the Writer when it is refused: its caller was
// told that the outcome is not known.
func TestAWriteThatNobodyWaitsForAnyMore(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.ledger.toggle("taken")
	w := newWriter(t, c, "w")
	arrived, release := make(chan struct{}), make(chan struct{})
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault { close(arrived); <-release; return faultNone }
	})
	ctx, cancel := context.WithCancel(t.Context())
	// Ends the call once its write is under way; ends itself by that.
	go func() { <-arrived; cancel() }()
	_, err := w.Write(ctx, create("taken"))
	open, ok := errors.AsType[*failure.OutcomeUnknownError](err)
	if !ok || open.Sequence != 1 || !errors.Is(err, context.Canceled) {
		t.Fatalf("want an unknown outcome with the write, got %v", err)
	}
	pending, ok := open.Pending.(*writer.Pending)
	if !ok || pending.Sequence() != 1 {
		t.Fatalf("want the write to wait for, got %v", open.Pending)
	}
	close(release)
	wantNotExecuted(t, pending, failure.ErrConditionFailed)
	check.Is(t, w.Err(), writer.ErrStopped, "want the Writer stopped")
}

// TestShutdown settles what was submitted, takes nothing more, and closes the Client; what
// its time does not settle it lists.
func TestShutdown(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	w, other := newWriter(t, c, "w"), newWriter(t, c, "other")
	release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
	p := burst(t, w, payload("1"), payload("2"))
	down := make(chan error)
	// Ends with Shutdown; the test waits for it.
	go func() { down <- c.Shutdown(t.Context()) }()
	<-other.Done() // which has nothing to wait for
	eventually(t, "the other Writer to close", func() bool { return writer.Closing(w) })
	check.Is(t, check.Err(w.Submit(t.Context(), payload("3"))), failure.ErrClosed)
	release(w, 2)
	must.Do(t, <-down)
	wantCommitted(t, p[1], 2)
	check.Is(t, ask(t.Context(), c), failure.ErrClosed, "want the Client closed")

	s, c = start(t)
	w = newWriter(t, c, "w")
	release = hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
	p = burst(t, w, payload("1"))
	eventually(t, "the write to be sent", func() bool { return writer.InFlight(w) == 1 })
	ended := over(t)
	unsettled, ok := errors.AsType[*writer.UnsettledError](c.Shutdown(ended))
	if !ok || len(unsettled.Writes) != 1 || unsettled.Writes[0] != p[0] {
		t.Errorf("want the open write listed, got %v", unsettled)
	}
	release(w, 0)
}

// TestCountersAndLog: what went on is counted, and told without a payload, a key or a token.
func TestCountersAndLog(t *testing.T) {
	t.Parallel()
	s := &fakeServer{ledger: newFakeLedger()}
	var log lockedBuffer
	c := startFake(t, s, func(o *client.Options) {
		o.Token = client.StaticToken("secret-token")
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	s.ledger.toggle("taken")
	var seen atomic.Int32
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault {
			if seen.Add(1) == 2 {
				return faultDrop
			}
			return faultNone
		}
		s.onRead = func() error {
			if seen.Add(1)%2 == 0 {
				return errLost
			}
			return nil
		}
	})
	w := newWriter(t, c, "till-7")
	must.Get(w.Write(t.Context(), payload("secret payload")))(t)
	must.Is(t, check.Err(w.Write(t.Context(), create("taken"))), failure.ErrConditionFailed)
	seen.Store(1)
	must.Do(t, ask(t.Context(), c))
	must.Get(newWriter(t, c, "till-7").Write(t.Context(), payload("x")))(t)
	must.Is(t, check.Err(w.Write(t.Context(), payload("y"))), failure.ErrFenced)
	n := c.Counters()
	want := client.Counters{CallRepeats: 1, Streams: 2, Sent: 5, Committed: 2, Refused: 2, Fences: 1}
	check.Equal(t, n, want)
	eventually(t, "the last words", func() bool { return strings.Contains(log.String(), "a writer has ended") })
	text := log.String()
	for _, words := range []string{"a call is repeated", "the write stream has ended",
		"a session is opened", "client_id=till-7"} {
		check.Contains(t, text, words, "the log")
	}
	for _, secret := range []string{"secret", "taken"} {
		if strings.Contains(text, secret) {
			t.Errorf("the log says %q: %s", secret, text)
		}
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// TestListingsTurnTheirPages: listings begin where the request says, and read no further page
// after the caller stops.
func TestListingsTurnTheirPages(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	var asked []string
	s.set(func(s *fakeServer) {
		s.onEntities = func(r *seqledgerv1.ListEntitiesRequest) (*seqledgerv1.ListEntitiesResponse, error) {
			asked = append(asked, r.GetPageToken())
			var from int
			_, _ = fmt.Sscan(r.GetPageToken(), &from)
			if from >= 6 {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such page"))
			}
			answer := &seqledgerv1.ListEntitiesResponse{NextPageToken: fmt.Sprint(from + int(r.GetPageSize()))}
			for i := range int(r.GetPageSize()) {
				answer.Entities = append(answer.Entities, &seqledgerv1.Entity{Key: fmt.Sprint(r.GetPrefix(), from+i)})
			}
			return answer, nil
		}
	})
	request := &seqledgerv1.ListEntitiesRequest{Scope: org, Prefix: "k", PageSize: 2, PageToken: "2"}
	before := proto.CloneOf(request)
	var keys []string
	var last error
	for entity, err := range c.ListEntities(t.Context(), request) {
		if err != nil {
			last = err
			continue
		}
		keys = append(keys, entity.GetKey())
	}
	if fmt.Sprint(keys) != "[k2 k3 k4 k5]" || last == nil || fmt.Sprint(asked) != "[2 4 6]" {
		t.Errorf("got %v and %v, asked for %v", keys, last, asked)
	}
	if !proto.Equal(request, before) {
		t.Errorf("the request was changed to %v", request)
	}
	asked = nil
	for range c.ListEntities(t.Context(), &seqledgerv1.ListEntitiesRequest{PageSize: 2}) {
		break
	}
	check.Equal(t, len(asked), 1, "one entity took %d pages")
}
