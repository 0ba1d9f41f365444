package writer_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// relay passes bytes between a client and address until freeze is closed; from
// then on it keeps the connection and reads nothing, as a peer does that hangs.
func relay(t *testing.T, address string, freeze chan struct{}) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	over := make(chan struct{})
	var group sync.WaitGroup
	pump := func(to, from net.Conn) {
		defer func() { _ = to.Close() }()
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			select {
			case <-freeze:
				<-over
				return
			default:
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	// Ends when the cleanup closes the listener, and waits for its pumps.
	group.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			// Small, so that what the client sends is stuck in its connection.
			_ = in.(*net.TCPConn).SetReadBuffer(4096)
			out, err := net.Dial("tcp", address)
			if err != nil {
				_ = in.Close()
				return
			}
			// These end with their connections or at the cleanup, which waits.
			group.Go(func() { pump(out, in) })
			group.Go(func() { pump(in, out) })
		}
	})
	t.Cleanup(func() {
		close(over)
		_ = listener.Close()
		group.Wait()
	})
	return listener.Addr().String()
}

// awaitStuck returns once no further write of w gets on its way: the sender is
// inside a Send that does not return.
func awaitStuck(t *testing.T, w *writer.Writer) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for still, before := 0, 0; still < 20; still++ {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the test ended before the sender was stuck")
		}
		if now := writer.InFlight(w); now == 0 || now != before {
			still, before = 0, now
		}
	}
}

// TestCloseDoesNotWaitForASilentPeer: a frame is stuck in a connection whose peer does not
// read. Close must end it by itself; otherwise only the time limit of the transport does, ten
// seconds later.
func TestCloseDoesNotWaitForASilentPeer(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	freeze := make(chan struct{})
	c := dial(t, &fakeServer{address: relay(t, s.address, freeze)})
	w := newWriter(t, c, "w")
	wantCommitted(t, burst(t, w, payload("1"))[0], 1)
	close(freeze)
	big := payload(strings.Repeat("x", 900<<10))
	burst(t, w, big, big, big, big, big, big, big, big)
	awaitStuck(t, w)
	closed := make(chan error)
	// Ends with Close; the test waits for it.
	go func() { closed <- c.Close() }()
	guard := time.NewTimer(8 * time.Second)
	defer guard.Stop()
	var err error
	select {
	case err = <-closed:
	case <-guard.C:
		t.Error("Close waits for a peer that reads nothing")
		err = <-closed
	}
	if end, ok := errors.AsType[*writer.UnsettledError](err); !ok || len(end.Writes) == 0 {
		t.Errorf("want the stuck writes listed, got %v", err)
	}
}

// TestAFenceOutlivesAnAnswerThatNeverComes: the peer is there but does not
// answer the first OpenSession; it is repeated under the same attempt.
func TestAFenceOutlivesAnAnswerThatNeverComes(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.ledger.toggle("taken")
		w := newWriter(t, c, "w")
		never := make(chan struct{})
		defer close(never)
		var drops, opens atomic.Int32
		s.set(func(s *fakeServer) {
			s.onWrite = func(*seqledgerv1.WriteRequest) fault {
				if drops.Add(1) == 1 {
					return faultDrop
				}
				return faultNone
			}
			s.onOpen = func(*seqledgerv1.OpenSessionRequest) error {
				if opens.Add(1) == 1 {
					<-never
					return io.ErrUnexpectedEOF
				}
				return nil
			}
		})
		wantNotExecuted(t, burst(t, w, create("taken"))[0], failure.ErrConditionFailed)
		check.Equal(t, string(s.opens[1].GetAttemptId()), string(s.opens[2].GetAttemptId()),
			"the repeat must carry the same attempt_id: got %v")
	})
}
