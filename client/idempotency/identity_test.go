package idempotency_test

import (
	"bytes"
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

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func host(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

// Two requests with the same key, body and path are one request, two requests of different senders, or a conflict.
func TestWhoseRequest(t *testing.T) {
	t.Parallel()
	const same, apart, conflict = "same", "apart", "conflict"
	tenants := func(o *idempotency.Options) {
		o.Identity = []string{"authorization", "host", "Stripe-Account", "x-authorization"}
	}
	function := func(o *idempotency.Options) {
		o.Principal = func(_ context.Context, h http.Header) (string, error) { return "p:" + h.Get("X-User"), nil }
	}
	keys := func(o *idempotency.Options) { o.Identity = []string{"x-api-key"} }
	apiKey := func(values ...string) func(*http.Request) {
		return two(header("Authorization"), header("X-Api-Key", values...))
	}
	for name, test := range map[string]struct {
		options func(*idempotency.Options)
		a, b    func(*http.Request)
		want    string
	}{
		"another credential":      {nil, nil, header("Authorization", "Bearer b"), apart},
		"another case of a token": {nil, nil, header("Authorization", "Bearer Demo"), apart},
		"the scheme's case":       {nil, nil, header("Authorization", "bearer demo"), same},
		"two spaces":              {nil, nil, header("Authorization", "BEARER  \t demo "), same},
		"no scheme":               {nil, header("Authorization", "Demo"), header("Authorization", "demo"), apart},
		"another host":            {nil, host("acme.example"), host("globex.example"), apart},
		"the host's spelling":     {nil, host("acme.example"), host("ACME.example.:8080"), same},
		"another address":         {nil, host("127.0.0.1:7480"), host("[2001:db8::1]:80"), same},
		"localhost":               {nil, host("10.0.0.1"), host("localhost:7480"), same},
		"a host, not an address":  {nil, host("acme.example"), host("127.0.0.1"), apart},
		"an address as it is":     {nil, host("2001:db8::1"), host("[2001:db8::1%25eth0]:80"), same},
		"several ports":           {nil, host("acme.example:443, gw:80"), host("globex.example:443, gw:80"), apart},
		"names in brackets":       {nil, host("[acme.example]"), host("[globex.example]"), apart},
		"another tenant":          {tenants, header("Stripe-Account", "a"), header("Stripe-Account", "b"), apart},
		"no tenant":               {tenants, nil, header("Stripe-Account", "b"), apart},
		"an empty tenant":         {tenants, nil, header("Stripe-Account", ""), same},
		"two tenants":             {tenants, header("Stripe-Account", "a"), header("Stripe-Account", "a", "b"), apart},
		"tenant in another list":  {tenants, header("X-Tenant", "a"), header("X-Tenant", "b"), conflict},
		"tenant, not configured":  {nil, header("Stripe-Account", "a"), header("Stripe-Account", "b"), conflict},
		"tenants by preset": {func(o *idempotency.Options) {
			o.Identity = []string{"authorization", idempotency.HeadersAnyTenant}
		}, header("X-Org-Id", "a"), header("X-Org-Id", "b"), apart},
		"another credential header": {tenants, header("X-Authorization", "Bearer a"),
			header("X-Authorization", "Bearer b"), apart},
		"its scheme's case": {tenants, header("X-Authorization", "Bearer a"),
			header("X-Authorization", "bearer  a"), same},
		"a credential compared": {func(o *idempotency.Options) { o.RequestHeaders = []string{"x-authorization"} },
			header("X-Authorization", "Bearer a"), header("X-Authorization", "bearer  a"), same},
		"without the host": {func(o *idempotency.Options) { o.Identity = []string{"authorization"} },
			host("acme.example"), host("globex.example"), same},
		"shared": {func(o *idempotency.Options) { o.Shared = true }, nil, header("Authorization", "b"), same},
		"shared, another host": {func(o *idempotency.Options) { o.Shared = true }, host("acme.example"),
			host("globex.example"), apart},
		"a function":               {function, header("X-User", "a"), header("X-User", "b"), apart},
		"a function, another host": {function, host("acme.example"), host("globex.example"), apart},
		"a function, without the host": {func(o *idempotency.Options) {
			function(o)
			o.Identity = []string{}
		}, host("acme.example"), host("globex.example"), same},
		"a function sees the host": {func(o *idempotency.Options) {
			o.Principal = func(_ context.Context, h http.Header) (string, error) { return "p:" + h.Get("Host"), nil }
			o.Identity = []string{}
		}, host("acme.example"), host("globex.example"), apart},
		"a function, and a tenant": {func(o *idempotency.Options) {
			function(o)
			o.Identity = []string{"x-tenant"}
		}, header("X-Tenant", "a"), header("X-Tenant", "b"), apart},
		"an API key":       {keys, apiKey("a"), apiKey("b"), apart},
		"an API key alone": {keys, apiKey("a"), two(apiKey("a"), host("b")), same},
		"a key in lines":   {keys, apiKey("a", "b"), apiKey("a , b"), same},
		"a key in quotes":  {keys, apiKey(`"a, b"`), apiKey(`"a,b"`), apart},
		"another version":  {nil, header("Stripe-Version", "1"), header("Stripe-Version", "2"), conflict},
		"a dry run":        {nil, header("X-Dry-Run", "true"), nil, conflict},
		"a header besides": {nil, header("X-Trace", "1"), header("X-Trace", "2"), same},
		"a header compared": {func(o *idempotency.Options) { o.RequestHeaders = []string{"x-trace"} },
			header("X-Trace", "1"), header("X-Trace", "2"), conflict},
		"no header compared": {func(o *idempotency.Options) { o.RequestHeaders = []string{} },
			header("Stripe-Version", "1"), header("Stripe-Version", "2"), same},
		"If-Match":            {nil, header("If-Match", `"1"`), header("If-Match", `"2"`), conflict},
		"If-Match in lines":   {nil, header("If-Match", `"a"`, `"b"`), header("If-Match", `"a", "b"`), same},
		"If-Match, in quotes": {nil, header("If-Match", `"a, b"`), header("If-Match", `"a,b"`), conflict},
		"If-Match, escaped":   {nil, header("If-Match", `"\", b"`), header("If-Match", `"\",b"`), conflict},
		"If-Match, in order":  {nil, header("If-Match", `"a"`, `"b"`), header("If-Match", `"b"`, `"a"`), conflict},
		"Slug":                {nil, header("Slug", "a, b"), header("Slug", "a,b"), conflict},
		"Destination":         {nil, header("Destination", "/a", "b"), header("Destination", "/a,b"), conflict},
		"codings in lines": {
			nil, header("Content-Encoding", "gzip", "deflate"), header("Content-Encoding", "gzip, deflate"), same,
		},
		"If-None-Match":       {nil, nil, header("If-None-Match", "*"), conflict},
		"If-Modified-Since":   {nil, nil, header("If-Modified-Since", "x"), conflict},
		"If-Unmodified-Since": {nil, nil, header("If-Unmodified-Since", "x"), conflict},
		"If-Range":            {nil, nil, header("If-Range", "x"), conflict},
		"Range":               {nil, header("Range", "bytes=0-1"), header("Range", "bytes=0-2"), conflict},
		"Content-Range": {
			nil, header("Content-Range", "bytes 0-1"), header("Content-Range", "bytes 2-3"), conflict,
		},
		"X-Amz-Target":    {nil, header("X-Amz-Target", "a"), header("X-Amz-Target", "b"), conflict},
		"two media types": {nil, nil, header("Content-Type", "application/json", "text/plain"), conflict},
	} {
		change := func(*idempotency.Options) {}
		if test.options != nil {
			change = test.options
		}
		s := newService(t, change)
		for _, f := range []*func(*http.Request){&test.a, &test.b} {
			if *f == nil {
				*f = func(*http.Request) {}
			}
		}
		s.expect(s.send(test.a), http.StatusCreated, "false", 1)
		second := s.send(test.b)
		got := map[string]string{"201 false": apart, "201 true": same, "422 false": conflict}[strings.TrimSuffix(
			second.Status, http.StatusText(second.StatusCode))+second.Header.Get("Idempotent-Replayed")]
		if got != test.want {
			t.Errorf("%s: %q (%d), want %q", name, got, second.StatusCode, test.want)
		}
	}
}

func two(a, b func(*http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		a(r)
		b(r)
	}
}

// signed are credentials that differ between a request and its repeat; # stands for what changes. The second text is a
// part of the same credential of another owner, or "" if nothing in it stays the same.
var signed = map[string][2]string{
	"AWS4-HMAC-SHA256 Credential=AKID/2026112#/r/s/aws4_request, SignedHeaders=host, Signature=#": {"AKID", "OTHER"},
	"AWS AKID:c2ln#=": {"AKID", "OTHER"},
	"AWS4-ECDSA-P256-SHA256 Credential=AKID/2026112#/s/aws4_request, Signature=#":              {"AKID", "OTHER"},
	`Digest username="a, b", realm="r", nonce="n", uri="/", nc=0000000#, response="#"`:         {"a, b", "c"},
	`OAuth oauth_consumer_key="k1", oauth_nonce="#", oauth_timestamp="#", oauth_signature="#"`: {"k1", "k2"},
	`Hawk id="k1", ts="#", nonce="#", mac="#"`:                                                 {"k1", "k2"},
	`MAC id="k1", nonce="#", mac="#"`:                                                          {"k1", "k2"},
	`Signature keyId="k1",algorithm="rsa-sha256",headers="date",signature="#"`:                 {"k1", "k2"},
	"SharedKey account:c2ln#=":                                                                 {"account", "other"},
	"SharedKeyLite account:c2ln#=":                                                             {"account", "other"},
	"HMAC-SHA256 Credential=id1&SignedHeaders=date&Signature=#":                                {"id1", "id2"},
	`hmac username="k1", algorithm="hmac-sha1", headers="date", signature="#"`:                 {"k1", "k2"},
	"TC3-HMAC-SHA256 Credential=AKID/2026-11-2#/s/tc3_request, Signature=#":                    {"AKID", "OTHER"},
	"GOOG4-RSA-SHA256 Credential=a@b/2026112#/auto/storage/goog4_request, Signature=#":         {"a@b", "c@d"},
	"OSS AKID:c2ln#=": {"AKID", "OTHER"},
	"EG1-HMAC-SHA256 client_token=k1;access_token=a;timestamp=#;nonce=#;signature=#": {"k1", "k2"},
	`WECHATPAY2-SHA256-RSA2048 mchid="m1",nonce_str="#",signature="#",timestamp="#"`: {"m1", "m2"},
	`Unheard-Of key="k1", signature="#"`:                                             {"k1", "k2"},
	"q-sign-algorithm=sha1&q-ak=AKID&q-sign-time=#&q-signature=#":                    {"AKID", "OTHER"},
	"bce-auth-v1/AKID/2015-04-27T08:59:4#Z/1800/host;x-bce-date/#":                   {"AKID", "OTHER"},
	"VOLC-HMAC/AKID/2015-04-27T08:59:4#Z/c2ln#=":                                     {"AKID", "OTHER"},
	"APIAuth k1:c2ln#=":                           {"k1", "k2"},
	"amx k1:c2ln#=:nonce#:1#":                     {"k1", "k2"},
	"EdDSA k1:c2ln#":                              {"k1", "k2"},
	"ES256 k1:c2ln#":                              {"k1", "k2"},
	"LOG AKID:c2ln#=":                             {"AKID", "OTHER"},
	"MNS AKID:c2ln#=":                             {"AKID", "OTHER"},
	"MQS AKID:c2ln#=":                             {"AKID", "OTHER"},
	"ODPS AKID:c2ln#=":                            {"AKID", "OTHER"},
	"DATAHUB AKID:c2ln#=":                         {"AKID", "OTHER"},
	"FC AKID:c2ln#=":                              {"AKID", "OTHER"},
	"NOS AKID:c2ln#=":                             {"AKID", "OTHER"},
	"KSS AKID:c2ln#=":                             {"AKID", "OTHER"},
	"TSA AKID:c2ln#=":                             {"AKID", "OTHER"},
	"HmacSHA256 k1:c2ln#":                         {"k1", "k2"},
	"hmacsha1 k1:c2ln#":                           {"k1", "k2"},
	"AppSign k1:c2ln#":                            {"k1", "k2"},
	"RSASigned k1:c2ln#":                          {"k1", "k2"},
	"my_sign2 k1:c2ln#":                           {"k1", "k2"},
	"key%3DAKID%26sig%3D#":                        {"AKID", "OTHER"},
	"HMAC:AKID:/a#/c2ln":                          {},
	"type%3Dmaster%26ver%3D1.0%26sig%3Dc2ln/#%3D": {},
	"type%3dmaster%26ver%3d1.0%26sig%3dc2ln#%3d":  {},
	"type=master&ver=1.0&sig=c:2ln#":              {},
	"Dataplus AKID:c2ln#=":                        {"AKID", "OTHER"},
	"SAPISIDHASH 1764366#_c2ln#":                  {},
	"PoP eyJ#":                                    {},
	"OTP 12345#":                                  {},
	"CredSSP TlRM#":                               {},
	"Negotiate YII#":                              {},
	"NTLM TlRM#":                                  {},
	"PrivateToken t#":                             {},
	"SCRAM-SHA-256 d#":                            {},
}

// A credential that is made for one request is refused, with what to configure. Its stable part tells senders apart,
// where the service is asked before each replay.
func TestSignedCredentials(t *testing.T) {
	t.Parallel()
	as := func(credential, sign string) func(*http.Request) {
		return header("Authorization", strings.ReplaceAll(credential, "#", sign))
	}
	for credential, owners := range signed {
		s := newService(t)
		for _, sign := range []string{"1", "2"} {
			for _, spelled := range []string{credential, strings.Replace(credential, " ", "  ", 1)} {
				answer := s.send(as(spelled, sign))
				content, _ := io.ReadAll(answer.Body)
				if answer.StatusCode != http.StatusBadRequest ||
					!strings.Contains(string(content), "principal-missing") ||
					!strings.Contains(string(content), "principal_claim") || s.charge.runs.Load() != 0 {
					t.Errorf("%s: %d %s", credential, answer.StatusCode, content)
				}
			}
		}
		asked := 0
		s = newService(t, func(o *idempotency.Options) {
			o.Identity = []string{"authorization-id", "host"}
			o.AllowReplay = func(*http.Request) (bool, error) { asked++; return asked == 1, nil }
		})
		if owners[0] == "" {
			answer := s.send(as(credential, "1"))
			content, _ := io.ReadAll(answer.Body)
			if strings.Contains(string(content), "the scheme  ") {
				t.Errorf("%s: %s", credential, content)
			}
			answer.Body = io.NopCloser(bytes.NewReader(content))
			s.refused(answer, 400, idempotency.CodePrincipalMissing, idempotency.FixRequest, 0)
			continue
		}
		s.expect(s.send(as(credential, "1")), http.StatusCreated, "false", 1)
		if other := s.send(as(strings.Replace(credential, owners[0], owners[1], 1), "1")); other.StatusCode !=
			http.StatusCreated || s.charge.runs.Load() != 2 {
			t.Errorf("%s: another owner: %d", credential, other.StatusCode)
		}
		if again := s.send(as(credential, "2")); again.Header.Get("Idempotent-Replayed") != "true" || asked != 1 {
			t.Errorf("%s: the repeat: %d %v", credential, again.StatusCode, again.Header)
		}
		s.refused(s.send(as(credential, "3")), 403, idempotency.CodeReplayForbidden, idempotency.FixRequest, 2)
	}
	for _, further := range []func(o *idempotency.Options){
		func(o *idempotency.Options) { o.Identity = []string{"authorization", "x-authorization"} },
		func(o *idempotency.Options) { o.RequestHeaders = []string{"x-authorization"} },
	} {
		s := newService(t, further)
		answer := s.send(header("X-Authorization", "AWS4-HMAC-SHA256 Credential=a/b, Signature=c"))
		s.refused(answer, 400, idempotency.CodePrincipalMissing, idempotency.FixRequest, 0)
	}
	// These stay the same.
	for _, credential := range []string{
		"Basic YTpi", "Bearer a.b.c", "DPoP abc", "Token abc", `Token token="abc"`, "ApiKey a:b", "OAuth abc", "GNAP x",
		"abc", "Key abc==", "Bearer signature=1", "UniversalToken x", "Transversal x", "DocuSign x",
		"CredentialSignon x",
		"SIGNON x", "Scrambled x", "Assigned x", "SharedAccessSignature sr=a&sig=b&se=1&skn=c", "abc/def:ghi", "hmac",
		"type%3Daad%26ver%3D1.0%26sig%3Da.b.c", "type%3Dresource%26ver%3D1.0%26sig%3Dabc", "100%3D", "%3D%zz",
	} {
		s := newService(t)
		s.expect(s.send(header("Authorization", credential)), http.StatusCreated, "false", 1)
		s.expect(s.send(header("Authorization", credential)), http.StatusCreated, "true", 1)
	}
	s := newService(t)
	for _, none := range []string{"", "Bearer", "basic "} {
		answer := s.send(header("Authorization", none))
		s.refused(answer, 400, idempotency.CodePrincipalMissing, idempotency.FixRequest, 0)
	}
}

// What a visitor began is the same request after the visitor has signed in, for the first user that sends the secret
// and for no other.
func TestVisitorSignsIn(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) {
		o.VisitorHeader, o.AllowReplay = "X-Visitor", func(*http.Request) (bool, error) { return true, nil }
	})
	visitor := func(secret string) func(*http.Request) { return header("X-Visitor", secret) }
	anonymous := func(r *http.Request) { r.Header.Del("Authorization") }
	const secret, stranger = "8e03978e-40d5-43dd-bc93-6894a57f9324", "00000000-40d5-43dd-bc93-6894a57f9324"
	s.expect(s.send(anonymous, visitor(secret)), http.StatusCreated, "false", 1)
	s.expect(s.send(anonymous, visitor(secret)), http.StatusCreated, "true", 1)
	s.expect(s.send(visitor(secret)), http.StatusCreated, "true", 1) // signed in
	s.expect(s.send(visitor(secret)), http.StatusCreated, "true", 1)
	s.expect(s.send(anonymous, visitor(stranger)), http.StatusCreated, "false", 2)
	bob := header("Authorization", "Bearer bob")
	s.expect(s.send(bob, visitor(secret)), http.StatusCreated, "false", 3) // bob's own
	s.expect(s.send(bob), http.StatusCreated, "true", 3)
	s.expect(s.send(), http.StatusCreated, "false", 4) // without the secret, it is another request
	for _, wrong := range []string{"short", strings.Repeat("x", 257), "8e03978e-40d5-43dd bc93-6894a57f9324"} {
		s.refused(s.send(anonymous, visitor(wrong)), 400, idempotency.CodePrincipalMissing, idempotency.FixRequest, 4)
	}
	s.refused(s.send(anonymous), 400, idempotency.CodePrincipalMissing, idempotency.FixRequest, 4)
	s.refused(s.send(visitor(secret), header("Authorization", "Digest a=b")), 400, idempotency.CodePrincipalMissing,
		idempotency.FixRequest, 4)
}

