package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// tenants is a service that counts its runs and reports what it was told about tenant, host and version.
func tenants(t *testing.T) (address string, runs *atomic.Int32) {
	t.Helper()
	runs = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/may") {
			credential := r.Header.Get("Authorization")
			visitor := credential == "" && r.URL.Path == "/may-visitor"
			if !strings.Contains(credential, "good") && !visitor {
				w.WriteHeader(http.StatusForbidden)
			}
			return
		}
		_, _ = fmt.Fprintf(w, "run %d for %s at %s", runs.Add(1), r.Header.Get("Stripe-Account"),
			r.Header.Get("X-Forwarded-Host"))
	}))
	t.Cleanup(s.Close)
	return s.URL, runs
}

// A route's tenants have keys of their own: by the host, also behind a trusted proxy, and by the headers of its list.
// Where a header is not in the list, another tenant is another request.
func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	upstream, runs := tenants(t)
	for _, trusted := range []string{"127.0.0.0/8", "10.0.0.0/8"} {
		c := must.Get(load(t, plain(upstream), `
routes:
- {path: /default}
- {path: /listed, principal: [authorization, host, Stripe-Account]}
- {path: /preset, principal: [authorization, any-tenant], request_headers: [x-trace]}
- {path: /shared, shared: true}
- {path: /user, principal_header: X-User, principal: [host, stripe-account]}
`, trusted))(t)
		base, _ := start(t, c)
		n := 0
		// send sends a key for the first or the second time, with a header, and returns what became of it.
		send := func(path, name, value string) string {
			r := newRequest(t, http.MethodPost, base+path, fmt.Sprintf(`"%s-%d"`, path[1:], n), strings.NewReader("5"))
			r.Header.Set("Authorization", "Bearer platform")
			r.Header.Set("X-User", "alice")
			if r.Header.Set(name, value); name == "Host" {
				r.Host = value
			}
			before := runs.Load()
			answer, text := exchange(t, r)
			switch {
			case answer.Header.Get(idempotency.HeaderReplayed) == "true":
				return "replayed"
			case runs.Load() > before:
				return "run"
			}
			return fmt.Sprint(answer.StatusCode, " ", strings.Contains(text, "key-reused"))
		}
		const refused = "422 true"
		for _, test := range []struct{ path, name, a, b, want string }{
			{"/default", "Host", "acme.example", "globex.example", "run"},
			{"/default", "Host", "acme.example", "ACME.example:80", "replayed"},
			{"/default", "Stripe-Account", "a", "b", refused},
			{"/default", "Stripe-Version", "1", "2", refused},
			{"/default", "If-Match", "1", "2", refused},
			{"/listed", "Stripe-Account", "a", "b", "run"},
			{"/listed", "Stripe_Account", "a", "b", "replayed"}, // dropped: some services take it for the other
			{"/listed", "X-Tenant", "a", "b", refused},
			{"/preset", "X-Org-Id", "a", "b", "run"},
			{"/preset", "Host", "acme.example", "globex.example", "replayed"},
			{"/preset", "X-Trace", "a", "b", refused},
			{"/preset", "Stripe-Version", "1", "2", "replayed"},
			{"/shared", "Host", "acme.example", "globex.example", "run"},
			{"/shared", "Authorization", "Bearer a", "Bearer b", "replayed"},
			{"/user", "Stripe-Account", "a", "b", "run"},
			{"/user", "Host", "acme.example", "globex.example", "run"},
			{"/user", "Authorization", "Bearer a", "Bearer b", "replayed"},
			{"/default", "X-Forwarded-Host", "acme.example", "globex.example", map[bool]string{true: "run",
				false: "replayed"}[strings.HasPrefix(trusted, "127.")]},
			{"/default", "X-Forwarded-Host", "acme.example:443, gw:80", "globex.example:443, gw:80", map[bool]string{
				true: "run", false: "replayed"}[strings.HasPrefix(trusted, "127.")]},
			{"/default", "Forwarded", `for=[::1];Host="acme.example:443", for=a`, "for=b; host=globex.example",
				map[bool]string{true: "run", false: "replayed"}[strings.HasPrefix(trusted, "127.")]},
			{"/default", "X-Original-Host", "acme.example", "globex.example", map[bool]string{true: "run",
				false: "replayed"}[strings.HasPrefix(trusted, "127.")]},
			{"/default", "X-Forwarded-Prefix", "/acme", "/globex", map[bool]string{true: refused,
				false: "replayed"}[strings.HasPrefix(trusted, "127.")]},
			{"/default", "X-Forwarded-Host", "acme.example, one", "acme.example:443 , two", "replayed"},
		} {
			if test.path == "/user" && trusted != "127.0.0.0/8" {
				continue
			}
			n++
			first, second := send(test.path, test.name, test.a), send(test.path, test.name, test.b)
			if first != "run" || second != test.want {
				t.Errorf("%s, %s: %s and %s, want run and %s", test.path, test.name, first, second, test.want)
			}
		}
	}
}

