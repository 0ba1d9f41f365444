package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The headers that the middleware sets.
const (
	HeaderAttempt  = "Idempotency-Attempt" // request to the handler: number of the ownership
	HeaderFence    = "Idempotency-Fence"   // request to the handler: fencing token
	HeaderReplayed = "Idempotent-Replayed" // response: true or false
	HeaderExpires  = "Idempotency-Expires" // response: end of the replay period, ISO 8601
	HeaderBypassed = "Idempotent-Bypassed" // response: true if the store was bypassed
	HeaderIgnored  = "Idempotent-Ignored"  // response: true if the key had no effect, because of the method
	policyPath     = "/.well-known/idempotency"
)

// DefaultMaxBody is the default limit of a keyed request's body, in bytes.
const DefaultMaxBody = 1 << 20

// Disposition says what happens to a key when the work ends without telling whether it had effects.
type Disposition uint8

// The dispositions.
const (
	LeaveUnknown Disposition = iota // the outcome is unknown: the work never runs again
	ReleaseKey                      // the work had no effects: the next request runs it again
	StoreResult                     // the response is the result, and is replayed
)

// Options configures [Middleware] and [Interceptor]. The zero value is usable: POST and PATCH, an optional key, the
// hashes of the Authorization header and of the host as the principal, and a comparison of the raw body.
type Options struct {
	Settings

	// Scope is the scope of the records. A ledger requires an organization.
	Scope Scope
	// Namespace returns the namespace of a request, at most 128 bytes. Nil means the method and the path. Interceptor
	// ignores it and uses the procedure.
	Namespace func(*http.Request) string
	// Methods are the methods for which a key is honored; nil means POST and PATCH. HEAD and OPTIONS are always left
	// alone. Interceptor ignores it.
	Methods []string
	// Required refuses requests without a key.
	Required bool
	// Strict accepts keys only as Strings of Structured Field Values, in quotes.
	Strict bool
	// Fingerprint says which part of the body is compared; 0 means FingerprintRaw. Pointers are the JSON pointers for
	// FingerprintPointers. Interceptor ignores both and compares the message.
	Fingerprint FingerprintMode
	Pointers    []string
	// MaxBody limits the body of a keyed request in bytes; 0 means 1 MiB. Interceptor ignores it, because its handler
	// has its own limit.
	MaxBody int64
	// RequestHeaders are the names of headers that are part of the request: the same key with another value is refused.
	// Always part of it are the preconditions (If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since,
	// If-Range, Range) and a few more that decide on what a request acts, such as Content-Range and Destination. Nil
	// means HeadersAnyTenant and HeadersAnyVersion, except headers that are in Identity.
	RequestHeaders []string
	// Principal returns the party on whose behalf a request is made, at most 512 bytes of UTF-8, or "" for an anonymous
	// request, which is refused. A request for which it returns an error is refused too, and the error is logged. The
	// principal must not depend on anything that the client can choose freely. header includes Host. Nil means that
	// Identity says who sends a request.
	Principal func(ctx context.Context, header http.Header) (string, error)
	// Shared makes all callers one party: every client that sends a key gets its response.
	Shared bool
	// Identity names the headers that tell the senders of requests apart: the same key with another value of one of
	// them is another key. A request without one of the headers has the empty value. Besides names of headers there are
	// IdentityAuthorization, IdentityAuthorizationID, IdentityHost and HeadersAnyTenant. Nil means
	// IdentityAuthorization and IdentityHost; with Shared it means IdentityHost, and with Principal nothing else.
	//
	// A credential that is made for one request, such as an AWS signature, is refused as an identity, because each
	// repeat would be a new sender.
	Identity []string
	// VisitorHeader names a header with a secret that a client draws before it has a credential and sends with and
	// without one, so that what it began as a visitor stays the same request after it has signed in. The secret belongs
	// to the first user that sends it, and is ignored from others. It needs Principal, which verifies the user, or
	// AllowReplay, which is then also asked before the secret is given to a user: a request that it refuses does not
	// run. Empty means that anonymous requests are refused.
	VisitorHeader string
	// ServerErrors says what happens to the key after a response of 500 or more, and OnPanic what happens after a
	// panic. StatusErrors has what differs from ServerErrors by status, such as 503 of a load balancer that has found
	// no service.
	ServerErrors, OnPanic Disposition
	StatusErrors          map[int]Disposition
	// ReleaseRefusals declares that the handler sends 401, 403, 407, 408, 409, 423, 425 and 429 before the work has
	// effects: the key is released. Otherwise the outcome is unknown.
	ReleaseRefusals bool
	// ReleaseStatuses limits ReleaseRefusals to some of these statuses, when ReleaseRefusals is not set for all.
	// Interceptor ignores it.
	ReleaseStatuses []int
	// OutcomeOnly stores only that a result was reached, its status and its Location, and not the response: a retry
	// gets CodeNotRetained. It is for responses that must not be stored. Interceptor ignores it.
	OutcomeOnly bool
	// StoredHeaders are the names of response headers that are stored and replayed in addition to Content-Type,
	// Content-Encoding, Content-Language, Content-Disposition, Content-Location, Content-Range, Location,
	// Operation-Location, ETag, Last-Modified, Link, Vary, Retry-After and Cache-Control. Cookies, credentials, and
	// headers of CORS, of one delivery or of one connection cannot be stored. Interceptor ignores it.
	StoredHeaders []string
	// MismatchStatus is the status returned for a key that was used for another request: 422, the default, or 409.
	MismatchStatus int
	// ReplayStatus is 0 to replay the stored status, or 200 to replay every stored success as 200.
	ReplayStatus int
	// FreshFields are JSON pointers to members of the response that get a new UUID in a replay, such as /requestId.
	FreshFields []string
	// AllowReplay reports whether a request may see a stored response, because the caller's rights may have changed
	// since the first request. It is called before each replay. An error means that the answer is unknown. Nil allows
	// every replay: a retry has the same principal as the first request. Interceptor ignores it.
	AllowReplay func(r *http.Request) (bool, error)
	// Admit counts a keyed request of a party before its body is read; leave ends the count. The party is the principal
	// without the host and the other headers of Identity, which a client may choose. A request that is not admitted is
	// refused with CodeQuota. Nil admits every request. Interceptor ignores it.
	Admit func(party string) (leave func(), ok bool)
	// Open runs the handler without a key when the store does not answer; the response is marked and the event counted.
	// Work may then run twice. Without Open the request is refused with 503. A request that the store has answered is
	// never run this way, whatever the answer; see [ErrRefused].
	Open bool
	// DescribedBy is the URL of the documentation that problems link to, with the code as the fragment; "" means
	// [Documentation].
	DescribedBy string

	// Resolved by validate.
	who      identity
	compared []string // canonical names of the RequestHeaders
}

