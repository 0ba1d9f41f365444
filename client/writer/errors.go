package writer

import (
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/client/failure"
)

// ErrStopped says that an earlier write was refused, and the Writer waits for [Writer.Resume].
var ErrStopped = errors.New("client: stopped after a refused write")

// StoppedError names the refused write that stopped a Writer. It does not unwrap to the refusal: errors.Is(err,
// failure.ErrConditionFailed) is true only for the refused write, not for later ones.
type StoppedError struct {
	// Sequence of the refused write.
	Sequence uint64
	// Refusal is why it was refused.
	Refusal *failure.Error
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
	// Writes may have been committed or not. They are in the order of their sequences. The application must find out
	// their outcomes (GetClientState, GetEntity), because the Writer no longer sends them.
	Writes []*Pending
	// Cause is an [*failure.Error], [failure.ErrProtocol] with what was wrong, [failure.ErrClosed],
	// [failure.ErrOtherLedger], or [journal.ErrFailed].
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

// Unwrap returns the cause, and [failure.ErrOutcomeUnknown] when a write is unsettled.
func (e *UnsettledError) Unwrap() []error {
	if len(e.Writes) == 0 {
		return []error{e.Cause}
	}
	return []error{e.Cause, failure.ErrOutcomeUnknown}
}
