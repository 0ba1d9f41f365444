package idempotency_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
)

// Each requirement of draft-ietf-httpapi-idempotency-key-header-07 on a resource has a test of its own. The test's name
// gives the section.

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

// Section 2.1: clients MUST NOT send more than one field; such a request is not executed.
func TestDraft_2_1_OneFieldInARequest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, strict := range []bool{false, true} {
		s.use(func(o *idempotency.Options) { o.Strict = strict })
		for _, lines := range [][]string{{`"a"`, `"b"`}, {`"a"`, `"a"`}, {"a", "a"}, {`"a`, `b"`}, {"", `"a"`}} {
			s.refused(s.send(header("Idempotency-Key", lines...)), 400, idempotency.CodeKeyInvalid,
				idempotency.FixRequest, 0)
		}
	}
}

// Section 2.2: a key MUST NOT be reused with another request with a different payload.
func TestDraft_2_2_AKeyStandsForOnePayload(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	s.refused(s.send(body(`{"amount":50}`)), http.StatusUnprocessableEntity, idempotency.CodeKeyReused,
		idempotency.OtherKey, 1)
	// The misuse does not affect the first request.
	s.expect(s.send(), http.StatusCreated, "true", 1)
}

// Section 2.2: the resource MUST define the uniqueness of keys; a UUID is RECOMMENDED. Here a key is unique within a
// principal and a namespace.
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

// Section 2.4: a fingerprint MAY be made of the whole payload, or of selected elements, or of the
// values of the fields.
func TestDraft_2_4_Fingerprints(t *testing.T) {
	t.Parallel()
	const first, reordered, otherNote, otherAmount = `{"amount":5,"note":"a"}`, `{ "note": "a", "amount": 5 }`,
		`{"amount":5,"note":"b"}`, `{"amount":6,"note":"a"}`
	for mode, same := range map[idempotency.FingerprintMode]map[string]bool{
		idempotency.FingerprintRaw:      {first: true},
		idempotency.FingerprintJCS:      {first: true, reordered: true},
		idempotency.FingerprintPointers: {first: true, reordered: true, otherNote: true},
		idempotency.FingerprintNone:     {first: true, reordered: true, otherNote: true, otherAmount: true},
	} {
		s := newService(t, func(o *idempotency.Options) {
			if o.Fingerprint = mode; mode == idempotency.FingerprintPointers {
				o.Pointers = []string{"/amount"}
			}
		})
		s.expect(s.send(body(first)), http.StatusCreated, "false", 1)
		for _, text := range []string{first, reordered, otherNote, otherAmount} {
			t.Log(mode, text)
			if same[text] {
				s.expect(s.send(body(text)), http.StatusCreated, "true", 1)
			} else {
				s.refused(s.send(body(text)), 422, idempotency.CodeKeyReused, idempotency.OtherKey, 1)
			}
		}
	}
}

// Section 2.5: the resource MUST publish its specification, which MUST include the expiry. It links to the page that
// every problem links to.
func TestDraft_2_5_TheSpecificationIsPublished(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Required = true })
	problem := s.send(func(r *http.Request) { r.Header.Del("Idempotency-Key") })
	link, _, _ := strings.Cut(strings.TrimPrefix(problem.Header.Get("Link"), "<"), ">")
	answer := s.send(func(r *http.Request) { r.Method, r.URL.Path = http.MethodGet, "/.well-known/idempotency" })
	var policy map[string]any
	if err := json.NewDecoder(answer.Body).Decode(&policy); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", answer.StatusCode, err)
	}
	if page, ok := policy["documentation"].(string); !ok || link != page+"#key-missing" {
		t.Errorf("a problem links to %s, and the policy to %s", link, page)
	}
	for _, name := range []string{"ttl_seconds", "methods", "required"} {
		if _, ok := policy[name]; !ok {
			t.Errorf("the policy does not say %s: %v", name, policy)
		}
	}
	s.expect(answer, http.StatusOK, "", 0)
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
			check.Equal(t, s.expect(s.send(), status, replayed, 1), "result", "%d: %q", status)
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

// Section 2.7: for all other errors a client acts as the resource documents. Here such errors are never replayed as
// results, and each problem says what to do next.
func TestDraft_2_7_OtherErrors(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 429, 500, 502, 503, 504} {
		s := newService(t)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		s.expect(s.send(), status, "false", 1)
		s.refused(s.send(), http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
	}
}

// Section 6: the keys of the examples.
func TestDraft_6_TheExamples(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Strict = true })
	for i, key := range []string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, `"clkyoesmbgybucifusbbtdsbohtyuuwz"`} {
		s.expect(s.send(header("Idempotency-Key", key)), http.StatusCreated, "false", int64(i+1))
		answer := s.send(header("Idempotency-Key", key))
		if s.expect(answer, http.StatusCreated, "true", int64(i+1)); answer.Header.Get("Idempotency-Key") != key {
			t.Errorf("%s comes back as %s", key, answer.Header.Get("Idempotency-Key"))
		}
	}
}

// Section 5: the resource should validate keys before it processes a request, and look a key up together with
// attributes of the client that only the resource knows.
func TestDraft_5_KeysAreValidatedAndCombined(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.refused(s.send(header("Idempotency-Key", `"`+strings.Repeat("x", 257)+`"`)), 400, idempotency.CodeKeyInvalid,
		idempotency.FixRequest, 0)
	s.expect(s.send(), http.StatusCreated, "false", 1)
	stranger := s.send(header("Authorization", "Bearer stranger"), body(`{"amount":7}`))
	s.expect(stranger, http.StatusCreated, "false", 2) // neither a replay nor a conflict
}
