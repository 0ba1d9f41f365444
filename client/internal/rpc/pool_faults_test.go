package rpc

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// peer is the other end of a pool's connections. It answers OPTIONS with options and everything else with answer; an
// empty text is a peer that says nothing.
type peer struct {
	options, answer string
	closes          bool // the connection, behind answer
	// unread leaves the body of a request where it is.
	unread bool
	// before is called before answer, if it is set.
	before func()

	dials, asked, calls atomic.Int32
}

// dial is a dialer.
func (s *peer) dial(context.Context, string, string) (net.Conn, error) {
	s.dials.Add(1)
	near, far := net.Pipe()
	go s.serve(far) // ends with the connection, which the pool closes
	return near, nil
}

func (s *peer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		answer, last := s.options, false
		if r.Method == http.MethodOptions {
			s.asked.Add(1)
		} else {
			s.calls.Add(1)
			answer, last = s.answer, s.closes
		}
		if !s.unread {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		if s.before != nil && r.Method != http.MethodOptions {
			s.before()
		}
		if _, err := io.WriteString(conn, answer); err != nil || last {
			return
		}
		if s.unread && r.Method != http.MethodOptions {
			_, _ = conn.Read(nil) // the client closes: nothing more is read
			return
		}
	}
}

// pool returns a pool of connections to the peer.
func (s *peer) pool(t *testing.T) *pool {
	if s.options == "" {
		s.options = noContent
	}
	p := newPool(s.dial, "server:1", nil)
	t.Cleanup(p.close)
	return p
}

// post sends a body and returns that of the answer.
func (p *pool) post(ctx context.Context, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server:1/x", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := p.RoundTrip(r)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), errors.Join(err, answer.Body.Close())
}

// TestWhichConnectionsAreKept: one on which another answer can follow, and no other. The answer to the next call must
// not be a rest of this one's.
func TestWhichConnectionsAreKept(t *testing.T) {
	t.Parallel()
	const ok, chunked = "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	const two = "Content-Length: 2\r\n\r\nok"
	large := strings.Repeat("b", 2*maxAnswerHeader)
	for name, test := range map[string]struct {
		answer string
		closes bool
		body   string
		kept   bool
		fails  bool
	}{
		"with its length":       {answer: ok + two, body: "ok", kept: true},
		"in chunks":             {answer: chunked + "2\r\nok\r\n0\r\n\r\n", body: "ok", kept: true},
		"without content":       {answer: noContent, kept: true},
		"an error":              {answer: "HTTP/1.1 503 No\r\n" + two, body: "ok", kept: true},
		"informational before":  {answer: "HTTP/1.1 103 Hints\r\n\r\n" + ok + two, body: "ok", kept: true},
		"the last":              {answer: ok + "Connection: close\r\n" + two, body: "ok"},
		"the last, empty":       {answer: "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"},
		"until the end":         {answer: ok + "\r\nok", closes: true, body: "ok"},
		"of an old server":      {answer: "HTTP/1.0 200 OK\r\n" + two, body: "ok"},
		"another protocol":      {answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"},
		"cut off in its body":   {answer: ok + "Content-Length: 9\r\n\r\nok", closes: true, body: "ok", fails: true},
		"cut off in its chunks": {answer: chunked + "9\r\nok", closes: true, body: "ok", fails: true},
		"cut off in its header": {answer: ok + "Content-", closes: true, fails: true},
		"nothing":               {closes: true, fails: true},
		"no HTTP":               {answer: "SSH-2.0-server\r\n\r\n", fails: true},
		"two lengths":           {answer: ok + "Content-Length: 3\r\n" + two, fails: true},
		"a header without end":  {answer: ok + "A: " + large, fails: true},
		"large": {answer: fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", ok, len(large), large), body: large,
			kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &peer{answer: test.answer, closes: test.closes}
			p := s.pool(t)
			body, err := p.post(t.Context(), "x")
			if body != test.body || (err != nil) != test.fails {
				t.Errorf("got %.20q, %v; want %.20q, an error: %v", body, err, test.body, test.fails)
			}
			if kept := p.idleCount() == 1; kept != test.kept || len(p.places) != 0 {
				t.Errorf("the connection is kept: %v, want %v; %d places are taken", kept, test.kept, len(p.places))
			}
		})
	}
}

