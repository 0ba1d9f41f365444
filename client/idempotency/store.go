package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seqledger/seqledger/internal/keyed"
)

// The limits on requests to a store.
const (
	MaxKey        = 256                 // visible ASCII characters
	MaxNamespace  = 128                 // bytes of printable ASCII
	MaxPrincipal  = 512                 // bytes
	MaxCheckpoint = keyed.MaxCheckpoint // 64 KiB
	MaxResponse   = keyed.MaxResponse   // 1 MiB
	MaxWait       = 60 * time.Second
	MinLease      = time.Second
	MaxLease      = keyed.MaxLease // 24 h
	MinTTL        = time.Second
	MaxTTL        = keyed.MaxTTL // 366 days

	MaxForgetAfter = keyed.MaxForgetAfter // 100 years
)

// Never is a ForgetAfter that does not end: a key stays taken until an operator purges its record.
const Never = keyed.Never

// EndLease is the lease of a Heartbeat from an owner that has stopped and does not know whether its work was done. The
// lease ends at once: the outcome is unknown, or with [TakeOver] the next caller becomes the owner.
const EndLease time.Duration = -1

// The defaults of a reservation.
const (
	DefaultLease       = 60 * time.Second
	DefaultTTL         = 24 * time.Hour
	DefaultRejectedTTL = 60 * time.Second
)

// Scope is the organization, and the vault in it, that a record belongs to. A store on a ledger requires an
// organization; other stores accept the zero Scope, too.
type Scope struct{ Organization, Vault string }

// RecordKey identifies a record. Two records are the same only if all fields are equal.
type RecordKey struct {
	Scope Scope
	// Namespace is the route, the intake, the task type or the queue.
	Namespace string
	// Principal is the party on whose behalf the request is made, in UTF-8. Empty means the holder of the store's
	// credential. A ledger accepts any other value only from a credential with the role delegate.
	Principal string
	// Key is the client's idempotency key. A store keeps only its SHA-256.
	Key string
}

// Fingerprint identifies a request, so that one key never answers two different requests.
type Fingerprint struct {
	// Algorithm says how the digest was made; see [FingerprintMode]. Digests of different algorithms are never equal.
	Algorithm uint8
	Digest    [32]byte
}

// AttemptID identifies one ownership of a record. See [NewAttemptID].
type AttemptID [16]byte

// LeaseExpiry says what happens to a record when its owner's lease ends without a result.
type LeaseExpiry uint8

// What can happen when a lease ends without a result.
const (
	// BecomeIndeterminate makes the outcome unknown: the work does not run again until its owner, or an operator, has
	// established what happened.
	BecomeIndeterminate LeaseExpiry = LeaseExpiry(keyed.BecomeIndeterminate)
	// TakeOver makes the next caller the owner, with a higher token. It is for work that is itself idempotent, or whose
	// resource compares tokens.
	TakeOver LeaseExpiry = LeaseExpiry(keyed.TakeOver)
)

// State is the state of a record.
type State uint8

// The states of a record.
const (
	Pending       State = State(keyed.Pending)       // an owner is at work
	Committed     State = State(keyed.Committed)     // done
	Rejected      State = State(keyed.Rejected)      // refused for good
	Indeterminate State = State(keyed.Indeterminate) // unknown whether it was done
	Written       State = State(keyed.Written)       // a keyed write to the ledger itself
	Expired       State = State(keyed.Expired)       // finished, or unknown, too long ago for a result
)

// String returns the state in upper case, as the API names it.
func (s State) String() string { return keyed.State(s).String() }

// Record is a stored record. Times are on the store's clock.
type Record struct {
	State          State
	Fingerprint    Fingerprint
	Token          uint64 // fencing token of the last ownership
	Attempts       uint64 // number of ownerships
	OnLeaseExpired LeaseExpiry
	LeaseExpires   time.Time
	Created        time.Time
	Completed      time.Time // zero until the record is finished
	Expires        time.Time // when the result expires; zero while the record is pending
	Forgotten      time.Time // when the key becomes free; zero while the record is pending, or for Never
	Response       []byte
	ResponseSize   uint64 // bytes; larger than len(Response) if the store no longer has it
	Checkpoint     []byte
}

