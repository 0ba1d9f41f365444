package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/internal/yamlfile"
	"github.com/seqledger/seqledger/server/admission"
)

// Verifier verifies the session tokens (JWT) of one issuer. It is safe for concurrent use.
type Verifier struct {
	issuer, audience string
	algorithms       []string
	leeway           time.Duration
	jwks             string // the content of the JWKS, to detect changes

	keys   map[string]verifyKey
	parser *jwt.Parser
}

// WithKeys returns a verifier of the same tokens with the keys of another JWKS.
func (v *Verifier) WithKeys(jwks []byte) (*Verifier, error) {
	keys, err := parseJWKS(jwks, v.algorithms)
	if err != nil {
		return nil, err
	}
	return newVerifier(*v, string(jwks), keys), nil
}

func newVerifier(v Verifier, jwks string, keys map[string]verifyKey) *Verifier {
	v.jwks, v.keys = jwks, keys
	v.parser = jwt.NewParser(
		jwt.WithValidMethods(v.algorithms), jwt.WithIssuer(v.issuer), jwt.WithAudience(v.audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(v.leeway), jwt.WithStrictDecoding(),
	)
	return &v
}

// Claim returns a claim, which must be a text, of the token in the one Authorization header of a request. The error is
// a [*RefusedError].
func (v *Verifier) Claim(h http.Header, name string) (string, error) {
	token, err := bearerOf(h)
	if err != nil {
		return "", err
	}
	claims, err := v.verify(token)
	if err != nil {
		return "", err
	}
	text, ok := claims[name].(string)
	if !ok || text == "" {
		return "", &RefusedError{"claims", "the session token does not say whose it is",
			fmt.Errorf("the claim %s must be a text", name)}
	}
	return text, nil
}

// same reports whether two verifiers take the same tokens.
func (v *Verifier) same(other *Verifier) bool {
	return v.issuer == other.issuer && v.audience == other.audience && slices.Equal(v.algorithms, other.algorithms) &&
		v.leeway == other.leeway && v.jwks == other.jwks
}

// issuerSettings are the settings of the section tokens that are not the verifier's.
type issuerSettings struct {
	limits admission.Limits
	// roleClaim and the others are names of claims; clientIDsClaim may be empty.
	roleClaim, scopesClaim, clientIDsClaim string
}

// issuer makes credentials of session tokens. It caches verified tokens, because the signature costs more than the rest
// of a small request.
type issuer struct {
	*Verifier

	settings issuerSettings
	ended    context.Context //nolint:containedctx // It ends with all tokens of the issuer, not with a call.
	end      context.CancelCauseFunc

	mu sync.Mutex
	// recent and older are two generations of the cache: when recent is full it replaces older, which drops the tokens
	// that were not used since.
	recent, older map[[sha256.Size]byte]*Credential
}

// maxTokens bounds each generation of cached tokens.
const maxTokens = 4_096

const (
	defaultLeeway = 30 * time.Second
	maxLeeway     = 2 * time.Minute
)

// readLeeway reads a time that is small, because it extends the validity of every token.
func readLeeway(o *yamlfile.Object) time.Duration {
	if !o.Has("leeway") {
		return defaultLeeway
	}
	d, err := time.ParseDuration(o.Text("leeway"))
	if err != nil || d < 0 || d > maxLeeway {
		o.Fail("leeway", "must be 0s to %v", maxLeeway)
	}
	return d
}

func newIssuer(v *Verifier, s issuerSettings) *issuer {
	i := &issuer{Verifier: v, settings: s, recent: make(map[[sha256.Size]byte]*Credential)}
	i.ended, i.end = context.WithCancelCause(context.Background())
	return i
}

// same reports whether two issuers have the same settings.
func (i *issuer) same(other *issuer) bool {
	if i == nil || other == nil {
		return i == other
	}
	return i.settings == other.settings && i.Verifier.same(other.Verifier)
}

// find returns the credential of a token. The error is a *RefusedError, or admission.ErrTooManyCallers.
func (i *issuer) find(text string, shares *admission.Registry) (*Credential, error) {
	name := sha256.Sum256([]byte(text))
	if known := i.recall(name); known != nil {
		if !time.Now().Before(known.expires) {
			return nil, refused("expired", "the session token has expired")
		}
		return known, nil
	}
	claims, err := i.verify(text)
	if err != nil {
		return nil, err
	}
	c, err := i.credential(claims)
	if err != nil {
		return nil, err
	}
	if c.share, err = shares.Of(c.actor); err != nil {
		return nil, err
	}
	i.remember(name, c)
	return c, nil
}

// verify returns the claims of a token that is well-formed, correctly signed and currently valid.
func (v *Verifier) verify(text string) (jwt.MapClaims, error) {
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(text, claims, v.keyOf)
	switch {
	case err == nil:
		return claims, nil
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, &RefusedError{"expired", "the session token has expired", err}
	case errors.Is(err, jwt.ErrTokenMalformed):
		return nil, &RefusedError{"malformed", "the credential is neither an API key nor a session token", err}
	case errors.Is(err, jwt.ErrTokenInvalidClaims):
		return nil, &RefusedError{"claims", "the session token is not valid", err}
	}
	return nil, &RefusedError{"signature", "the session token is not valid", err}
}

// keyOf returns the key that a token names, if it is for the algorithm that the token names. Other header fields about
// keys are ignored.
func (v *Verifier) keyOf(t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, errors.New("crit demands an extension, and none is known here")
	}
	if kind, given := t.Header["typ"]; given && !isTokenType(kind) {
		return nil, fmt.Errorf("typ is %q: this is no session token", yamlfile.Clip(fmt.Sprint(kind)))
	}
	kid, ok := t.Header["kid"].(string)
	if !ok {
		return nil, errors.New("the header has no kid")
	}
	key, known := v.keys[kid]
	if !known {
		return nil, fmt.Errorf("the kid %q is not in the JWKS", yamlfile.Clip(kid))
	}
	if key.algorithm != t.Method.Alg() {
		return nil, fmt.Errorf("the key %q is for %s, not for %s", yamlfile.Clip(kid), key.algorithm, t.Method.Alg())
	}
	return key.key, nil
}

// isTokenType refuses tokens that an issuer signs for other purposes, such as a logout.
func isTokenType(kind any) bool {
	text, ok := kind.(string)
	return ok && (strings.EqualFold(text, "JWT") || strings.EqualFold(text, "at+jwt"))
}

func (i *issuer) recall(name [sha256.Size]byte) *Credential {
	i.mu.Lock()
	defer i.mu.Unlock()
	if c := i.recent[name]; c != nil {
		return c
	}
	c := i.older[name]
	if c != nil {
		i.keep(name, c)
	}
	return c
}

func (i *issuer) remember(name [sha256.Size]byte, c *Credential) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keep(name, c)
}

// keep is called with mu held.
func (i *issuer) keep(name [sha256.Size]byte, c *Credential) {
	if len(i.recent) >= maxTokens {
		i.recent, i.older = make(map[[sha256.Size]byte]*Credential), i.recent
	}
	i.recent[name] = c
}