// TestABodyThatIsNotReadToItsEnd gives its connection up, because the rest would be taken for the next answer.
func TestABodyThatIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	s := &peer{answer: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"}
	p := s.pool(t)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://server:1/x",
		strings.NewReader("x")))(t)
	answer := must.Get(p.RoundTrip(r))(t)
	check.Equal(t, len(p.places), 1, "%d places are taken while an answer is read")
	must.Get(answer.Body.Read(make([]byte, 2)))(t)
	for range 2 { // a second Close does nothing
		if err := answer.Body.Close(); err != nil || p.idleCount() != 0 || len(p.places) != 0 {
			t.Errorf("after Close: %v, %d connections kept, %d places taken", err, p.idleCount(), len(p.places))
		}
	}
	if body, err := p.post(t.Context(), "x"); body != "first" || err != nil || s.dials.Load() != 2 {
		t.Errorf("the next call: %q, %v, %d connections", body, err, s.dials.Load())
	}
}

// TestWhatNobodyAskedFor on an idle connection is not the answer to the next call.
func TestWhatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	const right = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright"
	s := &peer{answer: right + strings.Replace(right, "right", "wrong", 1)}
	p := s.pool(t)
	for n := range 3 {
		if body, err := p.post(t.Context(), "x"); body != "right" || err != nil || int(s.dials.Load()) != n+1 {
			t.Errorf("call %d: %q, %v, on connection %d", n, body, err, s.dials.Load())
		}
	}
}

// TestRequestsThatCannotBeSent leave no connection on which the next request would be taken for a part of them.
func TestRequestsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is gone")
	for name, test := range map[string]struct {
		body   io.Reader
		length int64
		says   string
	}{
		"no length":  {strings.NewReader("x"), -1, "length of the request is not known"},
		"too short":  {strings.NewReader("abc"), 4, "3 bytes instead of 4"},
		"too long":   {strings.NewReader("abcde"), 4, "5 bytes instead of 4"},
		"unreadable": {io.MultiReader(strings.NewReader("ab"), failing{broken}), 4, broken.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &peer{answer: noContent}
			p := s.pool(t)
			body := io.NopCloser(test.body)
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://server:1/x", body))(t)
			r.ContentLength = test.length
			check.ErrorContains(t, check.Err(p.RoundTrip(r)), test.says, "want an error with")
			if s.calls.Load() != 0 || p.idleCount() != 0 || len(p.places) != 0 {
				t.Errorf("%d calls arrived, %d connections are kept, %d places taken", s.calls.Load(), p.idleCount(),
					len(p.places))
			}
			must.Do(t, check.Err(p.post(t.Context(), "x")), "the next call")
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestAnAnswerBeforeTheRequestIsRead: a server may refuse a large request by its header. The call gets that answer,
// and the connection is not used again, because the rest of the request may still be on its way.
func TestAnAnswerBeforeTheRequestIsRead(t *testing.T) {
	t.Parallel()
	s := &peer{answer: "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig", unread: true}
	p := s.pool(t)
	if body, err := p.post(t.Context(), strings.Repeat("x", 4*inlineBody)); body != "big" || err != nil {
		t.Errorf("got %q, %v", body, err)
	}
	if p.idleCount() != 0 || len(p.places) != 0 {
		t.Errorf("%d connections are kept, %d places taken", p.idleCount(), len(p.places))
	}
}

// TestLargeRequests arrive whole, and the memory of one is not kept for the small ones that follow.
func TestLargeRequests(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, err)
	}))
	t.Cleanup(server.Close)
	p := newPool(new(net.Dialer).DialContext, server.Listener.Addr().String(), nil)
	t.Cleanup(p.close)
	for _, size := range []int{0, 1, inlineBody - 1, inlineBody, inlineBody + 1, 8 << 20, 3} {
		want := fmt.Sprint(size, error(nil))
		if body, err := p.post(t.Context(), strings.Repeat("x", size)); body != want || err != nil {
			t.Errorf("of %d bytes: %q, %v", size, body, err)
		}
	}
	if conn := p.takeIdle(); conn == nil || conn.request.Cap() > 2*inlineBody {
		t.Errorf("the connection kept is %v, with the memory of a large request", conn != nil)
	} else {
		_ = conn.Close()
	}
}

