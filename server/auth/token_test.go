package auth

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

func TestTokensOfEveryAlgorithm(t *testing.T) {
	t.Parallel()
	a, k := open(t, tokensFile), testKeys()
	for kid, token := range map[string]string{
		"rsa": sign(t, jwt.SigningMethodRS256, k.rsa, goodClaims(), map[string]any{"kid": "rsa"}),
		"ec":  sign(t, jwt.SigningMethodES256, k.ec, goodClaims(), map[string]any{"kid": "ec"}),
		"ed":  sign(t, jwt.SigningMethodEdDSA, k.ed, goodClaims(), map[string]any{"kid": "ed", "typ": "at+jwt"}),
	} {
		c, err := a.Authenticate(bearer(token))
		if err != nil {
			t.Errorf("%s: %v", kid, explain(err))
			continue
		}
		if c.Actor() != "user:ann" || c.Write(machine.Scope{Organization: "acme", Vault: "main"}, "till-7") != nil ||
			c.Administer() == nil {
			t.Errorf("%s: %s may do something else: %+v", kid, c.Actor(), c.Grant())
		}
	}
}

func explain(err error) error {
	var r *RefusedError
	if errors.As(err, &r) && r.Cause != nil {
		return r.Cause
	}
	return err
}

// forge makes a token of any header and claims without signing it rightly.
func forge(t *testing.T, header map[string]any, claims any, signature string) string {
	t.Helper()
	part := func(v any) string {
		b := must.Get(json.Marshal(v))(t)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return part(header) + "." + part(claims) + "." + signature
}

// TestTokenAttacks: each of these must be refused, for this reason.
func TestTokenAttacks(t *testing.T) {
	t.Parallel()
	a, k := open(t, tokensFile), testKeys()
	der := must.Get(x509.MarshalPKIXPublicKey(&k.rsa.PublicKey))(t)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	ec := func(header map[string]any, claims jwt.MapClaims) string {
		return sign(t, jwt.SigningMethodES256, k.ec, claims, header)
	}
	good := esToken(t, goodClaims())
	parts := strings.Split(good, ".")
	kid := func(name string) map[string]any { return map[string]any{"kid": name} }
	for name, attack := range map[string]struct{ token, reason string }{
		"alg none": {sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, goodClaims(), kid("ec")),
			"signature"},
		"alg none, any case": {forge(t, map[string]any{"alg": "NoNe", "kid": "ec"}, goodClaims(), ""), "signature"},
		"no alg":             {forge(t, kid("ec"), goodClaims(), parts[2]), "signature"},
		"alg is a list": {forge(t, map[string]any{"alg": []string{"ES256"}, "kid": "ec"}, goodClaims(), parts[2]),
			"signature"},
		"HS256 with public key": {sign(t, jwt.SigningMethodHS256, public, goodClaims(), kid("rsa")), "signature"},
		"HS256 with raw DER":    {sign(t, jwt.SigningMethodHS256, der, goodClaims(), kid("rsa")), "signature"},
		"RS512":                 {sign(t, jwt.SigningMethodRS512, k.rsa, goodClaims(), kid("rsa")), "signature"},
		"PS256":                 {sign(t, jwt.SigningMethodPS256, k.rsa, goodClaims(), kid("rsa")), "signature"},
		"kid of another kind":   {ec(kid("rsa"), goodClaims()), "signature"},
		"kid of another key":    {sign(t, jwt.SigningMethodES256, k.other, goodClaims(), kid("ec")), "signature"},
		"unknown kid":           {ec(kid("nobody"), goodClaims()), "signature"},
		"kid is a path":         {ec(kid("../../dev/null"), goodClaims()), "signature"},
		"kid is a number":       {ec(map[string]any{"kid": 7}, goodClaims()), "signature"},
		"no kid":                {ec(nil, goodClaims()), "signature"},
		"own key in the header": {
			sign(t, jwt.SigningMethodES256, k.other, goodClaims(),
				map[string]any{"kid": "mine", "jku": "https://evil.test", "jwk": map[string]any{"kty": "EC"}}),
			"signature"},
		"crit": {ec(map[string]any{"kid": "ec", "crit": []string{"b64"}, "b64": false}, goodClaims()),
			"signature"},
		"typ of a logout": {ec(map[string]any{"kid": "ec", "typ": "logout+jwt"}, goodClaims()), "signature"},
		"changed claims": {parts[0] + "." +
			strings.Split(esToken(t, claimsWith(jwt.MapClaims{"role": "admin"})), ".")[1] + "." + parts[2],
			"signature"},
		"no signature": {parts[0] + "." + parts[1] + ".", "signature"},
		"zero signature": {parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)),
			"signature"},
		"two parts":  {parts[0] + "." + parts[1], "malformed"},
		"four parts": {good + ".x", "malformed"},
		"not base64": {"e30." + parts[1] + "=." + parts[2], "malformed"},
		"not JSON": {base64.RawURLEncoding.EncodeToString([]byte("[")) + "." + parts[1] + "." + parts[2],
			"malformed"},
		"oversized": {esToken(t, claimsWith(jwt.MapClaims{"x": strings.Repeat("x", maxBearerBytes)})),
			"malformed"},
		"wrong issuer":     {esToken(t, claimsWith(jwt.MapClaims{"iss": "https://issuer.test.evil"})), "claims"},
		"no issuer":        {esToken(t, claimsWith(jwt.MapClaims{"iss": nil})), "claims"},
		"wrong audience":   {esToken(t, claimsWith(jwt.MapClaims{"aud": "other"})), "claims"},
		"no audience":      {esToken(t, claimsWith(jwt.MapClaims{"aud": nil})), "claims"},
		"no expiry":        {esToken(t, claimsWith(jwt.MapClaims{"exp": nil})), "claims"},
		"expiry is a text": {esToken(t, claimsWith(jwt.MapClaims{"exp": "tomorrow"})), "claims"},
		"expiry 0":         {esToken(t, claimsWith(jwt.MapClaims{"exp": 0})), "claims"},
		"expired": {esToken(t, claimsWith(jwt.MapClaims{"exp": time.Now().Add(-time.Minute).Unix()})),
			"expired"},
		"not yet": {esToken(t, claimsWith(jwt.MapClaims{"nbf": time.Now().Add(time.Minute).Unix()})),
			"claims"},
		"issued in the future": {esToken(t, claimsWith(jwt.MapClaims{"iat": time.Now().Add(time.Minute).Unix()})),
			"claims"},
	} {
		_, err := a.Authenticate(bearer(attack.token))
		var r *RefusedError
		if !errors.As(err, &r) || r.Reason != attack.reason {
			t.Errorf("%s: got %v (%v), want a refusal because of %s", name, err, explain(err), attack.reason)
		}
	}
	if _, err := a.Authenticate(bearer(good)); err != nil {
		t.Fatal("the token that the attacks are made of must be good:", explain(err))
	}
}

