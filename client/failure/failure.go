// Package failure describes why a call brought no result: sentinel errors and the ledger's refusals. The packages
// client and client/writer return them. A program that uses the generated Connect clients can convert their errors
// with [FromConnect].
package failure

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Sentinels for errors.Is. They say what a caller can do next; the details are in [*Error] and
// in the types that wrap it.
var (
	// ErrNotFound: there is no such entity, transaction or block, or none that the caller may read.
	ErrNotFound = errors.New("client: not found")
	// ErrUnauthenticated: the token is missing, unknown or expired.
	ErrUnauthenticated = errors.New("client: not authenticated")
	// ErrUnavailable: the ledger cannot be reached, or cannot take the call now. The same call may succeed later.
	ErrUnavailable = errors.New("client: the ledger is not available")
	// ErrFenced: another process has opened a session on the stream. Stop.
	ErrFenced = errors.New("client: another session has taken the stream over")
	// ErrExpired: the stream was evicted after client_ttl without a commit, or the ledger was restored to before it.
	ErrExpired = errors.New("client: the stream was evicted")
	// ErrOutcomeUnknown: the write may or may not have been committed. Settle it by repeating the same sequence and
	// key, or with GetClientState; never by sending the operations under a new sequence.
	ErrOutcomeUnknown = errors.New("client: outcome unknown")
	// ErrNotExecuted: the write was not executed and never will be. It is safe to submit its
	// operations again as a new write. From client.Client.Write it covers only the copies that this
	// call sent: a copy that an earlier call sent under the same number may still be executed.
	ErrNotExecuted = errors.New("client: not executed")
	// ErrConditionFailed: a condition did not hold. Read again and decide.
	ErrConditionFailed = errors.New("client: condition failed")
	// ErrAlreadyCommitted: the sequence was committed and its receipt is gone.
	ErrAlreadyCommitted = errors.New("client: already committed")
	// ErrClosed: the Client or the Writer was closed.
	ErrClosed = errors.New("client: closed")
	// ErrOtherLedger: the server's ledger is not the journal's ledger, for example because it
	// was restored from a backup, or not that of the Client's other servers.
	ErrOtherLedger = errors.New("client: another ledger")
	// ErrProtocol: the server's answers contradict each other or the request.
	ErrProtocol = errors.New("client: protocol violation")
)

// Error is the answer of the server, or of an intermediary, in place of a result. The numbers and texts are copied
// from WriteError; they are zero if the answer had none.
type Error struct {
	// Code says why a write was refused. It is UNSPECIFIED when the answer carried no
	// WriteError; then only ConnectCode is set.
	Code seqledgerv1.WriteErrorCode
	// ConnectCode is the RPC's code. For an error inside a WriteStream it is
	// the code that a unary Write would have had.
	ConnectCode connect.Code
	// Message is for people and not stable.
	Message string
	// LastCommittedSequence is the stream's last committed sequence, if the decision depended on it.
	LastCommittedSequence uint64
	// Session is the stream's session, if the decision depended on it.
	Session uint64
	// CommittedSequence is the sequence that the key or the request was committed under.
	CommittedSequence uint64
	// OperationIndex is the index of the operation that failed, from 0.
	OperationIndex uint32
	// Key is the entity key whose condition failed.
	Key string
	// CurrentVersion is that entity's version, 0 if it is absent.
	CurrentVersion uint64
	// Field is the invalid field of an INVALID_ARGUMENT.
	Field string
	// RetryAfter is how long the server asks to wait; 0 if it does not ask.
	RetryAfter time.Duration
	// LeaderAddress is set only with NOT_LEADER.
	LeaderAddress string

	// wire is true when the answer was in Connect's own form, as a seqledger server's always is. Otherwise this side
	// made the error from an HTTP status or a broken connection, and what the server did is unknown.
	wire bool
	// status is the HTTP status of an answer that was not in Connect's form, or 0.
	status int
	// challenged is true when the answer carries a seqledger server's own challenge for a
	// token, and therefore does not come from an intermediary.
	challenged bool
	cause      error
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
		b.WriteString(strings.TrimPrefix(e.Code.String(), "WRITE_ERROR_CODE_"))
	} else {
		b.WriteString(e.ConnectCode.String())
	}
	if e.Field != "" {
		fmt.Fprintf(&b, " (%s)", e.Field)
	}
	if e.Message != "" {
		b.WriteString(": ")
		b.WriteString(e.Message)
	}
	return b.String()
}

