package embedded

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// store keeps records in a ledger of this process. It implements [idempotency.Clock], because ledger time is earlier
// than the wall clock on a machine that was suspended.
type store struct {
	ledger *ledger.Ledger
	// mayStore returns an error while the disk has less free space than its reserve.
	mayStore func(context.Context) error
	maxKeys  uint64 // of a principal in a scope
	actor    string
}

// Now implements idempotency.Clock.
func (s *store) Now() time.Time { return time.Unix(0, s.ledger.Now()) }

// fullRetry is the pause before a command is repeated for which the queue of the log had no room. It empties within a
// few writes to the disk.
const fullRetry = 20 * time.Millisecond

// decide decides a command. It repeats it while the queue of the log is full.
func (s *store) decide(
	ctx context.Context, key *idempotency.RecordKey, c keyed.Command, wait time.Duration,
) (machine.Outcome, error) {
	command := &machine.KeyedCommand{Actor: s.actor, MaxKeys: s.maxKeys, Command: c, ID: s.id(key)}
	for {
		out, err := s.ledger.Keyed(ctx, command, wait, s.propose)
		if !errors.Is(err, ledger.ErrQueueFull) {
			return out, storeError(&out, err)
		}
		select {
		case <-time.After(fullRetry):
		case <-ctx.Done():
			return out, storeError(&out, err)
		}
	}
}

// propose puts a command into the log if the disk has space.
func (s *store) propose(
	ctx context.Context, propose func(context.Context) (machine.Outcome, error),
) (machine.Outcome, error) {
	if err := s.mayStore(ctx); err != nil {
		return machine.Outcome{}, err
	}
	return propose(ctx)
}

func (s *store) id(key *idempotency.RecordKey) machine.KeyedID {
	principal := key.Principal
	if principal == "" {
		principal = s.actor
	}
	return machine.KeyedID{
		Scope: machine.Scope(key.Scope), Namespace: key.Namespace, Principal: principal,
		Key: sha256.Sum256([]byte(key.Key)),
	}
}

// storeError returns the error of a store for that of the ledger, or for an outcome without a record.
func storeError(out *machine.Outcome, err error) error {
	if invalid, ok := errors.AsType[*machine.FieldError](err); ok {
		return &idempotency.InvalidError{Field: invalid.Field, Problem: invalid.Problem}
	}
	if refused, ok := errors.AsType[*admission.Refusal](err); ok {
		return &idempotency.QuotaError{RetryAfter: refused.RetryAfter, Cause: err}
	}
	switch {
	case errors.Is(err, ledger.ErrQueueFull), errors.Is(err, ledger.ErrTooManyWaiters):
		return &idempotency.QuotaError{Cause: err}
	case errors.Is(err, machine.ErrCorrupt):
		return fmt.Errorf("%w: %w", idempotency.ErrDamaged, err)
	case err != nil:
		return err
	case out.Code == machine.TooManyKeys:
		return &idempotency.QuotaError{RetryAfter: time.Minute,
			Cause: errors.New("the principal has reached its limit of keyed records")}
	case out.Code.Keyed() == 0:
		return fmt.Errorf("%w: %s", idempotency.ErrRefused, out.Code)
	}
	return nil
}

// span returns a duration of a request, or unset if it is 0.
func span(field string, d, unset, least, most time.Duration) (int64, error) {
	switch {
	case d == 0:
		return int64(unset), nil
	case d < least || d > most:
		return 0, &idempotency.InvalidError{Field: field,
			Problem: fmt.Sprintf("must be %v to %v, is %v", least, most, d)}
	}
	return int64(d), nil
}

// Reserve implements idempotency.Store.
func (s *store) Reserve(
	ctx context.Context, r *idempotency.ReserveRequest,
) (*idempotency.Reservation, error) {
	r, err := r.Resolve()
	if err != nil {
		return nil, err
	}
	until := int64(0) // the ledger's default
	if !r.ValidUntil.IsZero() {
		// The ledger refuses more than some minutes; a day keeps the sum from overflowing.
		now := s.ledger.Now()
		until = max(1, now+int64(min(r.ValidUntil.Sub(time.Unix(0, now)), 24*time.Hour)))
	}
	out, err := s.decide(ctx, &r.Key, keyed.Command{
		Kind: keyed.Reserve, AttemptID: keyed.AttemptID(r.AttemptID), Fingerprint: keyed.Fingerprint(r.Fingerprint),
		ValidUntil: until, Lease: int64(r.Lease), TTL: int64(r.TTL), ForgetAfter: int64(r.ForgetAfter),
		Policy: keyed.Policy(r.OnLeaseExpired),
	}, r.Wait)
	if err != nil {
		return nil, err
	}
	reservation := &idempotency.Reservation{Outcome: idempotency.Outcome(out.Code.Keyed())}
	switch record := out.Keyed.Record; reservation.Outcome {
	case idempotency.Acquired:
		reservation.Token, reservation.Attempt = record.Token, record.Attempts
		reservation.Checkpoint, reservation.LeaseExpires = record.Checkpoint, time.Unix(0, record.LeaseEnd)
	case idempotency.Replay, idempotency.Unknown, idempotency.ResultExpired:
		reservation.Record = recordOf(&record.Record)
	case idempotency.Mismatch:
		reservation.Incomparable = record.Incomparable(keyed.Fingerprint(r.Fingerprint))
	case idempotency.InFlight:
		reservation.RetryAfter = time.Duration(out.Keyed.RetryAfter)
		return reservation, ctx.Err() // the end of ctx ends the wait
	}
	return reservation, nil
}

