package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotExecuted is wrapped by the error of a function that changed nothing: the key is released, and the next call
// runs the function again.
var ErrNotExecuted = errors.New("idempotency: not executed")

// RejectedError is returned by a function that refuses the work for good. Retries get the same error for
// Settings.RejectedTTL. They also get one when an operator has established that the work was not done and has settled
// the record as Rejected.
type RejectedError struct {
	Response []byte // at most 1 MiB
}

// Error implements error.
func (e *RejectedError) Error() string { return "idempotency: the work was rejected" }

// Done is the result of [Do].
type Done struct {
	Response []byte
	// Replayed is true if an earlier call did the work.
	Replayed bool
	// Expires is when the store forgets the result. It is zero if the store did not take the result: this call still
	// returns it, and the journal, if there is one, keeps it for the store.
	Expires time.Time
}

// DoOptions configures [DoOptions.Do].
type DoOptions struct {
	Settings

	// Fingerprint identifies the request. The zero value compares nothing: two requests then differ only by their keys.
	Fingerprint Fingerprint
}

// Do runs fn once for a key and returns its response, or the response of the earlier call that ran it. The error
// returned by fn decides what happens to the key:
//
//   - nil: the response is stored.
//   - a [*RejectedError]: the refusal is stored, and returned now and to retries.
//   - an error that wraps [ErrNotExecuted]: the key is released. An owner that has taken the key over from another one
//     leaves it to the next owner, for the same request and with the checkpoint.
//   - any other error, or a panic: the outcome is unknown. The work does not run again, unless
//     Settings.OnLeaseExpired allows it.
//
// The context of fn ends with ctx. With [TakeOver] it also ends, with the cause [ErrLeaseLost], when another owner
// takes over, or may: once a lease has passed since it was last extended, because its heartbeats fail. If Do returns an
// [*Error], fn was not called. Nor was it if ctx ended while the key was reserved: the key is then released, and the
// error wraps ErrNotExecuted and the cause of the end.
func Do(
	ctx context.Context, store Store, key RecordKey, fn func(context.Context, *Owner) ([]byte, error),
) (*Done, error) {
	return DoOptions{}.Do(ctx, store, key, fn)
}

// Do is [Do] with options.
func (o DoOptions) Do(
	ctx context.Context, store Store, key RecordKey, fn func(context.Context, *Owner) ([]byte, error),
) (*Done, error) {
	settings, err := o.validate()
	if err = errors.Join(err, key.Validate()); err != nil {
		return nil, err
	}
	g := &guard{Settings: settings, store: store}
	owner, record, err := g.begin(ctx, ctx, key, o.Fingerprint)
	switch {
	case err != nil:
		return nil, err
	case record != nil:
		return g.replay(record)
	case ctx.Err() != nil: // fn could do nothing, and its error would leave the outcome unknown
		owner.release()
		return nil, fmt.Errorf("%w: %w", ErrNotExecuted, context.Cause(ctx))
	}
	settled := false
	defer func() {
		if !settled { // fn panicked
			owner.abandon()
		}
	}()
	response, err := fn(owner.ctx, owner)
	rejected, isRejected := errors.AsType[*RejectedError](err)
	switch {
	case err == nil && len(response) > MaxResponse:
		err = &InvalidError{"Response", "has more than 1 MiB; the work was done, and its outcome will be unknown"}
	case isRejected && len(rejected.Response) > MaxResponse: // no store takes it
		isRejected = false
		err = &InvalidError{"RejectedError.Response", "has more than 1 MiB; the outcome of the work will be unknown"}
	}
	settled = true
	switch {
	case err == nil:
		return &Done{Response: response, Expires: owner.settle(resultCommitted, Result{Response: response})}, nil
	case isRejected:
		owner.settle(resultRejected, Result{Response: rejected.Response})
	case errors.Is(err, ErrNotExecuted):
		owner.release()
	default:
		owner.abandon()
	}
	return nil, err
}

// replay returns the result of an earlier call.
func (g *guard) replay(record *Record) (*Done, error) {
	if record.ResponseSize > uint64(len(record.Response)) {
		g.Metrics.Count(EventNotRetained)
		return nil, &Error{Code: CodeNotRetained, Record: record}
	}
	g.Metrics.Count(EventReplayed)
	if record.State == Rejected {
		return nil, &RejectedError{record.Response}
	}
	return &Done{Response: record.Response, Replayed: true, Expires: record.Expires}, nil
}
