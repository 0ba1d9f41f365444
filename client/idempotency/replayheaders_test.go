package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must.Get(io.WriteString(w, text))(t)
	must.Do(t, w.Close())
	return b.String()
}

func deflated(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	must.Get(io.WriteString(w, text))(t)
	must.Do(t, w.Close())
	return b.String()
}

// A handler of a keyed request is asked for a response without a content coding. What it encodes all the same is
// decoded, for every client and with its fresh fields; what cannot be decoded is replayed only to those that accept it.
func TestReplaysCanBeRead(t *testing.T) {
	t.Parallel()
	const content = `{"requestId":"r-1"}`
	large := gzipped(t, strings.Repeat("0", idempotency.MaxResponse+1))
	for name, test := range map[string]struct {
		coding, body string
		decoded      bool
		accept       map[string]bool
	}{
		"gzip":           {"gzip", gzipped(t, content), true, map[string]bool{"": true, "br": true, "gzip": true}},
		"x-gzip":         {"X-GZIP", gzipped(t, content), true, map[string]bool{"": true}},
		"deflate":        {"deflate", deflated(t, content), true, map[string]bool{"": true}},
		"two codings":    {"deflate, gzip", gzipped(t, deflated(t, content)), true, map[string]bool{"": true}},
		"no gzip at all": {"gzip", "plain", false, map[string]bool{"": false, "gzip": true}},
		"more behind it": {"deflate", deflated(t, content) + "x", false, map[string]bool{"": false, "deflate": true}},
		"cut off":        {"gzip", gzipped(t, content)[:20], false, map[string]bool{"": false, "gzip": true}},
		"too large": {"gzip", large, false,
			map[string]bool{"": false, "br,gzip;q=0.5": true, "gzip;q=0,*": false}},
		"unknown":         {"br", "?", false, map[string]bool{"": false, "gzip": false, "gzip, BR": true, "*": true}},
		"one is unknown":  {"br, gzip", gzipped(t, "?"), false, map[string]bool{"br": false, "gzip, br": true}},
		"identity itself": {"identity", content, false, map[string]bool{"": true, "gzip": true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, func(o *idempotency.Options) { o.FreshFields = []string{"/requestId"} })
			s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
				check.Equal(t, r.Header.Get("Accept-Encoding"), "identity", "the handler is asked for %q")
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", test.coding)
				w.Header().Set("Etag", `"e"`)
				w.Header().Set("Content-Digest", "of the bytes")
				_, _ = io.WriteString(w, test.body)
				if err := http.NewResponseController(w).Flush(); err != nil { // as a proxy does without a length
					t.Error(err)
				}
			}
			first := s.send(header("Accept-Encoding", "gzip"))
			got := s.expect(first, http.StatusOK, "false", 1)
			if test.decoded && (got != content || first.Header.Get("Content-Encoding") != "" ||
				first.Header.Get("Etag") != `W/"e"` || first.Header.Get("Content-Digest") != "") ||
				!test.decoded && (got != test.body || first.Header.Get("Etag") != `"e"`) {
				t.Errorf("the first response: %v %.40q", first.Header, got)
			}
			s.expect(s.send(), http.StatusOK, "true", 1) // without an Accept-Encoding every coding is accepted
			for accept, readable := range test.accept {
				again := s.send(header("Accept-Encoding", accept))
				if !readable {
					s.refused(again, http.StatusNotAcceptable, idempotency.CodeReplayEncoded, idempotency.Reconcile, 1)
					continue
				}
				got := s.expect(again, http.StatusOK, "true", 1)
				if test.decoded && (len(got) != len(content)+33 || !strings.HasPrefix(got, `{"requestId":"`) ||
					again.Header.Get("Content-Encoding") != "") || !test.decoded && test.coding != "identity" &&
					(got != test.body || again.Header.Get("Content-Encoding") != test.coding) {
					t.Errorf("replayed to %q: %v %.40q", accept, again.Header, got)
				}
			}
		})
	}
}

