package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/internal/keyed"
)

// Key is the key of a value in a [Backend]. Two keys with the same name are one.
type Key struct {
	// Name is at most 64 lower-case letters and digits. It is a hash of the record's key, so that neither the client's
	// key nor a principal has to reach the database.
	Name string
	// Record is the record's key, for a backend that keeps a description for people and lists. It is nil for the
	// counter of tokens.
	Record *RecordKey
}

// Backend is what [NewStore] needs from a database: values under keys, with a linearizable compare-and-swap. A value is
// at most 1.2 MiB.
//
// A backend may also implement [Notifier], [TokenSource] and [Confirmer].
type Backend interface {
	// Load returns the value of a key, its version, and the time on the store's clock. A key without a value has a nil
	// value, and the version "" or one that changes whenever a value is removed. The clock should be the database's,
	// because the leases of all processes are compared with it.
	Load(ctx context.Context, key Key) (value []byte, version string, now time.Time, err error)
	// CompareAndSwap durably stores a value if the key still has the given version, and reports whether it did. Every
	// stored value gets a version that its key never had before. The store may delete the value after keepUntil, and
	// never earlier; with a zero keepUntil the value is kept forever. After an error the value may or may not be
	// stored.
	//
	// If the store's own clock is past the deadline at the time of the swap, nothing is stored, and it reports false. A
	// store that cannot check that ignores the deadline: a swap that arrives late, after its key was used, finished and
	// deleted, may then create an owner with a lower token than the previous owner's.
	CompareAndSwap(ctx context.Context, key Key, version string, value []byte, keepUntil, deadline time.Time) (
		swapped bool, err error)
}

// Notifier is a [Backend] that reports changes. Without one, a waiting Reserve polls.
type Notifier interface {
	// Changed returns when the key may no longer have the given version, or when ctx ends.
	Changed(ctx context.Context, key Key, version string) error
}

// TokenSource is a [Backend] with its own token counter. Without one, tokens come from a value that all reservations of
// the store increment by compare-and-swap.
type TokenSource interface {
	// NextToken returns a number above 0, higher than every number returned to any process before the call began.
	NextToken(ctx context.Context) (uint64, error)
}

// Confirmer is a [Backend] that can expose a value before the value is fully durable, for example because
// CompareAndSwap failed while waiting for replicas.
type Confirmer interface {
	// Confirm makes the value of a key durable if the key still has the given version, and reports whether it does. It
	// is called before an owner is told that a command was already applied.
	Confirm(ctx context.Context, key Key, version string) (confirmed bool, err error)
}

// ErrDamaged is returned for a stored value that is not a record. The store then changes nothing.
var ErrDamaged = errors.New("idempotency: a stored value is damaged")

// The pauses between the polls of a waiting Reserve, and between the attempts of a swap that lost a race.
const (
	pollFirst = 10 * time.Millisecond
	pollMax   = time.Second
	swapMax   = 20 * time.Millisecond
)

// swapWithin is how long after its Load a swap may be made. Values are kept for at least twice as long. A swap decided
// when the key had no value therefore either misses this deadline or fails, because the value stored since is still
// there.
const swapWithin = 2 * time.Minute

var tokenKey = Key{Name: "tokens"}

// NewStore returns a store on a database. It applies the same rules as the ledger, between a Load and a CompareAndSwap.
// A Reserve that acquires the key is two swaps (one of them for the token; see [TokenSource]); every other call that
// changes a record is one.
//
// Unlike the ledger, such a store cannot tell that it was unreachable: leases end even if their owners could not renew
// them. Choose leases longer than the outages you expect.
func NewStore(backend Backend) Resolver { return &casStore{backend} }

// casStore is a store on a Backend.
type casStore struct{ backend Backend }

// stored returns the backend's key of a record.
func (k *RecordKey) stored() Key {
	sum := sha256.Sum256([]byte(k.Key))
	return Key{hashOf(k.Scope.Organization, k.Scope.Vault, k.Namespace, k.Principal, string(sum[:])), k}
}

