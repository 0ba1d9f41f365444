package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/seqledger/seqledger/internal/yamlfile"
)

// verifyKey is a public key and its only algorithm: a token must not choose how a key is used.
type verifyKey struct {
	algorithm string
	key       crypto.PublicKey
}

// jwk is a key in the form of RFC 7517 and 8037.
type jwk struct {
	Kty string `json:"kty"`
	Kid string `json:"kid"`
	Use string `json:"use"`
	Alg string `json:"alg"`
	Crv string `json:"crv"`
	N   string `json:"n"`
	E   string `json:"e"`
	X   string `json:"x"`
	Y   string `json:"y"`
	D   string `json:"d"` // the secret half
	K   string `json:"k"` // a shared secret
}

const (
	maxJWKS    = 100
	minRSABits = 2_048
	maxRSABits = 8_192
)

// parseJWKS returns the keys for the allowed algorithms by their ids. Keys for other purposes are skipped, because an
// issuer publishes all its keys in one set.
func parseJWKS(content []byte, allowed []string) (map[string]verifyKey, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(content, &set); err != nil {
		return nil, fmt.Errorf("is not a JWKS: %w", err)
	}
	if len(set.Keys) > maxJWKS {
		return nil, fmt.Errorf("has more than %d keys", maxJWKS)
	}
	keys := make(map[string]verifyKey)
	for i := range set.Keys {
		k := &set.Keys[i]
		if k.D != "" || k.K != "" {
			return nil, fmt.Errorf(
				"keys[%d] has a secret in it: it must stay with the issuer, and this file has public keys only", i)
		}
		algorithm := k.algorithm()
		if k.Use != "" && k.Use != "sig" || !slices.Contains(allowed, algorithm) || k.Alg != "" && k.Alg != algorithm {
			continue
		}
		if k.Kid == "" {
			return nil, fmt.Errorf("keys[%d] has no kid, so that no token could name it", i)
		}
		if _, twice := keys[k.Kid]; twice {
			return nil, fmt.Errorf("keys[%d]: the kid %q is used twice", i, yamlfile.Clip(k.Kid))
		}
		public, err := k.public()
		if err != nil {
			return nil, fmt.Errorf("keys[%d]: %w", i, err)
		}
		keys[k.Kid] = verifyKey{algorithm, public}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("has no key for %v", allowed)
	}
	return keys, nil
}

// algorithm returns the algorithm of the key's type, or "".
func (k *jwk) algorithm() string {
	switch {
	case k.Kty == "RSA":
		return "RS256"
	case k.Kty == "EC" && k.Crv == "P-256":
		return "ES256"
	case k.Kty == "OKP" && k.Crv == "Ed25519":
		return "EdDSA"
	}
	return ""
}

func (k *jwk) public() (crypto.PublicKey, error) {
	switch k.algorithm() {
	case "RS256":
		return k.rsa()
	case "ES256":
		x, errX := decodePart("x", k.X, 32)
		y, errY := decodePart("y", k.Y, 32)
		if err := errors.Join(errX, errY); err != nil {
			return nil, err
		}
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
		if err != nil {
			return nil, errors.New("x and y are no point of P-256")
		}
		return public, nil
	default:
		x, err := decodePart("x", k.X, ed25519.PublicKeySize)
		return ed25519.PublicKey(x), err
	}
}

func (k *jwk) rsa() (crypto.PublicKey, error) {
	n, errN := decodePart("n", k.N, 0)
	e, errE := decodePart("e", k.E, 0)
	if err := errors.Join(errN, errE); err != nil {
		return nil, err
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
	if bits := modulus.BitLen(); bits < minRSABits || bits > maxRSABits {
		return nil, fmt.Errorf("n must have %d to %d bits, has %d", minRSABits, maxRSABits, bits)
	}
	if exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Int64()%2 == 0 {
		return nil, errors.New("e must be an odd number from 3 to 2^31-1")
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}, nil
}

// decodePart decodes base64url of the given number of bytes; 0 means any number.
func decodePart(name, text string, size int) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) == 0 || size > 0 && len(b) != size {
		return nil, fmt.Errorf("%s is not the base64url of a key's part", name)
	}
	return b, nil
}
