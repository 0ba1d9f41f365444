package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// FingerprintMode says which part of a request's body the fingerprint covers. The numbers are the lowest bits of
// [Fingerprint.Algorithm] and are part of the stored format; the other bits are about how the path is written.
type FingerprintMode uint8

// The modes.
const (
	// FingerprintRaw covers the bytes of the body, and of a multipart body its parts in their order. It is the default.
	FingerprintRaw FingerprintMode = 1
	// FingerprintJCS covers the JSON value of the body in the canonical form of RFC 8785: the order of names and white
	// space do not matter. Duplicate names are refused. So are numbers beyond ±(2⁵³−1), however they are written (1e30,
	// 9007199254740993.0), and numbers with more digits than a double keeps (1.000000000000000001), because two
	// different numbers would compare equal; the RFC allows them. So are objects and arrays that are nested more than
	// MaxDepth deep. A body that is not JSON is refused too. A request may have no body.
	FingerprintJCS FingerprintMode = 2
	// FingerprintPointers covers the values at chosen JSON pointers (RFC 6901), each in the form of FingerprintJCS.
	// Each must exist and tell something: it must have a number, true, false or a string that is not blank. A body
	// without one is refused, because all such requests would be the same.
	FingerprintPointers FingerprintMode = 3
	// FingerprintNone ignores the body and its media type.
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
	// MediaType is the Content-Type. Its case, the order of its parameters, the charset UTF-8 of JSON, texts and forms,
	// and the boundary of a multipart body do not matter.
	MediaType string
	// Header has the headers that are part of the request, such as its preconditions.
	Header http.Header
	// Body is the content, without content codings.
	Body []byte

	party string // who sends it; "" for somebody who is not known
}

// BodyError is returned for a body that has no fingerprint in the chosen mode.
type BodyError struct{ Cause error }

// Error implements error.
func (e *BodyError) Error() string { return "idempotency: body: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *BodyError) Unwrap() error { return e.Cause }

// largeBody is the size in bytes above which a body is large. The members of an object, or the parameters of a part,
// that have a mebibyte take a processor 200 ms.
const largeBody = 64 << 10

// largeBodies are the turns of large bodies that are parsed. They leave a processor for everything else.
var largeBodies = turns{all: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))}

// NewFingerprint returns the fingerprint of a request: the SHA-256 of its length-prefixed parts. pointers is used only
// with FingerprintPointers. A body of more than 64 KiB that is parsed, as JSON or for its parts, waits while those of
// others take all processors but one. The error is a [*BodyError], or that of ctx, which ends the wait.
func NewFingerprint(
	ctx context.Context, mode FingerprintMode, pointers []string, r *Request,
) (f Fingerprint, err error) {
	parsed := mode == FingerprintJCS || mode == FingerprintPointers ||
		mode == FingerprintRaw && isMultipart(r.MediaType)
	if parsed && len(r.Body) > largeBody {
		leave, err := largeBodies.take(ctx, r.party)
		if err != nil {
			return f, err
		}
		defer leave()
	}
	f.Algorithm = uint8(mode) | spellingOf(r.Target)<<algorithmBits
	body, err := bodyDigest(mode, pointers, r)
	if err != nil {
		return f, &BodyError{err}
	}
	mediaType := ""
	if mode != FingerprintNone {
		mediaType = canonicalMediaType(r.MediaType)
	}
	h := sha256.New()
	writePart(h, []byte(fingerprintVersion))
	for _, part := range []string{r.Method, r.Namespace, canonicalTarget(r.Target), mediaType} {
		writePart(h, []byte(part))
	}
	writePart(h, body)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		writePart(h, []byte(name))
		writePart(h, []byte(strings.Join(r.Header[name], "\n"))) // no value has a line feed
	}
	h.Sum(f.Digest[:0])
	return f, nil
}