// Outcome is the outcome of a call. An error from a [Store] decides nothing; an outcome does.
type Outcome = keyed.Code

// The outcomes.
const (
	OK               = keyed.OK               // done now, or before by the same call
	Acquired         = keyed.Acquired         // the caller is the owner: do the work
	Replay           = keyed.Replay           // finished before: see Record
	InFlight         = keyed.InFlight         // another owner is at work
	Mismatch         = keyed.Mismatch         // the key belongs to another request
	Unknown          = keyed.Unknown          // unknown whether the work was done
	Stale            = keyed.Stale            // the Reserve arrived after its validity ended
	LeaseLost        = keyed.LeaseLost        // the caller does not own the record
	AlreadyCompleted = keyed.AlreadyCompleted // finished by the same owner with another result
	ResultExpired    = keyed.ResultExpired    // made before, too long ago for a result
)

// ReserveRequest asks for the ownership of a key.
type ReserveRequest struct {
	Key         RecordKey
	Fingerprint Fingerprint
	// AttemptID is random and required. A retry of a call whose answer was lost uses the same AttemptID and gets the
	// same token.
	AttemptID AttemptID
	// ValidUntil is when the request becomes invalid: a copy that arrives later, after a Release, reserves nothing. It
	// may be at most five minutes ahead of the store's clock, plus ten seconds for clock skew; otherwise the request is
	// refused. Zero means five minutes on the store's clock and, for [Ledger], 150 seconds on this machine's clock.
	ValidUntil time.Time
	// Lease is how long the owner may be silent: 1 s to 24 h; 0 means 60 s.
	Lease time.Duration
	// TTL is how long a finished record answers retries: 1 s to 366 days; 0 means 24 h.
	TTL time.Duration
	// ForgetAfter is how long the key stays taken after the work has ended: from TTL to 100 years, or [Never]; 0 means
	// as long as the record. After its TTL a retry is answered ResultExpired.
	ForgetAfter time.Duration
	// Wait is how long to wait while another owner is at work, at most 60 s.
	Wait           time.Duration
	OnLeaseExpired LeaseExpiry
}

// Reservation is the result of a Reserve.
type Reservation struct {
	// Outcome is Acquired, Replay, InFlight, Mismatch, Unknown, ResultExpired, Stale or LeaseLost.
	Outcome Outcome
	// Token is the fencing token, Attempt the number of the ownership, from 1, Checkpoint what the previous owner
	// stored, and LeaseExpires the end of the lease. They are set only with Acquired.
	Token, Attempt uint64
	Checkpoint     []byte
	LeaseExpires   time.Time
	// Record is set only with Replay, Unknown and ResultExpired.
	Record *Record
	// RetryAfter is the remaining lease of the owner. It is set only with InFlight.
	RetryAfter time.Duration
	// Incomparable means that the record's fingerprint has another algorithm, so that it may be of the same request. It
	// is set only with Mismatch, and a store must set it then: otherwise a client is told that a new key is safe, and
	// the work may be done twice.
	Incomparable bool
}

// Ownership identifies the owner of a record after its Reserve.
type Ownership struct {
	Key       RecordKey
	Token     uint64
	AttemptID AttemptID
}

// Result is the result of the work.
type Result struct {
	Response []byte // at most 1 MiB
	// TTL is how long the record answers retries. 0 keeps the TTL of the Reserve, or means 60 s for a Reject.
	TTL time.Duration
}

// Answer is the result of an owner's call.
type Answer struct {
	// Outcome is OK, LeaseLost or AlreadyCompleted.
	Outcome Outcome
	// Record is set by Complete and Reject: with AlreadyCompleted, and with LeaseLost unless the record has another
	// owner or no longer exists.
	Record *Record
	// Expires is when the finished record expires, after Complete and Reject, or when the lease ends, after Heartbeat.
	// It is set only with OK.
	Expires time.Time
}