// validate returns the options with defaults filled in.
func (o Options) validate() (Options, error) {
	settings, err := o.Settings.validate()
	if err != nil {
		return o, err
	}
	o.Settings = settings
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Fingerprint == 0 {
		o.Fingerprint = FingerprintRaw
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.DescribedBy == "" {
		o.DescribedBy = Documentation
	}
	if o.MismatchStatus == 0 {
		o.MismatchStatus = http.StatusUnprocessableEntity
	}
	switch {
	case o.Fingerprint > FingerprintNone:
		err = &InvalidError{"Fingerprint", fmt.Sprintf("is %d, which is not known here", o.Fingerprint)}
	case (o.Fingerprint == FingerprintPointers) != (len(o.Pointers) > 0):
		err = &InvalidError{"Pointers", "must be set with FingerprintPointers, and only with it"}
	case o.MaxBody < 0:
		err = &InvalidError{"MaxBody", "must not be negative"}
	case o.ReplayStatus != 0 && o.ReplayStatus != http.StatusOK:
		err = &InvalidError{"ReplayStatus", "must be 0 or 200"}
	case o.MismatchStatus != http.StatusUnprocessableEntity && o.MismatchStatus != http.StatusConflict:
		err = &InvalidError{"MismatchStatus", "must be 422 or 409"}
	case slices.ContainsFunc(o.StoredHeaders, func(name string) bool { return !mayStore(name) }):
		err = &InvalidError{"StoredHeaders", "must be names of headers that do not belong to one delivery: no " +
			"cookies, credentials or CORS"}
	case !validStatusErrors(o.StatusErrors):
		err = &InvalidError{"StatusErrors",
			"must be LeaveUnknown, ReleaseKey or StoreResult for statuses of 500 to 599"}
	case o.ServerErrors > StoreResult, o.OnPanic > StoreResult:
		err = &InvalidError{"ServerErrors, OnPanic", "must be LeaveUnknown, ReleaseKey or StoreResult"}
	case o.Shared && o.Principal != nil:
		err = &InvalidError{"Principal", "must not be set with Shared"}
	case slices.ContainsFunc(o.ReleaseStatuses, func(status int) bool { return !isRefusal(status) }):
		err = &InvalidError{"ReleaseStatuses", "must be of 401, 403, 407, 408, 409, 423, 425 and 429"}
	case slices.Contains(o.Methods, http.MethodHead), slices.Contains(o.Methods, http.MethodOptions):
		err = &InvalidError{"Methods", "must not have HEAD or OPTIONS, which have no effects"}
	default:
		err = validatePointers(append(slices.Clip(o.Pointers), o.FreshFields...))
	}
	return o, errors.Join(err, o.readIdentity())
}

func validStatusErrors(by map[int]Disposition) bool {
	for status, disposition := range by {
		if status < 500 || status > 599 || disposition > StoreResult {
			return false
		}
	}
	return true
}

// Middleware returns a wrapper that runs a handler once for each key. It answers a retry with the first response and
// misuse with a problem document (RFC 9457), and serves its policy at /.well-known/idempotency. It panics if the
// options are invalid.
//
// The handler's request carries Idempotency-Attempt and Idempotency-Fence, and asks for a response without a content
// coding, so that every client can read its replay. Its context does not end when the client disconnects; see also
// [FromContext]. With [TakeOver] it ends, with the cause [ErrLeaseLost], when another owner may run. The response is
// held back until the result is stored, up to 1 MiB.
//
// Authentication must come before the middleware, because a retry is answered without the handler.
func Middleware(store Store, options Options) func(http.Handler) http.Handler {
	options, err := options.validate()
	if err != nil {
		panic(err)
	}
	return func(next http.Handler) http.Handler {
		return &middleware{
			door: door{guard: guard{Settings: options.Settings, store: store, open: options.Open}, options: options},
			next: next,
		}
	}
}

// door is what [Middleware] and [Interceptor] have in common.
type door struct {
	guard

	options Options
	warnJWT sync.Once
}

type middleware struct {
	door

	next http.Handler
}

// ServeHTTP implements http.Handler.
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = stripped(r)
	_, hasKey := r.Header[HeaderKey]
	upgrade := r.Method == http.MethodConnect || r.Header.Get("Upgrade") != "" && !isH2C(r.Header)
	switch {
	case r.URL.Path == policyPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		m.servePolicy(w, r)
	case hasKey && upgrade:
		m.fail(w, r, &Error{Code: CodeKeyInvalid,
			Cause: errors.New("a connection that is upgraded has no response to repeat")})
	case hasKey && !slices.Contains(m.options.Methods, r.Method): // never of HEAD and OPTIONS
		m.ignoreKey(w, r)
	case !slices.Contains(m.options.Methods, r.Method):
		m.next.ServeHTTP(w, r)
	case !hasKey && m.options.Required:
		m.fail(w, r, &Error{Code: CodeKeyMissing})
	case !hasKey:
		m.next.ServeHTTP(w, r)
	default:
		m.serveKeyed(w, r)
	}
}