// A credential that nothing has verified does not take over what a visitor began, and neither does a request that is
// not admitted: the secret stays free for the user.
func TestStaleCredentialClaimsNoVisitor(t *testing.T) {
	t.Parallel()
	var admits atomic.Bool
	s := newService(t, func(o *idempotency.Options) {
		o.VisitorHeader = "X-Visitor"
		o.AllowReplay = func(r *http.Request) (bool, error) {
			switch r.Header.Get("Authorization") {
			case "Bearer stale":
				return false, nil
			case "Bearer unknown":
				return false, errors.New("the service is away")
			}
			return true, nil
		}
		o.Admit = func(party string) (func(), bool) {
			return func() {}, admits.Load() || strings.HasPrefix(party, "visitor:")
		}
	})
	const secret = "8e03978e-40d5-43dd-bc93-6894a57f9324"
	as := func(credential string) func(*http.Request) {
		return two(header("X-Visitor", secret), header("Authorization", credential))
	}
	s.expect(s.send(as("")), http.StatusCreated, "false", 1)
	s.refused(s.send(as("Bearer bob")), 429, idempotency.CodeQuota, idempotency.SameKey, 1)
	admits.Store(true)
	s.refused(s.send(as("Bearer unknown")), 503, idempotency.CodeReplayUnchecked, idempotency.SameKey, 1)
	s.refused(s.send(as("Bearer stale")), 403, idempotency.CodeReplayForbidden, idempotency.FixRequest, 1)
	s.expect(s.send(as("Bearer alice")), http.StatusCreated, "true", 1)
	s.refused(s.send(as("Bearer stale")), 403, idempotency.CodeReplayForbidden, idempotency.FixRequest, 1)
	s.expect(s.send(as("Bearer bob")), http.StatusCreated, "false", 2)
}

