package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// writeFiles writes files into a directory of the test and returns it.
func writeFiles(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// open opens an auth file with this content and the JWKS of the test keys.
func open(t testing.TB, content string) *Authority {
	t.Helper()
	dir := writeFiles(t, map[string]string{"auth.yaml": content, "jwks.json": testKeys().jwks})
	a := must.Get(Open(filepath.Join(dir, "auth.yaml"), Options{Logger: quiet()}))(t)
	return a
}

// rewrite changes the file of an authority.
func (a *Authority) rewrite(t testing.TB, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(a.path, []byte(content), 0o600))
}

// newKey makes a key and its entry in a file; rest are further lines.
func newKey(t testing.TB, id, rest string) (key, entry string) {
	t.Helper()
	key, hash, err := NewKey(id)
	must.Do(t, err)
	return key, fmt.Sprintf("- {id: %s, hash: %q, %s}\n", id, hash, rest)
}

func bearer(text string) http.Header {
	return http.Header{"Authorization": {"Bearer " + text}}
}

// keySet are the keys of a test issuer, made once because RSA is slow.
type keySet struct {
	rsa   *rsa.PrivateKey
	ec    *ecdsa.PrivateKey
	ed    ed25519.PrivateKey
	jwks  string
	other *ecdsa.PrivateKey // of somebody else
}

var testKeys = sync.OnceValue(func() *keySet {
	k := new(keySet)
	var errs [4]error
	k.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	k.ec, errs[1] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, k.ed, errs[2] = ed25519.GenerateKey(rand.Reader)
	k.other, errs[3] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
	k.jwks = jwksOf(map[string]crypto.PublicKey{"rsa": &k.rsa.PublicKey, "ec": &k.ec.PublicKey, "ed": k.ed.Public()})
	return k
})

func jwksOf(keys map[string]crypto.PublicKey) string {
	text := base64.RawURLEncoding.EncodeToString
	var list []map[string]string
	for kid, key := range keys {
		switch k := key.(type) {
		case *rsa.PublicKey:
			list = append(list, map[string]string{"kid": kid, "kty": "RSA", "use": "sig", "alg": "RS256",
				"n": text(k.N.Bytes()), "e": text(big.NewInt(int64(k.E)).Bytes())})
		case *ecdsa.PublicKey:
			point, err := k.Bytes()
			if err != nil {
				panic(err)
			}
			list = append(list, map[string]string{"kid": kid, "kty": "EC", "crv": "P-256",
				"x": text(point[1:33]), "y": text(point[33:])})
		case ed25519.PublicKey:
			list = append(list, map[string]string{"kid": kid, "kty": "OKP", "crv": "Ed25519", "x": text(k)})
		}
	}
	content, err := json.Marshal(map[string]any{"keys": list})
	if err != nil {
		panic(err)
	}
	return string(content)
}

// tokensFile takes the tokens of the test issuer.
const tokensFile = `tokens:
  issuer: https://issuer.test
  audience: seqledger
  algorithms: [RS256, ES256, EdDSA]
  jwks: jwks.json
  leeway: 10s
  claims: {role: role, scopes: scopes, client_ids: clients}
  limits: {requests: 2}
`

// goodClaims are those of a token that lets in.
func goodClaims() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": "https://issuer.test", "aud": "seqledger", "sub": "ann",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"role": "writer", "scopes": []string{"acme/main"}, "clients": "till-*",
	}
}

func claimsWith(changes jwt.MapClaims) jwt.MapClaims {
	claims := goodClaims()
	maps.Copy(claims, changes)
	for name, value := range changes {
		if value == nil {
			delete(claims, name)
		}
	}
	return claims
}

// sign makes a token. header adds to its header.
func sign(t testing.TB, method jwt.SigningMethod, key any, claims jwt.MapClaims, header map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	maps.Copy(token.Header, header)
	text := must.Get(token.SignedString(key))(t)
	return text
}

// esToken is a token of the test issuer's EC key.
func esToken(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	return sign(t, jwt.SigningMethodES256, testKeys().ec, claims, map[string]any{"kid": "ec"})
}
