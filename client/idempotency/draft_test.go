package idempotency_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seqledger/seqledger/client/idempotency"
)

// The requirements of draft-ietf-httpapi-idempotency-key-header-07 on a resource, each in a test of
// its own. The name has the section.

// Section 2.1: the field is an Item Structured Header, whose value MUST be a String.
func TestDraft_2_1_TheValueIsAString(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Strict = true })
	for _, field := range []string{"token", "1", "1.5", "?1", ":YWJj:", "@1659578233", `("a")`, `"a", "b"`, `"a`} {
		t.Log(field)
		s.refused(s.send(header("Idempotency-Key", field)), 400, idempotency.CodeKeyInvalid, idempotency.FixRequest, 0)
	}
	s.expect(s.send(header("Idempotency-Key", `"a-string"`)), http.StatusCreated, "false", 1)
}

// Section 2.2: a key MUST NOT be reused with another request with a different payload.
func TestDraft_2_2_AKeyStandsForOnePayload(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	s.refused(s.send(body(`{"amount":50}`)), http.StatusUnprocessableEntity, idempotency.CodeKeyReused,
		idempotency.OtherKey, 1)
	// The misuse does no harm to the first request.
	s.expect(s.send(), http.StatusCreated, "true", 1)
}

// Section 2.2: the resource MUST define the uniqueness of keys; a UUID is RECOMMENDED. Here a key is
// unique for a principal and a namespace.
func TestDraft_2_2_UniquenessIsDefined(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := header("Idempotency-Key", `"`+idempotency.NewUUID()+`"`)
	s.expect(s.send(id), http.StatusCreated, "false", 1)
	s.expect(s.send(id, header("Authorization", "Bearer another")), http.StatusCreated, "false", 2)
	s.expect(s.send(id, func(r *http.Request) { r.URL.Path = "/refund" }), http.StatusCreated, "false", 3)
	s.expect(s.send(id), http.StatusCreated, "true", 3)
}

// Section 2.3: a resource with keys that expire SHOULD define the policy and publish it.
func TestDraft_2_3_TheExpiryIsPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		answer := s.send(func(r *http.Request) { r.Method, r.URL.Path = http.MethodGet, "/.well-known/idempotency" })
		var policy struct {
			TTL int `json:"ttl_seconds"`
		}
		if err := json.NewDecoder(answer.Body).Decode(&policy); err != nil || policy.TTL != 86400 {
			t.Fatalf("%+v, %v", policy, err)
		}
		s.expect(s.send(), http.StatusCreated, "false", 1)
		pass(idempotency.DefaultTTL - 1)
		s.expect(s.send(), http.StatusCreated, "true", 1)
		pass(1)
		s.expect(s.send(), http.StatusCreated, "false", 2)
	})
}

// Section 2.5: for each request the resource SHOULD identify the key, generate the fingerprint if it
// is required, and enforce idempotency.
func TestDraft_2_5_EachRequestIsChecked(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, method := range []string{http.MethodPost, http.MethodPatch} {
		change := func(r *http.Request) { r.Method = method }
		runs := s.charge.runs.Load() + 1
		s.expect(s.send(change), http.StatusCreated, "false", runs)
		s.expect(s.send(change), http.StatusCreated, "true", runs)
	}
}

// Section 2.6: a first request SHOULD be processed normally, with its own response and status.
func TestDraft_2_6_AFirstRequestIsProcessed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if content := s.expect(s.send(), http.StatusCreated, "false", 1); !strings.Contains(content, `"charge":1`) {
		t.Error(content)
	}
}

// Section 2.6: a retry after the first request has completed SHOULD get its result, success or error.
func TestDraft_2_6_ARetryGetsTheResult(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusAccepted, http.StatusUnprocessableEntity} {
		s := newService(t)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "result")
		}
		for _, replayed := range []string{"false", "true"} {
			if content := s.expect(s.send(), status, replayed, 1); content != "result" {
				t.Errorf("%d: %q", status, content)
			}
		}
	}
}

// Sections 2.6 and 2.7: a retry while the first request is still being processed SHOULD get 409 with
// a description of the problem.
func TestDraft_2_7_AConcurrentRetryConflicts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.charge.serve = func(http.ResponseWriter, *http.Request) {
		s.refused(s.send(), http.StatusConflict, idempotency.CodeInFlight, idempotency.SameKey, 1)
	}
	s.expect(s.send(), http.StatusOK, "false", 1)
	// No correction is required: the same request succeeds.
	s.expect(s.send(), http.StatusOK, "true", 1)
}

// Section 2.7: a request without a key that the operation requires SHOULD get 400, with a link to the
// documentation.
func TestDraft_2_7_AMissingKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Required = true })
	s.refused(s.send(func(r *http.Request) { r.Header.Del("Idempotency-Key") }), 400, idempotency.CodeKeyMissing,
		idempotency.FixRequest, 0)
}

// Section 2.7: a key that is reused with a different payload SHOULD get 422, with a link to the
// documentation.
func TestDraft_2_7_AReusedKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	s.refused(s.send(body("{}")), http.StatusUnprocessableEntity, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
}

// Section 2.7: a client MUST correct a request before it retries it, or the resource MUST fail it
// again.
func TestDraft_2_7_AnUncorrectedRequestFailsAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	for range 3 {
		s.refused(s.send(body("{}")), http.StatusUnprocessableEntity, idempotency.CodeKeyReused, idempotency.OtherKey,
			1)
		s.refused(s.send(header("Idempotency-Key", "a,b")), 400, idempotency.CodeKeyInvalid, idempotency.FixRequest, 1)
	}
}

// Section 5: the resource should validate keys before it processes a request, and look a key up
// together with attributes of the client that only the resource knows.
func TestDraft_5_KeysAreValidatedAndCombined(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.refused(s.send(header("Idempotency-Key", `"`+strings.Repeat("x", 257)+`"`)), 400, idempotency.CodeKeyInvalid,
		idempotency.FixRequest, 0)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	stranger := s.send(header("Authorization", "Bearer stranger"), body(`{"amount":7}`))
	s.expect(stranger, http.StatusCreated, "false", 2) // neither a replay nor a conflict
}
