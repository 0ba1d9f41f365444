package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// rawAnswer sends the text of a request and returns the response, because net/http sends no such requests.
func rawAnswer(t *testing.T, base, text string) *http.Response {
	t.Helper()
	c := must.Get(net.Dial("tcp", strings.TrimPrefix(base, "http://")))(t)
	t.Cleanup(func() { _ = c.Close() })
	must.Get(io.WriteString(c, text))(t)
	answer := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// requests records what a service gets.
type requests struct {
	mu  sync.Mutex
	all []*http.Request
}

func (s *requests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // its trailers follow it
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, r)
	fmt.Fprint(w, "paid ", len(s.all))
}

// last returns the last request.
func (s *requests) last(t *testing.T) *http.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		t.Fatal("the service got no request")
	}
	return s.all[len(s.all)-1]
}

// An offer to go on in HTTP/2 without TLS does not reach the service, which could take it: the connection would lead to
// it past the rules of its route.
func TestNoTunnelOfHTTP2(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
		for _, offer := range []string{"h2c", "H2C", "foo, h2c", "h2c\r\nUpgrade: foo"} {
			if key != "" && strings.Contains(offer, "foo") {
				continue // refused
			}
			service := new(requests)
			base, _ := serve(t, service)
			answer := rawAnswer(t, base, "POST /x HTTP/1.1\r\nHost: x\r\n"+key+
				"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: "+offer+
				"\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 1\r\n\r\na")
			got := service.last(t).Header
			if answer.StatusCode != http.StatusOK || got.Get("Upgrade") != "" || got.Get("Http2-Settings") != "" {
				t.Errorf("%q, %q: status %d, the service gets %v", key, offer, answer.StatusCode, got)
			}
		}
	}
}

// No trailer of a request reaches the service, which may read it as a header that only the gateway may send.
func TestNoTrailersOfRequests(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
		service := new(requests)
		base, _ := serve(t, service)
		rawAnswer(t, base, "POST /x HTTP/1.1\r\nHost: x\r\n"+key+"Transfer-Encoding: chunked\r\n"+
			"Trailer: X-User, Idempotency-Fence\r\n\r\n1\r\na\r\n0\r\nX-User: victim\r\nIdempotency-Fence: 99\r\n\r\n")
		if got := service.last(t); len(got.Trailer) != 0 || got.Header.Get("Trailer") != "" {
			t.Errorf("%q: the service gets the trailers %v", key, got.Trailer)
		}
	}
}

// A client cannot have the proxy remove what a replay_check goes by.
func TestReplayCheckLearnsWhatItIsAbout(t *testing.T) {
	t.Parallel()
	service := new(requests)
	base, _ := serve(t, service, func(s *Settings) { s.ReplayCheck = "GET /may" })
	for _, hidden := range []string{"", "Connection: X-Original-URI, X-Original-Method, Cookie\r\n"} {
		rawAnswer(t, base, "POST /doc/1 HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nCookie: user=1\r\n"+hidden+
			"X-HTTP-Method-Override: DELETE\r\nX-Method-Override: DELETE\r\nContent-Length: 1\r\n\r\na")
	}
	got := service.last(t)
	if got.URL.Path != "/may" || got.Header.Get("X-Original-Method") != "POST" ||
		got.Header.Get("X-Original-Uri") != "/doc/1" || got.Header.Get("Cookie") != "user=1" {
		t.Errorf("the check gets %s %v", got.URL, got.Header)
	}
	for _, name := range idempotency.MethodHeaders {
		check.Equal(t, got.Header.Get(name), "", "the check gets %s: %s", name)
	}
}

