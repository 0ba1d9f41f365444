package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

// Code says why the work was not run and no result was returned. Codes are part of the API: they appear as the code of
// a problem document and the reason of an ErrorInfo.
type Code string

// The codes.
const (
	CodeKeyMissing       Code = "key-missing"           // the route requires a key
	CodeKeyInvalid       Code = "key-invalid"           // the header or the key is malformed
	CodePrincipalMissing Code = "principal-missing"     // the keyed request has no principal
	CodeBodyInvalid      Code = "body-invalid"          // no fingerprint can be made of the body
	CodeBodyTooLarge     Code = "body-too-large"        // the body is too large for a fingerprint
	CodeBodyCoding       Code = "body-coding"           // the content coding of the body cannot be undone
	CodeBodyTimeout      Code = "body-timeout"          // the body arrived too slowly; nothing was executed
	CodeKeyReused        Code = "key-reused"            // the key belongs to another request
	CodeInFlight         Code = "in-flight"             // the first request is still running
	CodeOutcomeUnknown   Code = "outcome-unknown"       // it is unknown whether it was executed
	CodeNotRetained      Code = "response-not-retained" // executed, but the response was not kept
	CodeExpired          Code = "expired"               // made before, and its result has expired
	CodeNotExecuted      Code = "not-executed"          // an operator settled it: it was not executed
	CodeReplayForbidden  Code = "replay-forbidden"      // made before, and the caller may not see the response
	CodeReplayUnchecked  Code = "replay-unchecked"      // whether the caller may see the response is unknown
	CodeReplayEncoded    Code = "replay-encoded"        // executed, but the caller does not accept its content coding
	CodeQuota            Code = "quota"                 // too many keys or waiters
	CodeStoreUnavailable Code = "store-unavailable"     // nothing was executed
)

// Action says what the client should do next.
type Action string

// The actions.
const (
	FixRequest Action = "fix-request" // send another request
	OtherKey   Action = "new-key"     // send the request with another key
	SameKey    Action = "same-key"    // send the same request with the same key later
	Reconcile  Action = "reconcile"   // find out what happened before anything else
)

// codeInfo describes a code.
type codeInfo struct {
	status  int
	action  Action
	connect connect.Code
	title   string
}

var codes = map[Code]codeInfo{
	CodeKeyMissing: {http.StatusBadRequest, FixRequest, connect.CodeInvalidArgument,
		"The request needs an Idempotency-Key"},
	CodeKeyInvalid: {http.StatusBadRequest, FixRequest, connect.CodeInvalidArgument,
		"The Idempotency-Key is not valid"},
	CodePrincipalMissing: {http.StatusBadRequest, FixRequest, connect.CodeInvalidArgument,
		"A request with a key needs a credential"},
	CodeBodyInvalid: {http.StatusBadRequest, FixRequest, connect.CodeInvalidArgument,
		"The body cannot be compared with that of a repeat"},
	CodeBodyTooLarge: {http.StatusRequestEntityTooLarge, FixRequest, connect.CodeInvalidArgument,
		"The body is too large for a request with a key"},
	CodeBodyCoding: {http.StatusUnsupportedMediaType, FixRequest, connect.CodeInvalidArgument,
		"The body has a content coding that cannot be undone to compare it"},
	CodeBodyTimeout: {http.StatusRequestTimeout, SameKey, connect.CodeDeadlineExceeded,
		"The body came too slowly; nothing was executed"},
	CodeKeyReused: {http.StatusUnprocessableEntity, OtherKey, connect.CodeFailedPrecondition,
		"The key was used for another request"},
	CodeInFlight: {http.StatusConflict, SameKey, connect.CodeAborted,
		"The first request with this key is still running"},
	CodeOutcomeUnknown: {http.StatusConflict, Reconcile, connect.CodeFailedPrecondition,
		"Whether the request was executed is not known"},
	CodeNotRetained: {http.StatusGone, Reconcile, connect.CodeAlreadyExists,
		"The request was executed, and its response was not kept"},
	CodeExpired: {http.StatusGone, Reconcile, connect.CodeFailedPrecondition,
		"The request was made before, and its result has expired"},
	CodeNotExecuted: {http.StatusConflict, OtherKey, connect.CodeFailedPrecondition,
		"The first request with this key was not executed, as was found out later"},
	CodeReplayForbidden: {http.StatusForbidden, FixRequest, connect.CodePermissionDenied,
		"The request was made before, and this caller may not have its response"},
	CodeReplayUnchecked: {http.StatusServiceUnavailable, SameKey, connect.CodeUnavailable,
		"Whether this caller may have the response of a request made before could not be found out"},
	CodeReplayEncoded: {http.StatusNotAcceptable, Reconcile, connect.CodeFailedPrecondition,
		"The request was executed, and its response has a content coding that this request does not accept"},
	CodeQuota: {http.StatusTooManyRequests, SameKey, connect.CodeResourceExhausted, "Too many keys are in use"},
	CodeStoreUnavailable: {http.StatusServiceUnavailable, SameKey, connect.CodeUnavailable,
		"The store of keys cannot be reached; nothing was executed"},
}

// Error says why a call did not run the work and has no result.
type Error struct {
	Code Code
	// RetryAfter is how long to wait before retrying with the same key; 0 if unknown.
	RetryAfter time.Duration
	// Record is set with CodeOutcomeUnknown, CodeNotRetained, CodeExpired, CodeNotExecuted and CodeReplayEncoded.
	Record *Record
	// Location is the Location header of a response that was not kept.
	Location string
	// Cause is more detail. It contains nothing of the stored request.
	Cause error

	// silent is set with CodeStoreUnavailable if the store has not answered. Only then may the work run without it:
	// a store that answers and refuses may know the key.
	silent bool
}

// Error implements error.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("idempotency: %s: %v", e.Code, e.Cause)
	}
	return fmt.Sprintf("idempotency: %s: %s", e.Code, codes[e.Code].title)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Action returns what the client should do next.
func (e *Error) Action() Action { return codes[e.Code].action }

// Retryable reports whether the same request with the same key may succeed later.
func (e *Error) Retryable() bool { return e.Action() == SameKey }

// CodeOf returns the code of an error, or "" if it has none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// fromStore returns the Error for a store's error.
func fromStore(err error) *Error {
	if quota, ok := errors.AsType[*QuotaError](err); ok {
		return &Error{Code: CodeQuota, RetryAfter: max(time.Second, quota.RetryAfter), Cause: err}
	}
	invalid, isInvalid := errors.AsType[*InvalidError](err)
	if isInvalid && !invalid.isSetting() {
		return &Error{Code: CodeKeyInvalid, Cause: invalid}
	}
	return &Error{
		Code: CodeStoreUnavailable, RetryAfter: time.Second, Cause: err,
		silent: !isInvalid && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrDamaged),
	}
}

// bypasses reports whether a request runs without the store because of an error, if the options allow that.
func bypasses(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.silent
}
