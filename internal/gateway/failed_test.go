package gateway

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// problemOf decodes a problem document.
func problemOf(t *testing.T, text string) (p struct {
	Title, Code, Action string
	Status              int
	Retryable           bool
},
) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Errorf("no problem document: %v: %q", err, text)
	}
	return p
}

// cutOff lists the ways in which a service that has received the request gives no response, with the status that the
// client gets; 0 for a truncated response.
var cutOff = map[string]struct {
	end     func(w http.ResponseWriter, r *http.Request)
	status  int
	timeout time.Duration // of the route: none where the service answers, however long that takes on a busy machine
}{
	"timeout": {
		func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, http.StatusGatewayTimeout,
		50 * time.Millisecond,
	},
	"broken connection": {func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}, http.StatusBadGateway, 0},
	"unasked upgrade": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "echo")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}, http.StatusBadGateway, 0},
	"half a response": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
	}, 0, 0},
}

// If a request has reached the service and gets no complete response, its outcome is unknown. The route's settings for
// the service's own 5xx responses must not apply: with release the work would run twice, and with store a retry would
// get the gateway's 502 as the result.
func TestNoResponseIsUnknown(t *testing.T) {
	t.Parallel()
	for _, errors := range []string{"release", "store", "indeterminate"} {
		for name, test := range cutOff {
			t.Run(errors+", "+name, func(t *testing.T) {
				t.Parallel()
				var executed atomic.Int32
				base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					executed.Add(1)
					test.end(w, r)
				}), func(s *Settings) { s.ServerErrors, s.Timeout = []string{errors}, test.timeout })
				answer, err := http.DefaultClient.Do(newRequest(t, http.MethodPost, base, `"k"`, strings.NewReader("x")))
				if (err != nil) != (test.status == 0) {
					t.Fatal(err)
				}
				if err == nil {
					p := problemOf(t, readAll(t, answer))
					if answer.StatusCode != test.status || p.Status != test.status ||
						p.Code != "outcome-unknown" || p.Action != "reconcile" || p.Retryable {
						t.Errorf("status %d, %+v", answer.StatusCode, p)
					}
				}
				must.Await(t, func() bool { return executed.Load() > 0 }) // perhaps behind the timeout
				status, header, text := send(t, http.MethodPost, base, `"k"`, "x")
				if p := problemOf(t, text); executed.Load() != 1 || status != http.StatusConflict ||
					p.Code != "outcome-unknown" || header.Get(idempotency.HeaderReplayed) != "false" {
					t.Errorf("the repeat: status %d, %+v; executed %d times", status, p, executed.Load())
				}
			})
		}
	}
}

// A body that is streamed to the service, and stops in the middle, leaves the outcome unknown, although the route frees
// the keys of the service's own 408 responses.
func TestASlowBodyIsUnknown(t *testing.T) {
	t.Parallel()
	var executed atomic.Int32
	started := make(chan struct{}, 2)
	base, _ := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		executed.Add(1)
		started <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	}), func(s *Settings) { s.Fingerprint, s.EffectFree = "none", []string{"408"} })
	upload, pipe := io.Pipe()
	r := newRequest(t, http.MethodPost, base, `"k"`, upload)
	go func() { // ends with its writes
		_, _ = io.WriteString(pipe, "first")
		<-started
		_ = pipe.CloseWithError(io.ErrUnexpectedEOF) // the client disconnects
	}()
	if answer, err := http.DefaultClient.Do(r); err == nil {
		_ = answer.Body.Close()
	}
	must.Await(t, func() bool {
		status, _, text := send(t, http.MethodPost, base, `"k"`, "")
		return status == http.StatusConflict && problemOf(t, text).Code == "outcome-unknown"
	})
	check.Equal(t, executed.Load(), 1, "executed %d times")
}

// Nothing was sent to the service: the key is free, whatever the route says about 5xx responses.
func TestUnsentFreesTheKey(t *testing.T) {
	t.Parallel()
	var executed atomic.Int32
	service := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { executed.Add(1) })
	refusing := freeport.Unreachable(t)
	untrusted := httptest.NewTLSServer(service)
	t.Cleanup(untrusted.Close)
	plainText := httptest.NewServer(service)
	t.Cleanup(plainText.Close)
	for name, upstream := range map[string]string{
		"refused connection":       "http://" + refusing,
		"untrusted certificate":    untrusted.URL,
		"TLS to a server without":  strings.Replace(plainText.URL, "http:", "https:", 1),
		"name that is not there":   "http://nowhere.invalid",
		"connection that is reset": "http://" + resetting(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := executed.Load()
			s := plain(upstream)
			s.Shared, s.ServerErrors = true, []string{"store"}
			c := must.Get(load(t, s, ""))(t)
			base, _ := start(t, c)
			wantUnreachable(t, base, name == "connection that is reset")
			check.Equal(t, executed.Load(), before, "executed: got %v")
		})
	}
}

