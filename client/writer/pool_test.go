package writer_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/must"
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

// oneByOne serves connections by hand: handle gets each request with its body read, and
// writes the answer, or closes the connection by returning false.
func oneByOne(t *testing.T, handle func(conn net.Conn, n int, r *http.Request) bool) *fakeServer {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
