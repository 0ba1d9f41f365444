package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const testKey = "8e03978e-40d5-43dd-bc93-6894a57f9324"

// counter counts events.
type counter struct {
	mu     sync.Mutex
	events map[idempotency.Event]int
	calls  map[string]int
}

func newCounter() *counter {
	return &counter{events: map[idempotency.Event]int{}, calls: map[string]int{}}
}

func (c *counter) Count(e idempotency.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[e]++
}

func (c *counter) StoreLatency(call string, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
}

func (c *counter) of(e idempotency.Event) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[e]
}

// charge is a handler that counts its runs.
type charge struct {
	runs atomic.Int64
	// serve may replace the response.
	serve func(w http.ResponseWriter, r *http.Request)
}

func (c *charge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := c.runs.Add(1)
	if c.serve != nil {
		c.serve(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/charges/%d", n))
	w.Header().Set("Set-Cookie", "session=secret")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"requestId":"r-%d","charge":%d}`, n, n)
}

// service is a middleware in front of a charge.
type service struct {
	*testing.T

	charge  charge
	store   idempotency.Store
	metrics *counter
	handler http.Handler
}

func newService(t *testing.T, change ...func(*idempotency.Options)) *service {
	s := &service{T: t, store: idempotency.Memory(), metrics: newCounter()}
	s.use(change...)
	return s
}

// use puts a middleware with other options in front of the same handler.
func (s *service) use(change ...func(*idempotency.Options)) {
	options := idempotency.Options{Settings: idempotency.Settings{Metrics: s.metrics, Wait: -1}}
	for _, c := range change {
		c(&options)
	}
	s.handler = idempotency.Middleware(s.store, options)(&s.charge)
}

// request returns a keyed POST.
func request(change ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/charge", strings.NewReader(`{"amount":5}`))
	r.Header.Set("Authorization", "Bearer demo")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", `"`+testKey+`"`)
	for _, c := range change {
		c(r)
	}
	return r
}

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[name] = values }
}

func body(text string) func(*http.Request) {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	}
}

// send sends a keyed POST.
func (s *service) send(change ...func(*http.Request)) *http.Response {
	s.Helper()
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, request(change...))
	return w.Result()
}

// expect checks a response and how often the handler has run, and returns the body.
func (s *service) expect(answer *http.Response, status int, replayed string, runs int64) string {
	s.Helper()
	content := must.Get(io.ReadAll(answer.Body))(s)
	if answer.StatusCode != status || answer.Header.Get("Idempotent-Replayed") != replayed {
		s.Fatalf("status %d, replayed %q; want %d, %q: %s", answer.StatusCode, answer.Header.Get("Idempotent-Replayed"),
			status,
			replayed, content)
	}
	must.Equal(s, s.charge.runs.Load(), runs, "the handler ran %d times")
	return string(content)
}

// refused checks a problem document.
func (s *service) refused(answer *http.Response, status int, code idempotency.Code, action idempotency.Action,
	runs int64) {
	s.Helper()
	content, _ := io.ReadAll(answer.Body)
	var p struct {
		Type, Title, Detail, Code, Action string
		Status                            int
		Retryable                         bool
	}
	if err := json.Unmarshal(content, &p); err != nil {
		s.Fatalf("%v: %d %s", err, answer.StatusCode, content)
	}
	if answer.StatusCode != status || p.Status != status || p.Code != string(code) || p.Action != string(action) ||
		p.Retryable != (action == idempotency.SameKey) || p.Title == "" || p.Type == "" {
		s.Fatalf("status %d, want %d %s %s: %s", answer.StatusCode, status, code, action, content)
	}
	if answer.Header.Get("Content-Type") != "application/problem+json" ||
		p.Type != idempotency.Documentation+"#"+string(code) ||
		answer.Header.Get("Link") != "<"+p.Type+`>; rel="describedby"` {
		s.Errorf("header %v", answer.Header)
	}
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests ||
		code == idempotency.CodeInFlight {
		if answer.Header.Get("Retry-After") == "" {
			s.Errorf("%s without Retry-After", code)
		}
	}
	must.Equal(s, s.charge.runs.Load(), runs, "the handler ran %d times")
}

func TestMiddlewareReplays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	origin := header("Origin", "https://shop.example")
	first := s.send(origin)
	content := s.expect(first, http.StatusCreated, "false", 1)
	if content != `{"requestId":"r-1","charge":1}` || first.Header.Get("Set-Cookie") == "" {
		t.Errorf("first: %s %v", content, first.Header)
	}
	again := s.send(origin, header("Idempotency-Key", testKey)) // the bare form means the same
	check.Equal(t, s.expect(again, http.StatusCreated, "true", 1), content, "replayed %s")
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Location": "/charges/1", "Set-Cookie": "",
		"Idempotency-Key": `"` + testKey + `"`, "X-Idempotent-Replayed": "true",
		"Idempotency-Expires":  first.Header.Get("Idempotency-Expires"),
		"X-Idempotent-Expires": first.Header.Get("Idempotency-Expires"),
	} {
		check.Equal(t, again.Header.Get(name), want, "%s: %q", name)
	}
	if expires, err := time.Parse(time.RFC3339, first.Header.Get("Idempotency-Expires")); err != nil ||
		expires.Before(time.Now()) {
		t.Errorf("it expires %v, %v", expires, err)
	}
	if a, b := first.Header.Get("X-Request-Id"), again.Header.Get("X-Request-Id"); a == "" || b == "" || a == b {
		t.Errorf("request ids %q and %q", a, b)
	}
	if !strings.Contains(again.Header.Get("Access-Control-Expose-Headers"), "Idempotent-Replayed") {
		t.Errorf("header %v", again.Header)
	}
	if s.metrics.of(idempotency.EventAcquired) != 1 || s.metrics.of(idempotency.EventReplayed) != 1 ||
		s.metrics.calls["complete"] != 1 {
		t.Errorf("%v %v", s.metrics.events, s.metrics.calls)
	}
}

// A request that has no key, or needs none, reaches the handler unchanged.
func TestMiddlewarePassesThrough(t *testing.T) {
	t.Parallel()
	s := newService(t)
	n := int64(0)
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	for name, change := range map[string]func(*http.Request){
		"no key":       func(r *http.Request) { r.Header.Del("Idempotency-Key") },
		"GET":          method(http.MethodGet),
		"HEAD":         method(http.MethodHead),
		"OPTIONS":      method(http.MethodOptions),
		"PUT":          method(http.MethodPut),
		"no principal": func(r *http.Request) { r.Header.Del("Idempotency-Key"); r.Header.Del("Authorization") },
	} {
		for range 2 {
			n++
			if answer := s.send(change); answer.StatusCode != http.StatusCreated || s.charge.runs.Load() != n ||
				answer.Header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%s: %d, %d runs, want %d", name, answer.StatusCode, s.charge.runs.Load(), n)
			}
		}
	}
}

func TestMiddlewareRefusesBadRequests(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) {
		o.Required, o.Fingerprint, o.MaxBody = true, idempotency.FingerprintJCS, 100
	})
	for name, test := range map[string]struct {
		change func(*http.Request)
		status int
		code   idempotency.Code
	}{
		"no key":       {func(r *http.Request) { r.Header.Del("Idempotency-Key") }, 400, idempotency.CodeKeyMissing},
		"an empty key": {header("Idempotency-Key", ""), 400, idempotency.CodeKeyInvalid},
		"an empty one": {header("Idempotency-Key", `""`), 400, idempotency.CodeKeyInvalid},
		"two lines":    {header("Idempotency-Key", `"a"`, `"a"`), 400, idempotency.CodeKeyInvalid},
		"a list":       {header("Idempotency-Key", `"a", "b"`), 400, idempotency.CodeKeyInvalid},
		"a long key":   {header("Idempotency-Key", strings.Repeat("k", 257)), 400, idempotency.CodeKeyInvalid},
		"a space":      {header("Idempotency-Key", `"a b"`), 400, idempotency.CodeKeyInvalid},
		"anonymous": {func(r *http.Request) { r.Header.Del("Authorization") }, 400,
			idempotency.CodePrincipalMissing},
		"two principals": {header("Authorization", "a", "b"), 400, idempotency.CodePrincipalMissing},
		"upgrade":        {header("Upgrade", "websocket"), 400, idempotency.CodeKeyInvalid},
		"CONNECT":        {func(r *http.Request) { r.Method = http.MethodConnect }, 400, idempotency.CodeKeyInvalid},
		"no JSON":        {body("amount=5"), 400, idempotency.CodeBodyInvalid},
		"a duplicate":    {body(`{"amount":5,"amount":6}`), 400, idempotency.CodeBodyInvalid},
		"a huge integer": {body(`{"amount":9007199254740993}`), 400, idempotency.CodeBodyInvalid},
		"a large body":   {body(`"` + strings.Repeat("x", 100) + `"`), 413, idempotency.CodeBodyTooLarge},
	} {
		t.Log(name)
		s.refused(s.send(test.change), test.status, test.code, idempotency.FixRequest, 0)
	}
	s.expect(s.send(), http.StatusCreated, "false", 1)
	s.expect(s.send(body(` { "amount" : 5.0 } `)), http.StatusCreated, "true", 1)
}

// With Strict the field is an Item Structured Header whose value is a String, as in the draft of the field, whose own
// examples are among these.
func TestMiddlewareStrict(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Strict = true })
	for _, field := range []string{testKey, "1", "?1", ":YWJj:", "@1659578233", `("a")`, `"a", "b"`, `"a`} {
		t.Log(field)
		s.refused(s.send(header("Idempotency-Key", field)), 400, idempotency.CodeKeyInvalid, idempotency.FixRequest, 0)
	}
	for i, key := range []string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, `"clkyoesmbgybucifusbbtdsbohtyuuwz"`} {
		s.expect(s.send(header("Idempotency-Key", key)), http.StatusCreated, "false", int64(i+1))
		answer := s.send(header("Idempotency-Key", key))
		s.expect(answer, http.StatusCreated, "true", int64(i+1))
		check.Equal(t, answer.Header.Get("Idempotency-Key"), key)
	}
}

