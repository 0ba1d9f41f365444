package direct

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// inBubble runs a test with a client's stream and the server's end of its
// connection, under a clock that jumps.
func inBubble(t *testing.T, test func(t *testing.T, s *Stream, peer net.Conn)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		s := newStream(t.Context(), ours, protoCodec{})
		test(t, s, theirs)
		_, _ = s.Close(), theirs.Close()
	})
}

// received waits for the next message of a stream in a goroutine of its own.
func received(s *Stream) chan error {
	result := make(chan error, 1)
	// Ends with the stream at the latest, which each test closes.
	go func() { result <- s.Receive(new(seqledgerv1.WriteStreamResponse)) }()
	return result
}

// TestAServerThatStaysSilentIsGivenUp after it was asked for a sign of life.
func TestAServerThatStaysSilentIsGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Stream, peer net.Conn) {
		result := received(s)
		began := time.Now()
		question := make([]byte, headerBytes)
		if _, err := io.ReadFull(peer, question); err != nil || !bytes.Equal(question, make([]byte, headerBytes)) {
			t.Fatalf("%x, %v: want an empty message", question, err)
		}
		select {
		case err := <-result:
			t.Fatalf("given up with %v before an answer could come", err)
		default:
		}
		if err := <-result; !errors.Is(err, ErrSilent) || connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("%v, want ErrSilent", err)
		}
		if waited := time.Since(began); waited > 4*pingAfter {
			t.Errorf("given up after %s only", waited)
		}
	})
}

// TestAServerThatAnswersIsKept for as long as it does.
func TestAServerThatAnswersIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Stream, peer net.Conn) {
		for range 50 {
			result := received(s)
			question := make([]byte, headerBytes)
			if _, err := io.ReadFull(peer, question); err != nil {
				t.Fatal(err)
			}
			if _, err := peer.Write(question); err != nil {
				t.Fatal(err)
			}
			if err := <-result; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestASlowWayOutIsNoSilence: a long message that leaves bit by bit keeps the
// stream, although nothing can be heard meanwhile.
func TestASlowWayOutIsNoSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Stream, peer net.Conn) {
		result := received(s)
		sent := make(chan error, 1)
		long := frameOf("c")
		for range 40 {
			long.Writes = append(long.Writes, &seqledgerv1.WriteRequest{ClientId: string(make([]byte, 30_000))})
		}
		// Ends when the peer has taken everything; the test waits for it.
		go func() { sent <- s.Send(long) }()
		piece := make([]byte, pieceBytes)
		for {
			if _, err := peer.Read(piece); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			select {
			case err := <-sent:
				if err != nil {
					t.Fatal(err)
				}
				return
			case err := <-result:
				t.Fatalf("given up while it was sending: %v", err)
			case <-time.After(pingAfter - time.Second):
			}
		}
	})
}

// TestNothingIsAskedAfterTheEnd: Close stops the watch.
func TestNothingIsAskedAfterTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Stream, peer net.Conn) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, peer); n > 0 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		<-time.After(10 * pingAfter)
		if s.silent.Load() {
			t.Error("a stream that was closed was given up, too")
		}
	})
}

// TestAClientThatStaysSilentIsGivenUp by the server; one that is heard is kept.
func TestAClientThatStaysSilentIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		a := newAnswer(ours, ours, make(http.Header))
		one := make([]byte, 1)
		for range 10 {
			// Ends at once: the server reads.
			go func() {
				<-time.After(silenceLimit / 2)
				_, _ = theirs.Write(one)
			}()
			if _, err := a.Read(one); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		_, err := a.Read(one)
		timeout, ok := errors.AsType[net.Error](err)
		if !ok || !timeout.Timeout() || time.Since(began) > silenceLimit {
			t.Errorf("%v after %s, want the end of its time", err, time.Since(began))
		}
		_, _ = ours.Close(), theirs.Close()
	})
}

// TestADeadlineOfTheHandlerStays: an interrupt must not be undone by the next
// sign of life, and is over once the handler takes it away.
func TestADeadlineOfTheHandlerStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		a := newAnswer(ours, ours, make(http.Header))
		one := make([]byte, 1)
		if err := a.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := a.Read(one); err == nil {
				t.Fatal("a read behind the deadline")
			}
			<-time.After(silenceLimit)
		}
		if err := a.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		// Ends at once: the server reads.
		go func() { _, _ = theirs.Write(one) }()
		if _, err := a.Read(one); err != nil {
			t.Errorf("%v although there is no deadline any more", err)
		}
		_, _ = ours.Close(), theirs.Close()
	})
}
