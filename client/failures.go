package client

import (
	"fmt"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// NotExecutedError reports that a write was not executed and never will be: no copy of it is
// still under way. errors.Is finds [ErrNotExecuted] and the cause.
type NotExecutedError struct {
	// Sequence is the number of the write, 0 if it never got one. The number is free again.
	Sequence uint64
	// Cause is the refusal ([*Error]), a [*StoppedError], or what ended the
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

// OutcomeUnknownError reports that a write was sent and its outcome is not known. errors.Is
// finds [ErrOutcomeUnknown] and the error that ended the wait: the context's, the transport's,
// or [ErrClosed]. It also finds [ErrFenced] and [ErrExpired], which concern the stream and not
// this write. It finds no other refusal: a caller that checks for [ErrConditionFailed] first
// would treat the write as refused while a copy of it commits.
type OutcomeUnknownError struct {
	// Sequence and IdempotencyKey name the write: repeating the same request under them settles
	// it, because a committed write is answered with its receipt.
	Sequence       uint64
	IdempotencyKey string
	// Refusal is what the server answered to another copy, or to another write when that ended
	// the Writer; nil when it did not answer. It is not final and therefore Unwrap does not
	// return it.
	Refusal *Error
	// Cause is the full error that ended the wait.
	Cause error
	// Pending is the write of a Writer. As long as the Writer runs it still settles the write,
	// and Pending.Wait returns the outcome. Pending is nil from [Client.Write].
	Pending *Pending
}

// newOutcomeUnknown moves the refusal from cause to Refusal.
func newOutcomeUnknown(sequence uint64, key string, cause error) *OutcomeUnknownError {
	refusal, _ := splitRefusal(cause)
	return &OutcomeUnknownError{Sequence: sequence, IdempotencyKey: key, Refusal: refusal, Cause: cause}
}

// Error implements error.
func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("outcome of write %d (key %s) unknown, repeat the same sequence and key or ask "+
		"GetClientState: %v",
		e.Sequence, e.IdempotencyKey, e.Cause)
}

// Is reports whether target is ErrOutcomeUnknown, or says that the stream was taken over or
// evicted and it was.
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

// splitRefusal walks err's tree and separates its first refusal from the parts
// that contain none.
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

// StoppedError names the refused write that stopped a Writer. It does not unwrap to the
// refusal: errors.Is(err, ErrConditionFailed) is true only for the refused write, not for the
// writes behind it.
type StoppedError struct {
	// Sequence of the refused write.
	Sequence uint64
	// Refusal is why it was refused.
	Refusal *Error
}

// Error implements error.
func (e *StoppedError) Error() string {
	return fmt.Sprintf("write %d before it was refused (%v); call Resume", e.Sequence, e.Refusal)
}

// Is reports ErrStopped.
func (e *StoppedError) Is(target error) bool { return target == ErrStopped }

// UnsettledError reports why a Writer ended and which writes it could not settle. If Writes is
// empty, every write was settled.
type UnsettledError struct {
	// Writes may have been committed or not. They are in the order of their sequences. The
	// application must find out their outcomes (GetClientState, GetEntity), because the Writer
	// no longer sends them.
	Writes []*Pending
	// Cause is an [*Error], [ErrProtocol] with what was wrong, [ErrClosed],
	// [ErrOtherLedger], or [journal.ErrFailed].
	Cause error
}

// Error implements error.
func (e *UnsettledError) Error() string {
	if len(e.Writes) == 0 {
		return fmt.Sprintf("writer ended, every write settled: %v", e.Cause)
	}
	return fmt.Sprintf("writer ended with %d unsettled writes from %d on: %v",
		len(e.Writes), e.Writes[0].Sequence(), e.Cause)
}

// Unwrap returns the cause, and ErrOutcomeUnknown when a write is unsettled.
func (e *UnsettledError) Unwrap() []error {
	if len(e.Writes) == 0 {
		return []error{e.Cause}
	}
	return []error{e.Cause, ErrOutcomeUnknown}
}
