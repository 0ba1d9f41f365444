package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// inBubble runs a test with a client's end of a connection and the server's side of it, under a clock that jumps.
func inBubble(t *testing.T, test func(t *testing.T, c *ClientConn, peer net.Conn)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := over(t, ours)
		test(t, c, theirs)
		_, _ = theirs.Close(), c.Close()
	})
}

// receive waits for the next message of a stream in a goroutine of its own.
func receive(c *ClientConn) chan error {
	result := make(chan error, 1)
	// Ends with the stream at the latest, which each test closes.
	go func() { result <- c.Receive(new(seqledgerv1.WriteStreamResponse)) }()
	return result
}

// TestASilentServerIsDisconnected, whatever is sent to it meanwhile.
func TestASilentServerIsDisconnected(t *testing.T) {
	inBubble(t, func(t *testing.T, c *ClientConn, peer net.Conn) {
		result := receive(c)
		began := time.Now()
		// Ends with the connection.
		go func() { _, _ = io.Copy(io.Discard, peer) }()
		for range 3 {
			if err := c.Send(frameOf("c", 1)); err != nil {
				break
			}
			<-time.After(receiveEvery / 2)
		}
		select {
		case err := <-result:
			t.Fatalf("ended with %v after %s", err, time.Since(began))
		default:
		}
		if err := <-result; !errors.Is(err, ErrSilent) || connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("%v, want ErrSilent", err)
		}
		if waited := time.Since(began); waited < 2*PingEvery || waited > 3*receiveEvery {
			t.Errorf("ended after %s", waited)
		}
	})
}

// ping is a server's ping.
var ping = []byte{prototest.FramePing, 0}

// TestPingsKeepAStream for as long as they come, and are answered.
func TestPingsKeepAStream(t *testing.T) {
	inBubble(t, func(t *testing.T, c *ClientConn, peer net.Conn) {
		pongs := make(chan int, 1)
		// Ends with the connection, which the end of the test closes.
		go func() {
			n := 0
			for pong := make([]byte, 6); ; n++ {
				if _, err := io.ReadFull(peer, pong); err != nil || pong[0] != prototest.FramePong {
					pongs <- n
					_, _ = io.Copy(io.Discard, peer)
					return
				}
			}
		}()
		result := receive(c)
		const times = 50
		for range times {
			<-time.After(2 * PingEvery)
			must.Get(peer.Write(ping))(t)
		}
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatal(err)
		default:
		}
		_ = c.Close()
		if n := <-pongs; n != times {
			t.Errorf("%d of %d pings were answered", n, times)
		}
	})
}

// TestCloseSendsACloseFrame, and nothing behind it.
func TestCloseSendsACloseFrame(t *testing.T) {
	inBubble(t, func(t *testing.T, c *ClientConn, peer net.Conn) {
		result := receive(c)
		sent := make(chan []byte, 1)
		// Ends with the connection; received below.
		go func() {
			data, _ := io.ReadAll(peer)
			sent <- data
		}()
		must.Do(t, c.Close())
		if data := <-sent; !bytes.Equal(data, prototest.Frame(prototest.FrameClose, []byte{3, 0xe8})) {
			t.Errorf("%x", data)
		}
		check.Equal(t, connect.CodeOf((<-result)), connect.CodeUnavailable)
		<-time.After(10 * receiveEvery)
		if c.silent.Load() {
			t.Error("a closed stream was ended as silent, too")
		}
	})
}

// TestCloseDoesNotWait for a server that reads nothing.
func TestCloseDoesNotWait(t *testing.T) {
	inBubble(t, func(t *testing.T, c *ClientConn, _ net.Conn) {
		began := time.Now()
		_ = c.Close()
		if waited := time.Since(began); waited > closeTimeout {
			t.Errorf("Close waited for %s", waited)
		}
	})
}

// TestAServerThatDoesNotReadIsNotDead: a server whose disk is slow stops reading and goes on sending pings. Their pongs
// wait behind a message without an end of the connection.
func TestAServerThatDoesNotReadIsNotDead(t *testing.T) {
	inBubble(t, func(t *testing.T, c *ClientConn, peer net.Conn) {
		sent, result := make(chan error, 1), receive(c)
		// Ends once the message is read below.
		go func() { sent <- c.Send(frameOf("c", make([]uint64, 5000)...)) }()
		for range 100 {
			<-time.After(PingEvery)
			must.Get(peer.Write(ping))(t)
		}
		server := bufio.NewReader(peer)
		header, err := server.Peek(8)
		if err != nil || header[0] != prototest.FrameBinary || header[1] != 0x80|126 {
			t.Fatalf("%x, %v: want a message", header, err)
		}
		must.Get(server.Discard(8 + int(header[2])<<8 + int(header[3])))(t)
		for range maxPongs {
			pong := make([]byte, 6)
			if _, err := io.ReadFull(server, pong); err != nil || pong[0] != prototest.FramePong {
				t.Fatalf("%x, %v: want a pong", pong, err)
			}
		}
		must.Do(t, <-sent)
		synctest.Wait()
		select {
		case err := <-result:
			t.Error(err)
		default:
		}
		if server.Buffered() > 0 {
			t.Error("more pongs than are kept for a server that does not read")
		}
	})
}

