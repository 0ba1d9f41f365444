package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// This file converts all outcomes and errors to what a client sees: a Connect code, and a WriteError that says why and
// what to do.

// When to try again. A queue empties within a few fsyncs; a new stream may have to wait until another one expires.
const (
	queueFullRetry      = 50 * time.Millisecond
	tooManyStreamsRetry = time.Minute
	tooManyWaitersRetry = time.Second // owners finish all the time
)

var errPanicked = errors.New("the server failed to answer")

// refusedOutcomes are the refusals of the state machine: their code in the API, Connect's code, and what a client
// reads. The message may be replaced by one with numbers; see refusal.
var refusedOutcomes = map[machine.Code]struct {
	code    seqledgerv1.WriteErrorCode
	connect connect.Code
	message string
}{
	machine.SequenceGap: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP,
		connect.CodeFailedPrecondition, ""},
	machine.AlreadyCommitted: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED,
		connect.CodeAlreadyExists, "already committed; the receipt is no longer kept"},
	machine.IdempotencyKeyReused: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED,
		connect.CodeFailedPrecondition, "the idempotency key was already used for a different request"},
	machine.SequenceReused: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_REUSED,
		connect.CodeFailedPrecondition, "the sequence was already used for a different request"},
	machine.SequenceExhausted: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_EXHAUSTED,
		connect.CodeFailedPrecondition, "the stream has used its last sequence; continue with another client_id"},
	machine.SessionExpired: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED,
		connect.CodeFailedPrecondition, "the session has ended: the stream was evicted, or the ledger restored"},
	machine.SessionFenced: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED,
		connect.CodeFailedPrecondition, "the stream was taken over: its session is another one, or none"},
	machine.SessionRequired: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_REQUIRED,
		connect.CodeFailedPrecondition, "the stream has a session; open one"},
	machine.KeyExists: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS,
		connect.CodeFailedPrecondition, "the entity exists"},
	machine.KeyNotFound: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_NOT_FOUND,
		connect.CodeFailedPrecondition, "the entity does not exist"},
	machine.VersionMismatch: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VERSION_MISMATCH,
		connect.CodeFailedPrecondition, "the entity has another version"},
	machine.ValueMismatch: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VALUE_MISMATCH,
		connect.CodeFailedPrecondition, "the entity has another value"},
	machine.TooManyStreams: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS,
		connect.CodeResourceExhausted, "the organization has reached its limit of streams"},
	machine.InvalidArgument: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		connect.CodeInvalidArgument, "the request is invalid"},
	machine.TooManyKeys: {seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_KEYS,
		connect.CodeResourceExhausted, "the principal has reached its limit of keyed records"},
}

// refusal returns the WriteError of an outcome, nil for Committed and Replayed. sequence is the write's sequence, 0 for
// a command without one.
func refusal(out *machine.Outcome, sequence uint64) *seqledgerv1.WriteError {
	if out.Code == machine.Committed || out.Code == machine.Replayed || out.Code.Keyed() != 0 {
		return nil
	}
	known := refusedOutcomes[out.Code]
	e := &seqledgerv1.WriteError{
		Code: known.code, Message: known.message,
		LastCommittedSequence: out.Last, Session: out.Session, CommittedSequence: out.CommittedSequence,
	}
	switch out.Code {
	case machine.AlreadyCommitted:
		if out.Receipt.Index != 0 { // of a keyed write
			e.TxId = machine.NewTxID(out.Receipt.LedgerID, out.Receipt.Index).String()
		}
	case machine.SequenceReused:
		if sequence != 0 {
			e.Message = fmt.Sprintf("sequence %d was already used for a different request", sequence)
		}
	case machine.SequenceExhausted:
		if out.Last < math.MaxUint64-1 {
			e.Message = fmt.Sprintf("no write can have the sequence %d; the last committed one is %d, so the next "+
				"is %d",
				sequence, out.Last, out.Last+1)
		}
	case machine.SequenceGap:
		e.Message = fmt.Sprintf("sequence %d is more than one above the last committed one, which is %d; "+
			"GetClientState says where to continue", sequence, out.Last)
	case machine.KeyExists, machine.KeyNotFound, machine.VersionMismatch, machine.ValueMismatch:
		e.OperationIndex, e.Key, e.CurrentVersion = uint32(out.OperationIndex), string(out.EntityKey),
			out.CurrentVersion
	case machine.TooManyStreams, machine.TooManyKeys:
		e.RetryAfter = durationpb.New(tooManyStreamsRetry)
	case machine.InvalidArgument:
		if out.Field != nil {
			e.Field, e.Message = out.Field.Field, fieldMessage(out.Field)
		}
	}
	return e
}

func fieldMessage(f *machine.FieldError) string {
	if f.Field == "" {
		return "the request " + f.Problem
	}
	return f.Error()
}

