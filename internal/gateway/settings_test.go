package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
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