// The policy says how long a key is kept, and a key is kept as long as that.
func TestMiddlewarePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		answer := s.send(func(r *http.Request) { r.Method, r.URL.Path = http.MethodGet, "/.well-known/idempotency" })
		var policy map[string]any
		must.Do(t, json.NewDecoder(answer.Body).Decode(&policy))
		ttl, _ := policy["ttl_seconds"].(float64)
		if policy["header"] != "Idempotency-Key" || policy["fingerprint"] != "raw" || policy["required"] != false ||
			fmt.Sprint(policy["methods"]) != "[POST PATCH]" || policy["documentation"] != idempotency.Documentation ||
			time.Duration(ttl)*time.Second != idempotency.DefaultTTL || s.charge.runs.Load() != 0 {
			t.Errorf("%v", policy)
		}
		patch := func(r *http.Request) { r.Method = http.MethodPatch }
		s.expect(s.send(patch), http.StatusCreated, "false", 1)
		pass(idempotency.DefaultTTL - 1)
		s.expect(s.send(patch), http.StatusCreated, "true", 1)
		pass(1)
		s.expect(s.send(patch), http.StatusCreated, "false", 2)
	})
}

// A key that is remembered for longer than its response runs once: later repeats are told that the response is gone.
func TestMiddlewareExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(o *idempotency.Options) { o.TTL, o.ForgetAfter = time.Hour, idempotency.Never })
		s.expect(s.send(), http.StatusCreated, "false", 1)
		pass(time.Hour - 1)
		s.expect(s.send(), http.StatusCreated, "true", 1)
		pass(1)
		s.refused(s.send(), http.StatusGone, idempotency.CodeExpired, idempotency.Reconcile, 1)
		pass(100 * 365 * 24 * time.Hour)
		s.refused(s.send(), http.StatusGone, idempotency.CodeExpired, idempotency.Reconcile, 1)
		other := s.send(body("{}"))
		s.refused(other, http.StatusUnprocessableEntity, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
		policy := must.Get(io.ReadAll(s.send(func(r *http.Request) {
			r.Method, r.URL.Path = http.MethodGet, "/.well-known/idempotency"
		}).Body))(t)
		if !strings.Contains(string(policy), `"never_forget":true`) {
			t.Errorf("the policy is %s", policy)
		}
	})
}

