package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
)

// startDebug serves profiles until the test ends.
func startDebug(t *testing.T) *harness {
	t.Helper()
	s := must.Get(server.New(server.Options{Ledger: openLedger(t, ledger.Options{})}))(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	// Ends with cancel; the cleanup waits for it.
	go func() { served <- s.ServeDebug(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		check.Is(t, <-served, nil, "ServeDebug")
	})
	return &harness{url: "http://" + listener.Addr().String(), h1: transport(t, false), h2: transport(t, false)}
}

func TestDebug(t *testing.T) {
	t.Parallel()
	h := startDebug(t)
	for path, want := range map[string]string{
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/metrics":                       "seqledger_build_info",
	} {
		if status, text := h.get(t, path); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d, want %q in it", path, status, want)
		}
	}
	// The command line may name secrets, and nothing of the API is here.
	for _, path := range []string{"/debug/pprof/cmdline", "/debug/vars", "/seqledger.v1.AdminService/GetStatus", "/"} {
		if status, _ := h.get(t, path); status != http.StatusNotFound {
			t.Errorf("%s: %d, want that it is not there", path, status)
		}
	}
	for header, want := range map[string]int{
		"Host: evil.example": http.StatusForbidden, "Origin: https://evil.example": http.StatusForbidden,
		"Origin: null": http.StatusForbidden, "Sec-Fetch-Site: cross-site": http.StatusForbidden,
		"Sec-Fetch-Site: same-site": http.StatusForbidden, "Via: 1.1 proxy": http.StatusForbidden,
		"Origin: " + h.url: http.StatusOK, "Sec-Fetch-Site: none": http.StatusOK,
		"Sec-Fetch-Site: same-origin": http.StatusOK,
	} {
		request := must.Get(http.NewRequest(http.MethodGet, h.url+"/debug/pprof/", http.NoBody))(t)
		name, value, _ := strings.Cut(header, ": ")
		if request.Header.Set(name, value); name == "Host" {
			request.Host = value
		}
		if status, _, _ := h.do(t, request); status != want {
			t.Errorf("%s: got %d, want %d", header, status, want)
		}
	}
}

func TestDebugRefusesOtherAddresses(t *testing.T) {
	t.Parallel()
	s := must.Get(server.New(server.Options{Ledger: openLedger(t, ledger.Options{})}))(t)
	listener := must.Get(net.Listen("tcp", "0.0.0.0:0"))(t)
	check.Is(t, s.ServeDebug(t.Context(), listener), server.ErrNotLoopback)
	if _, err := listener.Accept(); err == nil {
		t.Error("the listener must be closed")
	}
}

// loopbackPipes is a listener whose connections the test makes.
type loopbackPipes chan net.Conn

func (p loopbackPipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p loopbackPipes) Close() error   { close(p); return nil }
func (p loopbackPipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// A request of the debug port ends, although its client neither sends the body nor reads the answer.
func TestDebugRequestsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, served := make(loopbackPipes), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { served <- server.ServeProfiles(ctx, l, prometheus.NewRegistry()) }() // received below
		connect := func(request string) net.Conn {
			ours, theirs := net.Pipe()
			l <- theirs
			must.Get(io.WriteString(ours, request+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"))(t)
			return ours
		}
		must.Get(io.ReadAll(connect("GET /metrics")))(t)
		unread := connect("GET /debug/pprof/")
		<-time.After(time.Hour) // of the test's clock
		must.Get(io.ReadAll(unread))(t)
		cancel()
		must.Do(t, <-served)
	})
}