// Unwrap returns the transport's error, so that errors.Is finds
// context.DeadlineExceeded and the like. It is nil inside a WriteStream.
func (e *Error) Unwrap() error { return e.cause }

// Is maps the code to the package's sentinels.
func (e *Error) Is(target error) bool {
	if target == ErrUnavailable {
		return e.IsTemporary() && e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN
	}
	if e.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
		return target == ErrNotFound && e.ConnectCode == connect.CodeNotFound ||
			target == ErrUnauthenticated && e.ConnectCode == connect.CodeUnauthenticated
	}
	return target != nil && target == codes[e.Code].sentinel
}

// codes says what the codes of a WriteError mean. One that is not here has the Connect code failed_precondition, and a
// repeat does not change it.
var codes = map[seqledgerv1.WriteErrorCode]struct {
	connect   connect.Code // of the RPC, as the API defines it; 0 for failed_precondition
	sentinel  error        // that errors.Is finds
	temporary bool         // the same request may succeed a moment later
	elsewhere bool         // another server may take the call
}{
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED: {connect: connect.CodeUnknown},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED: {
		connect: connect.CodeAlreadyExists, sentinel: ErrAlreadyCommitted,
	},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED:    {sentinel: ErrFenced},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED:   {sentinel: ErrExpired},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS:        {sentinel: ErrConditionFailed},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_NOT_FOUND:     {sentinel: ErrConditionFailed},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VERSION_MISMATCH:  {sentinel: ErrConditionFailed},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VALUE_MISMATCH:    {sentinel: ErrConditionFailed},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:  {connect: connect.CodeInvalidArgument},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED: {connect: connect.CodePermissionDenied},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS:  {connect: connect.CodeResourceExhausted},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL: {
		connect: connect.CodeResourceExhausted, temporary: true,
	},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER: {
		connect: connect.CodeUnavailable, temporary: true, elsewhere: true,
	},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING: {
		connect: connect.CodeUnavailable, temporary: true, elsewhere: true,
	},
	seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN: {
		connect: connect.CodeUnavailable, sentinel: ErrOutcomeUnknown, temporary: true,
	},
}

// CodeOf returns the code of the first [*Error] in err's tree, UNSPECIFIED if there is none.
func CodeOf(err error) seqledgerv1.WriteErrorCode {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED
}

// FromConnect converts the error of an RPC. status is the HTTP status of the answer, 0 if it is not known; it counts
// only if the answer was not in Connect's own form.
func FromConnect(err error, status int) *Error {
	rpc, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return &Error{ConnectCode: connect.CodeUnknown, Message: err.Error(), status: status, cause: err}
	}
	out := &Error{ConnectCode: rpc.Code(), Message: rpc.Message()}
	for _, detail := range rpc.Details() {
		value, detailErr := detail.Value()
		if detailErr != nil {
			// A detail of an unknown type must not hide the error: the code is still valid.
			continue
		}
		if refusal, isRefusal := value.(*seqledgerv1.WriteError); isRefusal {
			out = errorFromDetail(refusal)
			out.ConnectCode = rpc.Code()
		}
	}
	if out.wire = connect.IsWireError(err); !out.wire {
		out.status = status
	}
	out.challenged = out.wire && strings.HasPrefix(rpc.Meta().Get("WWW-Authenticate"), challenge)
	out.cause = err
	return out
}

// challenge is the header value with which a seqledger server asks for a token.
const challenge = `Bearer realm="seqledger"`