// A page can read a response that an informational one came before.
func TestPagesReadBehindHints(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Vary", "Accept")
		_, _ = io.WriteString(w, "paid")
	}), func(s *Settings) { s.CORSOrigins, s.Shared = []string{shop}, false })
	for _, key := range []string{"", "k", "k"} {
		r := fromPage(t, shop, http.MethodPost, base+"/x", key, "a")
		r.Header.Set("Authorization", "me")
		answer := must.Get(http.DefaultClient.Do(r))(t)
		_ = answer.Body.Close()
		vary := strings.Join(answer.Header.Values("Vary"), ",")
		if origins := answer.Header.Values("Access-Control-Allow-Origin"); len(origins) != 1 || origins[0] != shop ||
			!strings.Contains(vary, "Origin") {
			t.Errorf("key %q: allowed %q, Vary %q", key, origins, vary)
		}
	}
}

// A reload that changes what makes a repeat the same request says so, because repeats across it are new requests.
func TestReloadWarnsOfNewIdentities(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(new(requests))
	t.Cleanup(service.Close)
	with := func(routes string, change func(*Settings)) *Config {
		s := plain(service.URL)
		if change != nil {
			change(&s)
		}
		c := must.Get(load(t, s, routes, "127.0.0.1/32"))(t)
		return c
	}
	for name, test := range map[string]struct {
		change func(*Settings)
		routes string
		warns  string
	}{
		"nothing":     {nil, "", ""},
		"a time":      {func(s *Settings) { s.Wait = 1 }, "", ""},
		"principal":   {func(s *Settings) { s.PrincipalHeader = "X-User" }, "", "principal"},
		"shared":      {func(s *Settings) { s.Shared = true }, "", "principal"},
		"fingerprint": {func(s *Settings) { s.Fingerprint = "jcs" }, "", "fingerprint"},
		"a route":     {nil, "routes:\n  - {path: /a, wait: 1s}\n", ""},
		"another one": {nil, "routes:\n  - {path: /a, fingerprint: jcs}\n", "fingerprint"},
	} {
		var log bytes.Buffer
		_, g := start(t, with("", nil), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		g.Reload(with(test.routes, test.change))
		if said := log.String(); strings.Contains(said, "level=WARN") != (test.warns != "") ||
			!strings.Contains(said, test.warns) {
			t.Errorf("%s: the log says %q, want %q", name, said, test.warns)
		}
	}
}

// A client whose repeat meets another fingerprint is not told to take a new key, with which the work would be done
// twice.
func TestRepeatUnderAnotherFingerprint(t *testing.T) {
	t.Parallel()
	service := new(requests)
	upstream := httptest.NewServer(service)
	t.Cleanup(upstream.Close)
	s := plain(upstream.URL)
	s.Shared = true
	configs := map[string]*Config{}
	for _, s.Fingerprint = range []string{"raw", "jcs"} {
		c := must.Get(load(t, s, ""))(t)
		configs[s.Fingerprint] = c
	}
	base, g := start(t, configs["raw"])
	send := func(body string) (int, string) {
		t.Helper()
		answer := must.Get(http.DefaultClient.Do(newRequest(t, http.MethodPost, base+"/x", "k",
			strings.NewReader(body))))(t)
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text)
	}
	if status, _ := send("{}"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	if status, text := send("[]"); status != http.StatusUnprocessableEntity || !strings.Contains(text, "new-key") {
		t.Errorf("another request: %d %s", status, text)
	}
	g.Reload(configs["jcs"])
	if status, text := send("{}"); status != http.StatusConflict || !strings.Contains(text, "reconcile") {
		t.Errorf("under another fingerprint: %d %s", status, text)
	}
	check.Equal(t, len(service.all), 1, "the service got %d requests")
}

// A method that the service takes from a header is part of the request.
func TestOverriddenMethods(t *testing.T) {
	t.Parallel()
	service := new(requests)
	base, _ := serve(t, service)
	for i, want := range []int{200, 200, 422, 422} {
		r := newRequest(t, http.MethodPost, base+"/order/7", "k", strings.NewReader("a"))
		switch i {
		case 0, 1:
			r.Header.Set("X-HTTP-Method-Override", "DELETE")
		case 2:
			r.Header.Set("X-HTTP-Method-Override", "PATCH")
		}
		answer := must.Get(http.DefaultClient.Do(r))(t)
		if _ = answer.Body.Close(); answer.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", i, answer.StatusCode, want)
		}
	}
}
