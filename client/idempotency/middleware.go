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
	HeaderExpires  = "Idempotency-Expires" // response: until when it is replayed, ISO 8601
	HeaderBypassed = "Idempotent-Bypassed" // response: true if the store was not asked
	policyPath     = "/.well-known/idempotency"
)

// DefaultMaxBody is how many bytes of a keyed request's body are read at most.
const DefaultMaxBody = 1 << 20

// Disposition says what becomes of a key when the work ends in a way that does not tell whether it
// had effects.
type Disposition uint8

// The dispositions.
const (
	LeaveUnknown Disposition = iota // the outcome is unknown: never run again by itself
	ReleaseKey                      // the work had no effects: the next request runs it again
	StoreResult                     // the response is the result, and is replayed
)

// Options configures [Middleware] and [Interceptor]. The zero value is usable: POST and PATCH, the
// key optional, the hash of the Authorization header as the principal, the raw body compared.
type Options struct {
	Settings

	// Scope is where the records are. A ledger needs an organization.
	Scope Scope
	// Namespace returns the namespace of a request, at most 128 bytes. Nil means the method and
	// the path. Not used by Interceptor, whose namespace is the procedure.
	Namespace func(*http.Request) string
	// Methods are the methods whose keys count; nil means POST and PATCH. HEAD and OPTIONS are
	// never touched. Not used by Interceptor.
	Methods []string
	// Required refuses requests without a key.
	Required bool
	// Strict takes keys only as strings of Structured Field Values, with quotes.
	Strict bool
	// Fingerprint says what of the body is compared; 0 means FingerprintRaw. Pointers are the
	// JSON pointers of FingerprintPointers. Not used by Interceptor, which compares the message.
	Fingerprint FingerprintMode
	Pointers    []string
	// MaxBody bounds the body of a keyed request in bytes; 0 means 1 MiB. Not used by
	// Interceptor, whose handler has a limit of its own.
	MaxBody int64
	// Principal returns the party on whose behalf a request is made, at most 512 bytes, and ""
	// for an anonymous one, which is refused; so is an error, which is logged. It must depend on nothing that
	// the client can
	// choose freely. Nil means a hash of the Authorization header.
	Principal func(ctx context.Context, header http.Header) (string, error)
	// Shared gives all callers one principal: every client that sends a key gets its response.
	Shared bool
	// ServerErrors says what a response of 500 or more leaves behind, and OnPanic what a panic
	// does.
	ServerErrors, OnPanic Disposition
	// ReleaseRefusals says that 401, 403, 407, 408, 409, 423, 425 and 429 are sent before the
	// work has had effects: the key is released. Without it the outcome is unknown.
	ReleaseRefusals bool
	// ReleaseStatuses are those of these statuses of which ReleaseRefusals says so, where it does
	// not say so of all. Not used by Interceptor.
	ReleaseStatuses []int
	// OutcomeOnly keeps of a result only that it was reached, its status and its Location: a repeat
	// gets CodeNotRetained. It is for responses that must not be stored. Not used by Interceptor.
	OutcomeOnly bool
	// MismatchStatus is the status for a key that was used for another request: 422, which is
	// also the default, or 409.
	MismatchStatus int
	// ReplayStatus is 0 to replay the stored status, or 200 to replay every stored success as
	// 200.
	ReplayStatus int
	// FreshFields are JSON pointers to members of the response that get a new UUID when it is
	// replayed, like /requestId.
	FreshFields []string
	// AllowReplay reports whether a request may have a stored response, because the caller's
	// rights may have changed since the first one. It is asked before each replay; an error
	// means that it is not known. Nil allows: a repeat has the principal of the first request.
	// Not used by Interceptor.
	AllowReplay func(r *http.Request) (bool, error)
	// Admit counts a keyed request of a principal, before its body is read; leave ends the count.
	// A request that it does not admit is refused with CodeQuota. Nil admits every request. Not used by
	// Interceptor.
	Admit func(principal string) (leave func(), ok bool)
	// Open runs the handler without a key when the store does not answer, marked and counted.
	// Work may then run twice. Without it the request is refused with 503.
	Open bool
	// DescribedBy is the URL of the documentation that problems link to; "" means
	// /.well-known/idempotency, which the middleware serves.
	DescribedBy string
}

// validate returns the options with their defaults.
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
		o.DescribedBy = policyPath
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
	return o, err
}