// FromStream converts the error of one write inside a WriteStream.
func FromStream(refusal *seqledgerv1.WriteError) *Error {
	out := errorFromDetail(refusal)
	out.ConnectCode = cmp.Or(codes[refusal.GetCode()].connect, connect.CodeFailedPrecondition)
	out.wire = true
	return out
}

// errorFromDetail copies the fields that both conversions share.
func errorFromDetail(refusal *seqledgerv1.WriteError) *Error {
	return &Error{
		Code:                  refusal.GetCode(),
		Message:               refusal.GetMessage(),
		LastCommittedSequence: refusal.GetLastCommittedSequence(),
		Session:               refusal.GetSession(),
		CommittedSequence:     refusal.GetCommittedSequence(),
		OperationIndex:        refusal.GetOperationIndex(),
		Key:                   refusal.GetKey(),
		CurrentVersion:        refusal.GetCurrentVersion(),
		Field:                 refusal.GetField(),
		RetryAfter:            refusal.GetRetryAfter().AsDuration(),
		LeaderAddress:         refusal.GetLeaderAddress(),
	}
}

// IsTemporary reports whether the same request may succeed a moment later. The caller decides
// whether repeating it is safe.
func (e *Error) IsTemporary() bool {
	switch {
	case e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return codes[e.Code].temporary
	case e.status != 0 && e.status != http.StatusOK:
		// A load balancer or another program answered, not the ledger. These statuses are temporary.
		switch e.status {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
			return true
		case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
			return false
		}
		return e.status >= http.StatusInternalServerError
	case !e.wire && isTLSRefusal(e.cause):
		return false
	}
	switch e.ConnectCode {
	case connect.CodeCanceled, connect.CodeUnknown, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted,
		connect.CodeAborted, connect.CodeInternal, connect.CodeUnavailable:
		return true
	}
	return false
}

// isTLSRefusal reports whether one side does not trust the other, or the peer does not speak
// TLS. Nothing was sent, and a retry fails the same way until the configuration changes.
func isTLSRefusal(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	// Package tls has no type for an alert that the peer sent over TCP.
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error"
}

// IsFinal reports whether the ledger itself has refused the call and would refuse it again. A
// refusal that may come from an intermediary is not final, because a load balancer without a
// live server may answer 404 or 401 for half a second.
func (e *Error) IsFinal() bool {
	return e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED && !e.IsTemporary()
}

// turnedAway reports whether an answer in Connect's form refused the call before the server looked at its request.
func (e *Error) turnedAway() bool {
	switch e.ConnectCode {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeUnimplemented,
		connect.CodeInvalidArgument:
		return e.wire
	}
	return false
}

// IsOpen reports whether a Write that got this answer may be committed, now or later. Every answer counts as open
// unless it is known to precede the proposal. A wrong "no" would make a caller pay twice; a wrong "maybe" only makes
// it ask again.
func (e *Error) IsOpen() bool {
	if !e.wire {
		// This side made the code, from a proxy's HTTP status or a broken connection. It looks
		// like the server's code, but the server may have executed the write.
		return true
	}
	switch e.Code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
		return true
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return !e.turnedAway()
	}
	_, known := seqledgerv1.WriteErrorCode_name[int32(e.Code)]
	return !known
}

// IsWire reports whether the answer was in Connect's own form, as a seqledger server's always is.
func (e *Error) IsWire() bool { return e.wire }

// IsChallenge reports whether a seqledger server itself asked for another token.
func (e *Error) IsChallenge() bool { return e.challenged }

// IsElsewhere reports whether another server may take a call that this one did not.
func (e *Error) IsElsewhere() bool {
	if e.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
		return e.IsTemporary() && e.ConnectCode != connect.CodeResourceExhausted
	}
	return codes[e.Code].elsewhere
}

// RefusesMessage reports whether the server ended the stream because of a message on it, most
// likely because the message is too large.
func (e *Error) RefusesMessage() bool { return e.wire && e.ConnectCode == connect.CodeInvalidArgument }