// recordOf returns a record as callers see it.
func recordOf(k *keyed.Record) *idempotency.Record {
	r := &idempotency.Record{
		State: idempotency.State(k.State), Fingerprint: idempotency.Fingerprint(k.Fingerprint), Token: k.Token,
		Attempts: k.Attempts, OnLeaseExpired: idempotency.LeaseExpiry(k.Policy),
		LeaseExpires: time.Unix(0, k.LeaseEnd), Created: time.Unix(0, k.Created), Response: k.Response,
		ResponseSize: k.ResponseSize, Checkpoint: k.Checkpoint,
	}
	if k.Completed != 0 {
		r.Completed = time.Unix(0, k.Completed)
	}
	if k.Expires != 0 {
		r.Expires = time.Unix(0, k.Expires)
		if free := k.FreeAt(); free != math.MaxInt64 {
			r.Forgotten = time.Unix(0, free)
		}
	}
	return r
}

// asOwner decides a command of the owner of a record.
func (s *store) asOwner(
	ctx context.Context, owner *idempotency.Ownership, c keyed.Command,
) (*idempotency.Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	c.AttemptID, c.Token = keyed.AttemptID(owner.AttemptID), owner.Token
	out, err := s.decide(ctx, &owner.Key, c, 0)
	if err != nil {
		return nil, err
	}
	answer := &idempotency.Answer{Outcome: idempotency.Outcome(out.Code.Keyed())}
	finishes := c.Kind == keyed.Complete || c.Kind == keyed.Reject
	switch record := out.Keyed.Record; {
	case record == nil:
	case answer.Outcome == idempotency.OK && c.Kind == keyed.Heartbeat:
		answer.Expires = time.Unix(0, record.LeaseEnd)
	case !finishes: // only an owner with a result needs the other result
	case answer.Outcome == idempotency.OK:
		answer.Expires = time.Unix(0, record.Expires)
	case record.State != keyed.Pending:
		answer.Record = recordOf(&record.Record)
	}
	return answer, nil
}

// finish stores a result.
func (s *store) finish(
	ctx context.Context, kind keyed.Kind, owner *idempotency.Ownership, result idempotency.Result, unset time.Duration,
) (*idempotency.Answer, error) {
	ttl, err := span("TTL", result.TTL, unset, idempotency.MinTTL, idempotency.MaxTTL)
	if err != nil {
		return nil, err
	}
	return s.asOwner(ctx, owner, keyed.Command{Kind: kind, Response: result.Response, TTL: ttl})
}

// Complete implements idempotency.Store.
func (s *store) Complete(
	ctx context.Context, owner *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	return s.finish(ctx, keyed.Complete, owner, result, 0)
}

// Reject implements idempotency.Store.
func (s *store) Reject(
	ctx context.Context, owner *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	return s.finish(ctx, keyed.Reject, owner, result, idempotency.DefaultRejectedTTL)
}

// Release implements idempotency.Store.
func (s *store) Release(ctx context.Context, owner *idempotency.Ownership) (*idempotency.Answer, error) {
	return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Release})
}

// Heartbeat implements idempotency.Store.
func (s *store) Heartbeat(
	ctx context.Context, owner *idempotency.Ownership, lease time.Duration,
) (*idempotency.Answer, error) {
	if lease == idempotency.EndLease {
		return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Heartbeat})
	}
	extended, err := span("Lease", lease, idempotency.DefaultLease, idempotency.MinLease, idempotency.MaxLease)
	if err != nil {
		return nil, err
	}
	return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Heartbeat, Lease: extended})
}

// Checkpoint implements idempotency.Store.
func (s *store) Checkpoint(
	ctx context.Context, owner *idempotency.Ownership, data []byte,
) (*idempotency.Answer, error) {
	return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Checkpoint, Data: data})
}

// Get implements idempotency.Store.
func (s *store) Get(ctx context.Context, key *idempotency.RecordKey) (*idempotency.Record, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	id := s.id(key)
	if err := id.Validate(); err != nil {
		return nil, storeError(nil, err)
	}
	var record *machine.KeyedRecord
	err := s.ledger.ViewNow(ctx, func(v machine.View, now int64) (err error) {
		if record, err = v.Keyed(&id, now); err == nil {
			_, err = v.ReadAttachments(record)
		}
		return err
	})
	switch {
	case errors.Is(err, machine.ErrNotFound):
		return nil, idempotency.ErrNotFound
	case err != nil:
		return nil, storeError(nil, err)
	}
	return recordOf(&record.Record), nil
}

// anonymous is the actor of the store's commands: a program may do everything with its own ledger.
var anonymous = auth.Anonymous().Actor()
