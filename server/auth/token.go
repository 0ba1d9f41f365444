package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/server/admission"
)

// issuerSettings are the section tokens of a file.
type issuerSettings struct {
	issuer, audience string
	algorithms       []string
	leeway           time.Duration
	limits           admission.Limits
	// roleClaim and the others are names of claims; clientIDsClaim may be empty.
	roleClaim, scopesClaim, clientIDsClaim string

	jwks string // the file's content, to detect changes
	keys map[string]verifyKey
}

// issuer verifies session tokens. It caches verified tokens, because the signature costs more
// than the rest of a small request.
type issuer struct {
	settings issuerSettings
	parser   *jwt.Parser
	ended    context.Context //nolint:containedctx // It ends with all tokens of the issuer, not with a call.
	end      context.CancelCauseFunc

	mu sync.Mutex
	// recent and older are two generations of the cache: when recent is full it replaces older,
	// which drops the tokens that were not used since.
	recent, older map[[sha256.Size]byte]*Credential
}

// maxTokens bounds each generation of cached tokens.
const maxTokens = 4_096

const (
	defaultLeeway = 30 * time.Second
	maxLeeway     = 2 * time.Minute
)

// leeway is small, because it extends the validity of every token.
func (r *reader) leeway(o *object) time.Duration {
	if !o.has("leeway") {
		return defaultLeeway
	}
	d, err := time.ParseDuration(o.text("leeway"))
	if err != nil || d < 0 || d > maxLeeway {
		o.fail("leeway", "must be 0s to %v", maxLeeway)
	}
	return d
}

func newIssuer(s issuerSettings) *issuer {
	i := &issuer{settings: s, recent: make(map[[sha256.Size]byte]*Credential)}
	i.ended, i.end = context.WithCancelCause(context.Background())
	i.parser = jwt.NewParser(
		jwt.WithValidMethods(s.algorithms), jwt.WithIssuer(s.issuer), jwt.WithAudience(s.audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(s.leeway), jwt.WithStrictDecoding(),
	)
	return i
}

// same reports whether two issuers have the same settings.
func (i *issuer) same(other *issuer) bool {
	if i == nil || other == nil {
		return i == other
	}
	a, b := &i.settings, &other.settings
	return a.issuer == b.issuer && a.audience == b.audience && slices.Equal(a.algorithms, b.algorithms) &&
		a.leeway == b.leeway && a.limits == b.limits && a.roleClaim == b.roleClaim &&
		a.scopesClaim == b.scopesClaim && a.clientIDsClaim == b.clientIDsClaim && a.jwks == b.jwks
}

// find returns the credential of a token. The error is a *RefusedError, or
// admission.ErrTooManyCallers.
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

// verify returns the claims of a token that is well-formed, correctly signed and currently
// valid.
func (i *issuer) verify(text string) (jwt.MapClaims, error) {
	claims := jwt.MapClaims{}
	_, err := i.parser.ParseWithClaims(text, claims, i.keyOf)
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

// keyOf returns the key that a token names, if it is for the algorithm that the token names.
// Other header fields about keys are ignored.
func (i *issuer) keyOf(t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, errors.New("crit demands an extension, and none is known here")
	}
	if kind, given := t.Header["typ"]; given && !isTokenType(kind) {
		return nil, fmt.Errorf("typ is %q: this is no session token", clip(fmt.Sprint(kind)))
	}
	kid, ok := t.Header["kid"].(string)
	if !ok {
		return nil, errors.New("the header has no kid")
	}
	key, known := i.settings.keys[kid]
	if !known {
		return nil, fmt.Errorf("the kid %q is not in the JWKS file", clip(kid))
	}
	if key.algorithm != t.Method.Alg() {
		return nil, fmt.Errorf("the key %q is for %s, not for %s", clip(kid), key.algorithm, t.Method.Alg())
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