// fingerprintOf is NewFingerprint whose error is an [*Error].
func fingerprintOf(
	ctx context.Context, mode FingerprintMode, pointers []string, r *Request,
) (f Fingerprint, err error) {
	f, err = NewFingerprint(ctx, mode, pointers, r)
	if _, invalid := errors.AsType[*BodyError](err); invalid {
		return f, &Error{Code: CodeBodyInvalid, Cause: err}
	}
	if err != nil {
		return f, &Error{Code: CodeQuota, RetryAfter: time.Second, Cause: err}
	}
	return f, nil
}

// actingHeaders are headers that decide whether, how and on what a request acts. They are part of it.
var actingHeaders = []string{
	"If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Range",
	"Content-Disposition", "Content-Language", "Content-Range", "Upload-Offset", // of the body
	"Depth", "Destination", "Overwrite", "Slug", // of WebDAV and AtomPub
	"Soapaction", "X-Amz-Target", // the operation
}

// writePart writes a part prefixed with its length, so that no two lists of parts produce the same bytes.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
	h.Write(part)
}

// canonicalTarget returns the path in its loose spelling, and the query sorted by name, because some clients build it
// from a map. A query that does not parse is kept unchanged.
func canonicalTarget(u *url.URL) string {
	if u == nil {
		return ""
	}
	query := u.RawQuery
	if values, err := url.ParseQuery(u.RawQuery); err == nil {
		query = values.Encode()
	}
	return loosePath(u) + "?" + query
}

// loosePath returns the escaped path in one spelling, so that a repeat in another spelling meets the record of the
// first request. The libraries of some languages escape looseCharacters and those of others do not, and many services
// ignore a slash at the end. Others tell them apart; see spellingOf.
func loosePath(u *url.URL) string {
	path := unescape(u.EscapedPath(), looseCharacters)
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

const looseCharacters = "!$'()*,:@"

// algorithmBits is how many bits of an algorithm are the mode. The others are the spelling.
const algorithmBits = 3

// spellingOf returns how a path differs from its loose spelling: 0 if it does not, and else a number up to 31. It is a
// part of the algorithm, because whether a request in another spelling is the same one cannot be told.
func spellingOf(u *url.URL) uint8 {
	if u == nil {
		return 0
	}
	path := unescape(u.EscapedPath(), "")
	if path == loosePath(u) {
		return 0
	}
	sum := sha256.Sum256([]byte(path))
	return 1 + sum[0]%(1<<(8-algorithmBits)-1)
}

// unescape returns an escaped path with the given characters, letters, digits and -._~ not escaped, and other escapes
// in upper case. It is the same path to every service (RFC 3986, section 6.2.2) if no characters are given.
func unescape(escaped, characters string) string {
	if !strings.Contains(escaped, "%") {
		return escaped
	}
	var path strings.Builder
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c != '%' || i+2 >= len(escaped) {
			path.WriteByte(c)
			continue
		}
		b, _ := hex.DecodeString(escaped[i+1 : i+3]) // net/url accepts no other escapes
		if i += 2; len(b) == 1 && (isUnreserved(b[0]) || strings.IndexByte(characters, b[0]) >= 0) {
			path.WriteByte(b[0])
		} else {
			path.WriteString("%" + strings.ToUpper(escaped[i-1:i+1]))
		}
	}
	return path.String()
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func bodyDigest(mode FingerprintMode, pointers []string, r *Request) ([]byte, error) {
	switch mode {
	case FingerprintRaw:
		return contentDigest(r.MediaType, r.Body, 0), nil
	case FingerprintJCS:
		if len(r.Body) == 0 {
			return nil, nil // an empty body differs from every JSON value
		}
		canonical, err := canonicalJSON(r.Body)
		sum := sha256.Sum256(canonical)
		return sum[:], err
	case FingerprintPointers:
		return pointersDigest(pointers, r.Body)
	case FingerprintNone:
		return nil, nil
	}
	return nil, fmt.Errorf("mode %d of a fingerprint is not known", mode)
}

// canonicalJSON returns a JSON value in the canonical form of RFC 8785. It refuses duplicate names, invalid UTF-8, lone
// surrogates, numbers that a double does not keep, and values nested more than MaxDepth deep.
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
				return fmt.Errorf("%sthe number %w", at(d.StackPointer()), err)
			}
		}
		if d.StackDepth() == 0 {
			values++
		}
	}
}