// Middleware returns a wrapper that runs a handler once for each key. It answers a repeat with the
// first response and a misuse with a problem document (RFC 9457), and serves its policy at
// /.well-known/idempotency. It panics if the options are invalid.
//
// The handler's request has Idempotency-Attempt and Idempotency-Fence, and a context that does not
// end when the client disconnects; see also [FromContext]. Its response is held back until the
// result is stored, up to 1 MiB.
//
// Authentication belongs before the middleware: a repeat is answered without the handler.
func Middleware(store Store, options Options) func(http.Handler) http.Handler {
	options, err := options.validate()
	if err != nil {
		panic(err)
	}
	return func(next http.Handler) http.Handler {
		return &middleware{
			guard: guard{Settings: options.Settings, store: store, open: options.Open}, options: options, next: next,
		}
	}
}

type middleware struct {
	guard

	options Options
	next    http.Handler
	warnJWT sync.Once
}

// ServeHTTP implements http.Handler.
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = stripped(r)
	_, hasKey := r.Header[HeaderKey]
	upgrade := r.Method == http.MethodConnect || r.Header.Get("Upgrade") != "" && !isH2C(r.Header)
	switch {
	case r.URL.Path == policyPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		m.servePolicy(w, r)
	case r.Method == http.MethodHead || r.Method == http.MethodOptions:
		m.next.ServeHTTP(w, r)
	case hasKey && upgrade:
		m.fail(w, r, &Error{Code: CodeKeyInvalid,
			Cause: errors.New("a connection that is upgraded has no response to repeat")})
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

// isH2C reports whether a request only asks for HTTP/2 in cleartext, which net/http ignores.
func isH2C(header http.Header) bool { return strings.EqualFold(header.Get("Upgrade"), "h2c") }

// stripped returns a copy of a request without what only a middleware may say.
func stripped(r *http.Request) *http.Request {
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	StripHeaders(r.Header)
	return r
}

// StripHeaders removes what only a middleware may say. A reverse proxy behind one calls it for its
// responses, because the middleware leaves those of requests without a key alone.
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
	key, err := m.identify(r)
	if err != nil {
		m.fail(w, r, err)
		return
	}
	if m.options.Admit != nil {
		leave, ok := m.options.Admit(key.Principal)
		if !ok {
			m.fail(w, r, &Error{Code: CodeQuota, RetryAfter: time.Second})
			return
		}
		defer leave()
	}
	fingerprint, err := m.fingerprint(w, r, key.Namespace)
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
	case m.options.Open && CodeOf(err) == CodeStoreUnavailable && r.Context().Err() == nil:
		m.Metrics.Count(EventBypassed)
		m.Logger.WarnContext(r.Context(), "a request with a key runs without the store and may run twice", "error", err)
		m.bypass(w, r, key.Key)
	default:
		m.fail(w, r, err)
	}
}

// bypass runs the handler without the store.
func (m *middleware) bypass(w http.ResponseWriter, r *http.Request, key string) {
	marked := &marker{ResponseWriter: w, before: func(header http.Header) {
		StripHeaders(header)
		header.Set(HeaderBypassed, "true")
		mark(header, r, key, false, time.Time{})
	}}
	m.next.ServeHTTP(marked, r)
	marked.mark() // the server sends the header of a handler that has written nothing
}

// allowReplay asks whether a request may have a stored response. The error is an [*Error].
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

// identify returns which record a request belongs to. The error is an [*Error].
func (m *middleware) identify(r *http.Request) (key RecordKey, err error) {
	key.Scope = m.options.Scope
	if key.Key, err = ParseHeader(r.Header, m.options.Strict); err != nil {
		return key, &Error{Code: CodeKeyInvalid, Cause: err}
	}
	if key.Principal, err = m.principal(r.Context(), r.Header); err != nil {
		return key, err
	}
	key.Namespace = m.namespace(r)
	if err := key.Validate(); err != nil {
		return key, &Error{Code: CodeKeyInvalid, Cause: err}
	}
	return key, nil
}

// fingerprint returns the fingerprint of a request, and leaves its body to be read again. The error
// is an [*Error].
func (m *middleware) fingerprint(w http.ResponseWriter, r *http.Request, namespace string) (f Fingerprint, err error) {
	request := &Request{
		Method: r.Method, Namespace: namespace, Target: r.URL, MediaType: r.Header.Get("Content-Type"),
	}
	if m.options.Fingerprint != FingerprintNone {
		if request.Body, err = m.readBody(w, r); err != nil {
			return f, err
		}
	}
	if f, err = NewFingerprint(m.options.Fingerprint, m.options.Pointers, request); err != nil {
		return f, &Error{Code: CodeBodyInvalid, Cause: err}
	}
	return f, nil
}