// writeError returns the WriteError of an error and its Connect code; nil when the error is not about a write. Storage
// errors are not passed on, because they do not help a client and may reveal too much.
func writeError(err error) (*seqledgerv1.WriteError, connect.Code) {
	var field *machine.FieldError
	var denied *auth.DeniedError
	var elsewhere *cluster.NotLeaderError
	var refused *admission.Refusal
	switch {
	case errors.As(err, &field):
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
			Message: fieldMessage(field), Field: field.Field,
		}, connect.CodeInvalidArgument
	case errors.As(err, &denied):
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED,
			Message: denied.Error(), Field: denied.Field,
		}, connect.CodePermissionDenied
	case errors.Is(err, ledger.ErrOutcomeUnknown): // before the cases it may wrap as its cause
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN,
			Message: ledger.ErrOutcomeUnknown.Error(),
		}, unknownCode(err)
	case errors.Is(err, ledger.ErrQueueFull):
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL,
			Message: ledger.ErrQueueFull.Error(), RetryAfter: durationpb.New(queueFullRetry),
		}, connect.CodeResourceExhausted
	case errors.Is(err, ledger.ErrTooManyWaiters):
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_WAITERS,
			Message: ledger.ErrTooManyWaiters.Error(), RetryAfter: durationpb.New(tooManyWaitersRetry),
		}, connect.CodeResourceExhausted
	case errors.As(err, &refused):
		return &seqledgerv1.WriteError{ // its code means "retry", also for calls that write nothing
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL,
			Message: refused.Error(), RetryAfter: durationpb.New(refused.RetryAfter),
		}, connect.CodeResourceExhausted
	case errors.As(err, &elsewhere):
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
			Message: elsewhere.Error(), LeaderAddress: elsewhere.Leader,
		}, connect.CodeUnavailable
	case errors.Is(err, ledger.ErrDraining), errors.Is(err, ledger.ErrClosed):
		return &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING,
			Message: ledger.ErrDraining.Error(),
		}, connect.CodeUnavailable
	}
	return nil, connect.CodeInternal
}

// unknownCode distinguishes a failed storage, which a retry cannot help, from a wait that ended early.
func unknownCode(err error) connect.Code {
	switch {
	case errors.Is(err, ledger.ErrFailed), errors.Is(err, machine.ErrCorrupt):
		return connect.CodeInternal
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	default:
		return connect.CodeUnavailable
	}
}

// outcomeError returns the Connect error of a refused outcome, nil for Committed and Replayed. See refusal.
func outcomeError(out *machine.Outcome, sequence uint64) error {
	e := refusal(out, sequence)
	if e == nil {
		return nil
	}
	return withDetails(cmp.Or(refusedOutcomes[out.Code].connect, connect.CodeFailedPrecondition), e)
}

// withDetails returns a Connect error that carries the WriteError, and the Google error details that general clients
// know.
func withDetails(code connect.Code, e *seqledgerv1.WriteError) *connect.Error {
	err := connect.NewError(code, errors.New(e.Message))
	add := func(m proto.Message) {
		if detail, failed := connect.NewErrorDetail(m); failed == nil {
			err.AddDetail(detail)
		}
	}
	add(e)
	if e.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT {
		add(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: e.Field, Description: e.Message},
		}})
	}
	if e.RetryAfter != nil {
		add(&errdetails.RetryInfo{RetryDelay: e.RetryAfter})
	}
	return err
}

// answerError answers a request with an error: in the request's protocol, or else in text with a status.
func answerError(w http.ResponseWriter, r *http.Request, failed *connect.Error, status int) {
	if writer := connect.NewErrorWriter(); writer.IsSupported(r) {
		_ = writer.Write(w, r, failed) // the client may have gone
		return
	}
	http.Error(w, failed.Message(), status)
}

// notFound names what was not found if err is ErrNotFound. It returns other errors unchanged.
func notFound(err error, format string, args ...any) error {
	if !errors.Is(err, machine.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), machine.ErrNotFound)
}

func isGone(err error) bool {
	_, gone := errors.AsType[*machine.GoneError](err)
	return gone
}

// goneError returns the Connect error for what retention has dropped. It says from where on there is something.
func goneError(err error) *connect.Error {
	gone, _ := errors.AsType[*machine.GoneError](err)
	answer := connect.NewError(connect.CodeOutOfRange, gone)
	detail, failed := connect.NewErrorDetail(&seqledgerv1.Gone{Horizon: gone.Horizon, FirstHeight: gone.FirstHeight})
	if failed == nil {
		answer.AddDetail(detail)
	}
	return answer
}

// internalError only says where the operator finds more.
func internalError(ctx context.Context) *connect.Error {
	return connect.NewError(connect.CodeInternal, errors.New(withReference(ctx, errPanicked.Error())))
}

// connectError translates the error of a handler. An unknown error becomes internal, and only the log gets its cause.
func connectError(ctx context.Context, logger *slog.Logger, err error) *connect.Error {
	var ready *connect.Error
	if errors.As(err, &ready) {
		return ready
	}
	var unauthenticated *auth.RefusedError
	switch {
	case errors.As(err, &unauthenticated):
		return connect.NewError(connect.CodeUnauthenticated, errors.New(unauthenticated.Problem))
	case errors.Is(err, auth.ErrRevoked), errors.Is(err, auth.ErrExpired):
		return connect.NewError(connect.CodeUnauthenticated, err)
	case errors.Is(err, auth.ErrChanged): // not final: a caller that retries is authenticated again
		return connect.NewError(connect.CodeUnavailable, err)
	case errors.Is(err, admission.ErrTooManyCallers):
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	e, code := writeError(err)
	if code == connect.CodeInternal {
		switch {
		case errors.Is(err, machine.ErrNotFound):
			return connect.NewError(connect.CodeNotFound, err)
		case errors.Is(err, machine.ErrChanged):
			return connect.NewError(connect.CodeAborted, machine.ErrChanged)
		case e == nil && isGone(err):
			return goneError(err)
		case errors.Is(err, ledger.ErrBackupRefused):
			return connect.NewError(connect.CodeResourceExhausted, err)
		case errors.Is(err, ledger.ErrNoArchive), errors.Is(err, ledger.ErrNotArchived):
			return connect.NewError(connect.CodeFailedPrecondition, err)
		case e == nil && errors.Is(err, context.DeadlineExceeded):
			return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
		case e == nil && errors.Is(err, context.Canceled):
			return connect.NewError(connect.CodeCanceled, context.Canceled)
		}
		logOnce(ctx, logger, err)
		if e != nil {
			e.Message = withReference(ctx, e.Message)
		}
	}
	if e == nil {
		return internalError(ctx)
	}
	return withDetails(code, e)
}