func TestMiddlewareMismatch(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	for name, change := range map[string]func(*http.Request){
		"body":       body(`{"amount":6}`),
		"media type": header("Content-Type", "text/plain"),
		"query":      func(r *http.Request) { r.URL.RawQuery = "dry-run=1" },
	} {
		t.Log(name)
		answer := s.send(change)
		if strings.Contains(answer.Header.Get("Location"), "charges") {
			t.Errorf("the conflict tells of the stored request: %v", answer.Header)
		}
		s.refused(answer, http.StatusUnprocessableEntity, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
	}
	s.use(func(o *idempotency.Options) { o.MismatchStatus = http.StatusConflict })
	s.refused(s.send(body("{}")), http.StatusConflict, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
}

// A principal never reaches another principal's keys; another path has other keys.
func TestMiddlewareKeepsPrincipalsApart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	s.expect(s.send(header("Authorization", "Bearer other")), http.StatusCreated, "false", 2)
	s.expect(s.send(func(r *http.Request) { r.URL.Path = "/charge/2" }), http.StatusCreated, "false", 3)
	s.use(func(o *idempotency.Options) { o.Shared = true })
	s.expect(s.send(header("Authorization", "Bearer other")), http.StatusCreated, "false", 4)
	s.expect(s.send(func(r *http.Request) { r.Header.Del("Authorization") }), http.StatusCreated, "true", 4)
	s.use(func(o *idempotency.Options) {
		o.Principal = func(_ context.Context, h http.Header) (string, error) { return h.Get("X-User"), nil }
	})
	s.expect(s.send(header("X-User", "a")), http.StatusCreated, "false", 5)
	s.expect(s.send(header("X-User", "a"), header("Authorization", "x")), http.StatusCreated, "true", 5)
	s.refused(s.send(), 400, idempotency.CodePrincipalMissing, idempotency.FixRequest, 5)
}

func TestMiddlewareInFlight(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.charge.serve = func(http.ResponseWriter, *http.Request) {
		s.refused(s.send(), http.StatusConflict, idempotency.CodeInFlight, idempotency.SameKey, 1)
		// A mismatch is reported first.
		s.refused(s.send(body("{}")), http.StatusUnprocessableEntity, idempotency.CodeKeyReused, idempotency.OtherKey,
			1)
	}
	s.expect(s.send(), http.StatusOK, "false", 1)
	s.expect(s.send(), http.StatusOK, "true", 1)
}

// A call whose client disconnects while it waits ends.
func TestMiddlewareWaiterDisconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(o *idempotency.Options) { o.Wait = time.Minute })
		s.charge.serve = func(http.ResponseWriter, *http.Request) {
			ctx, disconnect := context.WithTimeout(t.Context(), time.Second)
			defer disconnect()
			began := time.Now()
			s.handler.ServeHTTP(httptest.NewRecorder(), request().WithContext(ctx))
			check.Equal(t, time.Since(began), time.Second, "the call ends after %v")
		}
		s.expect(s.send(), http.StatusOK, "false", 1)
	})
}