// decided is the outcome of a command, with the record version it was based on.
type decided struct {
	keyed.Outcome

	record  *keyed.Record
	version string
	now     int64
}

// decide applies a command to the record of a key. prepare, which may be nil, adapts the command to the store's time
// before each attempt.
func (s *casStore) decide(
	ctx context.Context, record *RecordKey, c keyed.Command, prepare func(c *keyed.Command, now time.Time) error,
) (decided, error) {
	key := record.stored()
	for {
		value, version, now, err := s.backend.Load(ctx, key)
		if err != nil {
			return decided{}, err
		}
		record, err := decodeStored(value)
		if err != nil {
			return decided{}, err
		}
		at := keyed.Moment{Now: now.UnixNano(), Token: tokenWanted}
		if prepare != nil {
			if err := prepare(&c, now); err != nil {
				return decided{}, err
			}
		}
		next, out := keyed.Transition(record, &c, at)
		if next != nil && next.Token == tokenWanted {
			// The token is drawn after the Load, so it is higher than that of every earlier owner: if there has been
			// another owner since, the swap fails.
			if at.Token, err = s.nextToken(ctx); err != nil {
				return decided{}, err
			}
			if record != nil && at.Token <= record.Token {
				return decided{}, fmt.Errorf("%w: token %d after %d", ErrDamaged, at.Token, record.Token)
			}
			next, out = keyed.Transition(record, &c, at)
		}
		done := true
		if out.Changed {
			done, err = s.swap(ctx, key, version, next, swapDeadline(&c, out, next, at.Now), at.Now)
		} else if c.Kind != keyed.Reserve && version != "" {
			done, err = s.confirm(ctx, key, version)
		}
		if err != nil {
			return decided{}, err
		}
		if done {
			return decided{out, next, version, at.Now}, nil
		}
		// Random, so that the calls that raced for the key do not meet again.
		if err := rpc.Sleep(ctx, rand.N(swapMax)); err != nil {
			return decided{}, err
		}
	}
}

// swapDeadline returns the deadline for storing a record that was decided at the given time. A reservation must not
// begin after its validity has ended, nor with an ended lease.
func swapDeadline(c *keyed.Command, out keyed.Outcome, next *keyed.Record, now int64) time.Time {
	deadline := now + int64(swapWithin)
	if out.Code == keyed.Acquired {
		deadline = min(deadline, c.ValidUntil, next.LeaseEnd-1)
	}
	return time.Unix(0, deadline)
}

// swap stores a record if the key still has the version.
func (s *casStore) swap(
	ctx context.Context, key Key, version string, next *keyed.Record, deadline time.Time, now int64,
) (bool, error) {
	keep := keepUntil(next)
	if least := time.Unix(0, now).Add(2 * swapWithin); keep.Before(least) {
		keep = least
	}
	return s.backend.CompareAndSwap(ctx, key, version, next.Append(nil), keep, deadline)
}

// confirm makes durable what an owner's command has found.
func (s *casStore) confirm(ctx context.Context, key Key, version string) (bool, error) {
	if confirmer, ok := s.backend.(Confirmer); ok {
		return confirmer.Confirm(ctx, key, version)
	}
	return true, nil
}

// tokenWanted stands in for the token of a new ownership until one is needed.
const tokenWanted = ^uint64(0)