// TestAskingForHTTP1 once for a pool: a call could get lost at a server that does not speak it.
func TestAskingForHTTP1(t *testing.T) {
	t.Parallel()
	const tail = " x\r\nContent-Length: 0\r\n\r\n"
	for name, test := range map[string]struct {
		options string
		refused bool
	}{
		"no content":                {noContent, false},
		"a text":                    {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false},
		"not allowed":               {"HTTP/1.1 405" + tail, false},
		"not found":                 {"HTTP/1.1 404" + tail, false},
		"unauthorized":              {"HTTP/1.1 401" + tail, false},
		"of this version, none":     {"HTTP/1.1 505" + tail, true},
		"upgrade":                   {"HTTP/1.1 426" + tail, true},
		"not HTTP/2":                {"HTTP/1.1 464" + tail, true},
		"once":                      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", true},
		"of HTTP/1.0":               {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", true},
		"an HTTP/2 settings frame":  {"\x00\x00\x00\x04\x00\x00\x00\x00\x00", true},
		"a header that has no end":  {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxAnswerHeader), true},
		"not the whole of its text": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // where a peer that says no more costs no time
				s := &peer{options: test.options, answer: noContent}
				p := s.pool(t)
				for n := range 3 {
					_, err := p.post(t.Context(), "x")
					if errors.Is(err, errNotHTTP1) != test.refused || !test.refused && err != nil {
						t.Errorf("call %d: %v", n, err)
					}
				}
				asked, calls := int32(1), int32(3)
				if test.refused {
					asked, calls = 3, 0
				}
				if s.asked.Load() != asked || s.calls.Load() != calls || len(p.places) != 0 {
					t.Errorf("asked %d times, want %d; %d calls sent, want %d; %d places taken", s.asked.Load(), asked,
						s.calls.Load(), calls, len(p.places))
				}
				p.close()
			})
		})
	}
}

// TestASilentServer is not taken for one of HTTP/1.1, within a second; if the caller goes away before, the
// server is not blamed.
func TestASilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far); _ = far.Close() }() // ends with the connection
			return near, nil
		}
		p := newPool(dial, "server:1", nil)
		began := time.Now()
		if _, err := p.post(t.Context(), "x"); !errors.Is(err, errNotHTTP1) || time.Since(began) != askTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), askTimeout/2)
		defer cancel()
		_, err := p.post(ctx, "x")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotHTTP1) || len(p.places) != 0 {
			t.Errorf("a caller that goes away: %v, %d places taken", err, len(p.places))
		}
	})
}

// TestAskingAgain: another server may have the address when a connection failed before its first answer.
func TestAskingAgain(t *testing.T) {
	t.Parallel()
	s := &peer{answer: noContent}
	p := s.pool(t)
	call := func(fails bool, asked int32) {
		t.Helper()
		if _, err := p.post(t.Context(), "x"); (err != nil) != fails || s.asked.Load() != asked {
			t.Errorf("%v; asked %d times, want %d", err, s.asked.Load(), asked)
		}
	}
	call(false, 1)
	conn := p.takeIdle()
	call(false, 1) // a second connection is not asked
	_ = conn.Close()
	s.answer, s.closes = "", true
	call(true, 1) // one that has answered before says nothing new of the server
	call(true, 1) // one that has not
	s.answer, s.closes = noContent, false
	call(false, 2)
}