// What happens to the key after each status, with each disposition.
func TestMiddlewareStatuses(t *testing.T) {
	t.Parallel()
	type after struct {
		status   int
		replayed string
		runs     int64
	}
	unknown := after{http.StatusConflict, "false", 1}
	alone := func(o *idempotency.Options) { o.ReleaseStatuses = []int{http.StatusTooManyRequests} }
	type row struct {
		status  int
		options func(*idempotency.Options)
		want    after
	}
	rows := map[string]row{
		"200":         {200, nil, after{200, "true", 1}},
		"202":         {202, nil, after{202, "true", 1}},
		"303":         {303, nil, after{303, "true", 1}},
		"400":         {400, nil, after{400, "true", 1}},
		"404":         {404, nil, after{404, "true", 1}},
		"422":         {422, nil, after{422, "true", 1}},
		"429 alone":   {429, alone, after{429, "false", 2}},
		"403 besides": {403, alone, unknown},
		"500":         {500, nil, unknown},
		"599":         {599, nil, unknown},
		"500 released": {500, func(o *idempotency.Options) { o.ServerErrors = idempotency.ReleaseKey }, after{500,
			"false", 2}},
		"503 stored": {503, func(o *idempotency.Options) { o.ServerErrors = idempotency.StoreResult }, after{503,
			"true", 1}},
		"201 replayed as 200": {201, func(o *idempotency.Options) { o.ReplayStatus = 200 }, after{200, "true", 1}},
		"404 replayed as 404": {404, func(o *idempotency.Options) { o.ReplayStatus = 200 }, after{404, "true", 1}},
	}
	for _, status := range []int{401, 403, 407, 408, 409, 423, 425, 429} {
		rows[fmt.Sprint(status)] = row{status, nil, unknown}
		rows[fmt.Sprint(status, " released")] = row{
			status, func(o *idempotency.Options) { o.ReleaseRefusals = true }, after{status, "false", 2},
		}
	}
	for name, test := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var change []func(*idempotency.Options)
				if test.options != nil {
					change = append(change, test.options)
				}
				s := newService(t, change...)
				s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(test.status) }
				s.expect(s.send(), test.status, "false", 1)
				if test.want == unknown {
					s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
					return
				}
				s.expect(s.send(), test.want.status, test.want.replayed, test.want.runs)
			})
		})
	}
}

