package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	keyPrefix   = "sl_"
	secretBytes = 32
	secretText  = 43 // of base64url without padding
	maxIDBytes  = 64
	hashPrefix  = "sha256:"
)

// keyHash is the SHA-256 of a whole key.
type keyHash [sha256.Size]byte

// NewKey creates a key: the text that a client sends, and the value of the field hash in the auth file.
func NewKey(id string) (key, hash string, err error) {
	if err := validateKeyID(id); err != nil {
		return "", "", err
	}
	var secret [secretBytes]byte
	_, _ = rand.Read(secret[:]) // never fails: it ends the program instead
	key = keyPrefix + id + "_" + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(key))
	return key, hashPrefix + hex.EncodeToString(sum[:]), nil
}

// validateKeyID restricts ids to characters that need no quoting in a log, a file or an actor.
func validateKeyID(id string) error {
	ok := len(id) > 0 && len(id) <= maxIDBytes
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			i > 0 && (c == '-' || c == '.' || c == '_')
	}
	if !ok {
		return fmt.Errorf("must have 1 to %d of [a-zA-Z0-9._-] and begin with a letter or digit, is %q", maxIDBytes, id)
	}
	return nil
}

// isKey distinguishes keys from session tokens, which begin with eyJ, the base64 of a brace and a quote.
func isKey(bearer string) bool { return strings.HasPrefix(bearer, keyPrefix) }

// parseKey returns the id of a well-formed key. The secret is taken by its length, because both the id and the secret
// may contain an underscore.
func parseKey(key string) (id string, ok bool) {
	key = strings.TrimPrefix(key, keyPrefix)
	end := len(key) - secretText - 1
	if end < 0 || key[end] != '_' || validateKeyID(key[:end]) != nil {
		return "", false
	}
	_, err := base64.RawURLEncoding.Strict().DecodeString(key[end+1:])
	return key[:end], err == nil
}

func parseHash(text string) (hash keyHash, err error) {
	digits, ok := strings.CutPrefix(text, hashPrefix)
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != len(hash) {
		return hash, errors.New("must be sha256: and 64 hex digits, as seqledger auth new-key prints it")
	}
	return keyHash(raw), nil
}

// key is an entry of the file.
type key struct {
	id         string
	hash       keyHash
	credential *Credential
}

// same reports whether two entries are equal. The text of the patterns is compared, because it decides everything else
// about them.
func (k *key) same(other *key) bool {
	a, b := k.credential, other.credential
	return k.hash == other.hash && a.expires.Equal(b.expires) && a.limits == b.limits && a.grant.same(&b.grant)
}

func (g *Grant) same(other *Grant) bool {
	return g.Role == other.Role && slices.Equal(g.Scopes, other.Scopes) &&
		slices.Equal(g.ClientIDs, other.ClientIDs) && slices.Equal(g.SharedNamespaces, other.SharedNamespaces)
}

// find returns the credential of a key. keys is by id.
func findKey(keys map[string]*key, text string) (*Credential, error) {
	id, ok := parseKey(text)
	if !ok {
		return nil, refused("malformed", "the API key does not have the form of one")
	}
	found := keys[id]
	var want keyHash // dummy hash for an unknown id
	if found != nil {
		want = found.hash
	}
	sum := sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare(sum[:], want[:]) != 1 || found == nil {
		return nil, refused("unknown_key", "the API key is not valid")
	}
	if e := found.credential.expires; !e.IsZero() && !time.Now().Before(e) {
		return nil, refused("expired", "the API key has expired")
	}
	return found.credential, nil
}
