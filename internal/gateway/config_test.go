package gateway

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/yamlfile"
)

// Each mistake in a route is reported with its line and its field.
func TestRouteMistakes(t *testing.T) {
	t.Parallel()
	for wrong, want := range map[string]string{
		"path: orders":              "routes[0].path must begin with a slash",
		`path: "/a/{"`:              `routes[0].path "/a/{": `,
		`path: "/a/{x}/{x}"`:        "duplicate wildcard name",
		"pth: /a":                   "routes[0].pth is an unknown field",
		"upstream: 127.0.0.1:80":    "routes[0].upstream must be an http or https URL",
		"upstream: http://u:p@a":    "routes[0].upstream must not have a user",
		"upstream_timeout: soon":    "routes[0].upstream_timeout must be a duration",
		"upstream_timeout: -1s":     "routes[0].upstream_timeout must be from 0s",
		"methods: POST":             "routes[0].methods must be a list",
		"methods: []":               "routes[0].methods must have one method",
		"methods: [HEAD]":           "routes[0].methods HEAD has no effects",
		"methods: [connect]":        `routes[0].methods "CONNECT" must be a method`,
		"required: maybe":           "routes[0].required must be true or false",
		"strict: 1":                 "routes[0].strict must be true or false",
		"open: no way":              "routes[0].open must be true or false",
		"fingerprint: md5":          "routes[0].fingerprint must be raw or jcs or pointers or none",
		"fingerprint: pointers":     "routes[0].pointers belong to fingerprint pointers",
		"pointers: [/a]":            "routes[0].pointers belong to fingerprint pointers",
		"fresh_fields: [requestId]": `routes[0].fresh_fields "requestId" must be a JSON pointer`,
		"max_body: 0":               "routes[0].max_body must be 1 to",
		"ttl: 0s":                   "routes[0].ttl must be from 1s",
		"rejected_ttl: 9000h":       "routes[0].rejected_ttl must be from 1s",
		"wait: 61s":                 "routes[0].wait must be from 0s to 1m0s",
		"lease: 1ms":                "routes[0].lease must be from 1s",
		"on_lease_expired: retry":   "routes[0].on_lease_expired must be indeterminate or takeover",
		"server_errors: ignore": "routes[0].server_errors must be indeterminate or release or " +
			"store",
		"effect_free: [404]":                         `routes[0].effect_free "404" must be one of 401`,
		"stored: nothing":                            "routes[0].stored must be response or outcome",
		"replay_status: 201":                         "routes[0].replay_status must be original or 200",
		"mismatch_status: 400":                       "routes[0].mismatch_status must be 422 or 409",
		"replay_check: /may":                         "routes[0].replay_check must be GET, HEAD or POST",
		"replay_check: PUT /may":                     "routes[0].replay_check must be GET, HEAD or POST",
		"cors_origins: ['*']":                        "routes[0].cors_origins the CORS origin * together with",
		"cors_origins: [https://a.example/]":         "routes[0].cors_origins the CORS origin",
		"principal_header: X User":                   "routes[0].principal_header must be the name of a header",
		"principal_claim: sub":                       "routes[0].principal_claim needs the section jwt",
		"principal_header: Authorization":            "routes[0].principal_header must have the user",
		"principal_header: x-request-id":             "routes[0].principal_header must be the name of a header",
		"{shared: true, principal_header: X-User}":   "routes[0].shared means that all callers are one principal",
		"{principal_header: A, principal_claim: b}":  "routes[0].principal_claim and principal_header",
		"principal: authorization":                   "routes[0].principal must be a list",
		"principal: []":                              "routes[0].principal must have authorization, or another header",
		"principal: [host]":                          "routes[0].principal must have authorization, or another header",
		"principal: [authorization, X User]":         `routes[0].principal has "x user"`,
		"principal: [authorization, traceparent]":    "routes[0].principal has traceparent, which changes",
		"principal: [authorization-id]":              "routes[0].principal authorization-id is no secret",
		"request_headers: [date]":                    "routes[0].request_headers has date, which changes",
		"visitor_header: X Visitor":                  "routes[0].visitor_header must be the name of a header",
		"{shared: true, visitor_header: X-Visitor}":  "routes[0].visitor_header must be the name of a header",
		"visitor_header: X-Visitor":                  "routes[0].visitor_header needs a verified principal",
		"{shared: true, principal: [authorization]}": "routes[0].principal must not have authorization where",
		"server_errors: {503: no}":                   "routes[0].server_errors must be indeterminate or release",
		"server_errors: {404: release}":              `routes[0].server_errors "404" must be a status of 500 to 599`,
		"server_errors: {503: release, 503: store}":  "routes[0].server_errors 503 was given already",
		"server_errors: [release]":                   "routes[0].server_errors must have one plain value",
		"stored_headers: [Set-Cookie]":               `routes[0].stored_headers "Set-Cookie" must be the name of a header`,
		"upstream_idle_timeout: 1h":                  "routes[0].upstream_idle_timeout must be from 0s to 10m0s",
		"ttl:":                                       "routes[0].ttl must have one plain value",
	} {
		route := "path: /a\n  " + wrong
		if strings.HasPrefix(wrong, "path") || strings.HasPrefix(wrong, "pth") {
			route = wrong
		}
		if strings.HasPrefix(wrong, "{") {
			route = "path: /a\n  " + strings.ReplaceAll(strings.Trim(wrong, "{}"), ", ", "\n  ")
		}
		_, err := load(t, plain("http://a"), "routes:\n- "+route+"\n", "10.0.0.0/8")
		file, isFile := errors.AsType[*yamlfile.Error](err)
		if !isFile || !strings.Contains(err.Error(), want) || file.Line < 2 || file.Line > 4 {
			t.Errorf("%s: want %q at its line, got %v", wrong, want, err)
		}
	}
}