func decodeStored(value []byte) (*keyed.Record, error) {
	if value == nil {
		return nil, nil
	}
	record, err := keyed.Decode(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return record, nil
}

// keepUntil returns the time until which the record must be kept. A pending record is kept for as long as its outcome
// may be unknown after its lease.
func keepUntil(r *keyed.Record) time.Time {
	if r.State != keyed.Pending {
		return time.Unix(0, max(r.Due(keyed.Moment{}), r.FreeAt()))
	}
	unknown := keyed.Record{State: keyed.Indeterminate, Expires: r.OpenUntil(), ForgetAfter: r.ForgetAfter}
	return time.Unix(0, unknown.FreeAt())
}

// nextToken increments the store's token counter.
func (s *casStore) nextToken(ctx context.Context) (uint64, error) {
	if own, ok := s.backend.(TokenSource); ok {
		return own.NextToken(ctx)
	}
	for {
		value, version, now, err := s.backend.Load(ctx, tokenKey)
		if err != nil {
			return 0, err
		}
		var last uint64
		switch {
		case len(value) == 8:
			last = binary.BigEndian.Uint64(value)
		case value != nil:
			return 0, fmt.Errorf("%w: the counter of tokens has %d bytes", ErrDamaged, len(value))
		}
		next := binary.BigEndian.AppendUint64(nil, last+1)
		// Kept forever, because a counter that begins anew would give out tokens a second time.
		swapped, err := s.backend.CompareAndSwap(ctx, tokenKey, version, next, time.Time{}, now.Add(swapWithin))
		if err != nil || swapped {
			return last + 1, err
		}
		if err := rpc.Sleep(ctx, rand.N(swapMax)); err != nil {
			return 0, err
		}
	}
}

// Reserve implements Store.
func (s *casStore) Reserve(ctx context.Context, request *ReserveRequest) (*Reservation, error) {
	r, err := request.Resolve()
	if err != nil {
		return nil, err
	}
	command := keyed.Command{
		Kind: keyed.Reserve, AttemptID: keyed.AttemptID(r.AttemptID), Fingerprint: keyed.Fingerprint(r.Fingerprint),
		Lease: int64(r.Lease), TTL: int64(r.TTL), ForgetAfter: int64(r.ForgetAfter),
		Policy: keyed.Policy(r.OnLeaseExpired),
	}
	// Resolve the validity once, so that waiting does not extend it.
	validUntil := int64(0)
	prepare := func(c *keyed.Command, now time.Time) (err error) {
		if validUntil == 0 {
			validUntil, err = r.validity(now)
		}
		c.ValidUntil = validUntil
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, r.Wait)
	defer cancel()
	for polls := 0; ; polls++ {
		out, err := s.decide(ctx, &r.Key, command, prepare)
		if err != nil {
			return nil, err
		}
		switch {
		case out.Code != keyed.InFlight:
			return out.reservation(&command), nil
		case waiting.Err() != nil:
			return out.reservation(&command), ctx.Err()
		}
		s.awaitChange(waiting, r.Key.stored(), out, polls)
	}
}

// awaitChange waits until a record has probably changed, its lease has ended, or ctx ends.
func (s *casStore) awaitChange(ctx context.Context, key Key, out decided, polls int) {
	ctx, cancel := context.WithTimeout(ctx, out.RetryAfter)
	defer cancel()
	if notifier, ok := s.backend.(Notifier); ok {
		if notifier.Changed(ctx, key, out.version) == nil {
			return
		}
		// Pause, so that a failing notifier does not cause a busy loop.
	}
	wait := pollMax
	if polls < 7 {
		wait = min(pollMax, pollFirst<<polls)
	}
	_ = rpc.Sleep(ctx, wait/2+rand.N(wait/2+1))
}

// reservation returns the result of a Reserve.
func (d *decided) reservation(c *keyed.Command) *Reservation {
	answer := &Reservation{Outcome: d.Code}
	switch d.Code {
	case keyed.Acquired:
		answer.Token, answer.Attempt, answer.Checkpoint = d.record.Token, d.record.Attempts, d.record.Checkpoint
		answer.LeaseExpires = time.Unix(0, d.record.LeaseEnd)
	case keyed.Replay, keyed.Unknown, keyed.ResultExpired:
		answer.Record = publicRecord(d.record)
	case keyed.Mismatch:
		answer.Incomparable = d.record.Incomparable(c.Fingerprint)
	case keyed.InFlight:
		answer.RetryAfter = d.RetryAfter
	}
	return answer
}

// publicRecord returns a record as callers see it.
func publicRecord(k *keyed.Record) *Record {
	r := &Record{
		State: State(k.State), Fingerprint: Fingerprint(k.Fingerprint), Token: k.Token, Attempts: k.Attempts,
		OnLeaseExpired: LeaseExpiry(k.Policy), LeaseExpires: time.Unix(0, k.LeaseEnd), Created: time.Unix(0, k.Created),
		Response: k.Response, ResponseSize: k.ResponseSize, Checkpoint: k.Checkpoint,
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

// asOwner applies an owner's command.
func (s *casStore) asOwner(ctx context.Context, owner *Ownership, c keyed.Command) (*Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	c.AttemptID, c.Token = keyed.AttemptID(owner.AttemptID), owner.Token
	out, err := s.decide(ctx, &owner.Key, c, nil)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Outcome: out.Code}
	switch live := out.record.Live(out.now); {
	case out.Code == keyed.OK && c.Kind == keyed.Heartbeat:
		answer.Expires = time.Unix(0, out.record.LeaseEnd)
	case out.Code == keyed.OK && live && out.record.State != keyed.Pending:
		answer.Expires = time.Unix(0, out.record.Expires)
	case c.Kind != keyed.Complete && c.Kind != keyed.Reject: // only an owner with a result needs the other result
	case out.Code == keyed.AlreadyCompleted, out.Code == keyed.LeaseLost && live && out.record.State != keyed.Pending:
		answer.Record = publicRecord(out.record)
	}
	return answer, nil
}

// finish stores a result.
func (s *casStore) finish(
	ctx context.Context, kind keyed.Kind, owner *Ownership, result Result, unset time.Duration,
) (*Answer, error) {
	ttl, err := span("TTL", result.TTL, unset, MinTTL, MaxTTL)
	if err != nil {
		return nil, err
	}
	if err := checkLength("Response", len(result.Response), MaxResponse); err != nil {
		return nil, err
	}
	return s.asOwner(ctx, owner, keyed.Command{Kind: kind, Response: result.Response, TTL: int64(ttl)})
}

// Complete implements Store.
func (s *casStore) Complete(ctx context.Context, owner *Ownership, result Result) (*Answer, error) {
	return s.finish(ctx, keyed.Complete, owner, result, 0)
}

// Reject implements Store.
func (s *casStore) Reject(ctx context.Context, owner *Ownership, result Result) (*Answer, error) {
	return s.finish(ctx, keyed.Reject, owner, result, DefaultRejectedTTL)
}

// Release implements Store.
func (s *casStore) Release(ctx context.Context, owner *Ownership) (*Answer, error) {
	return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Release})
}

// Heartbeat implements Store.
func (s *casStore) Heartbeat(ctx context.Context, owner *Ownership, lease time.Duration) (*Answer, error) {
	if lease == EndLease {
		return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Heartbeat})
	}
	lease, err := span("Lease", lease, DefaultLease, MinLease, MaxLease)
	if err != nil {
		return nil, err
	}
	return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Heartbeat, Lease: int64(lease)})
}

// Checkpoint implements Store.
func (s *casStore) Checkpoint(ctx context.Context, owner *Ownership, data []byte) (*Answer, error) {
	if err := checkLength("Checkpoint", len(data), MaxCheckpoint); err != nil {
		return nil, err
	}
	return s.asOwner(ctx, owner, keyed.Command{Kind: keyed.Checkpoint, Data: data})
}

// Get implements Store.
func (s *casStore) Get(ctx context.Context, key *RecordKey) (*Record, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	value, _, now, err := s.backend.Load(ctx, key.stored())
	if err != nil {
		return nil, err
	}
	record, err := decodeStored(value)
	if err != nil {
		return nil, err
	}
	if record = record.At(keyed.Moment{Now: now.UnixNano()}); record == nil {
		return nil, ErrNotFound
	}
	return publicRecord(record), nil
}