// TestASilentClientIsDisconnected by the server; one that is heard is not.
func TestASilentClientIsDisconnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		w := &serverWire{Conn: ours, reader: ours}
		one := make([]byte, 1)
		for range 10 {
			// Ends at once: the server reads.
			go func() {
				<-time.After(receiveLimit / 2)
				_, _ = theirs.Write(one)
			}()
			must.Get(w.Read(one))(t)
		}
		began := time.Now()
		_, err := w.Read(one)
		timeout, ok := errors.AsType[net.Error](err)
		if !ok || !timeout.Timeout() || time.Since(began) > receiveLimit {
			t.Errorf("%v after %s, want the end of its time", err, time.Since(began))
		}
		_, _ = ours.Close(), theirs.Close()
	})
}

// TestADeadlineOfTheHandlerStays: an interrupt must not be undone by the next read, and ends once the handler takes it
// away.
func TestADeadlineOfTheHandlerStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		w := &serverWire{Conn: ours, reader: ours}
		one := make([]byte, 1)
		must.Do(t, w.SetReadDeadline(time.Unix(1, 0)))
		for range 3 {
			if _, err := w.Read(one); err == nil {
				t.Fatal("a read behind the deadline")
			}
			<-time.After(receiveLimit)
		}
		must.Do(t, w.SetReadDeadline(time.Time{}))
		// Ends at once: the server reads.
		go func() { _, _ = theirs.Write(one) }()
		if _, err := w.Read(one); err != nil {
			t.Errorf("%v although there is no deadline any more", err)
		}
		_, _ = ours.Close(), theirs.Close()
	})
}

// served runs Handler on a connection whose other end it returns.
func served(t *testing.T, handler http.HandlerFunc) (theirs net.Conn, done chan struct{}) {
	t.Helper()
	ours, theirs := net.Pipe()
	r := request(t)
	done = make(chan struct{})
	// Ends with the handler; the test waits for it.
	go func() {
		defer close(done)
		Handler(testOptions(context.Background()), handler).ServeHTTP(fakeWriter{ours}, r)
	}()
	return theirs, done
}

// TestAServerPings also a client that does not answer, for as long as the handler does not read, and disconnects it
// once the handler has read in vain for receiveLimit.
func TestAServerPings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read := make(chan struct{})
		theirs, done := served(t, func(_ http.ResponseWriter, r *http.Request) {
			<-read
			_, _ = r.Body.Read(make([]byte, 1))
		})
		client := bufio.NewReader(theirs)
		must.Get(client.Discard(len("HTTP/1.1 101 OK\r\n\r\n")))(t)
		nextPing := func() {
			header, err := client.Peek(2)
			if err != nil || header[0] != prototest.FramePing {
				t.Fatalf("%x, %v: want a ping", header, err)
			}
			_, _ = client.Discard(2 + int(header[1]))
		}
		began := time.Now()
		for range 100 {
			nextPing()
		}
		if waited := time.Since(began); waited > 101*PingEvery {
			t.Errorf("100 pings took %s", waited)
		}
		close(read)
		// Ends with the connection; the wait for done is behind it.
		go func() { _, _ = io.Copy(io.Discard, client) }()
		began = time.Now()
		<-done
		if waited := time.Since(began); waited > receiveLimit+2*lingerLimit {
			t.Errorf("ended after %s", waited)
		}
		_ = theirs.Close()
	})
}

// TestAHandlerReturnsWhileItsBodyIsRead, as a proxy whose transport still waits for the client: reads end before the
// server reads the client's close frame.
func TestAHandlerReturnsWhileItsBodyIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var body io.Reader
		read := make(chan error, 1)
		next := func() {
			_, err := body.Read(make([]byte, 1))
			read <- err
		}
		theirs, done := served(t, func(_ http.ResponseWriter, r *http.Request) {
			body = r.Body
			go next() // ends with the handler, and the test looks whether it has
			synctest.Wait()
		})
		client := bufio.NewReader(theirs)
		must.Get(client.Discard(len("HTTP/1.1 101 OK\r\n\r\n")))(t)
		must.Get(client.Peek(2))(t) // the close frame
		synctest.Wait()
		if len(read) == 0 || <-read == nil {
			t.Fatal("the read goes on")
		}
		if next(); !errors.Is(<-read, http.ErrBodyReadAfterClose) {
			t.Error("a read after the handler's end")
		}
		_ = theirs.Close()
		<-done
	})
}

// TestUnreadAnswersEndTheConnection: neither the switch nor the end is waited for without a limit.
func TestUnreadAnswersEndTheConnection(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"the switch": false, "the end": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				theirs, done := served(t, func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write([]byte("an end that is not read"))
				})
				if taken {
					must.Get(theirs.Read(make([]byte, 4096)))(t)
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

// TestARefusalAfterTheUpgrade cannot be sent, and ends the connection.
func TestARefusalAfterTheUpgrade(t *testing.T) {
	t.Parallel()
	server := newServer(t, Handler(testOptions(t.Context()), http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not here", http.StatusNotFound) })))
	if _, _, code := received(t, page(t, server, &websocket.DialOptions{})); code != websocket.StatusInternalError {
		t.Errorf("close code %d", code)
	}
}

// refusing is a transport whose server refuses, with a body that does not end.
type refusing struct{ body io.ReadCloser }

func (f refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusForbidden, Body: f.body, Request: r}, nil
}

// TestTheBodyOfARefusalIsNotAwaited: the ordinary stream waits for the answer alone.
func TestTheBodyOfARefusalIsNotAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, _ := io.Pipe()
		began := time.Now()
		_, err := Dial(t.Context(), refusing{body}, "http://localhost/", nil, prototest.Codec{})
		if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Status != http.StatusForbidden ||
			time.Since(began) > 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
