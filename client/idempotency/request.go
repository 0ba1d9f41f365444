package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// fingerprint returns the fingerprint of a request, and leaves the body readable. The error is an [*Error].
func (m *middleware) fingerprint(
	w http.ResponseWriter, r *http.Request, namespace, party string,
) (f Fingerprint, err error) {
	request := &Request{
		party: party, Method: methodOf(r), Namespace: namespace, Target: r.URL,
		Header:    m.options.comparedHeaders(r.Header),
		MediaType: strings.Join(r.Header.Values("Content-Type"), ","),
	}
	if party != "" || m.options.AllowReplay != nil { // else the signature alone says who may see the stored response
		request.Target = withoutSignature(r.URL)
	}
	if m.options.Fingerprint != FingerprintNone {
		if request.Body, err = m.readBody(w, r); err != nil {
			return f, err
		}
		codings := r.Header.Values("Content-Encoding")
		content, undone, err := undoCodings(codings, request.Body, m.options.MaxBody)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return f, &Error{Code: CodeBodyCoding, Cause: errors.New("it may have gzip and deflate, at most four in " +
				"all; with the fingerprint none any coding is accepted, because bodies are not compared")}
		case err != nil:
			return f, m.tooLarge()
		case undone:
			request.Body = content
		default:
			request.Header["Content-Encoding"] = []string{canonicalList(strings.Join(codings, ","))}
		}
	}
	return fingerprintOf(r.Context(), m.options.Fingerprint, m.options.Pointers, request)
}

// MethodHeaders are the headers from which some services take the method of a request. They are part of its
// fingerprint.
var MethodHeaders = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// methodOf returns the method of a request, with those in MethodHeaders.
func methodOf(r *http.Request) string {
	method := r.Method
	for _, name := range MethodHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			method += " " + name + ":" + strings.Join(values, ",")
		}
	}
	return method
}

// oneValue are compared headers that are no lists: a comma is a part of their value.
var oneValue = []string{
	"Content-Disposition", "Destination", "If-Modified-Since", "If-Range", "If-Unmodified-Since", "Slug", "Soapaction",
}

// comparedHeaders returns the headers that are part of a request. A list is the same in one line and in several.
func (o *Options) comparedHeaders(header http.Header) http.Header {
	compared := http.Header{}
	for _, name := range slices.Concat(actingHeaders, o.compared) {
		if values := header.Values(name); strings.Join(values, "") != "" {
			switch {
			case hasCredential(name):
				values = []string{canonicalCredential(values)}
			case !slices.Contains(oneValue, name):
				values = []string{canonicalList(strings.Join(values, ","))}
			}
			compared[name] = values
		}
	}
	return compared
}

// tooLarge returns the error of a body that is too large.
func (m *middleware) tooLarge() *Error {
	return &Error{Code: CodeBodyTooLarge, Cause: fmt.Errorf("it may have at most %d bytes", m.options.MaxBody)}
}

// readBody reads the body of a request and puts it back.
func (m *middleware) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil { // a handler may be called without a server
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.options.MaxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, m.tooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &Error{Code: CodeBodyTimeout, RetryAfter: time.Second}
	}
	if err != nil {
		return nil, &Error{Code: CodeBodyInvalid, Cause: fmt.Errorf("the body is incomplete: %w", err)}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// namespace returns the namespace of a request. A path that is too long is replaced by its hash.
func (m *middleware) namespace(r *http.Request) string {
	if m.options.Namespace != nil {
		return m.options.Namespace(r)
	}
	return shortened(r.Method+" ", loosePath(sentURL(r)))
}

// shortened returns a prefix and a path, or its hash if both are too long for a namespace.
func shortened(prefix, path string) string {
	if len(prefix+path) > MaxNamespace {
		sum := sha256.Sum256([]byte(path))
		path = "sha256:" + hex.EncodeToString(sum[:])
	}
	return prefix + path
}

// sentURL returns the URL that a request was sent to. http.StripPrefix removes from r.URL what tells two places apart
// at which one handler is mounted. Where something else has rewritten the path, that is the request.
func sentURL(r *http.Request) *url.URL {
	sent, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return r.URL
	}
	prefix, stripped := strings.CutSuffix(sent.EscapedPath(), r.URL.EscapedPath())
	if !stripped || strings.Trim(prefix, "/") == "" { // as of //charge, whose path was cleaned
		return r.URL
	}
	return sent
}
