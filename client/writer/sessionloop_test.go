package writer_test

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// memory is a listener without a network, so that synctest sees every wait.
type memory struct {
	conns chan net.Conn
	done  chan struct{}
}

func newMemory() *memory { return &memory{make(chan net.Conn), make(chan struct{})} }

// Accept implements net.Listener.
func (m *memory) Accept() (net.Conn, error) {
	select {
	case conn := <-m.conns:
		return conn, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (m *memory) Close() error {
	select {
	case <-m.done:
	default:
		close(m.done)
	}
	return nil
}

// Addr implements net.Listener.
func (m *memory) Addr() net.Addr { return &net.TCPAddr{} }

func (m *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case m.conns <- far:
		return near, nil
	case <-m.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble runs test with a fake server and a client inside a synctest bubble.
// The bubble fails when any goroutine of the Client is left after Close.
func inBubble(t *testing.T, test func(*testing.T, *fakeServer, *client.Client), change ...func(*client.Options)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{ledger: newFakeLedger()}
		listener := newMemory()
		stop := s.serve(listener)
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{DialContext: listener.dial, Protocols: protocols}
		o := client.Options{Server: "memory:1", HTTPClient: &http.Client{Transport: transport}}
		for _, change := range change {
			change(&o)
		}
		c := must.Get(client.New(o))(t)
		test(t, s, c)
		_ = c.Close()
		transport.CloseIdleConnections()
		stop()
	})
}

// TestAnIdleWriterKeepsItsStreamAlive by repeating its attempt every third of
// client_ttl: after three days nothing was evicted, and the session is the same.
func TestAnIdleWriterKeepsItsStreamAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		session := w.State().Session
		for range 72 {
			pass(time.Hour)
			s.ledger.evictDue()
		}
		synctest.Wait()
		check.Equal(t, s.openCount(), 10, "want the opening and 9 repeats in 72 h with client_ttl 24 h, got %d")
		for _, open := range s.opens[1:] {
			check.Equal(t, string(open.GetAttemptId()), string(s.opens[0].GetAttemptId()),
				"a keep-alive must repeat the attempt, another one would open a new session: got %v")
		}
		if receipt, err := w.Write(t.Context(), payload("1")); err != nil || receipt.GetSession() != session {
			t.Errorf("want a commit under the first session, got %v, %v", receipt, err)
		}
	})
}

// TestAnIdleWriterOpensAnEvictedStreamAgain: nothing is unanswered, so nothing
// can be lost, and the numbers begin anew.
func TestAnIdleWriterOpensAnEvictedStreamAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		must.Get(w.Write(t.Context(), payload("1")))(t)
		s.ledger.evictAll()
		pass(17 * time.Hour) // two thirds: the first sees the commit
		receipt, err := w.Write(t.Context(), payload("2"))
		if err != nil || receipt.GetSequence() != 1 {
			t.Errorf("want sequence 1 of a new stream, got %v, %v", receipt, err)
		}
	})
}

// TestAnEvictedStreamIsNotOpenedAgainIfForbidden: with NoReopen an eviction ends the Writer.
func TestAnEvictedStreamIsNotOpenedAgainIfForbidden(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: "w", NoReopen: true}))(t)
		s.ledger.evictAll()
		pass(17 * time.Hour)
		check.Is(t, check.Err(w.Write(t.Context(), payload("1"))), failure.ErrExpired)
	})
}

// TestAKeepAliveFindsTheTakeover: an idle Writer ends without waiting for a
// write to fail.
func TestAKeepAliveFindsTheTakeover(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		first := newWriter(t, c, "w")
		newWriter(t, c, "w")
		pass(9 * time.Hour)
		check.Is(t, first.Err(), failure.ErrFenced)
	})
}

// TestAKeepAliveOutlivesAnUnreachableServer: it changes nothing, and the next
// turn asks again.
func TestAKeepAliveOutlivesAnUnreachableServer(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		s.set(func(s *fakeServer) { s.onOpen = later })
		pass(8*time.Hour + time.Minute) // it asks at 8 h
		s.set(func(s *fakeServer) { s.onOpen = nil })
		pass(9 * time.Hour)
		check.Is(t, w.Err(), nil, "the Writer must live")
	})
}

// TestBackoffIsHonouredAndInterrupted: a server that asks for 30 s gets them,
// and Close does not wait for the rest.
func TestBackoffIsHonouredAndInterrupted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		var calls atomic.Int64 // the clock may stop this goroutine and a call at one instant
		s.set(func(s *fakeServer) {
			s.onStream = func() error { calls.Add(1); return connect.NewError(connect.CodeUnavailable, nil) }
		})
		w := newWriter(t, c, "w")
		burst(t, w, payload("1"))
		pass(time.Minute)
		// Every wait is between 1 s and 2 s once the backoff has grown.
		if n := calls.Load(); n < 30 || n > 80 {
			t.Errorf("want 30 to 80 attempts in a minute, got %d", n)
		}
		began := time.Now()
		check.Is(t, c.Close(), failure.ErrOutcomeUnknown, "want the open write listed")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("Close waited %v for a backoff", waited)
		}
	})
}

