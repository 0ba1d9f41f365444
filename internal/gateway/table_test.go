package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// side is a component in front of a service that handles requests with keys.
type side struct {
	url      string
	store    *spyStore
	executed atomic.Int32 // by the service
}

// sides puts the gateway, and the middleware with the options that the gateway gives it, in front of the same service.
func sides(t *testing.T, service http.Handler, change func(*Settings)) map[string]*side {
	t.Helper()
	settings := plain("")
	change(&settings)
	made := map[string]*side{}
	for _, name := range []string{"gateway", "middleware"} {
		s := &side{store: &spyStore{Store: idempotency.Memory()}}
		counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.executed.Add(1)
			service.ServeHTTP(w, r)
		})
		upstream := httptest.NewServer(counted)
		t.Cleanup(upstream.Close)
		settings.Upstream = upstream.URL
		c := must.Get(load(t, settings, ""))(t)
		if name == "gateway" {
			s.url, _ = start(t, c, func(o *Options) { o.Store = s.store })
		} else {
			direct := httptest.NewServer(idempotency.Middleware(s.store, c.fallback.options)(counted))
			t.Cleanup(direct.Close)
			s.url = direct.URL
		}
		made[name] = s
	}
	return made
}

// tableRequest returns a charge from a page of another origin, by one principal.
func tableRequest(t *testing.T, base string, change ...func(*http.Request)) *http.Request {
	t.Helper()
	r := newRequest(t, http.MethodPost, base+"/charge", `"k"`, strings.NewReader("five"))
	r.Header.Set("Authorization", "Bearer demo")
	r.Header.Set("Origin", "https://shop.example")
	for _, f := range change {
		f(r)
	}
	return r
}

// without removes a header of a request, and with sets its values.
func without(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(name) } }

func with(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[name] = values }
}

// tableRow is a case in which a request with a key is refused.
type tableRow struct {
	settings func(*Settings)
	service  http.HandlerFunc      // nil answers 201
	fail     error                 // of the store
	first    bool                  // the same request comes first, and is answered
	running  bool                  // the same request comes first, and is not answered
	change   []func(*http.Request) // applied to the refused request

	status   int
	code     idempotency.Code
	action   idempotency.Action
	again    bool   // it has Retry-After
	location string // it has a Location
	noEcho   bool   // it has no valid key
	executed int32  // by the service, in total
}