// A request that the replay check refuses does not run, in whatever order the requests of a visitor, of the user before
// the check agrees and of the user afterwards come: each order runs the work once, and none as another sender's.
func TestRefusedVisitorRunsOnce(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"no yes", "no yes visitor", "no visitor", "no visitor yes", "visitor no yes",
		"yes no visitor", "no yes no visitor yes"} {
		valid := false
		s := newService(t, func(o *idempotency.Options) {
			o.VisitorHeader = "X-Visitor"
			o.AllowReplay = func(r *http.Request) (bool, error) {
				return valid || r.Header.Get("Authorization") == "", nil
			}
		})
		runs := int64(0)
		for who := range strings.FieldsSeq(order) {
			request := header("X-Visitor", "8e03978e-40d5-43dd-bc93-6894a57f9324")
			if who == "visitor" {
				request = two(request, func(r *http.Request) { r.Header.Del("Authorization") })
			}
			if valid = who == "yes"; who == "no" {
				s.refused(s.send(request), 403, idempotency.CodeReplayForbidden, idempotency.FixRequest, runs)
				continue
			}
			s.expect(s.send(request), http.StatusCreated, strconv.FormatBool(runs > 0), 1)
			runs = 1
		}
	}
}

// A stored principal says what it was made of, and contains nothing of the headers.
func TestIdentityOf(t *testing.T) {
	t.Parallel()
	var principal string
	s := &service{T: t, metrics: newCounter()}
	s.store = principalStore{idempotency.Memory(), &principal}
	for want, change := range map[string]func(*idempotency.Options){
		"authorization host": func(*idempotency.Options) {},
		"authorization":      func(o *idempotency.Options) { o.Identity = []string{"authorization"} },
		"host":               func(o *idempotency.Options) { o.Shared = true },
		"authorization any-tenant host x-a": func(o *idempotency.Options) {
			o.Identity = []string{"x-a", "host", "authorization", "any-tenant"}
		},
		"user x-a": func(o *idempotency.Options) {
			o.Identity = []string{"x-a"}
			o.Principal = func(context.Context, http.Header) (string, error) { return "user:a/b+c:d", nil }
		},
		"sha256 host": func(o *idempotency.Options) {
			o.Identity = []string{"host"}
			o.Principal = func(context.Context, http.Header) (string, error) { return strings.Repeat("a", 512), nil }
		},
	} {
		s.charge.runs.Store(0)
		s.use(change)
		s.expect(s.send(header("X-A", "secret"), header("Authorization", "Bearer secret"), header("Idempotency-Key",
			want[:4])), http.StatusCreated, "false", 1)
		got := idempotency.IdentityOf(principal)
		if strings.Join(got, " ") != want || strings.Contains(principal, "secret") {
			t.Errorf("%q is made of %q, want %s", principal, got, want)
		}
	}
	if got := idempotency.IdentityOf("user:alice"); got != nil {
		t.Error(got)
	}
}

