package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// pipeListener accepts connections that a test dials in memory. Inside a bubble of synctest a connection of the kernel
// would hide from the bubble that a goroutine waits for it.
type pipeListener struct {
	dialed chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() *pipeListener {
	l := &pipeListener{dialed: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialed:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// loopbackPipe is a pipe whose address is that of a loopback connection: the server bounds unauthenticated requests by
// address.
type loopbackPipe struct{ net.Conn }

func (loopbackPipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }

// pipeClient is an HTTP/2 client with one connection.
type pipeClient struct {
	http.Client
	mu     sync.Mutex
	dialed int
}

// client returns a client whose connection has carried one request, with the key if there is one. Requests that begin
// together before that would dial a connection each. It must be called in a bubble.
func (l *pipeListener) client(t *testing.T, key string) *pipeClient {
	t.Helper()
	c := new(pipeClient)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		c.mu.Lock()
		c.dialed++
		c.mu.Unlock()
		near, far := net.Pipe()
		select {
		case l.dialed <- loopbackPipe{far}:
			return near, nil
		case <-l.closed:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c.Transport = transport
	first := "/readyz"
	if key != "" {
		first = "/metrics" // which authenticates its caller, as a health check does not
	}
	if code, text := c.send(t, http.MethodGet, first, key, ""); code != http.StatusOK {
		t.Fatal("the first request of a connection:", code, text)
	}
	// The transport hands a new connection to its request first, and only then to later ones.
	synctest.Wait()
	return c
}

// send makes a request and returns its answer; 0 and the error if there is none.
func (c *pipeClient) send(t *testing.T, method, path, key, body string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(read)
}

func (c *pipeClient) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialed
}

// checkWithoutBody begins n health checks whose bodies never arrive, and returns when the server waits for them. It
// must be called in a bubble.
func (c *pipeClient) checkWithoutBody(t *testing.T, n int) {
	t.Helper()
	for range n {
		body, unsent := io.Pipe()
		t.Cleanup(func() { _ = unsent.Close() })
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://localhost/grpc.health.v1.Health/Check", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/grpc")
		go func() { // ends when the server answers, cuts the request, or closes the connection
			if answer, err := c.Do(r); err == nil {
				_ = answer.Body.Close()
			}
		}()
		// The next one begins after this one, so that the order in which they are cut is known.
		synctest.Wait()
	}
}

// Unauthenticated health checks whose bodies do not arrive are bounded, for each connection and for each address, and
// block neither other health checks nor requests with a key. The bubble's time stands still while a request is on its
// way, so however slow the machine is, none of them times out before the next has begun.
func TestHealthChecksWithoutBodiesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, key := newGuardedServer(t, Options{})
		l := newPipeListener()
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }() // ends with stop, at the end of the test
		known := l.client(t, key)
		write := func(c *pipeClient, sequence int) {
			t.Helper()
			body := fmt.Sprintf(`{"scope":{"organization":"acme"},"clientId":"c","sequence":%d,"operations":[{"append":{}}]}`,
				sequence)
			if code, text := c.send(t, http.MethodPost, seqledgerv1connect.LedgerServiceWriteProcedure, key,
				body); code != http.StatusOK {
				t.Errorf("write %d with a key: %d %s", sequence, code, text)
			}
		}
		write(known, 1)
		// expect compares the requests that the server waits for, and those it has cut.
		expect := func(when string, visits, ofAddress, ofConnection int) {
			t.Helper()
			synctest.Wait()
			if n := s.admission.Gauges().Visits; n != int64(visits) {
				t.Errorf("%s: the server waits for %d requests, want %d", when, n, visits)
			}
			_, text := known.send(t, http.MethodGet, "/metrics", key, "")
			for of, want := range map[string]int{"address": ofAddress, "connection": ofConnection} {
				line := fmt.Sprintf("seqledger_gate_refusals_total{gate=\"unauthenticated\",of=%q} %d\n", of, want)
				if !strings.Contains(text, line) {
					t.Errorf("%s: the metrics lack %s", when, line)
				}
			}
		}
		var silent []*pipeClient
		for range 4 {
			c := l.client(t, "")
			c.checkWithoutBody(t, 32)
			silent = append(silent, c)
		}
		expect("128 of an address, 32 of each connection", 128, 0, 0)
		write(known, 2)
		write(l.client(t, key), 3)
		expect("requests with a key", 128, 0, 0)
		if code, text := known.send(t, http.MethodGet, "/healthz", "", ""); code != http.StatusOK {
			t.Error("a health check on a known connection:", code, text)
		}
		expect("one more health check of the address", 96, 1, 0)
		silent[1].checkWithoutBody(t, 1)
		expect("one more health check of a connection", 64, 1, 1)
		for i, c := range silent {
			if n := c.connections(); n != 1 {
				t.Errorf("client %d opened %d connections, want 1", i, n)
			}
		}
		write(known, 4)
		// Of the bubble. The time for a body has passed then, and that for sending an answer has not, which would end
		// the requests, too.
		<-time.After(7 * time.Second)
		expect("after the time for a body", 0, 1, 1)
		write(known, 5)
		stop()
		if err := <-served; err != nil {
			t.Error("Serve:", err)
		}
	})
}