// An unknown outcome is reported at once, even to a caller that is waiting.
func TestUnknownAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(o *idempotency.Options) { o.Wait = idempotency.DefaultWait })
		waited := make(chan time.Duration, 1)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			began := time.Now()
			// Ends with its response; received below.
			go func() {
				s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
				waited <- time.Since(began)
			}()
			pass(time.Second)
			w.WriteHeader(http.StatusInternalServerError)
		}
		s.expect(s.send(), http.StatusInternalServerError, "false", 1)
		check.Equal(t, <-waited, time.Second, "a caller that waited heard of it after %v")
	})
}

// If the store does not learn of an unknown outcome, or the next caller may take over, the lease runs out first.
func TestUnknownAfterTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, backend := newService(t), newMapBackend()
		s.store = idempotency.NewStore(backend)
		s.use()
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			backend.setFail(func(string, idempotency.Key) (bool, error) { return false, errors.New("unreachable") })
			w.WriteHeader(http.StatusInternalServerError)
		}
		s.expect(s.send(), http.StatusInternalServerError, "false", 1)
		backend.setFail(nil)
		s.refused(s.send(), http.StatusConflict, idempotency.CodeInFlight, idempotency.SameKey, 1)
		pass(idempotency.DefaultLease)
		s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)

		s = newService(t, func(o *idempotency.Options) { o.OnLeaseExpired = idempotency.TakeOver })
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
		s.expect(s.send(), http.StatusInternalServerError, "false", 1)
		s.refused(s.send(), http.StatusConflict, idempotency.CodeInFlight, idempotency.SameKey, 1)
		pass(idempotency.DefaultLease)
		s.expect(s.send(), http.StatusInternalServerError, "false", 2)
	})
}

func TestMiddlewarePanic(t *testing.T) {
	t.Parallel()
	for disposition, check := range map[idempotency.Disposition]func(*service){
		idempotency.LeaveUnknown: func(s *service) {
			s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
		},
		idempotency.ReleaseKey:  func(s *service) { s.expect(s.send(), http.StatusOK, "false", 2) },
		idempotency.StoreResult: func(s *service) { s.expect(s.send(), http.StatusInternalServerError, "true", 1) },
	} {
		s := newService(t, func(o *idempotency.Options) { o.OnPanic = disposition })
		s.charge.serve = func(http.ResponseWriter, *http.Request) { panic("at the disco") }
		func() {
			defer func() {
				if recover() != "at the disco" {
					t.Error("the panic did not reach the server")
				}
			}()
			s.send()
		}()
		s.charge.serve = func(http.ResponseWriter, *http.Request) {}
		check(s)
	}
}

// The client disconnects; the work goes on under heartbeats, and its result is replayed.
func TestMiddlewareClientDisconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		ctx, disconnect := context.WithCancel(t.Context())
		s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
			disconnect()
			pass(10 * idempotency.DefaultLease)
			if r.Context().Err() != nil {
				t.Error("the work was stopped")
			}
			_, _ = io.WriteString(w, "done")
		}
		s.handler.ServeHTTP(brokenWriter{http.Header{}}, request().WithContext(ctx))
		check.Equal(t, s.expect(s.send(), http.StatusOK, "true", 1), "done")
	})
}

// pass advances the clock of the test's bubble.
func pass(d time.Duration) {
	//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
	time.Sleep(d)
}

// brokenWriter is a closed connection.
type brokenWriter struct{ header http.Header }

func (w brokenWriter) Header() http.Header       { return w.header }
func (w brokenWriter) WriteHeader(int)           {}
func (w brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// An owner whose key was taken over is told to stop, and its result is ignored.
func TestMiddlewareTakeover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newMapBackend()
		s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
		s.use(func(o *idempotency.Options) { o.OnLeaseExpired = idempotency.TakeOver })
		var fences []string
		s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
			fences = append(fences, r.Header.Get("Idempotency-Attempt")+":"+r.Header.Get("Idempotency-Fence"))
			if len(fences) == 2 {
				_, _ = io.WriteString(w, "second")
				return
			}
			// The first owner cannot reach the store for longer than its lease.
			backend.setFail(func(string, idempotency.Key) (bool, error) { return false, errors.New("unreachable") })
			pass(2*idempotency.DefaultLease + time.Second) // avoids the moment of a heartbeat
			backend.setFail(nil)
			s.expect(s.send(), http.StatusOK, "false", 2)
			<-r.Context().Done()
			check.Is(t, context.Cause(r.Context()), idempotency.ErrLeaseLost)
			_, _ = io.WriteString(w, "first")
		}
		s.expect(s.send(), http.StatusOK, "false", 2)
		check.Equal(t, s.expect(s.send(), http.StatusOK, "true", 2), "second")
		if len(fences) != 2 || fences[0] != "1:1" || fences[1] != "2:2" ||
			s.metrics.of(idempotency.EventTakeover) != 1 {
			t.Error(fences, s.metrics.events)
		}
	})
}