// Mistakes in the file as a whole, and in the flags.
func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		defaults func(*Settings)
		content  string
		proxies  []string
		want     string
	}{
		"no list":  {nil, "routes: /a\n", nil, ":1: routes must be a list of 1 to 1000"},
		"empty":    {nil, "routes: []\n", nil, ":1: routes must be a list"},
		"no route": {nil, "routes: [/a]\n", nil, ":1: routes[0] must be a mapping"},
		"an alias": {nil, "routes:\n- &x {path: /a}\n", nil, ":2: anchors and aliases"},
		"twice": {nil, "routes:\n- path: /a\n- path: /a\n", nil,
			":3: routes[1].methods POST of this path was given at line 2 already"},
		"a conflict": {nil, "routes:\n- path: /a/{x}/c\n- path: /a/b/{y}\n", nil,
			`:3: routes[1].path "/a/b/{y}": matches some paths that "/a/{x}/c" matches`},
		"no upstream": {func(s *Settings) { s.Upstream = "" }, "routes:\n- path: /a\n", nil,
			":2: routes[0].upstream is required"},
		"nothing":    {func(s *Settings) { s.Upstream = "" }, "", nil, "upstream: is required"},
		"no network": {nil, "", []string{"10.0.0.1"}, `trusted_proxies: "10.0.0.1" must be a network`},
		"no proxy": {func(s *Settings) { s.PrincipalHeader = "X-User" }, "", nil,
			"principal_header: needs trusted_proxies"},
		"no route proxy": {nil, "routes:\n- path: /a\n  principal_header: X-User\n", nil,
			":3: routes[0].principal_header needs trusted_proxies"},
		"no jwt": {func(s *Settings) { s.PrincipalClaim = "sub" }, "", nil,
			"principal_claim: needs the section jwt"},
		"an empty jwt": {nil, "jwt: {}\n", nil, ":1: jwt.issuer is required"},
		"no algorithm": {nil, "jwt: {issuer: a, audience: b, algorithms: [HS256], jwks: x}\n", nil,
			":1: jwt.algorithms[0] must be one of"},
		"no jwks file": {nil, "jwt: {issuer: a, audience: b, algorithms: [ES256], jwks: x}\n", nil,
			":1: jwt.jwks x: no such file"},
		"jwks in clear": {nil, "jwt: {issuer: a, audience: b, algorithms: [ES256], jwks: \"http://a.example/j\"}\n",
			nil, "must be an https URL"},
		"jwt field": {nil, "jwt: {issuers: a}\n", nil, ":1: jwt.issuers is an unknown field"},
		"flag":      {func(s *Settings) { s.TTL = 0 }, "", nil, "ttl: must be from 1s"},
	} {
		defaults := plain("http://a")
		if test.defaults != nil {
			test.defaults(&defaults)
		}
		check.ErrorContains(t, check.Err(load(t, defaults, test.content, test.proxies...)), test.want, "%s", name)
	}
	_, err := load(t, plain(""), "routes:\n- {path: a, ttl: 0s, wait: 2h}\n- {path: /b, color: red}\n", "x")
	for _, want := range []string{":2: routes[0].upstream", ":2: routes[0].path", "[0].ttl", "[0].wait",
		":3: routes[1].color", ":3: routes[1].upstream", "trusted_proxies"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not all mistakes at once: no %q in %v", want, err)
		}
	}
}