var tableRows = map[string]tableRow{
	"key missing where it is required": {
		settings: func(s *Settings) { s.Required = true }, change: []func(*http.Request){without("Idempotency-Key")},
		status: 400, code: idempotency.CodeKeyMissing, action: idempotency.FixRequest, noEcho: true,
	},
	"key malformed": {
		change: []func(*http.Request){with("Idempotency-Key", `"a`)},
		status: 400, code: idempotency.CodeKeyInvalid, action: idempotency.FixRequest, noEcho: true,
	},
	"key too long": {
		change: []func(*http.Request){with("Idempotency-Key", `"`+strings.Repeat("k", 257)+`"`)},
		status: 400, code: idempotency.CodeKeyInvalid, action: idempotency.FixRequest, noEcho: true,
	},
	"two header lines": {
		change: []func(*http.Request){with("Idempotency-Key", `"a"`, `"b"`)},
		status: 400, code: idempotency.CodeKeyInvalid, action: idempotency.FixRequest, noEcho: true,
	},
	"a list": {
		change: []func(*http.Request){with("Idempotency-Key", `"a", "b"`)},
		status: 400, code: idempotency.CodeKeyInvalid, action: idempotency.FixRequest, noEcho: true,
	},
	"upgrade": {
		change: []func(*http.Request){with("Upgrade", "websocket"), with("Connection", "Upgrade")},
		status: 400, code: idempotency.CodeKeyInvalid, action: idempotency.FixRequest,
	},
	"no principal": {
		change: []func(*http.Request){without("Authorization")},
		status: 400, code: idempotency.CodePrincipalMissing, action: idempotency.FixRequest,
	},
	"other request": {
		first: true, change: []func(*http.Request){otherBody},
		status: 422, code: idempotency.CodeKeyReused, action: idempotency.OtherKey, executed: 1,
	},
	"other request, where the route says 409": {
		settings: func(s *Settings) { s.MismatchStatus = "409" }, first: true, change: []func(*http.Request){otherBody},
		status: 409, code: idempotency.CodeKeyReused, action: idempotency.OtherKey, executed: 1,
	},
	"other request before still running": {
		running: true, change: []func(*http.Request){otherBody},
		status: 422, code: idempotency.CodeKeyReused, action: idempotency.OtherKey, executed: 1,
	},
	"still running": {
		running: true,
		status:  409, code: idempotency.CodeInFlight, action: idempotency.SameKey, again: true, executed: 1,
	},
	"still running after the wait": {
		settings: func(s *Settings) { s.Wait = 20 * time.Millisecond }, running: true,
		status: 409, code: idempotency.CodeInFlight, action: idempotency.SameKey, again: true, executed: 1,
	},
	"outcome unknown": {
		service: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, first: true,
		status: 409, code: idempotency.CodeOutcomeUnknown, action: idempotency.Reconcile, executed: 1,
	},
	"response not kept": {
		settings: func(s *Settings) { s.Stored = "outcome" }, first: true,
		status: 410, code: idempotency.CodeNotRetained, action: idempotency.Reconcile, executed: 1,
	},
	"response not kept, with a Location": {
		service: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/charges/1")
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}, first: true, location: "/charges/1",
		status: 410, code: idempotency.CodeNotRetained, action: idempotency.Reconcile, executed: 1,
	},
	"body too large to compare": {
		settings: func(s *Settings) { s.MaxBody = 3 },
		status:   413, code: idempotency.CodeBodyTooLarge, action: idempotency.FixRequest,
	},
	"quota": {
		fail:   &idempotency.QuotaError{Cause: errors.New("of the secret principal"), RetryAfter: time.Minute},
		status: 429, code: idempotency.CodeQuota, action: idempotency.SameKey, again: true,
	},
	"store unreachable, route closed": {
		fail:   errors.New("dial the secret address"),
		status: 503, code: idempotency.CodeStoreUnavailable, action: idempotency.SameKey, again: true,
	},
}

func otherBody(r *http.Request) {
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader("six!")), 4
	r.GetBody = nil
}

// TestTableOfRefusals checks every case in which a request with a key is refused: it has its status, code, action and
// headers, behind the gateway and behind the middleware, and the service has not seen the request.
func TestTableOfRefusals(t *testing.T) {
	t.Parallel()
	for name, row := range tableRows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := row.settings
			if settings == nil {
				settings = func(*Settings) {}
			}
			arrived, finish := make(chan struct{}, 2), make(chan struct{})
			service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case row.running:
					arrived <- struct{}{}
					<-finish
				case row.service != nil:
					row.service(w, r)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			made := sides(t, service, settings)
			t.Cleanup(func() { close(finish) }) // before the service is closed, which waits for it
			for side, s := range made {
				row.begin(t, s, arrived)
				row.check(t, side, s)
			}
		})
	}
}

// begin does what precedes the refused request.
func (row *tableRow) begin(t *testing.T, s *side, arrived <-chan struct{}) {
	t.Helper()
	switch {
	case row.first:
		_, _ = exchange(t, tableRequest(t, s.url))
	case row.running:
		r := tableRequest(t, s.url)
		r = r.WithContext(context.WithoutCancel(r.Context()))
		// Ends when the service has been told to finish; the server's Close waits for its response.
		go func() {
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_ = answer.Body.Close()
			}
		}()
		<-arrived
	}
	s.store.fail = row.fail
}