// TestClaims: signed, and of no use here.
func TestClaims(t *testing.T) {
	t.Parallel()
	a := open(t, tokensFile)
	for name, changes := range map[string]jwt.MapClaims{
		"no subject": {"sub": nil}, "empty subject": {"sub": ""}, "subject is a number": {"sub": 7},
		"line break": {"sub": "ann\nactor=system:gc"}, "NUL": {"sub": "a\x00b"},
		"space": {"sub": "a b"}, "DEL": {"sub": "a\x7f"},
		"looks alike": {"sub": "аnn"}, "long": {"sub": strings.Repeat("a", 257)},
		"no role": {"role": nil}, "unknown role": {"role": "root"},
		"role is a list": {"role": []string{"admin"}}, "role in capitals": {"role": "Admin"},
		"no scopes": {"scopes": nil}, "empty scopes": {"scopes": []string{}}, "bad scope": {"scopes": "a/b/c"},
		"scopes of numbers":      {"scopes": []any{"acme", 7}},
		"scopes is an object":    {"scopes": map[string]any{"acme": true}},
		"writer without clients": {"clients": nil}, "bad client": {"clients": "é"},
	} {
		if c, err := a.Authenticate(bearer(esToken(t, claimsWith(changes)))); err == nil {
			t.Errorf("%s: let in as %s", name, c.Actor())
		}
	}
	// A subject cannot be another kind of actor.
	for _, subject := range []string{"system:gc", "client:till-7", "auth0|5f7c", "a@b.test"} {
		c, err := a.Authenticate(bearer(esToken(t, claimsWith(jwt.MapClaims{"sub": subject}))))
		if err != nil || c.Actor() != "user:"+subject {
			t.Errorf("%s: %v", subject, explain(err))
		}
	}
}