// isH2C reports whether a request merely offers to upgrade to cleartext HTTP/2, which net/http ignores.
func isH2C(header http.Header) bool { return strings.EqualFold(header.Get("Upgrade"), "h2c") }

// stripped returns a copy of a request without the headers that only a middleware may set.
func stripped(r *http.Request) *http.Request {
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	StripHeaders(r.Header)
	return r
}

// StripHeaders removes the headers that only a middleware may set. A reverse proxy inside a middleware calls it on its
// responses, because the middleware does not touch responses to requests without a key.
func StripHeaders(header http.Header) {
	for name := range header {
		if name != HeaderKey && (strings.HasPrefix(name, "Idempotency-") || strings.HasPrefix(name, "Idempotent-") ||
			strings.HasPrefix(name, "X-Idempotent-")) {
			delete(header, name)
		}
	}
}

// serveKeyed serves a request with a key.
func (m *middleware) serveKeyed(w http.ResponseWriter, r *http.Request) {
	key, from, err := m.identify(r.Context(), withHost(r), m.namespace(r))
	if err != nil {
		m.fail(w, r, err)
		return
	}
	if m.options.Admit != nil {
		leave, ok := m.options.Admit(from.party)
		if !ok {
			m.fail(w, r, &Error{Code: CodeQuota, RetryAfter: time.Second})
			return
		}
		defer leave()
	}
	fingerprint, err := m.fingerprint(w, r, key.Namespace, from.party)
	if err == nil && from.visitor != "" {
		// A credential that nothing has verified yet may be expired or invented, and gets a visitor's secret only if
		// the replay check accepts it. Otherwise the request is refused, even if nobody has made it before. If it ran
		// as the caller's own, it would run a second time as the visitor's: once the check accepts a repeat, or when a
		// copy that the visitor has sent arrives late.
		if m.options.Principal == nil {
			err = m.allowReplay(r)
		}
		if err == nil {
			err = m.signIn(r.Context(), &m.options, &from)
		}
		key.Principal = from.principal
	}
	if err != nil {
		m.fail(w, r, err)
		return
	}
	owner, record, err := m.begin(r.Context(), context.WithoutCancel(r.Context()), key, fingerprint)
	switch {
	case err == nil && record != nil:
		if err := m.allowReplay(r); err != nil {
			m.fail(w, r, err)
			return
		}
		m.replay(w, r, key.Key, record)
	case err == nil:
		m.run(w, r, owner)
	case m.bypasses(r.Context(), err):
		m.bypass(w, r, key.Key)
	default:
		m.fail(w, r, err)
	}
}

