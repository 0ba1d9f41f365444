package ledger

import (
	"errors"

	"github.com/seqledger/seqledger/ledger/engine"
)

// Errors that say what a caller may do next.
var (
	// ErrOutcomeUnknown: the write may be committed already, or later, or never.
	// Repeat the same sequence and key to find out.
	ErrOutcomeUnknown = engine.ErrOutcomeUnknown
	// ErrQueueFull: nothing was proposed; try the same sequence again later.
	ErrQueueFull = errors.New("the queue of writes is full")
	// ErrTooManyWaiters: a Reserve that would wait for another owner was refused, because too many do.
	ErrTooManyWaiters = errors.New("too many calls wait for the owners of keys; nothing was done")
	// ErrDraining: nothing was proposed; the ledger is being closed.
	ErrDraining = errors.New("the ledger is closing and takes no more writes")
	// ErrClosed: the ledger has been closed.
	ErrClosed = errors.New("the ledger is closed")
	// ErrFailed is wrapped by every error that follows a failure, with its
	// cause. The ledger must be closed and its process must stop.
	ErrFailed = errors.New("the ledger has stopped")
)

// unknown wraps the reason why an outcome is not known.
func unknown(cause error) error { return engine.Unknown(cause) }