// A replay has the headers of the first response that belong to the response, those that the route names, and nothing
// of one delivery.
func TestReplayedHeaders(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.StoredHeaders = []string{"x-resource-version", "Deprecation"} })
	kept := map[string]string{
		"Cache-Control": "no-store", "Content-Disposition": "inline", "Content-Language": "de",
		"Content-Location": "/jobs/1/v1", "Content-Type": "text/plain", "Etag": `"v1"`,
		"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "Link": "</a>; rel=next", "Location": "/jobs/1",
		"Operation-Location": "/operations/1", "Retry-After": "5", "Vary": "Accept", "X-Resource-Version": "7",
		"Deprecation": "true",
	}
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range kept {
			w.Header().Set(name, value)
		}
		for _, name := range []string{
			"Set-Cookie", "Date", "Www-Authenticate", "Access-Control-Allow-Origin", "X-Other",
		} {
			w.Header().Set(name, "x")
		}
		w.WriteHeader(http.StatusAccepted)
	}
	s.expect(s.send(), http.StatusAccepted, "false", 1)
	again := s.send()
	s.expect(again, http.StatusAccepted, "true", 1)
	own := map[string]bool{}
	for _, name := range []string{
		"Idempotency-Key", "Idempotent-Replayed", "X-Idempotent-Replayed", "Idempotency-Expires",
		"X-Idempotent-Expires", "X-Request-Id", "Content-Length"} {
		own[name] = true
	}
	for name, value := range kept {
		check.Equal(t, again.Header.Get(name), value, "%s is %q", name)
	}
	for name := range again.Header {
		if _, ok := kept[name]; !ok && !own[name] {
			t.Errorf("a replay has %s: %v", name, again.Header[name])
		}
	}
	for _, name := range []string{"Set-Cookie", "date", "Connection", "WWW-Authenticate", "Access-Control-Allow-Origin",
		"Idempotent-Replayed", "Idempotency-Key", "Idempotency-Expires", "X-Request-Id", "Content-Length", "", "a b"} {
		_, err := idempotency.Options{StoredHeaders: []string{name}}.Policy()
		if _, invalid := errors.AsType[*idempotency.InvalidError](err); !invalid {
			t.Errorf("%q may be stored: %v", name, err)
		}
	}
}

// What a server error leaves behind may differ by its status.
func TestServerErrorsByStatus(t *testing.T) {
	t.Parallel()
	by := func(o *idempotency.Options) {
		o.StatusErrors = map[int]idempotency.Disposition{
			http.StatusServiceUnavailable: idempotency.ReleaseKey, http.StatusBadGateway: idempotency.StoreResult,
		}
	}
	for status, runs := range map[int]int64{503: 2, 502: 1, 500: 1} {
		s := newService(t, by)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		s.expect(s.send(), status, "false", 1)
		again := s.send()
		if n := s.charge.runs.Load(); n != runs ||
			(again.Header.Get("Idempotent-Replayed") == "true") != (status == http.StatusBadGateway) {
			t.Errorf("%d: the handler ran %d times, and the repeat got %d", status, n, again.StatusCode)
		}
	}
	e, clients := rpcOn(t, idempotency.Memory(), by)
	for code, runs := range map[connect.Code]int64{connect.CodeUnavailable: 2, connect.CodeInternal: 1} {
		e.runs.Store(0)
		e.serve = func(context.Context, http.Header) error { return connect.NewError(code, errors.New("no")) }
		for range 2 {
			if _, err := clients["Connect"].Write(t.Context(), writeCall("k-"+code.String(), "a")); err == nil {
				t.Error("the call did not fail")
			}
		}
		check.Equal(t, e.runs.Load(), runs, "%v: the call ran %d times", code)
	}
	for _, status := range []int{499, 600} {
		if _, err := (idempotency.Options{
			StatusErrors: map[int]idempotency.Disposition{status: idempotency.ReleaseKey},
		}).Policy(); err == nil {
			t.Errorf("%d is taken for a server error", status)
		}
	}
}