// ignoreKey runs the handler of a request whose key has no effect, and tells the client, which would otherwise take a
// repeat for safe. A middleware further inside may honor the key.
func (m *middleware) ignoreKey(w http.ResponseWriter, r *http.Request) {
	m.serveMarked(w, r, func(header http.Header) {
		if header.Get(HeaderReplayed) == "" {
			markIgnored(header)
			if r.Header.Get("Origin") != "" {
				expose(header)
			}
		}
	})
}

// markIgnored sets the header of a response to a request whose key had no effect.
func markIgnored(header http.Header) { header.Set(HeaderIgnored, "true") }

// bypass runs the handler without the store.
func (m *middleware) bypass(w http.ResponseWriter, r *http.Request, key string) {
	m.serveMarked(w, r, func(header http.Header) {
		StripHeaders(header)
		header.Set(HeaderBypassed, "true")
		mark(header, r, key, false, time.Time{})
	})
}

// serveMarked runs the handler, and changes the header of its response before it is sent.
func (m *middleware) serveMarked(w http.ResponseWriter, r *http.Request, before func(header http.Header)) {
	marked := &marker{ResponseWriter: w, before: before}
	m.next.ServeHTTP(marked, r)
	marked.mark() // for a handler that has written nothing, the server sends the header
}

// allowReplay checks whether a request may see a stored response. The error is an [*Error].
func (m *middleware) allowReplay(r *http.Request) error {
	if m.options.AllowReplay == nil {
		return nil
	}
	allowed, err := m.options.AllowReplay(r)
	switch {
	case err != nil:
		return &Error{Code: CodeReplayUnchecked, RetryAfter: time.Second, Cause: err}
	case !allowed:
		return &Error{Code: CodeReplayForbidden}
	}
	return nil
}

// bypasses reports whether a request whose key could not be reserved runs without the store.
func (d *door) bypasses(ctx context.Context, err error) bool {
	if !d.open || !bypasses(err) || ctx.Err() != nil {
		return false
	}
	d.Metrics.Count(EventBypassed)
	d.Logger.WarnContext(ctx, "a request with a key runs without the store and may run twice", "error", err)
	return true
}