// principalStore records the principal of the last reservation.
type principalStore struct {
	idempotency.Store

	last *string
}

func (s principalStore) Reserve(
	ctx context.Context, r *idempotency.ReserveRequest,
) (*idempotency.Reservation, error) {
	*s.last = r.Key.Principal
	return s.Store.Reserve(ctx, r)
}

// Mistakes in what tells senders apart are errors.
func TestIdentityMistakes(t *testing.T) {
	t.Parallel()
	principal := func(context.Context, http.Header) (string, error) { return "", errors.New("unused") }
	for want, o := range map[string]idempotency.Options{
		`has "x user"`:                       {Identity: []string{"authorization", "X User"}},
		"has idempotency-key, which changes": {Identity: []string{"authorization", "Idempotency-Key"}},
		"has signature, which changes":       {RequestHeaders: []string{"signature"}},
		"must have authorization":            {Identity: []string{"host", "any-tenant"}},
		"both authorization and":             {Identity: []string{"authorization", "authorization-id"}},
		"without AllowReplay":                {Identity: []string{"authorization-id"}},
		"where another setting says":         {Identity: []string{"authorization"}, Shared: true},
		"says who sends":                     {Identity: []string{"authorization"}, Principal: principal},
		"at most 200 characters":             {Identity: []string{"authorization", strings.Repeat("x", 200)}},
		"VisitorHeader":                      {VisitorHeader: "X-Visitor", Shared: true},
		"needs a verified principal":         {VisitorHeader: "X-Visitor"},
	} {
		if _, err := o.Policy(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, name := range []string{
		"x-signature", "stripe-signature", "x-timestamp", "x-nonce", "x-hmac", "x-ms-date", "tracestate",
		"x-b3-traceid", "x-correlation-id", "request-id",
	} {
		o := idempotency.Options{Identity: []string{name, "authorization"}}
		if _, err := o.Policy(); err == nil || !strings.Contains(err.Error(), "which changes with each request") {
			t.Errorf("[%s, authorization]: %v", name, err)
		}
	}
	for _, name := range []string{
		"x-tenant-id", "prefer", "if-match", "accept-language", "content-type", "user-agent", "origin", "referer",
		"from", "x-forwarded-user",
	} {
		o := idempotency.Options{Identity: []string{name, "host"}}
		if _, err := o.Policy(); err == nil || !strings.Contains(err.Error(), "must have authorization") {
			t.Errorf("[%s, host]: %v", name, err)
		}
		o.Shared = true
		must.Do(t, check.Err(o.Policy()), "[%s, host], shared", name)
	}
	defer func() {
		if recover() == nil {
			t.Error("an Interceptor, which asks nobody before a replay, takes authorization-id")
		}
	}()
	idempotency.Interceptor(idempotency.Memory(), idempotency.Options{
		Identity: []string{"authorization-id"}, AllowReplay: func(*http.Request) (bool, error) { return true, nil },
	})
}

// Where a list leaves out authorization, a request needs one of its secrets, and has no other one that would not count.
func TestIdentityWithoutAuthorization(t *testing.T) {
	t.Parallel()
	s := newService(t, func(o *idempotency.Options) { o.Identity = []string{"x-api-key", "x-tenant-id", "host"} })
	none, key, tenant := header("Authorization"), header("X-Api-Key", "a"), header("X-Tenant-Id", "1")
	for want, change := range map[string]func(*http.Request){
		"headers X-Api-Key":                     two(none, tenant),
		"of the headers X-Api-Key":              two(none, header("X-Api-Key", "", ",")),
		"add authorization":                     key,
		"leaves out the Authorization header":   two(key, header("Authorization", "", "Bearer b")),
		"Authorization header that the request": tenant,
	} {
		answer := s.send(change)
		content, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(content), want) ||
			!strings.Contains(string(content), string(idempotency.CodePrincipalMissing)) {
			t.Errorf("%d %s, want %s", answer.StatusCode, content, want)
		}
	}
	s.expect(s.send(key, header("Authorization", "")), http.StatusCreated, "false", 1)
	s.expect(s.send(key, none), http.StatusCreated, "true", 1)
}

// The policy says what is compared.
func TestPolicyOfTheIdentity(t *testing.T) {
	t.Parallel()
	o := idempotency.Options{Identity: []string{"Authorization", "host", "stripe-account"}, VisitorHeader: "X-V",
		AllowReplay: func(*http.Request) (bool, error) { return true, nil }}
	text, err := o.Policy()
	for _, want := range []string{
		`"principal":["authorization","host","stripe-account"]`, `"if-match"`, `"stripe-version"`, `"visitor_header":"X-V"`,
	} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s, %v", want, text, err)
		}
	}
	names, err := o.ComparedHeaders()
	for _, want := range []string{"If-Match", "Stripe-Account", "Stripe-Version", "Host", "X-V"} {
		if err != nil || !slices.Contains(names, want) {
			t.Errorf("no %s in %s, %v", want, names, err)
		}
	}
	check.Equal(t, strings.Count(strings.Join(names, " "), "Stripe-Account"), 1, "%v: %v", names)
}