// setFail changes how calls fail.
func (b *mapBackend) setFail(fail func(call string, key idempotency.Key) (bool, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = fail
}

// An owner that loses its lease for a while still settles the unknown outcome, because no other owner can have started.
func TestMiddlewareLateResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := newMapBackend()
		s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
		s.use()
		s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
			backend.setFail(func(string, idempotency.Key) (bool, error) { return false, errors.New("unreachable") })
			pass(2 * idempotency.DefaultLease)
			backend.setFail(nil)
			s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
			pass(idempotency.DefaultLease) // a heartbeat notices
			if r.Context().Err() != nil {
				t.Error("the work was stopped")
			}
			_, _ = io.WriteString(w, "late")
		}
		s.expect(s.send(), http.StatusOK, "false", 1)
		check.Equal(t, s.expect(s.send(), http.StatusOK, "true", 1), "late")
		if s.metrics.of(idempotency.EventLeaseLost) != 1 {
			t.Error(s.metrics.events)
		}
	})
}

// A handler can override what its status implies.
func TestMiddlewareHandlerDecides(t *testing.T) {
	t.Parallel()
	for left, check := range map[idempotency.Disposition]func(*service){
		idempotency.ReleaseKey:  func(s *service) { s.expect(s.send(), http.StatusBadGateway, "false", 2) },
		idempotency.StoreResult: func(s *service) { s.expect(s.send(), http.StatusBadGateway, "true", 1) },
		idempotency.LeaveUnknown: func(s *service) {
			s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
		},
	} {
		s := newService(t, func(o *idempotency.Options) { o.ServerErrors = idempotency.StoreResult })
		s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
			idempotency.FromContext(r.Context()).Leave(left)
			w.WriteHeader(http.StatusBadGateway)
		}
		s.expect(s.send(), http.StatusBadGateway, "false", 1)
		check(s)
	}
}

// Headers set before the middleware, informational responses, and trailers are the same as without it.
func TestMiddlewareHeaders(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
		check.Equal(t, w.Header().Get("X-Outer"), "1", "the handler does not see the headers that are set: %v")
		w.Header().Del("X-Removed")
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "done")
		w.Header().Set("X-Sum", "4")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "1")
		w.Header().Set("X-Removed", "1")
		spoofed := r.Header.Get("Idempotency-Fence")
		s.handler.ServeHTTP(w, r)
		check.Equal(t, r.Header.Get("Idempotency-Fence"), spoofed,
			"the middleware has changed the request that it was given: %v")
	}))
	t.Cleanup(server.Close)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/charge",
		strings.NewReader("{}")))(t)
	r.Header = request(header("Idempotency-Fence", "99")).Header
	var hinted string
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { hinted = h.Get("Link"); return nil },
	}))
	answer := must.Get(http.DefaultClient.Do(r))(t)
	s.expect(answer, http.StatusOK, "false", 1)
	if hinted == "" || answer.Header.Get("Link") != "" || answer.Header.Get("X-Outer") != "1" ||
		answer.Header.Get("X-Removed") != "" || answer.Trailer.Get("X-Sum") != "4" {
		t.Errorf("hint %q, %v, trailers %v", hinted, answer.Header, answer.Trailer)
	}
}

// watchingStore is a store that observes each Complete.
type watchingStore struct {
	idempotency.Store

	complete func()
}

func (s watchingStore) Complete(
	ctx context.Context, owner *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	s.complete()
	return s.Store.Complete(ctx, owner, result)
}

// A client sees a response only after its result is stored.
func TestMiddlewareHoldsTheResponse(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	completed := false
	s := &service{T: t, metrics: newCounter()}
	s.store = watchingStore{idempotency.Memory(), func() {
		completed = true
		if w.Body.Len() > 0 {
			t.Error("the response was sent before its result was stored")
		}
	}}
	s.use()
	s.handler.ServeHTTP(w, request())
	if !completed || w.Body.Len() == 0 {
		t.Errorf("completed %v, %d bytes", completed, w.Body.Len())
	}
}