// TestOpenRepeatsItsAttempt when the answer is lost: the repeat must get
// the session that the first copy opened.
func TestOpenRepeatsItsAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		lost := false
		s.set(func(s *fakeServer) {
			s.afterOpen = func(*seqledgerv1.OpenSessionRequest) error {
				if !lost {
					lost = true
					return errLost
				}
				return nil
			}
		})
		w := newWriter(t, c, "w")
		if len(s.opens) != 2 || string(s.opens[0].GetAttemptId()) != string(s.opens[1].GetAttemptId()) {
			t.Errorf("want the same attempt twice, got %v", s.opens)
		}
		if w.State().Session != 2 { // behind the ledger's creation
			t.Errorf("want the session of the first copy, got %d", w.State().Session)
		}
	})
}

// TestAReopenEndsWhenSomebodyElseWasFirst: between the eviction and the opening another process started the stream
// anew, so the numbers are theirs. Their session stands if it is there when the Writer asks, as in a ledger that was
// restored before they opened it: there the Writer's own session has expired although theirs is the stream's.
func TestAReopenEndsWhenSomebodyElseWasFirst(t *testing.T) {
	for name, expired := range map[string]bool{"before it asks": true, "after it has asked": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
				w := newWriter(t, c, "w")
				s.ledger.evictAll()
				var theirs uint64
				s.set(func(s *fakeServer) {
					s.onOpen = func(r *seqledgerv1.OpenSessionRequest) error {
						if (r.GetExpectedSession() != 0) != expired {
							return nil
						}
						opened, _ := s.ledger.openSession(&seqledgerv1.OpenSessionRequest{
							Scope: org, ClientId: "w", AttemptId: []byte("somebody else 16"),
						})
						theirs = opened.GetState().GetSession()
						if expired {
							return withDetail(connect.CodeFailedPrecondition, &seqledgerv1.WriteError{
								Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED,
							})
						}
						return nil
					}
				})
				pass(9 * time.Hour)
				check.Is(t, w.Err(), failure.ErrFenced)
				if now := s.ledger.state(org, "w").GetSession(); expired && now != theirs {
					t.Errorf("their session %d was replaced by %d", theirs, now)
				}
			})
		})
	}
}

// TestAReopenWaitsForAFreeStream: TOO_MANY_STREAMS passes when another stream is
// evicted, so it must not end the Writer.
func TestAReopenWaitsForAFreeStream(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		s.ledger.evictAll()
		refused := 0
		s.set(func(s *fakeServer) {
			s.onOpen = func(r *seqledgerv1.OpenSessionRequest) error {
				if refused++; r.GetExpectedSession() == 0 && refused < 20 {
					return withDetail(connect.CodeResourceExhausted, &seqledgerv1.WriteError{
						Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS,
					})
				}
				return nil
			}
		})
		pass(9 * time.Hour)
		if receipt, err := w.Write(t.Context(), payload("1")); err != nil || receipt.GetSequence() != 1 {
			t.Errorf("want a commit once there is room, got %v, %v", receipt, err)
		}
	})
}

// TestACommitDoesNotPutTheKeepAliveOff by more than a third of client_ttl after
// itself: the attempts come 8 h and 16 h behind it, both before the 24 h are
// over, although the server could not be reached at the first.
func TestACommitDoesNotPutTheKeepAliveOff(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		pass(time.Hour)
		wantCommitted(t, burst(t, w, payload("1"))[0], 1)
		s.set(func(s *fakeServer) { s.onOpen = later })
		pass(7 * time.Hour)
		if n := s.openCount(); n != 1 {
			t.Errorf("the commit has refreshed the stream, but %d OpenSession came within 8 h of it", n-1)
		}
		pass(2 * time.Hour)
		if n := s.openCount(); n < 2 {
			t.Error("want an attempt 8 h behind the commit")
		}
		s.set(func(s *fakeServer) { s.onOpen = nil })
		before := s.openCount()
		pass(7 * time.Hour)
		if n := s.openCount(); n != before+1 {
			t.Errorf("want the second attempt 16 h behind the commit, got %d", n-before)
		}
	})
}

// later is the answer of a server that wants to be asked again in a minute.
func later(*seqledgerv1.OpenSessionRequest) error {
	return withDetail(connect.CodeUnavailable,
		&seqledgerv1.WriteError{Code: codeDraining, RetryAfter: durationpb.New(time.Minute)})
}

// pass moves the bubble's clock, and lets everything that is due happen.
func pass(d time.Duration) {
	//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
	time.Sleep(d)
	synctest.Wait()
}
