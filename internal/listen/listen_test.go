package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func TestSharesLeaveFiles(t *testing.T) {
	t.Parallel()
	for _, files := range []uint64{0, 1 << 40, 65_536, 20_000, 4_096, 1_024, 512} {
		s := shares(files)
		if s.Clients < leastConnections || s.Peers < 16 || s.Debug < 4 || s.Gateway < 16 || s.Ledger < 8 {
			t.Errorf("%d files: %+v", files, s)
		}
		if files >= 1<<20 || files == 0 {
			check.Equal(t, s.Clients, mostConnections, "%d files: %+v: %v", files, s)
			continue
		}
		left := int(files) - s.Clients - s.Peers - s.Debug
		gateway := int(files) - 2*s.Gateway - s.Ledger - s.Debug
		if files >= 512 && min(left, gateway) < 120 || files >= 1_024 && min(left, gateway) < ownFiles {
			t.Errorf("%d files: %+v leaves %d, beside a gateway %d", files, s, left, gateway)
		}
	}
	if files := filesLimit(); files != 0 && files < leastConnections {
		t.Error("this process may hardly open a file:", files)
	}
}

// served is a server with a bound.
type served struct {
	address  string
	blocking chan struct{} // a request to /wait ends with it
	begun    chan struct{}
}

func serve(t *testing.T, most int, config *tls.Config) *served {
	t.Helper()
	return serveBy(t, Serve, most, config)
}

func serveBy(
	t *testing.T, serve func(*http.Server, net.Listener, int) error, most int, config *tls.Config,
) *served {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &served{address: l.Addr().String(), blocking: make(chan struct{}), begun: make(chan struct{}, 10)}
	hs := Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "in" {
			LetIn(r.Context())
		}
		if r.URL.Path == "/wait" {
			s.begun <- struct{}{}
			select {
			case <-s.blocking:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "ok")
	}), 1<<10, slog.New(slog.DiscardHandler))
	hs.TLSConfig = config
	hs.Protocols = new(http.Protocols)
	hs.Protocols.SetHTTP1(true)
	hs.Protocols.SetUnencryptedHTTP2(config == nil)
	ended := make(chan error, 1)
	go func() { ended <- serve(hs, l, most) }() // ends with Close; the cleanup waits for it
	t.Cleanup(func() {
		_ = hs.Close()
		<-ended
	})
	return s
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c := must.Get(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = c.Close() })
	must.Do(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

// ask sends a request and returns the answer.
func ask(c net.Conn, path string) string {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		return err.Error()
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(answer.Body)
	return fmt.Sprint(string(text), err)
}

// mustServe waits until a new connection is served: those before have their answers, and may not be idle yet.
func (s *served) mustServe(t *testing.T) {
	t.Helper()
	must.Await(t, func() bool { return ask(dial(t, s.address), "/") == "ok<nil>" }, "a new connection to be served")
}

// Idle connections make room for new ones, and those with a request under way do not.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	const most = 4
	s := serve(t, most, nil)
	busy := dial(t, s.address)
	answer := make(chan string, 1)
	go func() { answer <- ask(busy, "/wait") }() // received below
	<-s.begun
	kept := dial(t, s.address)
	must.Equal(t, ask(kept, "/"), "ok<nil>")
	for range 10 * most { // silent ones, and one that asks
		dial(t, s.address)
		s.mustServe(t)
	}
	if _, err := kept.Read(make([]byte, 1)); err == nil {
		t.Error("an idle connection was kept beyond the bound")
	}
	close(s.blocking)
	check.Equal(t, <-answer, "ok<nil>", "a request under way was cut off: %v")
}

// If all connections have a request, a new one is closed at once, and a later one is served.
func TestBusyConnectionsAreKept(t *testing.T) {
	t.Parallel()
	const most = 3
	s := serve(t, most, nil)
	answers := make(chan string, most)
	for range most {
		c := dial(t, s.address)
		go func() { answers <- ask(c, "/wait") }() // received below
		<-s.begun
	}
	if _, err := dial(t, s.address).Read(make([]byte, 1)); err == nil {
		t.Error("a connection beyond the bound was taken")
	}
	close(s.blocking)
	for range most {
		check.Equal(t, <-answers, "ok<nil>")
	}
	for range 2 * most {
		s.mustServe(t)
	}
}

// A connection whose next request is begun, and its header not ended, makes room.
func TestSlowHeadersMakeRoom(t *testing.T) {
	t.Parallel()
	const most = 4
	s := serve(t, most, nil)
	for range 3 * most {
		slow := dial(t, s.address)
		check.Equal(t, ask(slow, "/"), "ok<nil>")
		must.Get(fmt.Fprint(slow, "GET / HTT"))(t)
		s.mustServe(t)
	}
}

