package idempotency

import (
	"context"
	"errors"
	"net/http"
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
	HeaderIgnored  = "Idempotent-Ignored"  // response: true if the key had no effect: see [Middleware]
	policyPath     = "/.well-known/idempotency"
)

// Middleware returns a wrapper that runs a handler once for each key. It answers a retry with the first response and
// misuse with a problem document (RFC 9457), and serves its policy at /.well-known/idempotency. It panics if the
// options are invalid.
//
// The handler's request carries Idempotency-Attempt and Idempotency-Fence, and asks for a response without a content
// coding, so that every client can read its replay. Its context does not end when the client disconnects; see also
// [FromContext]. With [TakeOver] it ends, with the cause [ErrLeaseLost], when another owner may run. The response is
// held back until the result is stored, up to 1 MiB.
//
// A key has no effect on a request with another method than those of the options, nor in the header X-Idempotency-Key;
// the response tells.
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
	other := hasOther(r.Header) && !upgrade // the handler of an upgrade needs the server's own ResponseWriter
	switch {
	case r.URL.Path == policyPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		m.servePolicy(w, r)
	case hasKey && upgrade:
		m.fail(w, r, &Error{Code: CodeKeyInvalid,
			Cause: errors.New("a connection that is upgraded has no response to repeat")})
	case (hasKey || other) && !slices.Contains(m.options.Methods, r.Method): // never of HEAD and OPTIONS
		m.ignoreKey(w, r)
	case !slices.Contains(m.options.Methods, r.Method):
		m.next.ServeHTTP(w, r)
	case !hasKey && m.options.Required:
		m.fail(w, r, &Error{Code: CodeKeyMissing, Cause: ofOther(r.Header)})
	case !hasKey && other:
		m.ignoreKey(w, r)
	case !hasKey:
		m.next.ServeHTTP(w, r)
	default:
		m.serveKeyed(w, r)
	}
}

// headerOther is a header that some other servers take for HeaderKey. It has no effect here, which a client is told.
const headerOther = "X-Idempotency-Key"

func hasOther(header http.Header) bool { return len(header[headerOther]) > 0 }

// ofOther says why a request that has its key in headerOther lacks one, or returns nil. Its client may see the error.
func ofOther(header http.Header) error {
	if hasOther(header) {
		return errors.New(headerOther + " has no effect: send " + HeaderKey)
	}
	return nil
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

// panicked ends the ownership of a handler that panics. The panic continues to the server, which logs it as it would
// without the middleware.
func (m *middleware) panicked(owner *Owner) {
	owner.leave(m.options.OnPanic, resultCommitted, func() []byte {
		response := newStoredResponse(http.StatusInternalServerError, nil, nil)
		response.Kept = true
		return response.encode()
	})
}