// A Connect call is told apart by the same headers.
func TestInterceptorIdentity(t *testing.T) {
	t.Parallel()
	s, clients := rpc(t, func(o *idempotency.Options) { o.Identity = []string{"authorization", "host", "x-tenant"} })
	runs := int64(0)
	for name, c := range clients {
		for _, change := range []func(http.Header){
			func(http.Header) {},
			func(h http.Header) { h.Set("X-Tenant", "a") },
			func(h http.Header) { h.Set("Host", "acme.example") },
			func(h http.Header) { h.Set("Host", "globex.example") },
		} {
			runs++
			for range 2 {
				r := writeCall(strings.ReplaceAll(name, " ", "-"), "a")
				change(r.Header())
				if _, err := c.Write(t.Context(), r); err != nil || s.runs.Load() != runs {
					t.Fatalf("%s, %v: %d runs, want %d, %v", name, r.Header(), s.runs.Load(), runs, err)
				}
			}
		}
		for _, credential := range []string{"Digest username=a, nonce=b", ""} {
			r := writeCall("signed", "a")
			r.Header().Set("Authorization", credential)
			if _, err := c.Write(t.Context(), r); err == nil || s.runs.Load() != runs {
				t.Errorf("%s: %q was taken", name, credential)
			}
		}
		r := writeCall(strings.ReplaceAll(name, " ", "-"), "a")
		r.Header().Set("If-Match", "1")
		if _, err := c.Write(t.Context(), r); err == nil || s.runs.Load() != runs {
			t.Errorf("%s: another precondition is the same call", name)
		}
	}
}