// TestTokenExpires: a cached token still expires on time.
func TestTokenExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, tokensFile)
		token := esToken(t, goodClaims())
		c, err := a.Authenticate(bearer(token))
		if err != nil {
			t.Fatal(explain(err))
		}
		if again, err := a.Authenticate(bearer(token)); again != c {
			t.Error("a token was verified twice:", err)
		}
		ended, stop := c.Ended()
		defer stop()
		time.Sleep(time.Hour + 9*time.Second) //nolint:forbidigo // The clock of synctest.
		if _, err := a.Authenticate(bearer(token)); err != nil || c.Check() != nil || ended.Err() != nil {
			t.Error("refused although the leeway is not over:", err)
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // The clock of synctest.
		var r *RefusedError
		if _, err := a.Authenticate(bearer(token)); !errors.As(err, &r) || r.Reason != "expired" {
			t.Error("an expired token was let in:", err)
		}
		synctest.Wait()
		if !errors.Is(c.Check(), ErrExpired) || ended.Err() == nil {
			t.Error("the credential of an expired token goes on:", c.Check())
		}
	})
}

// TestRememberedTokensAreBounded also keeps the ones in use.
func TestRememberedTokensAreBounded(t *testing.T) {
	t.Parallel()
	i := newIssuer(new(Verifier), issuerSettings{})
	c := new(Credential)
	i.remember([32]byte{}, c)
	for n := range 3 * maxTokens {
		i.remember([32]byte{1, byte(n), byte(n >> 8)}, new(Credential))
		must.Equal(t, i.recall([32]byte{}), c, "a token that is in use all the time was forgotten: %v")
	}
	if n := len(i.recent) + len(i.older); n > 2*maxTokens {
		t.Errorf("%d tokens are remembered", n)
	}
}

func TestJWKS(t *testing.T) {
	t.Parallel()
	good := testKeys().jwks
	all := []string{"RS256", "ES256", "EdDSA"}
	must.Equal(t, len(must.Get(parseJWKS([]byte(good), all))(t)), 3)
	if keys, err := parseJWKS([]byte(good), []string{"EdDSA"}); err != nil || len(keys) != 1 ||
		keys["ed"].algorithm != "EdDSA" {
		t.Error("only the allowed algorithm's key must be taken:", keys, err)
	}
	for name, test := range map[string]struct{ content, says string }{
		"not JSON":     {"{", "JWKS"},
		"no keys":      {`{"keys":[]}`, "no key"},
		"a secret":     {`{"keys":[{"kty":"oct","kid":"a","k":"c2VjcmV0"}]}`, "secret"},
		"private half": {`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AA","d":"AA"}]}`, "secret"},
		"encryption": {strings.ReplaceAll(`{"keys":[{"kty":"RSA","use":"enc","kid":"a","n":"AQAB","e":"AQAB"}]}`, " ",
			""), "no key"},
		"small RSA": {`{"keys":[{"kty":"RSA","kid":"a","n":"` + strings.Repeat("_", 170) + `","e":"AQAB"}]}`, "2048"},
		"RSA, e 1":  {`{"keys":[{"kty":"RSA","kid":"a","n":"` + strings.Repeat("_", 342) + `","e":"AQ"}]}`, "odd"},
		"no point": {`{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"` + strings.Repeat("A", 43) + `","y":"` +
			strings.Repeat("A", 43) + `"}]}`, "point"},
		"short Ed25519": {`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AAAA"}]}`, "x is not"},
		"no kid":        {`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"` + strings.Repeat("A", 43) + `"}]}`, "no kid"},
		"one kid twice": {`{"keys":[` +
			strings.Repeat(`{"kty":"OKP","crv":"Ed25519","kid":"a","x":"`+strings.Repeat("A", 43)+`"},`, 1) +
			`{"kty":"OKP","crv":"Ed25519","kid":"a","x":"` + strings.Repeat("A", 43) + `"}]}`, "used twice"},
	} {
		if _, err := parseJWKS([]byte(test.content), all); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want an error about %q", name, err, test.says)
		}
	}
}