// Neither the client nor the handler can set the headers that belong to the middleware.
func TestMiddlewareStripsSpoofedHeaders(t *testing.T) {
	t.Parallel()
	s := newService(t)
	spoofed := []string{"Idempotency-Attempt", "Idempotency-Fence", "Idempotent-Replayed", "X-Idempotent-Replayed",
		"Idempotency-Expires"}
	var change []func(*http.Request)
	for _, name := range spoofed {
		change = append(change, header(name, "99"))
	}
	s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			if r.Header.Get("Idempotency-Attempt") != "1" || r.Header.Get("Idempotency-Fence") != "1" {
				t.Errorf("the handler gets %v", r.Header)
			}
			if o := idempotency.FromContext(r.Context()); o == nil || o.Token() != 1 || o.Attempt() != 1 {
				t.Errorf("the handler's owner is %+v", o)
			}
			for _, name := range append(spoofed, "Idempotency-Key") {
				w.Header().Set(name, "spoofed")
			}
			return
		}
		for _, name := range spoofed {
			check.Equal(t, r.Header.Get(name), "", "the handler gets %s: %s", name)
		}
	}
	answer := s.send(change...)
	s.expect(answer, http.StatusOK, "false", 1)
	for name, values := range answer.Header {
		if slices.Contains(values, "spoofed") {
			t.Errorf("the client gets %s", name)
		}
	}
	s.send(append(change, func(r *http.Request) { r.Header.Del("Idempotency-Key") })...)
}

// A stream is delivered as it is written; its outcome is stored without the body.
func TestMiddlewareStreams(t *testing.T) {
	t.Parallel()
	s := newService(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler.ServeHTTP(w,
			r)
	}))
	t.Cleanup(server.Close)
	next := make(chan struct{})
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Location", "/jobs/1")
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush() //nolint:forcetypeassert // Every handler of events does this.
		<-next
		_, _ = io.WriteString(w, "data: 2\n\n")
	}
	post := func() *http.Response {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/charge", strings.NewReader("{}"))
		r.Header = request().Header
		answer := must.Get(http.DefaultClient.Do(r))(t)
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
	answer := post()
	event := make([]byte, len("data: 1\n\n"))
	if _, err := io.ReadFull(answer.Body, event); err != nil || string(event) != "data: 1\n\n" {
		t.Fatalf("%q, %v", event, err)
	}
	close(next)
	check.Equal(t, string(must.Get(io.ReadAll(answer.Body))(t)), "data: 2\n\n")
	again := post()
	if again.Header.Get("Location") != "/jobs/1" {
		t.Errorf("header %v", again.Header)
	}
	s.refused(again, http.StatusGone, idempotency.CodeNotRetained, idempotency.Reconcile, 1)
}

// A response that its handler flushes is delivered as it is written, and kept.
func TestMiddlewareKeepsWhatIsFlushed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
		for _, part := range []string{"a", "b", "c"} {
			_, _ = io.WriteString(w, part)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, replayed := range []string{"false", "true"} {
		if content := s.expect(s.send(), http.StatusOK, replayed, 1); content != "abc" {
			t.Errorf("%q, replayed %s", content, replayed)
		}
	}
}

// The largest body that is kept, and one byte more.
func TestMiddlewareLargeResponses(t *testing.T) {
	t.Parallel()
	for size, kept := range map[int]bool{1<<20 - 1024: true, 1 << 20: false, 3 << 20: false} {
		s := newService(t)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("x"), size/2))
			_, _ = w.Write(bytes.Repeat([]byte("y"), size-size/2))
		}
		if content := s.expect(s.send(), http.StatusOK, "false", 1); len(content) != size {
			t.Errorf("%d bytes came as %d", size, len(content))
		}
		if kept {
			if content := s.expect(s.send(), http.StatusOK, "true", 1); len(content) != size {
				t.Errorf("%d bytes are replayed as %d", size, len(content))
			}
			continue
		}
		s.refused(s.send(), http.StatusGone, idempotency.CodeNotRetained, idempotency.Reconcile, 1)
	}
}

func TestMiddlewareFreshFields(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.FreshFields = []string{"/requestId", "/absent"} })
	s.expect(s.send(), http.StatusCreated, "false", 1)
	var first, second struct {
		RequestID string `json:"requestId"`
		Charge    int
	}
	for _, to := range []any{&first, &second} {
		must.Do(t, json.Unmarshal([]byte(s.expect(s.send(), http.StatusCreated, "true", 1)), to))
	}
	if len(first.RequestID) != 36 || first.RequestID == second.RequestID || first.Charge != 1 || second.Charge != 1 {
		t.Errorf("%+v, %+v", first, second)
	}
}

