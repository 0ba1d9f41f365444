package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// FuzzJWKS: every key that is taken is of the kind that its algorithm needs and of a safe size, and the set of them
// survives being written.
func FuzzJWKS(f *testing.F) {
	example := must.Get(os.ReadFile("testdata/jwks.json"))(f)
	f.Add(example)
	f.Add([]byte(testKeys().jwks))
	f.Add([]byte(`{"keys":[{"kid":"a","kty":"OKP","crv":"Ed25519","x":"","d":"x"}]}`))
	f.Add(
		[]byte(
			`{"keys":[{"kid":"a","kty":"RSA","n":"AQAB","e":"AQAB"},` +
				`{"kid":"b","kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		keys, err := parseJWKS(content, algorithms)
		if err != nil {
			return
		}
		if len(keys) == 0 || len(keys) > maxJWKS {
			t.Errorf("%d keys were taken", len(keys))
		}
		public := make(map[string]crypto.PublicKey)
		for kid, key := range keys {
			public[kid] = key.key
			ok := false
			switch k := key.key.(type) {
			case *rsa.PublicKey:
				ok = key.algorithm == "RS256" && k.N.BitLen() >= minRSABits && k.N.BitLen() <= maxRSABits && k.E >= 3 &&
					k.E%2 == 1
			case *ecdsa.PublicKey:
				ok = key.algorithm == "ES256"
			case ed25519.PublicKey:
				ok = key.algorithm == "EdDSA" && len(k) == ed25519.PublicKeySize
			}
			if !ok || kid == "" {
				t.Errorf("the key %q of %T was taken for %s", kid, key.key, key.algorithm)
			}
		}
		again, err := parseJWKS([]byte(jwksOf(public)), algorithms)
		if err != nil || len(again) != len(keys) {
			t.Fatalf("%d keys are written and read as %d: %v", len(keys), len(again), err)
		}
		for kid, key := range keys {
			//nolint:forcetypeassert // Every public key has it.
			same := key.key.(interface{ Equal(crypto.PublicKey) bool })
			if again[kid].algorithm != key.algorithm || !same.Equal(again[kid].key) {
				t.Errorf("the key %q changed", kid)
			}
		}
	})
}

// FuzzClaims signs any header and any claims with the issuer's key, which no other target gets past. Who is let in has
// the issuer, the audience and a time that say so.
func FuzzClaims(f *testing.F) {
	const header = `{"alg":"EdDSA","kid":"ed","typ":"JWT"}`
	for _, claims := range []string{
		`{"iss":"https://issuer.test","aud":"seqledger","sub":"ann","exp":4000000000,"role":"writer",` +
			`"scopes":["acme/main"],"clients":"till-*"}`,
		`{"iss":"https://issuer.test","aud":["x","seqledger"],"sub":"ann","exp":4e9,"nbf":1,"iat":1.5,` +
			`"role":"reader","scopes":"*"}`,
		`{"iss":"https://issuer.test","aud":"seqledger","sub":"ann","exp":1e300,"role":"admin","scopes":"*"}`,
		`{"iss":"https://issuer.test","aud":"seqledger","sub":"ann","exp":"4000000000","role":1,"scopes":[1]}`,
		`{"iss":"https://issuer.test","aud":"other","sub":"ann","exp":4000000000,"role":"reader","scopes":"*"}`,
		`{"iss":"https://other.test","aud":"seqledger","sub":"ann","exp":4000000000,"role":"reader","scopes":"*"}`,
		`{"iss":"https://issuer.test","aud":"seqledger","sub":"ann","exp":1,"role":"reader","scopes":"*"}`,
		`{"iss":null,"aud":{},"exp":-1}`,
	} {
		f.Add(header, claims)
	}
	f.Add(`{"alg":"none","kid":"ed"}`, `{}`)
	f.Add(`{"alg":"EdDSA","kid":"ed","crit":["exp"]}`, `{}`)
	p := must.Get(parseFile("auth.yaml", []byte(tokensFile),
		func(string) ([]byte, error) { return []byte(testKeys().jwks), nil }))(f)
	text := base64.RawURLEncoding.EncodeToString
	f.Fuzz(func(t *testing.T, header, claims string) {
		signed := text([]byte(header)) + "." + text([]byte(claims))
		found, err := p.tokens.verify(signed + "." + text(ed25519.Sign(testKeys().ed, []byte(signed))))
		var c *Credential
		if err == nil {
			c, err = p.tokens.credential(found)
		}
		if err != nil {
			if _, ok := errors.AsType[*RefusedError](err); !ok {
				t.Errorf("%v is no refusal", err)
			}
			return
		}
		var said struct {
			Header struct{ Alg, Kid string }
			Claims map[string]any
		}
		must.Do(t, errors.Join(json.Unmarshal([]byte(header), &said.Header),
			json.Unmarshal([]byte(claims), &said.Claims)), "%q and %q let in", header, claims)
		audience, _ := said.Claims["aud"].([]any)
		forUs := said.Claims["aud"] == "seqledger" || slices.Contains(audience, any("seqledger"))
		if said.Header.Kid != "ed" || said.Claims["iss"] != "https://issuer.test" || !forUs ||
			c.Actor() != "user:"+said.Claims["sub"].(string) {
			t.Errorf("%q and %q let in as %s", header, claims, c.Actor())
		}
		// A credential that is valid now must be so for a moment, or its streams would end as they begin.
		if c.grant.Role == 0 || len(c.grant.scopes) == 0 || c.expires.Before(time.Now().Add(-time.Minute)) {
			t.Errorf("%q let in with role %v, %d scopes, until %v", claims, c.grant.Role, len(c.grant.scopes),
				c.expires)
		}
	})
}

// FuzzAppendKey: a file that gets a key more keeps all the others as they were.
func FuzzAppendKey(f *testing.F) {
	_, entry := newKey(f, "a", readsAcme)
	for _, seed := range []string{"", "keys:\n" + entry, tokensFile, "# why\nkeys: # these\n" + entry + "# end\n",
		"keys: []\n", "keys: !!null\n", "? keys\n: - x\n", "{}"} {
		f.Add([]byte(seed))
	}
	_, hash, err := NewKey("added")
	must.Do(f, err)
	added := &Entry{ID: "added", Hash: hash, Role: "reader", Scopes: []string{"*"}}
	f.Fuzz(func(t *testing.T, content []byte) {
		changed, err := AppendKey("auth.yaml", content, added)
		if err != nil {
			return
		}
		after, err := parseFile("auth.yaml", changed, nil)
		if err != nil || after.keys["added"] == nil {
			t.Fatalf("%q became %q: %v", content, changed, err)
		}
		before, err := parseFile("auth.yaml", content, nil)
		if err != nil {
			return // it had no keys, which is a mistake only in a file that is used
		}
		check.Equal(t, len(after.keys), len(before.keys)+1, "%d keys became %d", len(before.keys))
		for id, k := range before.keys {
			if other := after.keys[id]; other == nil || !k.same(other) {
				t.Errorf("the key %q changed: %q became %q", id, content, changed)
			}
		}
	})
}
