package direct

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// inBubble runs a test with a client's stream and the server's end of its
// connection, under a clock that jumps.
func inBubble(t *testing.T, test func(t *testing.T, s *Stream, peer net.Conn)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		s := newStream(t.Context(), ours, prototest.Codec{})
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

// TestAServerThatStaysSilentIsGivenUp, whatever is sent to it meanwhile.
func TestAServerThatStaysSilentIsGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Stream, peer net.Conn) {
		result := received(s)
		began := time.Now()
		// Ends with the connection.
		go func() { _, _ = io.Copy(io.Discard, peer) }()
		for range 3 {
			if err := s.Send(frameOf("c", 1)); err != nil {
				break
			}
			<-time.After(lookEvery / 2)
		}
		select {
		case err := <-result:
			t.Fatalf("ended with %v after %s", err, time.Since(began))
		default:
		}
		if err := <-result; !errors.Is(err, ErrSilent) || connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("%v, want ErrSilent", err)
		}
		if waited := time.Since(began); waited < 2*SignEvery || waited > silenceLimit {
			t.Errorf("ended after %s", waited)
		}
	})
}

// TestAServerThatIsHeardIsKept for as long as it is, also if it says something
// only now and then, and a client that has nothing to send gives signs of life.
func TestAServerThatIsHeardIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Stream, peer net.Conn) {
		signs := make(chan int, 1)
		// Ends with the connection, which the end of the test closes.
		go func() {
			n := 0
			for sign := make([]byte, headerBytes); ; n++ {
				if _, err := io.ReadFull(peer, sign); err != nil || !bytes.Equal(sign, make([]byte, headerBytes)) {
					signs <- n
					return
				}
			}
		}()
		const times = 50
		for range times {
			result := received(s)
			<-time.After(2 * SignEvery)
			if _, err := peer.Write(make([]byte, headerBytes)); err != nil {
				t.Fatal(err)
			}
			if err := <-result; err != nil {
				t.Fatal(err)
			}
		}
		_ = s.Close()
		if n := <-signs; n < int(times*2*SignEvery/silenceLimit)*2 {
			t.Errorf("%d signs of life of a client in %s", n, times*2*SignEvery)
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
		<-time.After(10 * lookEvery)
		if s.silent.Load() {
			t.Error("a closed stream was ended as silent, too")
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

// TestADeadlineOfTheHandlerStays: an interrupt must not be undone by the next keepalive, and
// ends once the handler takes it away.
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

// hijacker gives its connection away as net/http does: without deadlines.
type hijacker struct {
	http.ResponseWriter

	conn net.Conn
}

func (h *hijacker) Header() http.Header { return make(http.Header) }

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), h.conn.SetDeadline(time.Time{})
}

// TestWhoTakesNoAnswerIsGivenUp: neither the switch nor the end is waited for
// without a limit.
func TestWhoTakesNoAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]int64{"the switch": 0, "the end": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", Protocol)
				r.Header.Set("Content-Type", contentType)
				handled := Handler(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write([]byte("an end that is not read"))
				}))
				done := make(chan struct{})
				// Ends with the handler; the test waits for it.
				go func() {
					defer close(done)
					handled.ServeHTTP(&hijacker{conn: ours}, r)
				}()
				if taken > 0 {
					head := make([]byte, 4096)
					if _, err := theirs.Read(head); err != nil {
						t.Fatal(err)
					}
				}
				select {
				case <-done:
				case <-time.After(time.Hour):
					t.Error("after an hour the handler still waits")
				}
				_ = theirs.Close()
				<-done
			})
		})
	}
}
