package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"mime"
	"net/url"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// FingerprintMode says which part of a request's body the fingerprint covers. The numbers are those of
// [Fingerprint.Algorithm] and are part of the stored format.
type FingerprintMode uint8

// The modes.
const (
	// FingerprintRaw covers the bytes of the body. It is the default.
	FingerprintRaw FingerprintMode = 1
	// FingerprintJCS covers the JSON value of the body in the canonical form of RFC 8785: the order of names and white
	// space do not matter. Duplicate names are refused. So are numbers beyond ±(2⁵³−1), however they are written (1e30,
	// 9007199254740993.0), because two different integers would compare equal; the RFC allows them. So are objects and
	// arrays that are nested more than MaxDepth deep. A body that is not JSON, for example a compressed one, is refused
	// too. A request may have no body.
	FingerprintJCS FingerprintMode = 2
	// FingerprintPointers covers the values at chosen JSON pointers (RFC 6901), each in the form
	// of FingerprintJCS.
	FingerprintPointers FingerprintMode = 3
	// FingerprintNone ignores the body.
	FingerprintNone FingerprintMode = 4
)

// MaxDepth is how deep the objects and arrays of a body may be nested for FingerprintJCS and FingerprintPointers. To
// sort the members of an object, the canonical form copies all that is in them, and so a byte once for each object
// around it: without the limit, a body of a mebibyte that is nested 9,000 deep would cost as much as one of gibibytes.
const MaxDepth = 100

// fingerprintVersion is the first part of every fingerprint.
const fingerprintVersion = "seqledger-fingerprint-1"

// Request is the part of a request that a fingerprint covers.
type Request struct {
	Method    string
	Namespace string
	// Target is the path and the query. The order of the query parameters does not matter.
	Target *url.URL
	// MediaType is the Content-Type. The order of its parameters does not matter.
	MediaType string
	Body      []byte
}

// BodyError is returned for a body that has no fingerprint in the chosen mode.
type BodyError struct{ Cause error }

// Error implements error.
func (e *BodyError) Error() string { return "idempotency: body: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *BodyError) Unwrap() error { return e.Cause }

// NewFingerprint returns the fingerprint of a request: the SHA-256 of its length-prefixed parts. pointers is used only
// with FingerprintPointers. The error is a [*BodyError].
func NewFingerprint(mode FingerprintMode, pointers []string, r *Request) (f Fingerprint, err error) {
	f.Algorithm = uint8(mode)
	body, err := bodyDigest(mode, pointers, r.Body)
	if err != nil {
		return f, &BodyError{err}
	}
	h := sha256.New()
	writePart(h, []byte(fingerprintVersion))
	for _, part := range []string{r.Method, r.Namespace, canonicalTarget(r.Target), canonicalMediaType(r.MediaType)} {
		writePart(h, []byte(part))
	}
	writePart(h, body)
	h.Sum(f.Digest[:0])
	return f, nil
}

// writePart writes a part prefixed with its length, so that no two lists of parts produce the same bytes.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
	h.Write(part)
}

// canonicalTarget returns the path, and the query sorted by name, because some clients build the query from a map. A
// query that does not parse is kept unchanged.
func canonicalTarget(u *url.URL) string {
	if u == nil {
		return ""
	}
	query := u.RawQuery
	if values, err := url.ParseQuery(u.RawQuery); err == nil {
		query = values.Encode()
	}
	return u.EscapedPath() + "?" + query
}

// canonicalMediaType returns a media type in lower case with its parameters sorted. One that does not parse is kept
// unchanged.
func canonicalMediaType(text string) string {
	mediaType, parameters, err := mime.ParseMediaType(text)
	if err != nil {
		return text
	}
	if formatted := mime.FormatMediaType(mediaType, parameters); formatted != "" {
		return formatted
	}
	return text
}

func bodyDigest(mode FingerprintMode, pointers []string, body []byte) ([]byte, error) {
	if len(body) == 0 && (mode == FingerprintJCS || mode == FingerprintPointers) {
		return nil, nil // an empty body differs from every JSON value
	}
	switch mode {
	case FingerprintRaw:
		sum := sha256.Sum256(body)
		return sum[:], nil
	case FingerprintJCS:
		canonical, err := canonicalJSON(body)
		sum := sha256.Sum256(canonical)
		return sum[:], err
	case FingerprintPointers:
		return pointersDigest(pointers, body)
	case FingerprintNone:
		return nil, nil
	}
	return nil, fmt.Errorf("mode %d of a fingerprint is not known", mode)
}

