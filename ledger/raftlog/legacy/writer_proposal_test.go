package legacy

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/hashicorp/raft"
)

// Proposal is an entry on its way through the log.
type Proposal struct {
	log    *Log
	future raft.ApplyFuture
	err    error // set when the entry never went to Raft
}

// Wait blocks until the entry is committed and applied and returns the result of
// Machine.Apply. It fails with ErrNotLeader or ErrClosed when the entry was
// certainly never in the log, with ErrOutcomeUnknown when that cannot be told.
// Only one goroutine may wait for a proposal.
func (p *Proposal) Wait() (any, error) {
	if p.err != nil {
		return nil, p.err
	}
	select {
	case <-p.log.stop:
		preferAnswer(p.future)
	default:
	}
	err := p.future.Error()
	switch {
	case err == nil:
		result := p.future.Response()
		if n, ok := result.(notApplied); ok {
			return nil, unknown(n.cause)
		}
		return result, nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		// Raft gives these two only before it has written the entry anywhere.
		return nil, fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	// The failure says more than what Raft made of it.
	if failure := p.log.failed(); failure != nil {
		err = failure
	}
	return nil, unknown(err)
}

func refused(err error) *Proposal { return &Proposal{err: err} }

func neverProposed(cause error) error {
	return fmt.Errorf("%w: the log has failed: %w", ErrNotLeader, cause)
}

// ErrEntryTooLarge refuses an entry over MaxEntryBytes; it was never proposed.
var ErrEntryTooLarge = errors.New("legacy: the entry is too large")

func errEntryTooLarge(n int) error {
	return fmt.Errorf("%w: %d bytes, at most %d", ErrEntryTooLarge, n, MaxEntryBytes)
}

// shutdownFields maps the types of Raft's futures to where their ShutdownCh is.
var shutdownFields sync.Map // reflect.Type → []int

// stopWith ends the future with raft.ErrRaftShutdown once stop is
// closed. It returns false when Raft has refused the request already.
//
// Raft does not answer the requests that are still in its queue when it shuts
// down, so that their waiters would hang for ever. Its futures have an exported
// field for this that Raft sets for some of them only; their types are not
// exported, which leaves reflection. The field is read by the future's Error
// alone, so that it can be set before anyone waits.
func stopWith(future raft.Future, stop chan struct{}) bool {
	v := reflect.ValueOf(future)
	if v.Kind() != reflect.Pointer {
		return false // the library's errorFuture, a plain value
	}
	*shutdownOf(v.Elem()) = stop
	return true
}

// preferAnswer makes a stopped future return the answer that it already has,
// where it would otherwise choose between that and the stop at random: what is
// known must not be reported as unknown.
func preferAnswer(future raft.Future) {
	v := reflect.ValueOf(future).Elem()
	if answers := v.FieldByName("errCh"); answers.IsValid() && answers.Len() > 0 {
		*shutdownOf(v) = nil
	}
}

// shutdownOf returns the ShutdownCh of a future.
func shutdownOf(v reflect.Value) *chan struct{} {
	index, ok := shutdownFields.Load(v.Type())
	if !ok {
		field, found := v.Type().FieldByName("ShutdownCh")
		if !found {
			panic(fmt.Sprintf("legacy: %s has no ShutdownCh: this version of hashicorp/raft needs another way",
				v.Type()))
		}
		index, _ = shutdownFields.LoadOrStore(v.Type(), field.Index)
	}
	return v.FieldByIndex(index.([]int)).Addr().Interface().(*chan struct{})
}

var (
	// ErrNotLeader means that the proposal was certainly never in the log, so
	// that it is safe to send it elsewhere as if it had never been made.
	ErrNotLeader = errors.New("legacy: not the leader")
	// ErrOutcomeUnknown means that the entry may or may not be committed, now
	// or after a restart. It wraps the cause.
	ErrOutcomeUnknown = errors.New("legacy: outcome unknown")
	// ErrClosed means that the log was closed before the call; a proposal that
	// ends with it was never in the log.
	ErrClosed = errors.New("legacy: closed")
)

// unknown wraps the reason why it is not known whether an entry is committed.
func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause) }
