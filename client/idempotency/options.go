package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
	// IdentityAuthorization and IdentityHost, and with Shared or Principal IdentityHost alone.
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
	// headers of CORS, of one delivery or of one connection cannot be stored.
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
