package writer_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// watched counts what a server sees of its clients.
type watched struct {
	mu                   sync.Mutex
	open, largest, total int            // connections
	protocols            map[string]int // requests by their HTTP version
	current, most        int            // calls at once
}

func (w *watched) state(_ net.Conn, state http.ConnState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch state {
	case http.StateNew:
		w.open++
		w.total++
		w.largest = max(w.largest, w.open)
	case http.StateClosed, http.StateHijacked:
		w.open--
	}
}

func (w *watched) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		if w.protocols == nil {
			w.protocols = make(map[string]int)
		}
		w.protocols[r.Proto]++
		w.current++
		w.most = max(w.most, w.current)
		w.mu.Unlock()
		defer func() {
			w.mu.Lock()
			w.current--
			w.mu.Unlock()
		}()
		next.ServeHTTP(rw, r)
	})
}

// said returns how many requests came over a protocol.
func (w *watched) said(protocol string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.protocols[protocol]
}

// serveWatched serves a fake and watches its clients. configure may change the server
// before it starts.
func serveWatched(t *testing.T, configure func(*httptest.Server)) (*fakeServer, *watched, *httptest.Server) {
	t.Helper()
	s, w := &fakeServer{ledger: newFakeLedger(), height: 3}, new(watched)
	mux := http.NewServeMux()
	mux.Handle(seqledgerv1connect.NewLedgerServiceHandler(s))
	mux.Handle(seqledgerv1connect.NewAdminServiceHandler(s))
	server := httptest.NewUnstartedServer(w.count(mux))
	server.Config.ConnState = w.state
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	if configure(server); server.TLS == nil {
		server.Start()
	} else {
		server.StartTLS()
	}
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	s.address = server.Listener.Addr().String()
	return s, w, server
}

func ask(ctx context.Context, c *client.Client) error {
	_, err := c.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{Scope: org, ClientId: "x"})
	return err
}

// TestCallsKeepTheirConnections: one after the other, calls need one connection, and as many
// at once as there are callers, up to a bound beyond which they wait.
func TestCallsKeepTheirConnections(t *testing.T) {
	t.Parallel()
	s, w, _ := serveWatched(t, func(*httptest.Server) {})
	c := dial(t, s)
	for range 50 {
		if err := ask(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if w.total != 1 || w.said("HTTP/1.1") != 50 {
		t.Errorf("50 calls took %d connections, and came as %v", w.total, w.protocols)
	}
	var arrived atomic.Int32
	full := make(chan struct{})
	s.set(func(s *fakeServer) {
		s.onRead = func() error {
			if arrived.Add(1) == 256 {
				close(full)
			}
			<-full
			return nil
		}
	})
	manyCalls(t, c, 1000)
	if w.most != 256 || w.largest != 256 {
		t.Errorf("%d calls at once over %d connections, want 256", w.most, w.largest)
	}
}

// TestAClosedClientLeavesNoConnection behind.
func TestAClosedClientLeavesNoConnection(t *testing.T) {
	t.Parallel()
	s, w, _ := serveWatched(t, func(*httptest.Server) {})
	c := dial(t, s)
	manyCalls(t, c, 20)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connections to be closed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.open == 0
	})
}

// TestWhereOnlyHTTP2IsOffered calls go over HTTP/2, without being told, and nothing of them
// is sent twice; where both are offered they go over HTTP/1.1.
func TestWhereOnlyHTTP2IsOffered(t *testing.T) {
	t.Parallel()
	secured := func(protocols ...string) func(*httptest.Server) {
		return func(s *httptest.Server) {
			s.TLS = &tls.Config{NextProtos: protocols}
			s.EnableHTTP2 = true
			s.Config.Protocols.SetUnencryptedHTTP2(false)
			s.Config.Protocols.SetHTTP2(true)
			s.Config.Protocols.SetHTTP1(len(protocols) != 1)
		}
	}
	for name, test := range map[string]struct {
		configure func(*httptest.Server)
		want      string
	}{
		"both":           {func(*httptest.Server) {}, "HTTP/1.1"},
		"h2c alone":      {func(s *httptest.Server) { s.Config.Protocols.SetHTTP1(false) }, "HTTP/2.0"},
		"HTTP/1.1 alone": {func(s *httptest.Server) { s.Config.Protocols.SetUnencryptedHTTP2(false) }, "HTTP/1.1"},
		"TLS, both":      {secured("h2", "http/1.1"), "HTTP/1.1"},
		"TLS, h2 alone":  {secured("h2"), "HTTP/2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w, server := serveWatched(t, test.configure)
			c := dial(t, s, func(o *client.Options) {
				if server.TLS != nil {
					roots := x509.NewCertPool()
					roots.AddCert(server.Certificate())
					o.Server, o.TLS = server.URL, &tls.Config{RootCAs: roots}
				}
			})
			for sequence := uint64(1); sequence <= 5; sequence++ {
				r := numbered(sequence)
				r.IdempotencyKey = machine.FormatUUID([16]byte{byte(sequence)})
				if receipt, err := c.Write(t.Context(), r); err != nil || receipt.GetReplayed() {
					t.Fatal(receipt, err)
				}
			}
			// A refusal is certain, because no other copy was sent.
			r := numbered(6)
			s.ledger.toggle("taken")
			r.IdempotencyKey, r.Operations = machine.FormatUUID([16]byte{6}), []*seqledgerv1.Operation{create("taken")}
			if _, err := c.Write(t.Context(), r); !errors.Is(err, failure.ErrConditionFailed) ||
				errors.Is(err, failure.ErrOutcomeUnknown) {
				t.Error(err)
			}
			if n := w.said(test.want); n != 6 || len(s.unary) != 6 {
				t.Errorf("want 6 calls over %s, got %v", test.want, w.protocols)
			}
			if strings.HasPrefix(name, "TLS") && w.total > 2 {
				t.Errorf("%d connections were opened", w.total)
			}
		})
	}
}