// echo is a service that reports the request it received.
func echo(name string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/made/1")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"service":%q,"requestId":"r","path":%q,"user":%q,"for":%q}`, name, r.URL.Path,
			r.Header.Get("X-User"), r.Header.Get("X-Forwarded-For"))
	}))
}

// A path and a method select their route, however the path is spelled; a request that matches no route goes to the
// default upstream, or is refused.
func TestRoutes(t *testing.T) {
	t.Parallel()
	first, second := echo("first"), echo("second")
	t.Cleanup(first.Close)
	t.Cleanup(second.Close)
	content := fmt.Sprintf(`
routes:
- {path: /charges, required: true}
- {path: "/jobs/{queue}", upstream: %q, methods: [POST], mismatch_status: 409}
- {path: "/jobs/{queue}", upstream: %q, methods: [PUT], replay_status: 200, fresh_fields: [/requestId]}
- {path: /files/, upstream: %q, stored: outcome}
`, second.URL, second.URL, second.URL)
	defaults := plain(first.URL)
	defaults.Shared = true
	c, err := load(t, defaults, content)
	must.Do(t, err)
	base, _ := start(t, c)
	for i, test := range []struct {
		method, path, key, body string
		status                  int
		contains                string
	}{
		{"POST", "/charges", "", "", 400, "key-missing"},
		{"POST", "//charges", "", "", 400, "path-ambiguous"},
		{"POST", "/x/../charges", "", "", 400, "path-ambiguous"},
		{"POST", "/%63harges", "", "", 400, "key-missing"},
		{"PATCH", "/charges", "", "", 400, "key-missing"},
		{"POST", "/charges/1", "", "", 201, "first"},
		{"GET", "/charges", "", "", 201, "first"},
		{"POST", "/charges", `"a"`, "1", 201, "first"},
		{"POST", "/charges", `"a"`, "2", 422, "key-reused"},
		{"POST", "/jobs/mail", `"a"`, "1", 201, "second"},
		{"POST", "/jobs/mail", `"a"`, "2", 409, "key-reused"},
		{"PUT", "/jobs/mail", `"a"`, "1", 201, `"requestId":"r"`},
		{"PUT", "/jobs/mail", `"a"`, "1", 200, `"requestId":"0`},
		{"PUT", "/charges", `"a"`, "1", 201, "first"},
		{"PUT", "/charges", `"a"`, "1", 201, "first"}, // not a method of the route: passed on
		{"DELETE", "/jobs/mail", "", "", 201, "second"},
		{"POST", "/files/a/b", `"a"`, "1", 201, "second"},
		{"POST", "/files/a/b", `"a"`, "1", 410, "response-not-retained"},
	} {
		status, _, text := send(t, test.method, base+test.path, test.key, test.body)
		if status != test.status || !strings.Contains(text, test.contains) {
			t.Errorf("%d: %s %s: %d %s, want %d with %q", i, test.method, test.path, status, text, test.status,
				test.contains)
		}
	}
	_, _, text := send(t, http.MethodGet, base+"/.well-known/idempotency", "", "")
	if !strings.Contains(text, `"path":"/charges"`) || !strings.Contains(text, `"mismatch_status":409`) {
		t.Error("the policy:", text)
	}
	if _, err = load(t, plain(""), content+fmt.Sprintf("- {path: /charges/all, upstream: %q}\n",
		first.URL)); err == nil {
		t.Error("a route without an upstream was taken")
	}
	c = must.Get(load(t, plain(""), fmt.Sprintf("routes: [{path: /charges, upstream: %q}]", first.URL)))(t)
	base, _ = start(t, c)
	if status, _, text := send(t, http.MethodPost, base+"/other", `"a"`, ""); status != http.StatusNotFound ||
		!strings.Contains(text, "route-unknown") {
		t.Errorf("a path without a route: %d %s", status, text)
	}
}

