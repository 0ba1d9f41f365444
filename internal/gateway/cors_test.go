package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const shop = "https://shop.example"

// fromPage returns a request of a page.
func fromPage(t *testing.T, origin, method, target, key, body string) *http.Request {
	t.Helper()
	r := newRequest(t, method, target, key, strings.NewReader(body))
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	return r
}

// readable reports whether a page may read a response with a header and this status.
func readable(header http.Header, name string) bool {
	exposed := strings.ToLower(strings.Join(header.Values("Access-Control-Expose-Headers"), ","))
	return strings.Contains(exposed, strings.ToLower(name))
}

// A page of a configured origin can read every response: the first, its replays, and the refusals of middleware and
// gateway. A page of another origin can read none.
func TestPagesReadEveryResponse(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // this contradicts the route
		w.Header().Set("Access-Control-Allow-Credentials", "false")
		w.Header().Set("Access-Control-Expose-Headers", "X-Total")
		w.Header().Set("Location", "/orders/1")
		w.Header().Set("X-Version", "7")
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, "ok")
	}))
	t.Cleanup(service.Close)
	gone := "http://" + freeport.Unreachable(t)
	s := plain(service.URL)
	s.CORSOrigins, s.MaxBody = []string{shop, "http://localhost:3000"}, 10
	s.StoredHeaders = []string{"x-version"}
	c := must.Get(load(t, s, "routes:\n- {path: /gone, upstream: '"+gone+"'}\n- {path: /keys, required: true}\n"+
		"- {path: /events, shared: true, cors_origins: ['*']}"))(t)
	base, g := start(t, c)
	for _, test := range []struct {
		path, key, body string
		service, want   int
		busy            bool
		code            idempotency.Code
	}{
		{path: "/orders", key: `"a"`, body: "x", service: 201, want: 201},
		{path: "/orders", key: `"a"`, body: "x", want: 201}, // replayed
		{path: "/orders", key: `"a"`, body: "other", want: 422, code: idempotency.CodeKeyReused},
		{path: "/orders", key: `"b"`, body: "x", service: 500, want: 500},
		{path: "/orders", key: `"b"`, body: "x", want: 409, code: idempotency.CodeOutcomeUnknown},
		{path: "/orders", body: "x", service: 200, want: 200}, // without a key
		{path: "/orders", key: `"`, body: "x", want: 400, code: idempotency.CodeKeyInvalid},
		{path: "/orders", key: `"c"`, body: "much too long", want: 413, code: idempotency.CodeBodyTooLarge},
		{path: "/keys", body: "x", want: 400, code: idempotency.CodeKeyMissing},
		{path: "/gone", key: `"a"`, body: "x", want: 502, code: codeUnreachable},
		{path: "/gone", body: "x", want: 502, code: codeUnreachable},
		{path: "/orders", key: `"a"`, body: "x", want: 503, busy: true, code: codeBusy},
		{path: "/events", key: `"a"`, body: "x", service: 200, want: 200},
	} {
		status.Store(int32(test.service))
		for _, origin := range []string{shop, "https://other.example", ""} {
			if test.busy {
				for range cap(g.requests) {
					g.requests <- struct{}{}
				}
			}
			r := fromPage(t, origin, http.MethodPost, base+test.path, test.key, test.body)
			r.Header.Set("Authorization", "Bearer of "+origin)
			if origin != shop && test.service == 0 && test.code != codeBusy {
				continue // it has no first request
			}
			answer, text := exchange(t, r)
			if test.busy {
				for range cap(g.requests) {
					<-g.requests
				}
			}
			if answer.StatusCode != test.want || !strings.Contains(text, string(test.code)) {
				t.Errorf("%s, key %s: %d %s", test.path, test.key, answer.StatusCode, text)
			}
			allowed, credentials := "", ""
			switch {
			case test.path == "/events" && origin != "":
				allowed = "*"
			case origin == shop:
				allowed, credentials = shop, "true"
			}
			header := answer.Header
			if got := header.Values("Access-Control-Allow-Origin"); strings.Join(got, "|") != allowed ||
				header.Get("Access-Control-Allow-Credentials") != credentials ||
				!slices.Contains(header.Values("Vary"), "Origin") && test.path != "/events" {
				t.Errorf("%s, key %s, from %q, %d: %v", test.path, test.key, origin, answer.StatusCode, header)
			}
			if allowed == "" {
				continue
			}
			for _, name := range []string{
				"Location", "Retry-After", "Link", "X-Request-Id", idempotency.HeaderReplayed, idempotency.HeaderKey,
				"X-Version",
			} {
				if header.Get(name) != "" && !readable(header, name) {
					t.Errorf("%s, key %s, %d: a page may not read %s", test.path, test.key, answer.StatusCode, name)
				}
			}
			if test.service != 0 && header.Get(idempotency.HeaderReplayed) != "true" && !readable(header, "X-Total") {
				t.Errorf("%s: what the service exposes is lost: %v", test.path, header)
			}
		}
	}
}

// The gateway answers a preflight of a route with origins, for every method and header, without counting it among the
// requests in flight. A preflight of another route, and any other OPTIONS request, reach the service.
func TestPreflights(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		w.Header().Set("Access-Control-Allow-Origin", "https://own.example")
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(service.Close)
	c := must.Get(load(t, plain(service.URL), "routes:\n- {path: /a, methods: [POST], cors_origins: ['"+shop+"']}\n"+
		"- {path: /a, methods: [PUT]}\n- {path: /b}"))(t)
	base, g := start(t, c)
	for range cap(g.requests) {
		g.requests <- struct{}{}
	}
	preflight := func(path, origin, method string) http.Header {
		r := fromPage(t, origin, http.MethodOptions, base+path, "", "")
		if method != "" {
			r.Header.Set("Access-Control-Request-Method", method)
			r.Header.Set("Access-Control-Request-Headers", "content-type,idempotency-key")
		}
		answer, _ := exchange(t, r)
		return answer.Header
	}
	header := preflight("/a", shop, "POST")
	if header.Get("Access-Control-Allow-Origin") != shop || header.Get("Access-Control-Allow-Methods") != "POST" ||
		header.Get("Access-Control-Allow-Headers") != "content-type,idempotency-key" ||
		header.Get("Access-Control-Max-Age") != "7200" || header.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("of the route's origin: %v", header)
	}
	if header = preflight("/a", "https://other.example", "POST"); header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("of another origin: %v", header)
	}
	check.Equal(t, reached.Load(), 0, "%d preflights reached the service")
	for range cap(g.requests) {
		<-g.requests
	}
	for _, passed := range [][2]string{{"/b", "POST"}, {"/a", "PUT"}, {"/b", ""}} {
		header := preflight(passed[0], shop, passed[1])
		if header.Get("Access-Control-Allow-Origin") != "https://own.example" {
			t.Errorf("%v: %v", passed, header)
		}
	}
	if header := preflight("/a", shop, ""); header.Get("Access-Control-Allow-Origin") != shop {
		t.Errorf("an OPTIONS that is no preflight: %v", header)
	}
	check.Equal(t, reached.Load(), 4, "%d requests reached the service")
}
