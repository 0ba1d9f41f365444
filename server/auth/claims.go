package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxSubjectBytes leaves room in an actor, which has at most 512 bytes.
const maxSubjectBytes = 256

// credential returns the credential of verified claims. Because the issuer has signed them, an error is a mistake in
// its configuration or in the server's.
func (i *issuer) credential(claims jwt.MapClaims) (*Credential, error) {
	wrong := func(err error) error {
		return &RefusedError{"claims", "the session token does not say what its owner may do here", err}
	}
	subject, err := claims.GetSubject()
	if err != nil {
		return nil, wrong(err)
	}
	if err := validateSubject(subject); err != nil {
		return nil, wrong(err)
	}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires == nil {
		return nil, wrong(errors.New("exp is missing"))
	}
	s := &i.settings
	role, ok := claims[s.roleClaim].(string)
	if !ok {
		return nil, wrong(fmt.Errorf("the claim %s must be a text", s.roleClaim))
	}
	scopes, err := patternsOf(claims, s.scopesClaim)
	if err != nil {
		return nil, wrong(err)
	}
	clients, err := patternsOf(claims, s.clientIDsClaim)
	if err != nil {
		return nil, wrong(err)
	}
	grant, err := newGrant(role, scopes, clients)
	if err != nil {
		return nil, wrong(err)
	}
	return &Credential{
		actor: "user:" + subject, grant: grant, limits: s.limits, ended: i.ended, end: i.end,
		expires: expires.Add(i.leeway).Truncate(time.Millisecond),
	}, nil
}

// validateSubject restricts subjects to visible ASCII: actors are stored permanently, and must not look alike or break
// a line. The kind before the first colon is always set by the server, even if the subject contains colons.
func validateSubject(subject string) error {
	if len(subject) == 0 || len(subject) > maxSubjectBytes {
		return fmt.Errorf("sub must have 1 to %d bytes, has %d", maxSubjectBytes, len(subject))
	}
	for i := range len(subject) {
		if c := subject[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("sub must be visible ASCII; byte %d is not", i)
		}
	}
	return nil
}

// patternsOf returns the texts of a claim that is a text or a list of texts.
func patternsOf(claims jwt.MapClaims, name string) ([]string, error) {
	switch v := claims[name].(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		list := make([]string, 0, len(v))
		for _, element := range v {
			text, ok := element.(string)
			if !ok {
				return nil, fmt.Errorf("the claim %s must have texts only", name)
			}
			list = append(list, text)
		}
		return list, nil
	}
	return nil, fmt.Errorf("the claim %s must be a text or a list of texts", name)
}