// The host that a client has asked for is the first one of those that a chain of trusted proxies names. The service
// gets that one alone.
func TestTenantBehindProxies(t *testing.T) {
	t.Parallel()
	upstream, _ := tenants(t)
	c := must.Get(load(t, plain(upstream), "routes: [{path: /, principal: [authorization, host, x-forwarded-host]}]",
		"127.0.0.0/8"))(t)
	base, _ := start(t, c)
	for i, test := range []struct {
		said []string
		want string
	}{
		{[]string{"acme.example:443"}, "run 1 for  at acme.example:443"},
		{[]string{" acme.example:443 , gw:80", "edge"}, "run 1 for  at acme.example:443"},
		{[]string{"globex.example", "acme.example:443"}, "run 2 for  at globex.example"},
		{[]string{"", "acme.example"}, "run 3 for  at gw.example"},
		{nil, "run 3 for  at gw.example"},
	} {
		r := newRequest(t, http.MethodPost, base+"/", `"k"`, strings.NewReader("5"))
		r.Host = "gw.example"
		r.Header.Set("Authorization", "Bearer platform")
		r.Header["X-Forwarded-Host"] = test.said
		if _, text := exchange(t, r); text != test.want {
			t.Errorf("%d: %q, want %q", i, text, test.want)
		}
	}
}

// A client cannot hide a header that was compared from the service.
func TestComparedHeadersReachTheService(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, "routes: [{path: /, principal: [x-api-key, x-tenant]}]")
	raw(t, address, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nIdempotency-Key: k\r\nX-Api-Key: k\r\n"+
		"X-Tenant: a\r\nStripe-Version: 1\r\nIf-Match: 1\r\nX_Tenant: b\r\n"+
		"Connection: close, X-Tenant, Stripe-Version, If-Match\r\n\r\n")
	requests, _ := service.take()
	must.Equal(t, len(requests), 1, "%d requests")
	for _, name := range []string{"X-Tenant", "Stripe-Version", "If-Match"} {
		if len(requests[0].Header[name]) != 1 {
			t.Errorf("%s is %q", name, requests[0].Header[name])
		}
	}
	check.Equal(t, len(requests[0].Header["X_tenant"]), 0, "an imitated header came through: got %v")
}

// What a visitor without a credential began is the same request after the visitor has signed in, behind each setting
// that says who sends a request.
func TestVisitorsSignIn(t *testing.T) {
	t.Parallel()
	upstream, runs := tenants(t)
	login := newIssuer(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	must.Do(t, os.WriteFile(file, []byte(login.jwks()), 0o600))
	c := must.Get(load(t, plain(upstream), fmt.Sprintf(`
jwt: {issuer: "https://login.example", audience: charges, algorithms: [EdDSA], jwks: %q}
routes:
- {path: /authorization, visitor_header: X-Visitor, replay_check: GET /may-visitor}
- {path: /claim, visitor_header: X-Visitor, principal_claim: sub}
- {path: /header, visitor_header: X-Visitor, principal_header: X-User}
- {path: /none}
`, file), "127.0.0.0/8"))(t)
	base, _ := start(t, c)
	alice, bob := login.token(t, nil), login.token(t, jwt.MapClaims{"sub": "bob"})
	for _, path := range []string{"/claim", "/header", "/authorization"} {
		if path == "/authorization" { // the check in tenants accepts these
			alice, bob = "Bearer good-alice", "Bearer good-bob"
		}
		before := runs.Load()
		send := func(token, user, visitor string) string {
			r := newRequest(t, http.MethodPost, base+path, `"k"`, strings.NewReader("5"))
			for name, value := range map[string]string{"Authorization": token, "X-User": user, "X-Visitor": visitor} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			answer, text := exchange(t, r)
			return fmt.Sprint(answer.StatusCode, " ", answer.Header.Get(idempotency.HeaderReplayed), " ",
				strings.Contains(text, "principal-missing"))
		}
		const run, replayed = "200 false false", "200 true false"
		secret := "8e03978e40d543dd93bc6894a57f9324" + path // belongs to one user
		for i, test := range []struct{ token, user, visitor, want string }{
			{"", "", secret, run},
			{"", "", secret, replayed},
			{alice, "alice", secret, replayed},
			{bob, "bob", secret, run}, // the secret is alice's
			{bob, "bob", "", replayed},
			{"", "", "0" + secret, run},
			{"", "", "", "400 false true"},
			{"", "", "short", "400 false true"},
		} {
			check.Equal(t, send(test.token, test.user, test.visitor), test.want, "%s, %d: %s", path, i)
		}
		if runs.Load() != before+3 {
			t.Errorf("%s: %d runs", path, runs.Load()-before)
		}
	}
}

// The published policy says what each route compares.
func TestPolicyOfRoutes(t *testing.T) {
	t.Parallel()
	login := newIssuer(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	must.Do(t, os.WriteFile(file, []byte(login.jwks()), 0o600))
	c := must.Get(load(t, plain("http://a"), fmt.Sprintf(`
jwt: {issuer: "https://login.example", audience: charges, algorithms: [EdDSA], jwks: %q}
routes:
- {path: /a, principal: [authorization, host, stripe-account]}
- {path: /b, principal_claim: sub, request_headers: [x-mine]}
- {path: /c, principal_header: X-User}
- {path: /d, principal: [authorization-id], replay_check: GET /may}
- {path: /e, shared: true}
`, file), "127.0.0.0/8"))(t)
	for path, want := range map[string]string{
		"/a": `"principal":["authorization","host","stripe-account"]`, "/b": `"principal":["claim:sub","host"]`,
		"/c": `"principal":["header:x-user","host"]`, "/d": `"principal":["authorization-id"]`,
		"/e": `"principal":["host"]`,
	} {
		_, rest, _ := strings.Cut(string(c.policy()), `"path":"`+path+`"`)
		if policy, _, _ := strings.Cut(rest, `"path"`); !strings.Contains(policy, want) ||
			!strings.Contains(policy, `"if-match"`) || strings.Contains(policy, `"x-mine"`) != (path == "/b") {
			t.Errorf("%s: %s", path, policy)
		}
	}
}