// oneByOne serves connections by hand: handle gets each request with its body read, and
// writes the answer, or closes the connection by returning false.
func oneByOne(t *testing.T, handle func(conn net.Conn, n int, r *http.Request) bool) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var requests atomic.Int32
	// Ends when the cleanup closes the listener, which waits for it and its connections.
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer func() { _ = conn.Close() }()
				reader := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					if r.Method == http.MethodOptions {
						_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
						continue
					}
					if !handle(conn, int(requests.Add(1)), r) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); group.Wait() })
	return &fakeServer{address: listener.Addr().String()}
}

// state is the answer to GetClientState, in JSON's place an empty message.
const emptyAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 0\r\n\r\n"

// TestOddAnswers: each costs an attempt at most, and none confuses the answers of calls.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{
		"nothing":     "",
		"half a head": "HTTP/1.1 200 OK\r\nContent-Ty",
		"half a body": "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 10\r\n\r\nabc",
		"half a chunk": "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n" +
			"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
		"another protocol":           "220 mail.example ESMTP\r\n",
		"a head without end":         "HTTP/1.1 200 OK\r\n",
		"a gateway's own":            "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno!",
		"a gateway's, until it ends": "HTTP/1.0 503 Service Unavailable\r\n\r\nno!",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := oneByOne(t, func(conn net.Conn, n int, r *http.Request) bool {
				_, _ = io.Copy(io.Discard, r.Body)
				if n == 1 {
					_, err := io.WriteString(conn, first)
					for err == nil && name == "a head without end" {
						_, err = io.WriteString(conn, "X: "+strings.Repeat("y", 1000)+"\r\n")
					}
					return false
				}
				_, err := io.WriteString(conn, emptyAnswer)
				return err == nil
			})
			if err := ask(t.Context(), dial(t, s)); err != nil {
				t.Error(err)
			}
		})
	}
	for name, answer := range map[string]string{
		"a word on the way first": "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + emptyAnswer,
		"chunks": "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n" +
			"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"the last one": "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n" +
			"Content-Length: 0\r\nConnection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := oneByOne(t, func(conn net.Conn, _ int, r *http.Request) bool {
				_, _ = io.Copy(io.Discard, r.Body)
				_, err := io.WriteString(conn, answer)
				return err == nil && name != "the last one"
			})
			c := dial(t, s, func(o *client.Options) { o.MaxAttempts = 1 })
			for range 5 {
				if err := ask(t.Context(), c); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestAConnectionThatItsServerClosed while it was idle is not used for a call.
func TestAConnectionThatItsServerClosed(t *testing.T) {
	t.Parallel()
	s, w, server := serveWatched(t, func(*httptest.Server) {})
	c := dial(t, s, func(o *client.Options) { o.MaxAttempts = 1 })
	if err := ask(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	server.CloseClientConnections()
	eventually(t, "the end of the connection", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.open == 0
	})
	if err := ask(t.Context(), c); err != nil {
		t.Errorf("the one attempt met the closed connection: %v", err)
	}
}

// TestAServerThatBecomesAnother: what speaks HTTP/1.1 is replaced by what speaks HTTP/2
// alone, at the same address. Calls find that out.
func TestAServerThatBecomesAnother(t *testing.T) {
	t.Parallel()
	s2 := &fakeServer{ledger: newFakeLedger(), http2Only: true}
	listener, err := freeport.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	s1 := &fakeServer{ledger: s2.ledger}
	stop := s1.serve(listener)
	s1.address = listener.Addr().String()
	c := dial(t, s1)
	if err := ask(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	stop()
	if listener, err = freeport.Listen(t.Context(), s1.address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s2.serve(listener))
	if err := ask(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestAnAnswerThatNobodyAskedFor is not taken for that of the next call.
func TestAnAnswerThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	sent := make(chan struct{}, 1)
	s := oneByOne(t, func(conn net.Conn, n int, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		_, err := io.WriteString(conn, emptyAnswer)
		if n == 1 {
			_, err = io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		}
		sent <- struct{}{}
		return err == nil
	})
	c := dial(t, s, func(o *client.Options) { o.MaxAttempts = 1 })
	for range 3 {
		if err := ask(t.Context(), c); err != nil {
			t.Error(err)
		}
		<-sent
	}
}

// TestACancelledCallLeavesNothingBehind on the connection for the next one.
func TestACancelledCallLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s, _, _ := serveWatched(t, func(*httptest.Server) {})
	c := dial(t, s)
	arrived, release := make(chan struct{}), make(chan struct{})
	s.set(func(s *fakeServer) {
		s.onRead = func() error { close(arrived); <-release; return nil }
	})
	ctx, cancel := context.WithCancel(t.Context())
	// Ends the call once it is under way; ends itself by that.
	go func() { <-arrived; cancel() }()
	if err := ask(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("want the end of the context, got %v", err)
	}
	s.set(func(s *fakeServer) { s.onRead = nil })
	close(release)
	for range 20 {
		if err := ask(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
}

// TestALargeRequestThatIsAnsweredEarly: the server answers and reads no more, as it does when
// a message is too large. The caller gets that answer, and the connection is used no more.
func TestALargeRequestThatIsAnsweredEarly(t *testing.T) {
	t.Parallel()
	refused := `{"code":"invalid_argument","message":"too large"}`
	over := make(chan struct{})
	defer close(over)
	s := oneByOne(t, func(conn net.Conn, n int, r *http.Request) bool {
		if n == 1 {
			_, _ = fmt.Fprintf(conn,
				"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				len(refused), refused)
			<-over
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, err := io.WriteString(conn, emptyAnswer)
		return err == nil
	})
	c := dial(t, s)
	large := numbered(1)
	for range 16 { // more than the buffers of a connection take
		large.Operations = append(large.Operations, sized(1<<10))
	}
	_, err := c.Write(t.Context(), large)
	if e, ok := errors.AsType[*failure.Error](err); !ok || e.ConnectCode != connect.CodeInvalidArgument ||
		e.Message != "too large" {
		t.Errorf("want the server's answer, got %v", err)
	}
	if err := ask(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestLargeRequestsOverOneConnection are written beside reading, and leave the connection
// as they found it.
func TestLargeRequestsOverOneConnection(t *testing.T) {
	t.Parallel()
	s, w, _ := serveWatched(t, func(*httptest.Server) {})
	c := dial(t, s)
	for sequence := uint64(1); sequence <= 20; sequence++ {
		r := numbered(sequence)
		r.IdempotencyKey = machine.FormatUUID([16]byte{byte(sequence)})
		if sequence%2 == 0 {
			r.Operations = []*seqledgerv1.Operation{sized(300), sized(700)}
		}
		if _, err := c.Write(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.ledger.history()); n != 20 || w.total > 3 {
		t.Errorf("%d writes committed, over %d connections", n, w.total)
	}
}

// TestCertificatesThatAreNotTrusted are told at once: nothing was sent, and repeating would
// change nothing.
func TestCertificatesThatAreNotTrusted(t *testing.T) {
	t.Parallel()
	s, w, server := serveWatched(t, func(s *httptest.Server) {
		s.TLS = new(tls.Config)
		s.Config.ErrorLog = nil
	})
	for name, test := range map[string]string{"unknown authority": server.URL, "not TLS": "https://" + plain(t)} {
		c := dial(t, s, func(o *client.Options) { o.Server = test })
		began := time.Now()
		_, err := c.Write(t.Context(), numbered(1))
		if !errors.Is(err, failure.ErrNotExecuted) || errors.Is(err, failure.ErrUnavailable) {
			t.Errorf("%s: got %v after %v", name, err, time.Since(began))
		}
	}
	if len(w.protocols) != 0 {
		t.Errorf("a server that is not trusted got %v", w.protocols)
	}
}

// plain is the address of a server without TLS.
func plain(t *testing.T) string {
	t.Helper()
	_, _, server := serveWatched(t, func(*httptest.Server) {})
	return server.Listener.Addr().String()
}