// readBody reads the body of a request and puts it back.
func (m *middleware) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil { // a handler may be called without a server
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.options.MaxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, &Error{Code: CodeBodyTooLarge, Cause: fmt.Errorf("it may have at most %d bytes", m.options.MaxBody)}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &Error{Code: CodeBodyTimeout, RetryAfter: time.Second}
	}
	if err != nil {
		return nil, &Error{Code: CodeBodyInvalid, Cause: fmt.Errorf("it did not come as a whole: %w", err)}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// namespace returns the namespace of a request. A path that is too long is replaced by its hash.
func (m *middleware) namespace(r *http.Request) string {
	if m.options.Namespace != nil {
		return m.options.Namespace(r)
	}
	name := r.Method + " " + r.URL.EscapedPath()
	if len(name) > MaxNamespace {
		sum := sha256.Sum256([]byte(r.URL.EscapedPath()))
		name = r.Method + " sha256:" + hex.EncodeToString(sum[:])
	}
	return name
}

// principal returns the principal of a request. The error is an [*Error].
func (m *middleware) principal(ctx context.Context, header http.Header) (string, error) {
	return m.options.principal(ctx, header, &m.warnJWT)
}

func (o *Options) principal(ctx context.Context, header http.Header, warn *sync.Once) (string, error) {
	switch {
	case o.Shared:
		return "", nil
	case o.Principal != nil:
		principal, err := o.Principal(ctx, header)
		if err != nil {
			o.Logger.WarnContext(ctx, "a request with a key has no principal", "error", err)
		}
		if err != nil || principal == "" {
			return "", &Error{Code: CodePrincipalMissing} // the error may be nothing for the client
		}
		return principal, nil
	}
	authorization := header.Values("Authorization")
	if len(authorization) != 1 || authorization[0] == "" {
		return "", &Error{Code: CodePrincipalMissing, Cause: errors.New("send one Authorization header")}
	}
	if strings.HasPrefix(strings.ToLower(authorization[0]), "bearer ") && strings.Count(authorization[0], ".") == 2 {
		warn.Do(func() {
			o.Logger.WarnContext(ctx, "the Authorization header looks like a JWT, and each new token is a new "+
				"principal; set Options.Principal to a claim of it")
		})
	}
	sum := sha256.Sum256([]byte(authorization[0]))
	return "authorization:" + hex.EncodeToString(sum[:]), nil
}

// run runs the handler as the owner of a key.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, owner *Owner) {
	key := owner.ownership.Key.Key
	// The client's disconnect ends the context of r and must not end the
	// work's, which goes on for the repeat.
	request := r.WithContext(owner.ctx)
	request.Header.Set(HeaderAttempt, strconv.FormatUint(owner.attempt, 10))
	request.Header.Set(HeaderFence, strconv.FormatUint(owner.Token(), 10))
	var expires time.Time
	header := http.Header{}
	copyHeader(header, w.Header()) // what was set before the middleware
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
	expires = m.settleResponse(owner, rec.stored())
	rec.deliver()
}

// settleResponse stores a response as its status says.
func (m *middleware) settleResponse(owner *Owner, response *storedResponse) (expires time.Time) {
	switch owner.leaves(m.options.disposition(response.Status)) {
	case ReleaseKey:
		owner.release()
	case LeaveUnknown:
		owner.abandon()
	case StoreResult:
		if m.options.OutcomeOnly {
			response.forget()
		}
		kind := resultCommitted
		if response.Status >= 400 && response.Status < 500 {
			kind = resultRejected
		}
		return owner.settle(kind, Result{Response: response.encode()})
	}
	return time.Time{}
}

// disposition says what a status leaves behind.
func (o *Options) disposition(status int) Disposition {
	switch {
	case isRefusal(status) && (o.ReleaseRefusals || slices.Contains(o.ReleaseStatuses, status)):
		return ReleaseKey
	case isRefusal(status):
		return LeaveUnknown
	case status >= 500:
		return o.ServerErrors
	}
	return StoreResult
}

// isRefusal reports whether a status says that the client may succeed with the same request later,
// so that it is never stored.
func isRefusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return false
}

// panicked ends the ownership of a handler that panics. The panic goes on to the server,
// so that it is logged as without the middleware.
func (m *middleware) panicked(owner *Owner) {
	switch owner.leaves(m.options.OnPanic) {
	case ReleaseKey:
		owner.release()
	case StoreResult:
		response := newStoredResponse(http.StatusInternalServerError, nil)
		response.Kept = true
		owner.settle(resultCommitted, Result{Response: response.encode()})
	case LeaveUnknown:
		owner.abandon()
	}
}
