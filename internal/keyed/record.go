package keyed

import (
	"math"
	"time"
)

// State is the state of a key. The numbers are part of the format.
type State uint8

// The states of a record.
const (
	// Released marks a record that counts as absent: its owner released it, or it has expired and holds only past
	// attempts.
	Released State = 1
	// Pending means that an owner is at work.
	Pending State = 2
	// Committed means that the work was done; the response holds its result.
	Committed State = 3
	// Rejected means that the work was refused for good.
	Rejected State = 4
	// Indeterminate means that the lease ended without a result: it is unknown whether the work was done.
	Indeterminate State = 5
	// Written means that the work was a write to the ledger, committed at Record.Token.
	Written State = 6
	// Expired means that the work was finished, or its outcome unknown, and that this was too long ago to answer with.
	// The key still belongs to its request, which does not run again.
	Expired State = 7
)

// String returns the state in upper snake case, as the API names it.
func (s State) String() string {
	switch s {
	case Released:
		return "RELEASED"
	case Pending:
		return "PENDING"
	case Committed:
		return "COMMITTED"
	case Rejected:
		return "REJECTED"
	case Indeterminate:
		return "INDETERMINATE"
	case Written:
		return "WRITTEN"
	case Expired:
		return "EXPIRED"
	}
	return "UNKNOWN"
}

// finished reports whether the state is final until the record expires.
func (s State) finished() bool { return s == Committed || s == Rejected || s == Written }

// Policy says what happens when a lease ends without a result.
type Policy uint8

// The policies.
const (
	// BecomeIndeterminate keeps the work from running again until the outcome is
	// known.
	BecomeIndeterminate Policy = 0
	// TakeOver gives the record to the next Reserve, under a higher token. It is for work that may run again, or whose
	// resource compares tokens.
	TakeOver Policy = 1
)

// Fingerprint identifies a request, so that one key never answers two different requests.
type Fingerprint struct {
	Algorithm uint8
	Digest    [32]byte
}

// AttemptID identifies one ownership of a record. The owner draws it at random before the Reserve, and reuses it for
// retries until the Reserve is answered.
type AttemptID [16]byte

// The limits and times of records.
const (
	MaxCheckpoint = 64 << 10 // bytes
	MaxResponse   = 1 << 20  // bytes, including what a caller adds to the body
	// MaxPastAttempts is how many past attempts a record keeps. While that many could still have copies in flight, a
	// Reserve must be retried later.
	MaxPastAttempts = 32

	MaxValidity = 5 * time.Minute      // of a Reserve
	MaxLease    = 24 * time.Hour       // of a reservation
	MaxTTL      = 366 * 24 * time.Hour // of a finished record
	// MaxForgetAfter is the longest time after which a key is forgotten, besides Never.
	MaxForgetAfter = 100 * 366 * 24 * time.Hour
	// Never is a Record.ForgetAfter that does not end.
	Never time.Duration = 1<<63 - 1

	// IndeterminateTTL is how long an unknown outcome can be resolved before the record expires.
	IndeterminateTTL = 30 * 24 * time.Hour
	// UnclaimedTTL is how long a record whose lease has ended stays open to the next owner. After that its outcome is
	// unknown.
	UnclaimedTTL = 30 * 24 * time.Hour
	// TombstoneTTL is the minimum time that a released attempt is kept, so that a retried Release is answered like the
	// first.
	TombstoneTTL = 10 * time.Minute
	// OutageGrace is the minimum remaining time of every lease after an outage.
	OutageGrace = 30 * time.Second
	// OutagePause is the shortest pause of the store's time that counts as an outage.
	OutagePause = 10 * time.Second
)

// Record is the stored state of a key. Times are Unix nanoseconds on the store's clock.
type Record struct {
	State       State
	Fingerprint Fingerprint
	// Token is the fencing token of the current ownership, or of the one that finished the record. Each ownership has a
	// higher token than the one before.
	Token     uint64
	AttemptID AttemptID
	Policy    Policy
	Attempts  uint64 // number of ownerships so far

	LeaseEnd   int64
	LeaseSet   int64 // when LeaseEnd was last decided
	ValidUntil int64 // of the Reserve that began the ownership
	TTL        int64 // nanoseconds, of the finished record
	// ForgetAfter is how long the key stays taken after the record was finished, in nanoseconds; at least as long as
	// the record itself.
	ForgetAfter int64

	Created   int64
	Completed int64
	Expires   int64 // of the result; 0 while the record is pending

	// Checkpoint is the progress that owners have stored, and Response the result of a finished record. A store that
	// keeps large values elsewhere leaves them empty: transitions use only their sizes and the checksum.
	Checkpoint     []byte
	CheckpointSize uint64
	Response       []byte
	ResponseSize   uint64
	ResponseSum    [32]byte // SHA-256

	Past []PastAttempt // oldest first
}

// PastAttempt is an ownership that has ended.
type PastAttempt struct {
	ID AttemptID
	// Until is the last time at which a copy of its Reserve is valid.
	Until int64
}

// Live reports whether the record determines the state of its key at the given time. Otherwise
// it is kept only for its past attempts.
func (r *Record) Live(now int64) bool {
	switch {
	case r == nil || r.State == Released:
		return false
	case r.State == Pending:
		return true
	}
	return now < r.FreeAt()
}

// FreeAt returns when the key of a record that is not pending becomes free: math.MaxInt64 for never.
func (r *Record) FreeAt() int64 {
	from := r.Completed
	if from == 0 { // of unknown outcome
		from = max(0, r.Expires-int64(IndeterminateTTL))
	}
	if r.ForgetAfter > math.MaxInt64-from {
		return math.MaxInt64
	}
	return max(r.Expires, from+r.ForgetAfter)
}

// OpenUntil returns when a record without a result expires, if no command changes it: the end of an unknown outcome,
// which begins with the end of the lease. It is 0 for a record that has a result, or has expired.
func (r *Record) OpenUntil() int64 {
	switch {
	case r.State == Indeterminate:
		return r.Expires
	case r.State != Pending:
		return 0
	case r.Policy == TakeOver:
		return r.LeaseEnd + int64(UnclaimedTTL+IndeterminateTTL)
	}
	return r.LeaseEnd + int64(IndeterminateTTL)
}

// Due returns the time at which an eviction pass must process the record; see [Expire]. A later
// command or outage may change it.
func (r *Record) Due(at Moment) int64 {
	if r.State == Pending {
		if r.Policy == TakeOver {
			return r.unclaimedEnd(at)
		}
		return r.leaseEnd(at)
	}
	last := r.ValidUntil
	for _, p := range r.Past {
		last = max(last, p.Until)
	}
	end := r.Expires
	if r.State == Expired {
		end = r.FreeAt()
	}
	return max(end, last+1) // a copy is still valid at the last moment itself
}