// Store keeps the records of keys. It is safe for concurrent use. A call whose answer was lost may be retried with the
// same arguments. An error says nothing about what happened, except [ErrNotFound], [*InvalidError] and [*QuotaError]
// that is not Unsettled, which mean that nothing changed.
//
// [Ledger] and [Memory] return stores, and [NewStore] makes one from any database that has a compare-and-swap. Package
// storetest has the tests that a store must pass.
type Store interface {
	// Reserve reserves a key, or returns its current state. It checks the validity first, then whether the key belongs
	// to another request, then the state.
	Reserve(ctx context.Context, request *ReserveRequest) (*Reservation, error)
	// Complete stores the result of work that was done. It also resolves an unknown outcome.
	Complete(ctx context.Context, owner *Ownership, result Result) (*Answer, error)
	// Reject stores the result of work that was refused for good.
	Reject(ctx context.Context, owner *Ownership, result Result) (*Answer, error)
	// Release frees the key and forgets its fingerprint and checkpoint. Only an owner that has executed nothing may
	// call it, and only if its Attempt is 1: an owner before it may have executed something, so that a later one ends
	// its lease instead; see [EndLease].
	Release(ctx context.Context, owner *Ownership) (*Answer, error)
	// Heartbeat extends the lease: the owner may be silent for the given time from now on. 0 means 60 s, and [EndLease]
	// ends the lease.
	Heartbeat(ctx context.Context, owner *Ownership, lease time.Duration) (*Answer, error)
	// Checkpoint stores progress for the next owner, replacing the previous checkpoint.
	Checkpoint(ctx context.Context, owner *Ownership, data []byte) (*Answer, error)
	// Get reads a record. If there is none, it returns [ErrNotFound].
	Get(ctx context.Context, key *RecordKey) (*Record, error)
}

// ErrNotFound is returned by [Store.Get] if there is no record.
var ErrNotFound = errors.New("idempotency: no record of this key")

// ErrRefused is wrapped by the error of a store that has answered a call and refused it, for example because it does
// not permit the call. [Options.Open] runs no work after such an error, because the store can be reached. An error that
// wraps neither this nor [ErrDamaged] means that no answer came.
var ErrRefused = errors.New("idempotency: the store has refused the call")

// InvalidError is returned for a request that is invalid for every store.
type InvalidError struct {
	Field   string // for example "Key.Namespace"
	Problem string
}

// isSetting reports whether the field comes from the settings, and not from the client: then another request would fail
// the same way. The names are those of this package and those of a ledger.
func (e *InvalidError) isSetting() bool {
	field := strings.ToLower(strings.ReplaceAll(e.Field, "_", ""))
	switch field {
	case "attemptid", "forgetafter", "lease", "onleaseexpired", "ttl", "validuntil", "wait":
		return true
	}
	return slices.Contains(strings.Split(field, "."), "scope")
}

// Error implements error.
func (e *InvalidError) Error() string { return fmt.Sprintf("idempotency: %s %s", e.Field, e.Problem) }

// ErrOpenKeys is wrapped by the [QuotaError] of a store whose limit of open keys, MaxOpen, is reached.
var ErrOpenKeys = errors.New("too many keys of this principal are pending, or have an unknown outcome")

// QuotaError is returned when a store, or the caller's share of it, is full.
type QuotaError struct {
	RetryAfter time.Duration // 0 if the store does not say
	Cause      error
	// Unsettled means that this is only the answer to a retry: an earlier try of the same call got none, and may have
	// changed something.
	Unsettled bool
}