// at names a place in a JSON value.
func at(pointer jsontext.Pointer) string {
	if pointer == "" {
		return ""
	}
	return fmt.Sprintf("%.100s: ", string(pointer))
}

// checkNumber refuses a number that is not the one of the double which the canonical form has: two numbers that share a
// double would be one.
func checkNumber(text string) error {
	number, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return fmt.Errorf("%.40s is out of range", text)
	case math.Abs(number) > maxSafeInteger:
		return fmt.Errorf("%.40s is beyond ±(2^53-1); send it as a string", text)
	}
	digits, exponent, ok := decimal(text)
	kept, keptExponent, _ := decimal(strconv.FormatFloat(number, 'e', -1, 64))
	if !ok || digits != kept || exponent != keptExponent {
		return fmt.Errorf("%.40s has more digits than a double keeps; send it as a string", text)
	}
	return nil
}

// decimal returns the digits of a JSON number, without zeros at either end and with its sign, and the exponent of the
// last of them. Zero has no digits.
func decimal(text string) (digits string, exponent int, ok bool) {
	text, power, _ := strings.Cut(strings.ToLower(text), "e")
	sign := text[:len(text)-len(strings.TrimPrefix(text, "-"))]
	whole, fraction, _ := strings.Cut(text[len(sign):], ".")
	all := strings.TrimLeft(whole+fraction, "0")
	digits = strings.TrimRight(all, "0")
	if digits == "" {
		return "", 0, true
	}
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil {
			return "", 0, false // beyond any double
		}
	}
	return sign + digits, exponent - len(fraction) + len(all) - len(digits), true
}

// pointersDigest returns a digest of the values at pointers: for each, the pointer and its canonical form.
func pointersDigest(pointers []string, body []byte) ([]byte, error) {
	if len(body) == 0 {
		return nil, missingValue(pointers[0])
	}
	if _, err := canonicalJSON(body); err != nil { // the whole body must be valid, so that no value is ambiguous
		return nil, err
	}
	h := sha256.New()
	for _, pointer := range pointers {
		start, end, found, err := locate(body, pointer)
		switch {
		case err != nil:
			return nil, err
		case !found || !tells(body[start:end]):
			return nil, missingValue(pointer)
		}
		canonical, err := canonicalJSON(body[start:end])
		if err != nil {
			return nil, err
		}
		writePart(h, []byte(pointer))
		writePart(h, canonical)
	}
	return h.Sum(nil), nil
}

// missingValue is the error of a body without a chosen value.
func missingValue(pointer string) error {
	return fmt.Errorf("%s is missing or empty, so that it does not tell this request from others", cmp.Or(pointer,
		"the value"))
}

// tells reports whether a valid JSON value tells something: whether it has a number, true, false or a string that is
// not blank.
func tells(value []byte) bool {
	d := jsontext.NewDecoder(bytes.NewReader(value))
	for {
		token, err := d.ReadToken()
		if err != nil {
			return false
		}
		switch token.Kind() {
		case '0', 't', 'f':
			return true
		case '"':
			kind, length := d.StackIndex(d.StackDepth())
			isName := kind == '{' && length%2 == 1
			if !isName && strings.ContainsFunc(token.String(), isVisible) {
				return true
			}
		}
	}
}

// isVisible reports whether a character is more than white space and invisible marks.
func isVisible(c rune) bool {
	return c != '\u2800' && !unicode.IsSpace(c) && !unicode.IsControl(c) && !unicode.In(c, unicode.Cf,
		unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
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