// What a client begins and does not end keeps no place of requests that are let in, and none of those is cut.
func TestUnknownConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	const most = 4
	s := serveBy(t, ServeLetIn, most, nil)
	busy, answer := dial(t, s.address), make(chan string, 1)
	go func() { answer <- ask(busy, "/wait?in") }() // received below
	<-s.begun
	for range 3 * most {
		must.Get(fmt.Fprint(dial(t, s.address), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"))(t)
		waits := dial(t, s.address)
		must.Get(fmt.Fprint(waits, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
		<-s.begun
		s.mustServe(t)
	}
	close(s.blocking)
	check.Equal(t, <-answer, "ok<nil>", "a request under way was cut off: %v")
	kept := dial(t, s.address)
	check.Equal(t, ask(kept, "/?in")+ask(kept, "/"), "ok<nil>ok<nil>", "one that was let in: %v")
}

// The same holds for HTTP/2 in cleartext, as nodes speak it.
func TestBusyHTTP2IsKept(t *testing.T) {
	t.Parallel()
	s := serve(t, 1, nil)
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	get := func(path string) error {
		tr := &http.Transport{Protocols: h2}
		t.Cleanup(tr.CloseIdleConnections) // until then it is idle
		answer, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Get("http://" + s.address + path)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		return err
	}
	for range 3 {
		must.Await(t, func() bool { return get("/") == nil }, "a new connection to be served")
	}
	answer := make(chan error, 1)
	go func() { answer <- get("/wait") }() // received below
	<-s.begun
	if err := get("/"); err == nil {
		t.Error("a connection beyond the bound was taken")
	}
	close(s.blocking)
	must.Do(t, <-answer, "a request under way was cut off")
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestShutdownWaitsForRequests and hardly for connections that have not had one.
func TestShutdownWaitsForRequests(t *testing.T) {
	t.Parallel()
	t.Run("bounded", func(t *testing.T) {
		t.Parallel()
		shutDown(t, func(s *http.Server, l net.Listener) error { return Serve(s, l, 10) })
	})
	t.Run("with a listener of its own", func(t *testing.T) { t.Parallel(); shutDown(t, (*http.Server).Serve) })
}

func shutDown(t *testing.T, serve func(*http.Server, net.Listener) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const takes = 3 * time.Second
		s := Server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(takes) }), 1<<10,
			slog.New(slog.DiscardHandler))
		l := make(pipes)
		ended, answer := make(chan error, 1), make(chan string, 1)
		go func() { ended <- serve(s, l) }() // received below
		ours, theirs := net.Pipe()
		l <- theirs
		go func() { answer <- ask(ours, "/") }() // received below
		_, silent := net.Pipe()
		l <- silent
		synctest.Wait()
		began := time.Now()
		must.Do(t, s.Shutdown(t.Context()))
		if took := time.Since(began); took < takes || took > takes+time.Second {
			t.Errorf("ended after %s", took)
		}
		check.Equal(t, <-answer, "<nil>")
		<-ended
	})
}

// The bound holds below TLS, too.
func TestBoundBelowTLS(t *testing.T) {
	t.Parallel()
	test := httptest.NewUnstartedServer(http.NotFoundHandler())
	test.StartTLS()
	defer test.Close()
	s := serve(t, 2, test.TLS.Clone())
	for range 10 {
		dial(t, s.address) // and no handshake
		conn, err := new(tls.Dialer).DialContext(context.Background(), "tcp", s.address)
		if err == nil {
			_ = conn.Close()
			t.Fatal("the certificate is not known here")
		}
		client := &http.Client{Transport: test.Client().Transport.(*http.Transport).Clone()}
		must.Await(t, func() bool { // those before have their answers, and may not be idle yet
			answer, err := client.Get("https://" + s.address)
			return err == nil && answer.Body.Close() == nil
		}, "a new connection to be served")
	}
}

// Every server of the project is made here, but for those of tests, examples and measurements.
func TestServersAreMadeHere(t *testing.T) {
	t.Parallel()
	other := []string{
		"bench", "internal/listen", "cmd/seqledger/faultproxy", "client/idempotency/examples", "client/typescript",
	}
	const root = "../.."
	must.Do(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			if slices.Contains(other, filepath.ToSlash(name)) || name == "bin" || e.Name() == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "http.Server{") {
			t.Errorf("%s makes a server without the bounds of package listen", name)
		}
		return err
	}))
}