// A header selects the principal only if a trusted proxy sends it; otherwise it is dropped, and does not reach the
// service either.
func TestPrincipalHeader(t *testing.T) {
	t.Parallel()
	upstream := echo("a")
	t.Cleanup(upstream.Close)
	for _, network := range []string{"127.0.0.0/8", "10.0.0.0/8"} {
		defaults := plain(upstream.URL)
		defaults.PrincipalHeader = "X-User"
		c := must.Get(load(t, defaults, "", network))(t)
		base, _ := start(t, c)
		post := func(user, key string) (*http.Response, string) {
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, base, http.NoBody))(t)
			r.Header.Set("X-User", user)
			r.Header.Set("X-Forwarded-For", "192.0.2.1")
			if key != "" {
				r.Header.Set(idempotency.HeaderKey, key)
			}
			return exchange(t, r)
		}
		if network != "127.0.0.0/8" {
			if answer, text := post("alice", `"k"`); answer.StatusCode != http.StatusBadRequest ||
				!strings.Contains(text, "principal-missing") {
				t.Errorf("not trusted: %d %s", answer.StatusCode, text)
			}
			if _, text := post("alice", ""); strings.Contains(text, "alice") || strings.Contains(text, "192.0.2.1") {
				t.Errorf("not trusted, without a key: %s", text)
			}
			continue
		}
		if _, text := post("alice", `"k"`); !strings.Contains(text, "alice") ||
			!strings.Contains(text, "192.0.2.1, 127.0.0.1") {
			t.Errorf("trusted: %s", text)
		}
		if answer, _ := post("alice", `"k"`); answer.Header.Get(idempotency.HeaderReplayed) != "true" {
			t.Error("alice's repeat is not a replay")
		}
		if answer, text := post("bob", `"k"`); answer.Header.Get(idempotency.HeaderReplayed) != "false" {
			t.Error("bob got alice's response:", text)
		}
		if answer, _ := post("", `"k"`); answer.StatusCode != http.StatusBadRequest {
			t.Error("nobody was taken for somebody")
		}
		if answer, _ := post(strings.Repeat("a", 600), `"k"`); answer.StatusCode != http.StatusBadRequest {
			t.Error("a principal that is too long was taken")
		}
		if answer, text := post("ren\xe9", `"k"`); answer.StatusCode != http.StatusBadRequest ||
			!strings.Contains(text, "Key.Principal is not UTF-8") {
			t.Errorf("a principal that is not a text: %d %s", answer.StatusCode, text)
		}
	}
}