// identify returns the record key of a request, and who sends it. header includes Host. The error is an [*Error].
func (d *door) identify(
	ctx context.Context, header http.Header, namespace string,
) (key RecordKey, from sender, err error) {
	key.Scope, key.Namespace = d.options.Scope, namespace
	if key.Key, err = ParseHeader(header, d.options.Strict); err != nil {
		return key, from, &Error{Code: CodeKeyInvalid, Cause: err}
	}
	if from, err = d.options.sender(ctx, header, &d.warnJWT); err != nil {
		return key, from, err
	}
	key.Principal = from.principal
	if err := key.Validate(); err != nil {
		return key, from, &Error{Code: CodeKeyInvalid, Cause: err}
	}
	return key, from, nil
}

// fingerprint returns the fingerprint of a request, and leaves the body readable. The error is an [*Error].
func (m *middleware) fingerprint(
	w http.ResponseWriter, r *http.Request, namespace, party string,
) (f Fingerprint, err error) {
	request := &Request{
		party: party, Method: methodOf(r), Namespace: namespace, Target: r.URL,
		Header:    m.options.comparedHeaders(r.Header),
		MediaType: strings.Join(r.Header.Values("Content-Type"), ","),
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
			if !slices.Contains(oneValue, name) && !strings.HasSuffix(name, "Authorization") {
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
	path := loosePath(r.URL)
	name := r.Method + " " + path
	if len(name) > MaxNamespace {
		sum := sha256.Sum256([]byte(path))
		name = r.Method + " sha256:" + hex.EncodeToString(sum[:])
	}
	return name
}

// run runs the handler as the owner of a key.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, owner *Owner) {
	key := owner.ownership.Key.Key
	// The context of r ends when the client disconnects. The work must not: it continues for the retry.
	request := r.WithContext(owner.ctx)
	request.Header.Set(HeaderAttempt, strconv.FormatUint(owner.attempt, 10))
	request.Header.Set(HeaderFence, strconv.FormatUint(owner.Token(), 10))
	request.Header.Set("Accept-Encoding", "identity")
	var expires time.Time
	header := http.Header{}
	copyHeader(header, w.Header()) // headers set before the middleware ran
	rec := &recorder{w: w, header: header, before: func(header http.Header) {
		StripHeaders(header)
		mark(header, r, key, false, expires)
	}}
	ended := false
	defer func() {
		if !ended {
			m.panicked(owner)
		}
	}()
	m.next.ServeHTTP(rec, request)
	ended = true
	rec.WriteHeader(http.StatusOK)
	expires = m.settleResponse(owner, rec.stored(m.options.StoredHeaders))
	rec.deliver()
}

// settleResponse stores a response, or not, according to its status.
func (m *middleware) settleResponse(owner *Owner, response *storedResponse) (expires time.Time) {
	if response.cut { // its client has got no whole answer, and a replay must not look like one
		owner.abandon()
		return time.Time{}
	}
	kind := resultCommitted
	if response.Status >= 400 && response.Status < 500 {
		kind = resultRejected
	}
	return owner.leave(m.options.disposition(response.Status), kind, func() []byte {
		if m.options.OutcomeOnly {
			response.forget()
		}
		return response.encode()
	})
}

// disposition returns what happens to the key after a response with the status.
func (o *Options) disposition(status int) Disposition {
	switch {
	case isRefusal(status) && (o.ReleaseRefusals || slices.Contains(o.ReleaseStatuses, status)):
		return ReleaseKey
	case isRefusal(status):
		return LeaveUnknown
	case status >= 500:
		return o.serverError(status)
	}
	return StoreResult
}

// serverError returns what happens to the key after a response with a status of 500 or more.
func (o *Options) serverError(status int) Disposition {
	if disposition, ok := o.StatusErrors[status]; ok {
		return disposition
	}
	return o.ServerErrors
}

// isRefusal reports whether the status means that the same request may succeed later. Such a response is never stored.
func isRefusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return false
}

// panicked ends the ownership of a handler that panics. The panic continues to the server, which logs it as it would
// without the middleware.
func (m *middleware) panicked(owner *Owner) {
	owner.leave(m.options.OnPanic, resultCommitted, func() []byte {
		response := newStoredResponse(http.StatusInternalServerError, nil, nil)
		response.Kept = true
		return response.encode()
	})
}
