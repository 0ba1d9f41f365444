package failure

import (
	"context"
	"fmt"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// NotExecutedError reports that a write was not executed and never will be: no copy of it is
// still under way. errors.Is finds [ErrNotExecuted] and the cause.
type NotExecutedError struct {
	// Sequence is the number of the write, 0 if it never got one. The number is free again.
	Sequence uint64
	// Cause is the refusal ([*Error]), a *writer.StoppedError, or what ended the
	// Writer or the caller's context before the write was sent.
	Cause error
}

// Error implements error.
func (e *NotExecutedError) Error() string {
	if e.Sequence == 0 {
		return fmt.Sprintf("write not executed: %v", e.Cause)
	}
	return fmt.Sprintf("write %d not executed: %v", e.Sequence, e.Cause)
}

// Is reports ErrNotExecuted.
func (e *NotExecutedError) Is(target error) bool { return target == ErrNotExecuted }

// Unwrap returns the cause.
func (e *NotExecutedError) Unwrap() error { return e.Cause }

// OutcomeUnknownError reports that a write was sent and its outcome is not known. errors.Is finds [ErrOutcomeUnknown]
// and the error that ended the wait: the context's, the transport's, or [ErrClosed]. It also finds [ErrFenced] and
// [ErrExpired], which concern the stream and not this write. It finds no other refusal, because a caller that checks
// for [ErrConditionFailed] first would treat the write as refused while a copy of it commits.
type OutcomeUnknownError struct {
	// Sequence and IdempotencyKey name the write: repeating the same request under them settles
	// it, because a committed write is answered with its receipt.
	Sequence       uint64
	IdempotencyKey string
	// Refusal is what the server answered to another copy, or to another write when that ended the Writer; nil when it
	// did not answer. It is not final and therefore Unwrap does not return it.
	Refusal *Error
	// Cause is the full error that ended the wait.
	Cause error
	// Pending is the *writer.Pending of a Writer's write. As long as the Writer runs it still settles the write, and
	// Pending.Wait returns the outcome. Pending is nil for a write of the Client.
	Pending Pending
}

// Pending is a write that is not settled yet.
type Pending interface {
	// Wait returns the receipt once the write is committed.
	Wait(ctx context.Context) (*seqledgerv1.Receipt, error)
}

// OutcomeUnknown returns the error of a write whose outcome cause leaves open. A refusal in cause becomes Refusal.
func OutcomeUnknown(sequence uint64, key string, cause error) *OutcomeUnknownError {
	refusal, _ := splitRefusal(cause)
	return &OutcomeUnknownError{Sequence: sequence, IdempotencyKey: key, Refusal: refusal, Cause: cause}
}

// Error implements error.
func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("outcome of write %d (key %s) unknown, repeat the same sequence and key or ask "+
		"GetClientState: %v", e.Sequence, e.IdempotencyKey, e.Cause)
}

// Is reports whether target is ErrOutcomeUnknown, or ErrFenced or ErrExpired if the cause says that of the stream.
func (e *OutcomeUnknownError) Is(target error) bool {
	if target == ErrFenced || target == ErrExpired {
		refusal, _ := splitRefusal(e.Cause)
		return refusal != nil && refusal.Is(target)
	}
	return target == ErrOutcomeUnknown
}

// Unwrap returns the causes without the refusals among them.
func (e *OutcomeUnknownError) Unwrap() []error {
	_, rest := splitRefusal(e.Cause)
	return rest
}

// splitRefusal walks err's tree. It returns the first refusal, and the parts that contain none.
func splitRefusal(err error) (*Error, []error) {
	var branches []error
	switch e := err.(type) { //nolint:errorlint // It walks the tree and must inspect each error itself.
	case nil:
		return nil, nil
	case *Error:
		if e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
			return e, nil
		}
	case interface{ Unwrap() []error }:
		branches = e.Unwrap()
	case interface{ Unwrap() error }:
		branches = []error{e.Unwrap()}
	}
	var refusal *Error
	var rest []error
	for _, branch := range branches {
		found, clean := splitRefusal(branch)
		if refusal == nil {
			refusal = found
		}
		rest = append(rest, clean...)
	}
	if refusal == nil {
		// Keep the error whole, so that errors.As also finds the types that wrap the cause.
		return nil, []error{err}
	}
	return refusal, rest
}