// check sends the request twice. Both are refused alike, except for the request id.
func (row *tableRow) check(t *testing.T, side string, s *side) {
	t.Helper()
	ids := map[string]bool{}
	for range 2 {
		answer, text := exchange(t, tableRequest(t, s.url, row.change...))
		header := answer.Header
		p := problemOf(t, text)
		if answer.StatusCode != row.status || p.Status != row.status || p.Code != string(row.code) ||
			p.Action != string(row.action) || p.Retryable != (row.action == idempotency.SameKey) || p.Title == "" {
			t.Errorf("%s: status %d, %+v", side, answer.StatusCode, p)
		}
		echo := `"k"`
		if row.noEcho {
			echo = ""
		}
		for name, want := range map[string]string{
			"Content-Type": "application/problem+json", "Link": "<" + idempotency.Documentation + "#" + p.Code + `>; rel="describedby"`,
			"Cache-Control": "no-store", "Idempotency-Key": echo, "Idempotent-Replayed": "false",
			"X-Idempotent-Replayed": "false", "Idempotency-Expires": "", "Location": row.location,
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", side, name, got, want)
			}
		}
		if (header.Get("Retry-After") != "") != row.again || ids[header.Get("X-Request-Id")] {
			t.Errorf("%s: Retry-After %q, X-Request-Id %q", side, header.Get("Retry-After"), header.Get("X-Request-Id"))
		}
		ids[header.Get("X-Request-Id")] = true
		if strings.Contains(text, "secret") || strings.Contains(text, "five") {
			t.Errorf("%s: it tells of the store, or of the first request: %s", side, text)
		}
		if n := s.executed.Load(); n != row.executed {
			t.Errorf("%s: executed %d times, want %d", side, n, row.executed)
		}
	}
}

// The response headers that a replay has, and those that belong to one delivery, or to one connection.
var (
	keptHeaders = []string{"Content-Type", "Content-Language", "Content-Disposition", "Content-Location", "Location",
		"Operation-Location", "Etag", "Last-Modified", "Link", "Vary", "Retry-After", "Cache-Control"}
	droppedHeaders = []string{"Set-Cookie", "Www-Authenticate", "Authentication-Info",
		"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Age", "Alt-Svc",
		"Strict-Transport-Security", "X-Powered-By", "Authorization"}
)

// TestTableOfHeaders checks that the first response has every header of the service, and that a replay has those that
// are stored, and its own marks.
func TestTableOfHeaders(t *testing.T) {
	t.Parallel()
	service := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range append(keptHeaders, droppedHeaders...) {
			w.Header()[name] = []string{"the service's " + name}
		}
		w.Header().Set("Date", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("X-Request-Id", "the service's id")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "done")
	})
	for side, s := range sides(t, service, func(*Settings) {}) {
		first, _ := exchange(t, tableRequest(t, s.url))
		again, text := exchange(t, tableRequest(t, s.url))
		if again.StatusCode != http.StatusCreated || text != "done" || s.executed.Load() != 1 {
			t.Errorf("%s: %d %q, executed %d times", side, again.StatusCode, text, s.executed.Load())
		}
		for _, name := range append(keptHeaders, droppedHeaders...) {
			was, is := first.Header.Get(name), again.Header.Get(name)
			if was == "" || (is == "the service's "+name) != slices.Contains(keptHeaders, name) {
				t.Errorf("%s: %s was %q, and is replayed as %q", side, name, was, is)
			}
		}
		for answer, replayed := range map[*http.Response]string{first: "false", again: "true"} {
			header := answer.Header
			expires, err := time.Parse(time.RFC3339, header.Get("Idempotency-Expires"))
			if err != nil || time.Until(expires).Round(time.Hour) != 24*time.Hour ||
				header.Get("X-Idempotent-Expires") != header.Get("Idempotency-Expires") ||
				header.Get("Idempotent-Replayed") != replayed || header.Get("X-Idempotent-Replayed") != replayed ||
				header.Get("Idempotency-Key") != `"k"` {
				t.Errorf("%s, replayed %s: %v", side, replayed, header)
			}
			for _, name := range []string{"Idempotency-Key", "Idempotent-Replayed", "X-Idempotent-Replayed",
				"Idempotency-Expires", "X-Idempotent-Expires", "X-Request-Id"} {
				if !strings.Contains(strings.Join(header.Values("Access-Control-Expose-Headers"), ","), name) {
					t.Errorf("%s, replayed %s: a page may not read %s", side, replayed, name)
				}
			}
		}
		if a, b := first.Header.Get("X-Request-Id"), again.Header.Get("X-Request-Id"); a == b || a == "" || b == "" ||
			strings.HasPrefix(again.Header.Get("Date"), "Mon, 02 Jan 2006") {
			t.Errorf("%s: request ids %q and %q, date %q", side, a, b, again.Header.Get("Date"))
		}
	}
}