// One handler that is mounted at two places has two kinds of requests: the other place's response would hide that
// nothing was done there.
func TestMounted(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, place := range []string{"/eu", "/us", "/eu"} {
		w := httptest.NewRecorder()
		http.StripPrefix(place, s.handler).ServeHTTP(w, request(func(r *http.Request) {
			r.URL.Path, r.RequestURI = place+"/charge", place+"/charge"
		}))
		s.expect(w.Result(), 201, strconv.FormatBool(i == 2), int64(min(i+1, 2)))
	}
	// A path that something else has rewritten is that of the request.
	s = newService(t)
	for i, sent := range []string{"/old-name", "/charge", "//charge", "http://shop.example/charge", "", ":"} {
		s.expect(s.send(func(r *http.Request) { r.RequestURI = sent }), 201, strconv.FormatBool(i > 0), 1)
	}
}

// A query that is signed anew for each repeat is one request. What else is in it, and who signs, still counts; and
// where the signature alone says who may see the response, it is compared.
func TestSignedQueries(t *testing.T) {
	t.Parallel()
	const day = "X-Amz-Credential=AK%2F2026"
	same := map[string][2]string{
		"SigV4":      {day + "1128%2Fs3&X-Amz-Date=1&X-Amz-Signature=a", day + "1129&X-Amz-Date=2&X-Amz-Signature=b"},
		"V2":         {"AWSAccessKeyId=AK&Expires=1&Signature=aa", "AWSAccessKeyId=AK&Expires=2&Signature=bb"},
		"Azure":      {"sv=2026&sp=w&se=1&sig=aa", "sv=2026&sp=w&se=2&sig=bb"},
		"OAuth":      {"oauth_nonce=1&oauth_signature=a&a=1", "oauth_nonce=2&oauth_timestamp=2&oauth_signature=b&a=1"},
		"CloudFront": {"Key-Pair-Id=K&Expires=1&Signature=a", "Key-Pair-Id=K&Policy=p&Signature=b"},
	}
	differ := map[string][2]string{
		"another parameter": {day + "1128&X-Amz-Signature=aa&a=1", day + "1128&X-Amz-Signature=aa&a=2"},
		"another signer":    {"X-Amz-Credential=A%2F1&X-Amz-Signature=aa", "X-Amz-Credential=B%2F1&X-Amz-Signature=aa"},
		"no signature":      {"sig=aa&se=1", "sig=bb&se=1"},
		"only a date":       {"X-Amz-Date=1", "X-Amz-Date=2"},
	}
	try := func(name string, queries [2]string, status int, change ...func(*idempotency.Options)) {
		t.Helper()
		s := newService(t, change...)
		for i, query := range queries {
			want := []int{201, status}[i]
			answer := s.send(func(r *http.Request) { r.URL.RawQuery = query })
			if runs := s.charge.runs.Load(); answer.StatusCode != want || runs != 1 {
				t.Errorf("%s, request %d: %s after %d runs, want %d", name, i+1, answer.Status, runs, want)
			}
		}
	}
	shared := func(o *idempotency.Options) { o.Shared = true }
	for name, queries := range same {
		try(name, queries, 201)
		try(name+" of anybody", queries, 422, shared)
		try(name+" with a check", queries, 201, shared, func(o *idempotency.Options) {
			o.AllowReplay = func(*http.Request) (bool, error) { return true, nil }
		})
	}
	for name, queries := range differ {
		try(name, queries, 422)
	}
}
