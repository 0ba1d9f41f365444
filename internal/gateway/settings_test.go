package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Each setting of a route reaches the middleware, whose tests say what it does there.
func TestSettingsReachTheMiddleware(t *testing.T) {
	t.Parallel()
	c := must.Get(load(t, plain("http://a"), `routes:
  - path: /a
    required: true
    strict: true
    open: true
    shared: true
    methods: [put]
    fingerprint: pointers
    pointers: [/id]
    max_body: 7
    ttl: 1h
    rejected_ttl: 2s
    forget_after: 8760h
    wait: 3s
    lease: 4s
    on_lease_expired: takeover
    server_errors: {503: release, default: store}
    effect_free: [401, 429]
    stored: outcome
    stored_headers: [x-a]
    replay_status: 200
    mismatch_status: 409
    fresh_fields: [/requestId]
    request_headers: [x-b]
`))(t)
	o := c.routes[0].options
	got := fmt.Sprint(o.Required, o.Strict, o.Open, o.Shared, o.Methods, o.Fingerprint, o.Pointers, o.MaxBody, o.TTL,
		o.RejectedTTL, o.ForgetAfter, o.Wait, o.Lease, o.OnLeaseExpired == idempotency.TakeOver, o.ReleaseStatuses,
		o.OutcomeOnly,
		o.StoredHeaders, o.ReplayStatus, o.MismatchStatus, o.FreshFields, o.RequestHeaders)
	const want = "true true true true [PUT] 3 [/id] 7 1h0m0s 2s 8760h0m0s 3s 4s true [401 429] true [x-a] 200 409 " +
		"[/requestId] [x-b]"
	check.Equal(t, got, want)
	leaves := map[int]idempotency.Disposition{503: idempotency.ReleaseKey}
	if o.ServerErrors != idempotency.StoreResult || !maps.Equal(o.StatusErrors, leaves) {
		t.Errorf("after server errors: %v, %v", o.ServerErrors, o.StatusErrors)
	}
	if d := c.fallback.options; d.Wait != -1 || d.ServerErrors != idempotency.LeaveUnknown || d.OutcomeOnly ||
		d.ReplayStatus != 0 ||
		d.MismatchStatus != http.StatusUnprocessableEntity || d.Fingerprint != idempotency.FingerprintRaw ||
		!slices.Equal(d.Methods, []string{http.MethodPost, http.MethodPatch}) {
		t.Errorf("the defaults: %+v", d)
	}
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
		w.Header().Set("Idempotent-Replayed", "spoofed")
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

// Nothing may be asked of a store that it would delete earlier.
func TestTimesOfTheStore(t *testing.T) {
	t.Parallel()
	s := plain("http://a")
	s.ForgetAfter = "never"
	_, err := Load(&File{Default: s, MaxTTL: time.Hour})
	for _, want := range []string{"ttl: must be at most 1h0m0s", "forget_after: must be at most 1h0m0s"} {
		check.ErrorContains(t, err, want)
	}
	s.TTL, s.ForgetAfter = time.Hour, ""
	check.Is(t, check.Err(Load(&File{Default: s, MaxTTL: time.Hour})), nil)
}