// Error implements error.
func (e *QuotaError) Error() string { return "idempotency: quota: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *QuotaError) Unwrap() error { return e.Cause }

// Validate checks the key.
func (k *RecordKey) Validate() error {
	if k.Key == "" {
		return &InvalidError{"Key.Key", "is required"}
	}
	for _, field := range []struct {
		name, text string
		most       int
	}{
		{"Key.Key", k.Key, MaxKey}, {"Key.Namespace", k.Namespace, MaxNamespace},
		{"Key.Principal", k.Principal, MaxPrincipal},
	} {
		if err := checkLength(field.name, len(field.text), field.most); err != nil {
			return err
		}
	}
	if i := firstOutside(k.Key, '!'); i >= 0 {
		return &InvalidError{"Key.Key", fmt.Sprintf("must be visible ASCII; byte %d is not", i)}
	}
	if i := firstOutside(k.Namespace, ' '); i >= 0 {
		return &InvalidError{"Key.Namespace", fmt.Sprintf("must be printable ASCII; byte %d is not", i)}
	}
	if !utf8.ValidString(k.Principal) { // the journal and a ledger hold only texts
		return &InvalidError{"Key.Principal", "is not UTF-8"}
	}
	return nil
}

// checkLength returns an [*InvalidError] for a field of more bytes than it may have.
func checkLength(field string, bytes, most int) error {
	if bytes <= most {
		return nil
	}
	return &InvalidError{field, fmt.Sprintf("must have at most %d bytes, has %d", most, bytes)}
}

// firstOutside returns the index of the first byte outside the range from least to '~', or -1.
func firstOutside(s string, least byte) int {
	for i := range len(s) {
		if s[i] < least || s[i] > '~' {
			return i
		}
	}
	return -1
}

// span returns a duration of a request, or unset if it is 0.
func span(field string, d, unset, least, most time.Duration) (time.Duration, error) {
	if d == 0 {
		return unset, nil
	}
	if d < least || d > most {
		return 0, &InvalidError{field, fmt.Sprintf("must be %v to %v, is %v", least, most, d)}
	}
	return d, nil
}

// forgetAfter checks how long a key stays taken whose record has the given TTL.
func forgetAfter(d, ttl time.Duration) (time.Duration, error) {
	if d == Never {
		return d, nil
	}
	return span("ForgetAfter", d, 0, ttl, MaxForgetAfter)
}

// Resolve checks a request and returns it with defaults filled in. A store begins with it.
func (r *ReserveRequest) Resolve() (*ReserveRequest, error) {
	if err := r.Key.Validate(); err != nil {
		return nil, err
	}
	if r.AttemptID == (AttemptID{}) {
		return nil, &InvalidError{"AttemptID", "is required; see NewAttemptID"}
	}
	if r.OnLeaseExpired > TakeOver {
		return nil, &InvalidError{"OnLeaseExpired", fmt.Sprintf("is %d, which is not known here", r.OnLeaseExpired)}
	}
	resolved := *r
	var err error
	if resolved.Lease, err = span("Lease", r.Lease, DefaultLease, MinLease, MaxLease); err != nil {
		return nil, err
	}
	if resolved.TTL, err = span("TTL", r.TTL, DefaultTTL, MinTTL, MaxTTL); err != nil {
		return nil, err
	}
	if resolved.ForgetAfter, err = forgetAfter(r.ForgetAfter, resolved.TTL); err != nil {
		return nil, err
	}
	if resolved.Wait, err = span("Wait", r.Wait, 0, 0, MaxWait); err != nil {
		return nil, err
	}
	return &resolved, nil
}

// DefaultValidity is how long a Reserve without a chosen ValidUntil is valid. It is half of what a store accepts, so
// that the client's clock may be off by as much in either direction.
const DefaultValidity = keyed.MaxValidity / 2

// Clock is a [Store] that expects the validity of a Reserve as a time on a clock that it provides. [Ledger] is one,
// because its calls may be duplicated on the network. For other stores [Middleware], [Interceptor] and [Do] set no
// validity, and the store counts from its own clock.
type Clock interface {
	Now() time.Time
}

// validity returns the end of the request's validity in Unix nanoseconds, when the store's clock says now.
func (r *ReserveRequest) validity(now time.Time) (int64, error) {
	until := int64(0)
	switch {
	case r.ValidUntil.IsZero():
	case r.ValidUntil.Sub(now) > keyed.MaxAhead: // also catches times that do not fit into nanoseconds
		return 0, &InvalidError{"ValidUntil", fmt.Sprintf(
			"must be at most %v ahead of the store's clock, and is %v ahead: do the clocks differ?",
			keyed.MaxAhead, r.ValidUntil.Sub(now).Round(time.Second))}
	case r.ValidUntil.Before(time.Unix(0, 1)):
		until = 1
	default:
		until = r.ValidUntil.UnixNano()
	}
	until, _ = keyed.ResolveValidity(until, now.UnixNano())
	return until, nil
}

// Validate checks the fields that identify an owner.
func (o *Ownership) Validate() error {
	if err := o.Key.Validate(); err != nil {
		return err
	}
	if o.Token == 0 {
		return &InvalidError{"Token", "is required"}
	}
	if o.AttemptID == (AttemptID{}) {
		return &InvalidError{"AttemptID", "is required"}
	}
	return nil
}