// resetting returns the address of a server that resets each connection without reading from it.
func resetting(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends when the listener is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tcp := conn.(*net.TCPConn) //nolint:forcetypeassert // A listener of TCP has no others.
			// Before something has come, the gateway may not be connected yet, and would know that it sent nothing.
			if raw, err := tcp.SyscallConn(); err == nil {
				_ = raw.Read(func(fd uintptr) bool {
					_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
					return !errors.Is(err, syscall.EAGAIN)
				})
			}
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}()
	return l.Addr().String()
}

// wantUnreachable sends a request with a key twice. The key is free after each, unless connected is set: then the
// gateway cannot tell that the service received nothing.
func wantUnreachable(t *testing.T, base string, connected bool) {
	t.Helper()
	for i := range 2 {
		status, header, text := send(t, http.MethodPost, base, `"k"`, "x")
		p := problemOf(t, text)
		switch {
		case connected && (p.Code != "outcome-unknown" || i == 1 && status != http.StatusConflict):
			t.Errorf("request %d: status %d, %+v", i, status, p)
		case !connected && (status != http.StatusBadGateway || p.Code != "upstream-unreachable" ||
			p.Action != "same-key" || !p.Retryable || header.Get("Retry-After") == ""):
			t.Errorf("request %d: status %d, %v, %+v", i, status, header, p)
		}
	}
}

// An intermediate proxy that refuses to connect has passed nothing on.
func TestAProxyRefusesToConnect(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(proxy.Close)
	s := plain("https://service.invalid")
	s.Shared, s.ServerErrors = true, []string{"store"}
	c := must.Get(load(t, s, ""))(t)
	base, g := start(t, c)
	address := must.Get(url.Parse(proxy.URL))(t)
	g.mu.Lock()
	transport := g.transports[c.fallback.connections].Base
	transport.Proxy = http.ProxyURL(address)
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	g.mu.Unlock()
	wantUnreachable(t, base, false)
}

// A request with a key never meets a connection that its service may be closing: of a service that announces that it
// keeps none, each gets a new one.
func TestKeyedRequestsHaveFreshConnections(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Keep-Alive", "timeout=0")
	}))
	service.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	service.Start()
	t.Cleanup(service.Close)
	s := plain(service.URL)
	s.Shared = true
	c := must.Get(load(t, s, ""))(t)
	base, _ := start(t, c)
	const requests = 10
	for i := range int32(requests) {
		before := conns.Load()
		status, header, text := send(t, http.MethodPost, base, fmt.Sprintf(`"k-%d"`, i), "x")
		if status != http.StatusOK || header.Get("Keep-Alive") != "" || i > 0 && conns.Load() != before+1 {
			t.Errorf("request %d: %d %v %s, over connection %d", i, status, header, text, conns.Load())
		}
	}
}

// A key that has no effect is told where the service gives no response, too.
func TestIgnoredKeyWithoutAResponse(t *testing.T) {
	t.Parallel()
	s := plain("http://" + freeport.Unreachable(t))
	s.Shared = true
	base, _ := start(t, must.Get(load(t, s, ""))(t))
	for method, want := range map[string]string{http.MethodPut: "true", http.MethodPost: ""} {
		answer, _ := exchange(t, newRequest(t, method, base, `"k"`, http.NoBody))
		if got := answer.Header.Get(idempotency.HeaderIgnored); answer.StatusCode != 502 || got != want {
			t.Errorf("%s: %d, Idempotent-Ignored %q, want %q", method, answer.StatusCode, got, want)
		}
	}
	other := newRequest(t, http.MethodPost, base, "", http.NoBody)
	other.Header.Set("X-Idempotency-Key", "k")
	if answer, _ := exchange(t, other); answer.Header.Get(idempotency.HeaderIgnored) != "true" {
		t.Errorf("with another header: %v", answer.Header)
	}
}