// TestTableOfStatuses checks what happens to the key after each status of the service, with and without settings in the
// route.
func TestTableOfStatuses(t *testing.T) {
	t.Parallel()
	all := []string{"401", "403", "407", "408", "409", "423", "425", "429"}
	for name, row := range map[string]struct {
		settings func(*Settings)
		statuses []int
		again    int    // 0 for the service's status
		replayed string // of the retry
		executed int32
	}{
		"stored": {
			statuses: []int{200, 201, 202, 204, 299, 300, 302, 303, 308, 400, 402, 404, 405, 410, 418, 422, 451},
			replayed: "true", executed: 1,
		},
		"never stored": {
			statuses: []int{401, 403, 407, 408, 409, 423, 425, 429}, again: 409, replayed: "false", executed: 1,
		},
		"free of effects": {
			settings: func(s *Settings) { s.EffectFree = all },
			statuses: []int{401, 403, 407, 408, 409, 423, 425, 429}, replayed: "false", executed: 2,
		},
		"server errors":           {statuses: []int{500, 501, 503, 599}, again: 409, replayed: "false", executed: 1},
		"server errors, released": {serverErrors("release"), []int{500, 503}, 0, "false", 2},
		"server errors, stored":   {serverErrors("store"), []int{500, 503}, 0, "true", 1},
	} {
		settings := row.settings
		if settings == nil {
			settings = func(*Settings) {}
		}
		service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.Header.Get("X-Status"))
			w.WriteHeader(status)
		})
		for side, s := range sides(t, service, settings) {
			for _, status := range row.statuses {
				send := func() *http.Response {
					number := strconv.Itoa(status)
					answer, _ := exchange(t, tableRequest(t, s.url, with("Idempotency-Key", number),
						with("X-Status", number)))
					return answer
				}
				before := s.executed.Load()
				first, again := send(), send()
				executed := s.executed.Load() - before
				if first.StatusCode != status || first.Header.Get("Idempotent-Replayed") != "false" ||
					again.StatusCode != cmp.Or(row.again, status) ||
					again.Header.Get("Idempotent-Replayed") != row.replayed || executed != row.executed {
					t.Errorf("%s, %s: %d is followed by %d, replayed %q, and executed %d times", name, side,
						first.StatusCode, again.StatusCode, again.Header.Get("Idempotent-Replayed"), executed)
				}
			}
		}
	}
}

func serverErrors(leave string) func(*Settings) {
	return func(s *Settings) { s.ServerErrors = []string{leave} }
}

// The settings of a route for 5xx responses may differ by status, its replays have the headers that it names, and a key
// that has no effect is told.
func TestRouteSettingsOfResponses(t *testing.T) {
	t.Parallel()
	var executed atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		executed.Add(1)
		w.Header().Set("X-Resource-Version", "7")
		w.Header().Set("X-Other", "x")
		w.Header().Set("Idempotent-Ignored", "spoofed")
		if r.Method == http.MethodPost && r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("the service is asked for %q", r.Header.Get("Accept-Encoding"))
		}
		status, _ := strconv.Atoi(r.URL.Query().Get("status")) // 0 for none
		w.WriteHeader(cmp.Or(status, http.StatusCreated))
	}))
	t.Cleanup(service.Close)
	s := plain(service.URL)
	s.Shared = true
	c := must.Get(load(t, s, `routes:
  - {path: /pay, server_errors: {503: release, default: store}, stored_headers: [x-resource-version]}
`))(t)
	base, _ := start(t, c)
	for _, test := range []struct {
		method, target   string
		executed         int32
		replayed, ignore string
	}{
		{http.MethodPost, "/pay?status=503", 2, "false", ""},
		{http.MethodPost, "/pay?status=500", 1, "true", ""},
		{http.MethodPost, "/pay", 1, "true", ""},
		{http.MethodPut, "/pay", 2, "", "true"},
		{http.MethodPut, "/elsewhere", 2, "", "true"},
	} {
		executed.Store(0)
		var header http.Header
		for range 2 {
			_, header, _ = send(t, test.method, base+test.target, strconv.Quote(test.method+test.target), "x")
		}
		if executed.Load() != test.executed || header.Get("Idempotent-Replayed") != test.replayed ||
			header.Get("Idempotent-Ignored") != test.ignore || header.Get("X-Resource-Version") != "7" ||
			test.replayed == "true" && header.Get("X-Other") != "" {
			t.Errorf("%s %s: executed %d times, %v", test.method, test.target, executed.Load(), header)
		}
	}
}