// A key that has no effect because of the method is told, unless a middleware further inside honors it.
func TestIgnoredKeysAreTold(t *testing.T) {
	t.Parallel()
	s := newService(t)
	method := func(method string) func(*http.Request) { return func(r *http.Request) { r.Method = method } }
	for i, m := range []string{http.MethodPut, http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions} {
		answer := s.send(method(m), header("Origin", "https://shop.example"))
		if answer.Header.Get("Idempotent-Ignored") != "true" || s.charge.runs.Load() != int64(i+1) ||
			answer.Header.Get("Idempotent-Replayed") != "" ||
			!strings.Contains(answer.Header.Get("Access-Control-Expose-Headers"), "Idempotent-Ignored") {
			t.Errorf("%s: %v", m, answer.Header)
		}
	}
	unkeyed := func(r *http.Request) { r.Header.Del("Idempotency-Key") }
	for name, change := range map[string]func(*http.Request){
		"POST":              method(http.MethodPost),
		"PUT without a key": func(r *http.Request) { method(http.MethodPut)(r); unkeyed(r) },
	} {
		if answer := s.send(change); answer.Header.Get("Idempotent-Ignored") != "" {
			t.Errorf("%s: %v", name, answer.Header)
		}
	}
	inner := idempotency.Middleware(s.store, idempotency.Options{Methods: []string{http.MethodPut}})(&s.charge)
	w := httptest.NewRecorder()
	idempotency.Middleware(s.store, idempotency.Options{})(inner).ServeHTTP(w, request(method(http.MethodPut)))
	if w.Header().Get("Idempotent-Ignored") != "" || w.Header().Get("Idempotent-Replayed") != "false" {
		t.Errorf("with a middleware inside: %v", w.Header())
	}
}

// A key in the header of other servers has no effect, which a client is told whose repeat would run again.
func TestKeysOfOthersAreTold(t *testing.T) {
	t.Parallel()
	other := func(r *http.Request) {
		r.Header.Del("Idempotency-Key")
		r.Header.Set("X-Idempotency-Key", "k")
	}
	for method, options := range map[string]func(*idempotency.Options){
		http.MethodPost: func(*idempotency.Options) {}, http.MethodPut: func(*idempotency.Options) {},
		http.MethodPatch: func(o *idempotency.Options) { o.Required = true },
	} {
		s := newService(t, options)
		answer := s.send(other, func(r *http.Request) { r.Method = method })
		body := string(must.Get(io.ReadAll(answer.Body))(t))
		if told := answer.Header.Get("Idempotent-Ignored"); method != http.MethodPatch && told != "true" ||
			method == http.MethodPatch && !strings.Contains(body, "X-Idempotency-Key has no effect") {
			t.Errorf("%s: Idempotent-Ignored %q, %s", method, told, body)
		}
	}
	s := newService(t)
	upgrade := s.send(other, header("Upgrade", "websocket"), func(r *http.Request) { r.Method = http.MethodGet })
	if upgrade.Header.Get("Idempotent-Ignored") != "" {
		t.Errorf("an upgrade: %v", upgrade.Header)
	}
	both := s.send(func(r *http.Request) { r.Header.Set("X-Idempotency-Key", "k") })
	if both.Header.Get("Idempotent-Ignored") != "" {
		t.Errorf("with a key that has an effect: %v", both.Header)
	}
	for require := range map[bool]bool{false: true, true: true} {
		_, clients := rpc(t, func(o *idempotency.Options) { o.Required = require })
		for name, c := range clients {
			call := writeCall("", "a")
			call.Header().Set("X-Idempotency-Key", "k")
			answer, err := c.Write(t.Context(), call)
			if !require && (err != nil || answer.Header().Get("Idempotent-Ignored") != "true") ||
				require && (err == nil || !strings.Contains(err.Error(), "X-Idempotency-Key has no effect")) {
				t.Errorf("%s, required %v: %v, %v", name, require, answer, err)
			}
		}
	}
}

// A key has no effect on a call without side effects, nor on a stream: the response tells.
func TestIgnoredKeysOfCallsAreTold(t *testing.T) {
	t.Parallel()
	_, clients := rpc(t)
	for name, c := range clients {
		read := connect.NewRequest(new(seqledgerv1.GetEntityRequest))
		read.Header().Set("Idempotency-Key", `"k"`)
		check.Equal(t, must.Get(c.GetEntity(t.Context(), read))(t).Header().Get("Idempotent-Ignored"), "true",
			"%s: %v", name)
		watch := connect.NewRequest(new(seqledgerv1.WatchRequest))
		watch.Header().Set("Idempotency-Key", `"k"`)
		stream, err := c.Watch(t.Context(), watch)
		must.Do(t, err, "%v", name)
		for stream.Receive() {
			t.Errorf("%s: %v", name, stream.Msg())
		}
		if stream.ResponseHeader().Get("Idempotent-Ignored") != "true" {
			t.Errorf("%s: a stream with %v", name, stream.ResponseHeader())
		}
	}
}