// canonicalJSON returns a JSON value in the canonical form of RFC 8785. It refuses duplicate
// names, invalid UTF-8, lone surrogates, numbers beyond ±(2⁵³−1), and values nested more than MaxDepth deep.
func canonicalJSON(value []byte) ([]byte, error) {
	if err := checkJSON(value); err != nil {
		return nil, err
	}
	canonical := jsontext.Value(bytes.Clone(value))
	if err := canonical.Canonicalize(); err != nil {
		return nil, err
	}
	return canonical, nil
}

// maxSafeInteger is the largest integer up to which a double represents every integer. A larger number is refused
// however it is written, because integers beyond it share a double, and two requests would have the same fingerprint.
const maxSafeInteger = 1<<53 - 1

// checkJSON refuses unsafe numbers, values that are nested too deeply, and input that is not exactly one JSON value. It
// takes time in proportion to the input, whatever the depth.
func checkJSON(value []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(value))
	values := 0
	for {
		token, err := d.ReadToken()
		switch {
		case errors.Is(err, io.EOF) && values == 1:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("must be one JSON value")
		case err != nil:
			return err
		}
		if d.StackDepth() > MaxDepth {
			return fmt.Errorf("its objects and arrays are nested more than %d deep", MaxDepth)
		}
		if token.Kind() == '0' {
			if err := checkNumber(token.String()); err != nil {
				return err
			}
		}
		if d.StackDepth() == 0 {
			values++
		}
	}
}

func checkNumber(text string) error {
	number, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return fmt.Errorf("the number %.40s is out of range", text)
	case math.Abs(number) > maxSafeInteger:
		return fmt.Errorf("the number %.40s is beyond ±(2^53-1); send it as a string", text)
	}
	return nil
}

// pointersDigest returns a digest of the values at pointers: for each, the pointer, whether the value exists, and its
// canonical form.
func pointersDigest(pointers []string, body []byte) ([]byte, error) {
	if _, err := canonicalJSON(body); err != nil { // the whole body must be valid, so that no value is ambiguous
		return nil, err
	}
	h := sha256.New()
	for _, pointer := range pointers {
		writePart(h, []byte(pointer))
		start, end, found, err := locate(body, pointer)
		if err != nil {
			return nil, err
		}
		if !found {
			writePart(h, []byte{0})
			continue
		}
		canonical, err := canonicalJSON(body[start:end])
		if err != nil {
			return nil, err
		}
		writePart(h, append([]byte{1}, canonical...))
	}
	return h.Sum(nil), nil
}

// locate returns the position of the value at a JSON pointer in a JSON text without duplicate names.
func locate(text []byte, pointer string) (start, end int, found bool, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	for name := range jsontext.Pointer(pointer).Tokens() {
		if found, err := descend(d, name); !found || err != nil {
			return 0, 0, false, err
		}
	}
	value, err := d.ReadValue()
	if err != nil {
		return 0, 0, false, err
	}
	end = int(d.InputOffset())
	return end - len(value), end, true, nil
}

// descend moves d from the beginning of a value to the member or element with a name.
func descend(d *jsontext.Decoder, name string) (found bool, err error) {
	container := d.PeekKind()
	if container != '{' && container != '[' {
		return false, nil
	}
	if _, err := d.ReadToken(); err != nil {
		return false, err
	}
	for i := 0; d.PeekKind() != '}' && d.PeekKind() != ']'; i++ {
		this := strconv.Itoa(i)
		if container == '{' {
			token, err := d.ReadToken()
			if err != nil {
				return false, err
			}
			this = token.String()
		}
		if this == name {
			return true, nil
		}
		if err := d.SkipValue(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// validatePointers checks that the texts are JSON pointers.
func validatePointers(pointers []string) error {
	for _, pointer := range pointers {
		if !jsontext.Pointer(pointer).IsValid() {
			return fmt.Errorf("%q is not a JSON pointer", pointer)
		}
	}
	return nil
}
