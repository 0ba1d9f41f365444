package client

import (
	"fmt"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// NotExecutedError says that a write was not executed and never will be: no
// copy of it is under way any more. errors.Is finds [ErrNotExecuted] and the
// cause.
type NotExecutedError struct {
	// Sequence is the number that the write had, 0 when it never got one. It
	// is free again.
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

// OutcomeUnknownError says that a write was sent and its fate is not known
// here. errors.Is finds [ErrOutcomeUnknown] and what ended the waiting: the
// context's error, the transport's, or [ErrClosed]; and [ErrFenced] or
// [ErrExpired], which tell of the stream and not of this write. It finds no
// other refusal, because a caller that looks for [ErrConditionFailed] first would take the
// write for refused while a copy of it commits.
type OutcomeUnknownError struct {
	// Sequence and IdempotencyKey name the write: repeating the same request
	// under them settles it, because a commit answers with its receipt.
	Sequence       uint64
	IdempotencyKey string
	// Refusal is what the server answered to another copy, or to another write
	// when that ended the Writer; nil when it did not answer. It is not final
	// and therefore not unwrapped.
	Refusal *Error
	// Cause is why the waiting ended, for people in full.
	Cause error
	// Pending is the write of a Writer: while the Writer lives it still settles the
	// write, and Pending.Wait tells the outcome. Nil from [Client.Write].
	Pending *Pending
}

// newOutcomeUnknown takes the refusal out of cause.
func newOutcomeUnknown(sequence uint64, key string, cause error) *OutcomeUnknownError {
	refusal, _ := splitRefusal(cause)
	return &OutcomeUnknownError{Sequence: sequence, IdempotencyKey: key, Refusal: refusal, Cause: cause}
}

// Error implements error.
func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("outcome of write %d (key %s) unknown, repeat the same sequence and key or ask GetClientState: %v",
		e.Sequence, e.IdempotencyKey, e.Cause)
}

// Is reports ErrOutcomeUnknown, and that the stream was taken over or evicted.
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
	switch e := err.(type) { //nolint:errorlint // It walks the tree, so it must look at each error itself.
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
		// Kept whole, so that errors.As finds the types around the cause too.
		return nil, []error{err}
	}
	return refusal, rest
}

// StoppedError says which refused write a Writer has stopped at. It does not
// unwrap to the refusal, so that errors.Is(err, ErrConditionFailed) is true of
// the refused write alone and not of everything behind it.
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

// UnsettledError is the end of a Writer: why it ended and which writes it
// could not settle. An empty Writes means that every write was settled.
type UnsettledError struct {
	// Writes may have been committed or not, in the order of their sequences. What they
	// have done is the application's to find out (GetClientState, GetEntity) because
	// nothing may be re-sent by itself any more.
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