// exchange sends a request and reads the response.
func exchange(t *testing.T, r *http.Request) (answer *http.Response, text string) {
	t.Helper()
	answer = must.Get(http.DefaultClient.Do(r))(t)
	return answer, readAll(t, answer)
}

// issuer signs session tokens.
type issuer struct {
	kid string
	key ed25519.PrivateKey
}

func newIssuer(t *testing.T, kid string) *issuer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	must.Do(t, err)
	return &issuer{kid, key}
}

func (i *issuer) jwks() string {
	public, _ := i.key.Public().(ed25519.PublicKey)
	return fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q}]}`, i.kid,
		base64.RawURLEncoding.EncodeToString(public))
}

func (i *issuer) token(t *testing.T, change jwt.MapClaims) string {
	t.Helper()
	claims := jwt.MapClaims{"iss": "https://login.example", "aud": "charges", "sub": "alice",
		"exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range change {
		claims[name] = value
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	token.Header["kid"] = i.kid
	text := must.Get(token.SignedString(i.key))(t)
	return "Bearer " + text
}

// A claim selects the principal: another token of the same party is the same principal, and an invalid token is none.
// Keys come from a file, or from a URL that is fetched repeatedly.
func TestPrincipalClaim(t *testing.T) {
	t.Parallel()
	upstream := echo("a")
	t.Cleanup(upstream.Close)
	old, renewed := newIssuer(t, "1"), newIssuer(t, "2")
	served := old.jwks()
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/jwks", http.StatusFound)
		case "/large":
			_, _ = w.Write(make([]byte, maxJWKS+1))
		default:
			_, _ = w.Write([]byte(served))
		}
	}))
	t.Cleanup(login.Close)
	file := filepath.Join(t.TempDir(), "jwks.json")
	must.Do(t, os.WriteFile(file, []byte(old.jwks()), 0o600))
	section := "jwt: {issuer: \"https://login.example\", audience: charges, algorithms: [EdDSA], jwks: %q}\n"
	defaults := plain(upstream.URL)
	defaults.PrincipalClaim = "sub"
	for _, jwks := range []string{file, login.URL + "/jwks"} {
		c := must.Get(load(t, defaults, fmt.Sprintf(section, jwks)))(t)
		base, g := start(t, c)
		post := func(token string) string {
			status, header, text := sendAs(t, token, http.MethodPost, base, `"k"`, "")
			return fmt.Sprintf("%d %s %t", status, header.Get(idempotency.HeaderReplayed),
				strings.Contains(text, "principal-missing"))
		}
		check.Equal(t, post(old.token(t, nil)), "201 false false", "the first: got %v")
		check.Contains(t, post(old.token(t, jwt.MapClaims{"jti": "another"})), "true",
			"a refreshed token is another principal")
		if got := post(old.token(t, jwt.MapClaims{"sub": "bob"})); strings.Contains(got, "true") {
			t.Error("bob is alice:", got)
		}
		forged := newIssuer(t, "1")
		for name, token := range map[string]string{
			"forged": forged.token(t, nil), "expired": old.token(t, jwt.MapClaims{"exp": 1}), "none": "",
			"basic":                 "Basic a",
			"of another issuer":     old.token(t, jwt.MapClaims{"iss": "https://evil.example"}),
			"for another audience":  old.token(t, jwt.MapClaims{"aud": "mail"}),
			"without the claim":     old.token(t, jwt.MapClaims{"sub": nil}),
			"with a claim's number": old.token(t, jwt.MapClaims{"sub": 5}),
		} {
			if got := post(token); !strings.HasPrefix(got, "400") || !strings.HasSuffix(got, "true") {
				t.Errorf("a token that is %s: %s", name, got)
			}
		}
		if jwks == file {
			continue
		}
		served = renewed.jwks()
		must.Do(t, g.config.tokens.renew(t.Context()))
		check.Contains(t, post(renewed.token(t, nil)), "true", "a new key of the issuer")
		served = "{}"
		if err := g.config.tokens.renew(t.Context()); err == nil {
			t.Error("a JWKS without keys was taken")
		}
		check.Contains(t, post(renewed.token(t, nil)), "true", "the keys from before do not hold on")
	}
	for _, path := range []string{"/moved", "/large"} {
		if _, err := load(t, defaults, fmt.Sprintf(section, login.URL+path)); err == nil {
			t.Errorf("the JWKS at %s was taken", path)
		}
	}
}

// Several claims select the principal together: a user who acts for several tenants.
func TestPrincipalClaims(t *testing.T) {
	t.Parallel()
	upstream, login := echo("a"), newIssuer(t, "1")
	t.Cleanup(upstream.Close)
	file := filepath.Join(t.TempDir(), "jwks.json")
	must.Do(t, os.WriteFile(file, []byte(login.jwks()), 0o600))
	s := plain(upstream.URL)
	s.PrincipalClaim = "sub, org"
	base, _ := start(t, must.Get(load(t, s, fmt.Sprintf(
		"jwt: {issuer: \"https://login.example\", audience: charges, algorithms: [EdDSA], jwks: %q}\n", file)))(t))
	for _, test := range []struct {
		claims jwt.MapClaims
		want   string
	}{
		{jwt.MapClaims{"org": "acme"}, "201 false"},
		{jwt.MapClaims{"org": "globex"}, "201 false"},
		{jwt.MapClaims{"org": "acme"}, "201 true"},
		{jwt.MapClaims{"sub": "alice\"\"acme", "org": "x"}, "201 false"},
		{nil, "400 false"},
	} {
		status, header, text := sendAs(t, login.token(t, test.claims), http.MethodPost, base, `"k"`, "")
		if got := fmt.Sprintf("%d %s", status, header.Get(idempotency.HeaderReplayed)); got != test.want {
			t.Errorf("%v: %s %s, want %s", test.claims, got, text, test.want)
		}
	}
}

// A route may ask the service before a replay, with the caller's credentials and nothing else.
func TestReplayCheck(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	status.Store(http.StatusNoContent)
	var last atomic.Pointer[http.Request]
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/may" {
			last.Store(r)
			if status.Load() == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(int(status.Load()))
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(upstream.Close)
	defaults := plain(upstream.URL)
	defaults.Shared, defaults.ReplayCheck = true, "GET /may?what=replay"
	c := must.Get(load(t, defaults, ""))(t)
	base, _ := start(t, c)
	post := func() (int, http.Header, string) {
		return sendAs(t, "Bearer a", http.MethodPost, base+"/charge?x=1", `"k"`, "body")
	}
	if got, _, _ := post(); got != http.StatusCreated || last.Load() != nil {
		t.Fatal(got, last.Load())
	}
	got, header, _ := post()
	if got != http.StatusCreated || header.Get(idempotency.HeaderReplayed) != "true" {
		t.Error(got, header)
	}
	asked := last.Load()
	if asked == nil || asked.Method != http.MethodGet || asked.URL.RawQuery != "what=replay" ||
		asked.Header.Get("Authorization") != "Bearer a" || asked.Header.Get("X-Original-Method") != "POST" ||
		asked.Header.Get("X-Original-URI") != "/charge?x=1" || asked.Header.Get(idempotency.HeaderKey) != "" ||
		asked.ContentLength > 0 {
		t.Errorf("the check: %+v", asked)
	}
	for said, want := range map[int]string{401: "replay-forbidden", 404: "replay-forbidden", 302: "replay-forbidden",
		500: "replay-unchecked", 0: "replay-unchecked"} {
		status.Store(int64(said))
		if got, header, text := post(); !strings.Contains(text, want) ||
			header.Get(idempotency.HeaderReplayed) == "true" {
			t.Errorf("the check says %d: %d %s, want %s", said, got, text, want)
		}
	}
}