// TestAClosedPool keeps no connection: those in use are closed when their calls end.
func TestAClosedPool(t *testing.T) {
	t.Parallel()
	s := &peer{answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}
	p := s.pool(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://server:1/x", strings.NewReader("x"))
	must.Do(t, err)
	answer := must.Get(p.RoundTrip(r))(t)
	p.close()
	text, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); string(text) != "ok" || err != nil {
		t.Errorf("the answer under way: %q, %v", text, err)
	}
	if p.idleCount() != 0 || len(p.places) != 0 || p.sweep != nil {
		t.Errorf("%d connections kept, %d places taken, a timer: %v", p.idleCount(), len(p.places), p.sweep != nil)
	}
}

// TestAClosedConnectionIsNotUsed: a server closes idle connections as it likes, and no call must fail for that.
func TestAClosedConnectionIsNotUsed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	p := newPool(new(net.Dialer).DialContext, server.Listener.Addr().String(), nil)
	t.Cleanup(p.close)
	for range 5 {
		must.Get(p.post(t.Context(), "x"))(t)
		server.CloseClientConnections()
		p.mu.Lock()
		conn := p.idle[0]
		p.mu.Unlock()
		must.Await(t, func() bool { return !conn.isOpen() }, "the end of the connection")
	}
}

// TestTLSOfCalls: HTTP/1.1 alone is offered, the server's name is verified, and no server is taken for one without
// HTTP/1.1 because of its certificate.
func TestTLSOfCalls(t *testing.T) {
	t.Parallel()
	serve := func(protocols ...string) (*httptest.Server, *tls.Config) {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Proto+" "+r.Method)
		}))
		server.TLS = &tls.Config{NextProtos: protocols, MinVersion: tls.VersionTLS12}
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		trusted := server.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // It is one.
		return server, trusted
	}
	for name, test := range map[string]struct {
		protocols         []string
		distrust, refused bool
	}{
		"both":          {protocols: []string{"h2", "http/1.1"}},
		"HTTP/1.1":      {protocols: []string{"http/1.1"}},
		"something new": {protocols: []string{"h9"}, refused: true},
		"not trusted":   {protocols: []string{"http/1.1"}, distrust: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, config := serve(test.protocols...)
			if test.distrust {
				config = nil
			}
			base := must.Get(parseServer(server.URL))(t)
			p := newPool(new(net.Dialer).DialContext, base.Host, callTLS(base, config))
			t.Cleanup(p.close)
			body, err := p.post(t.Context(), "x")
			fails := test.refused || test.distrust
			if (err != nil) != fails || !fails && body != "HTTP/1.1 POST" ||
				errors.Is(err, errNotHTTP1) != test.refused {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
}

// TestTLSConfiguration: the caller's is not changed, and its name of the server counts.
func TestTLSConfiguration(t *testing.T) {
	t.Parallel()
	secure := must.Get(parseServer("https://ledger.example:7450"))(t)
	clear := must.Get(parseServer("http://ledger.example:7450"))(t)
	own := &tls.Config{ServerName: "other.example", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
	if got := callTLS(clear, own); got != nil {
		t.Errorf("in clear text: %v", got)
	}
	for config, name := range map[*tls.Config]string{nil: "ledger.example", own: "other.example"} {
		got := callTLS(secure, config)
		if got.ServerName != name || len(got.NextProtos) != 1 || got.NextProtos[0] != "http/1.1" {
			t.Errorf("%s is asked for, and %q offered; want %s", got.ServerName, got.NextProtos, name)
		}
	}
	if own.NextProtos[0] != "h2" || own.ServerName != "other.example" {
		t.Errorf("the caller's configuration is now %+v", own)
	}
}
