package server

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

func TestLoopbackHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost:80": true, "127.0.0.1": true, "127.0.0.1:7400": true, "127.255.1.2:1": true,
		"[::1]": true, "[::1]:7400": true, "[::ffff:127.0.0.1]:1": true,
		"": false, "example.com": false, "example.com:80": false, "localhost.example.com": false, "10.0.0.1": false,
		"0.0.0.0": false, "[::]:80": false, "127.0.0.1.example.com": false, "[::1%eth0]:80": false, "128.0.0.1": false,
		"localhost@example.com": false, "127.1": false, "2130706433": false,
	} {
		check.Equal(t, loopbackHost(host), want, "%q: got %t", host)
	}
}

// A server without access control answers programs on its machine alone: no page whose name leads here, and nobody for
// whom a proxy on the machine speaks. nginx's plain proxy_pass adds no header, but speaks HTTP/1.0. The answer says why
// and what to do.
func TestWhoIsAnsweredWithoutAccessControl(t *testing.T) {
	t.Parallel()
	bare, open := newTestServer(t, Options{}), newTestServer(t, Options{Insecure: true})
	guarded, _ := newGuardedServer(t, Options{})
	foreign := map[string]func(*http.Request){
		"a loopback Host": func(r *http.Request) { r.Host = "evil.example:7400" },
		"HTTP/1.0":        func(r *http.Request) { r.ProtoMinor = 0 },
		"--auth":          func(r *http.Request) { r.ProtoMinor = 0 },
		"--insecure":      func(r *http.Request) { r.Header.Set("Via", "1.1 proxy") },
	}
	for _, name := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via", "X-Forwarded-Port",
		"X-Forwarded-Prefix", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip",
	} {
		foreign["the header "+name] = func(r *http.Request) { r.Header.Set(name, "192.0.2.1") }
	}
	ask := func(s *Server, change func(*http.Request)) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/healthz", http.NoBody)
		change(r)
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	if status, text := ask(bare, func(*http.Request) {}); status != http.StatusOK {
		t.Errorf("a program on this machine: %d %s", status, text)
	}
	for says, change := range foreign {
		if status, text := ask(bare, change); status != http.StatusForbidden || !strings.Contains(text, says) {
			t.Errorf("%s: %d %s", says, status, text)
		}
		for name, s := range map[string]*Server{"with an auth file": guarded, "insecure": open} {
			if status, text := ask(s, change); status != http.StatusOK {
				t.Errorf("%s, %s: %d %s", name, says, status, text)
			}
		}
	}
}

// FuzzLoopbackHost: a Host that is taken for this machine is so for a URL's reader, too, whatever is written around it.
func FuzzLoopbackHost(f *testing.F) {
	for _, host := range []string{
		"localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:7450", "[::1]:80", "[::1]",
		"::1", "[::1%25lo]:80", "[::ffff:127.0.0.1]",
		"localhost.", "127.0.0.1.example.org", "example.org:127", "localhost:80:80",
		"[localhost]", "[127.0.0.1]:1", "0x7f.1", "",
	} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !loopbackHost(host) {
			return
		}
		name := strings.ToLower(host)
		if u, err := url.Parse("http://" + host); err == nil && u.User == nil {
			name = strings.ToLower(u.Hostname())
		} else if h, _, err := net.SplitHostPort(name); err == nil {
			name = h
		}
		name = strings.Trim(name, "[]")
		if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q was taken for this machine", host)
		}
	})
}