// The answer to a Reserve is lost. The key does not stay reserved without an owner.
func TestMiddlewareLosesTheReservation(t *testing.T) {
	t.Parallel()
	backend := newMapBackend()
	s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
	s.use()
	lost := false
	backend.setFail(func(call string, key idempotency.Key) (bool, error) {
		if call == "swap" && key.Record != nil && !lost {
			lost = true
			return true, errors.New("the connection broke")
		}
		return false, nil
	})
	s.refused(s.send(), http.StatusServiceUnavailable, idempotency.CodeStoreUnavailable, idempotency.SameKey, 0)
	s.expect(s.send(), http.StatusCreated, "false", 1)
}

// The store is down when the work is done: the response is delivered, the key stays reserved, and the journal delivers
// the result when the store is back, even after a restart.
func TestMiddlewareJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	backend := newMapBackend()
	s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
	journal := must.Get(idempotency.OpenJournal(dir, s.store, nil))(t)
	if _, err := idempotency.OpenJournal(dir, s.store, nil); err == nil {
		t.Error("two processes have one journal")
	}
	s.use(func(o *idempotency.Options) { o.Journal = journal })
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
		backend.setFail(func(string, idempotency.Key) (bool, error) { return false, errors.New("unreachable") })
		_, _ = io.WriteString(w, "done")
	}
	answer := s.send()
	if content := s.expect(answer, http.StatusOK, "false", 1); content != "done" ||
		answer.Header.Get("Idempotency-Expires") != "" {
		t.Error(content, answer.Header)
	}
	if journal.Len() != 1 || s.metrics.of(idempotency.EventJournaled) != 1 {
		t.Fatalf("%d results in the journal, %v", journal.Len(), s.metrics.events)
	}
	must.Do(t, journal.Close())
	backend.setFail(nil)
	s.refused(s.send(), http.StatusConflict, idempotency.CodeInFlight, idempotency.SameKey, 1)
	journal = must.Get(idempotency.OpenJournal(dir, s.store, nil))(t)
	s.use(func(o *idempotency.Options) { o.Wait = time.Minute })
	check.Equal(t, s.expect(s.send(), http.StatusOK, "true", 1), "done")
	eventually(t, "an empty journal", func() bool { return journal.Len() == 0 })
	must.Do(t, journal.Close())
	s.charge.serve = nil
}

// eventually waits for a condition that other goroutines make true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	must.Await(t, holds, what)
}

// Keys, principals and bodies never reach the log.
func TestMiddlewareLogs(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	backend := newMapBackend()
	s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
	s.use(func(o *idempotency.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	jwt := header("Authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2VjcmV0")
	s.send(jwt)
	s.send(jwt)
	backend.setFail(func(string, idempotency.Key) (bool, error) { return false, errors.New("unreachable") })
	s.send(jwt)
	text := log.String()
	if strings.Count(text, "looks like a JWT") != 1 || !strings.Contains(text, "store-unavailable") {
		t.Errorf("the log: %s", text)
	}
	for _, secret := range []string{testKey, "eyJ", "amount"} {
		if strings.Contains(text, secret) {
			t.Errorf("the log has %s: %s", secret, text)
		}
	}
}

func TestMiddlewareOptions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*idempotency.Options){
		"lease":      func(o *idempotency.Options) { o.Lease = time.Millisecond },
		"released":   func(o *idempotency.Options) { o.ReleaseStatuses = []int{http.StatusNotFound} }, // it is stored
		"wait":       func(o *idempotency.Options) { o.Wait = time.Hour },
		"pointers":   func(o *idempotency.Options) { o.Pointers = []string{"/a"} },
		"no pointer": func(o *idempotency.Options) { o.Fingerprint = idempotency.FingerprintPointers },
		"pointer":    func(o *idempotency.Options) { o.FreshFields = []string{"requestId"} },
		"mode":       func(o *idempotency.Options) { o.Fingerprint = 9 },
		"methods":    func(o *idempotency.Options) { o.Methods = []string{http.MethodOptions} },
		"status":     func(o *idempotency.Options) { o.ReplayStatus = 201 },
		"mismatch":   func(o *idempotency.Options) { o.MismatchStatus = 400 },
		"principal": func(o *idempotency.Options) {
			o.Shared, o.Principal = true, func(context.Context, http.Header) (string, error) { return "", nil }
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the options were taken", name)
				}
			}()
			newService(t, change)
		}()
	}
}
