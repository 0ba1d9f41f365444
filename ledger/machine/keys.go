package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Keys of the tables. A scope is its two parts, each after one byte of length, so that no scope is a prefix of another.
// The rest of a key is not encoded, so that listings are in byte order.

var headKey = []byte("head")

const (
	expiryStream byte = 0 // streams come first in a round
	expiryEntity byte = 1
	expiryKeyed  byte = 2
	expiryKinds       = 3
)

func appendScope[T ~string | ~[]byte](dst []byte, organization, vault T) []byte {
	dst = append(dst, byte(len(organization)))
	dst = append(dst, organization...)
	dst = append(dst, byte(len(vault)))
	return append(dst, vault...)
}

func appendScopeKey(dst []byte, s Scope) []byte {
	return appendScope(dst, s.Organization, s.Vault)
}

// splitScope takes the scope off the front of a key.
func splitScope(key []byte) (scope Scope, rest []byte, err error) {
	d := decoder{rest: key}
	organization := d.take(uint64(d.octet()))
	vault := d.take(uint64(d.octet()))
	if d.bad {
		return Scope{}, nil, fmt.Errorf("%w: key %x has no scope", ErrCorrupt, key)
	}
	return Scope{Organization: string(organization), Vault: string(vault)}, d.rest, nil
}

// organizationPart returns the organization in a key that begins with a scope,
// or nothing when it does not.
func organizationPart(key []byte) []byte {
	d := decoder{rest: key}
	return d.take(uint64(d.octet()))
}

// scopePart returns the leading bytes of the key that are its scope.
func scopePart(key []byte) ([]byte, error) {
	_, rest, err := splitScope(key)
	if err != nil {
		return nil, err
	}
	return key[:len(key)-len(rest)], nil
}

// expiryKeyHead is how many bytes stand before the state's own key in a key of the expiry index.
const expiryKeyHead = 9

func appendExpiryKey(dst []byte, kind byte, unixNanos int64, key []byte) []byte {
	dst = append(dst, kind)
	dst = appendTime(dst, unixNanos)
	return append(dst, key...)
}

func splitExpiryKey(k []byte) (kind byte, unixNanos int64, key []byte, err error) {
	d := decoder{rest: k}
	kind = d.octet()
	unixNanos = d.time()
	if d.bad {
		return 0, 0, nil, fmt.Errorf("%w: expiry key %x", ErrCorrupt, k)
	}
	return kind, unixNanos, d.rest, nil
}

func appendIndexKey(dst []byte, index uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, index)
}

// appendRelationshipParts appends the parts, each after two bytes of length: a listing by resource, or by resource and
// relation, has a common prefix.
func appendRelationshipParts(dst []byte, parts ...[]byte) []byte {
	for _, p := range parts {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(p)))
		dst = append(dst, p...)
	}
	return dst
}

func splitRelationship(rest []byte) (r Relationship, err error) {
	d := decoder{rest: rest}
	part := func() string {
		b := d.take(2)
		if b == nil {
			return ""
		}
		return string(d.take(uint64(binary.BigEndian.Uint16(b))))
	}
	r.Resource, r.Relation, r.Subject = part(), part(), part()
	return r, d.done("relationship key")
}

// outside reports whether an ascending scan has left the prefix.
func outside(key, prefix []byte) bool { return !bytes.HasPrefix(key, prefix) }
