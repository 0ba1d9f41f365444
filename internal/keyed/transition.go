package keyed

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// Kind is the type of a command. The numbers are part of the format.
type Kind uint8

// The kinds of commands.
const (
	Reserve    Kind = 1
	Complete   Kind = 2
	Reject     Kind = 3
	Release    Kind = 4
	Heartbeat  Kind = 5
	Checkpoint Kind = 6
	Resolve    Kind = 7
	Purge      Kind = 8
)

// Command is a request to change a record. Which fields apply depends on the kind.
type Command struct {
	Kind      Kind
	AttemptID AttemptID // all but Resolve and Purge
	Token     uint64    // all but Reserve, Resolve and Purge

	Fingerprint Fingerprint // Reserve
	ValidUntil  int64       // Reserve: Unix nanoseconds
	Lease       int64       // Reserve, Heartbeat: nanoseconds; 0 in a Heartbeat ends the lease
	TTL         int64       // Reserve; Complete, Reject and Resolve, 0 keeps the TTL of the Reserve
	ForgetAfter int64       // Reserve: nanoseconds, math.MaxInt64 for never; 0 forgets the key with its record
	Policy      Policy      // Reserve

	State    State  // Resolve: Committed or Rejected
	Response []byte // Complete, Reject, Resolve
	Data     []byte // Checkpoint
}

// Moment is the context in which a command is applied.
type Moment struct {
	Now int64 // Unix nanoseconds of the store's time
	// Token is the token for a new ownership. It is higher than all earlier tokens.
	Token uint64
	// LeaseFloor is the earliest end of every lease set before FloorSet: the store was unreachable, and owners could
	// not renew their leases. Both are zero if there was no outage.
	LeaseFloor, FloorSet int64
}

// Code is the outcome of a command. The numbers are part of the digest of a ledger, and those of RecordOutcome in the
// API.
type Code uint8

// The outcomes of commands.
const (
	// OK: done now, or done before by the same command.
	OK Code = 1
	// Acquired: the caller is the owner, under the token in Outcome.Record.
	Acquired Code = 2
	// Replay: finished; Outcome.Record has the response.
	Replay Code = 3
	// InFlight: another owner is at work; see Outcome.RetryAfter.
	InFlight Code = 4
	// Mismatch: the key belongs to another request.
	Mismatch Code = 5
	// Unknown: it is unknown whether the work was done.
	Unknown Code = 6
	// Stale: the Reserve arrived after its validity ended. Nothing is reserved.
	Stale Code = 7
	// LeaseLost: the caller does not own the record, or no longer owns it.
	LeaseLost Code = 8
	// AlreadyCompleted: the same ownership finished the record with another response.
	AlreadyCompleted Code = 9
	// NotFound: there is no record.
	NotFound Code = 10
	// NotFinal: a record cannot be purged before it is final, nor resolved while its owner holds a lease.
	NotFinal Code = 11
	// ResultExpired: the request was made before, too long ago to have its result. It does not run again.
	ResultExpired Code = 12
)

// LastCode is the highest code.
const LastCode = ResultExpired

// String returns the code in upper snake case, as the API names it.
func (c Code) String() string {
	names := [...]string{"", "OK", "ACQUIRED", "REPLAY", "IN_FLIGHT", "MISMATCH", "INDETERMINATE", "STALE",
		"LEASE_LOST", "ALREADY_COMPLETED", "NOT_FOUND", "NOT_FINAL", "EXPIRED"}
	if c > 0 && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("CODE_%d", uint8(c))
}

// CodeOf returns the code with the number of an outcome in the API, or 0 if there is none.
func CodeOf[N ~int32](outcome N) Code {
	if outcome < 0 || outcome > N(LastCode) {
		return 0
	}
	return Code(outcome)
}

// Outcome is the result of a command.
type Outcome struct {
	Code       Code
	Changed    bool          // whether the record changed
	RetryAfter time.Duration // set with InFlight
}

// Transition applies a command to a record. The outcome holds the resulting record: the given one unless
// Outcome.Changed, or nil if there is none. Transition does not modify the given record.
func Transition(r *Record, c *Command, at Moment) (*Record, Outcome) {
	if r == nil {
		return r.decide(c, at)
	}
	settled := r.settled(at)
	next, out := settled.decide(c, at)
	// The passage of time may have changed the record before the command.
	out.Changed = out.Changed || settled != r
	return next, out
}

// decide is Transition for a record to which the effects of time have been applied.
func (r *Record) decide(c *Command, at Moment) (*Record, Outcome) {
	if c.Kind == Reserve {
		return r.reserve(c, at)
	}
	if !r.Live(at.Now) {
		return r.decideAbsent(c)
	}
	switch c.Kind {
	case Resolve:
		return r.resolve(c, at)
	case Purge:
		return r.purge(at)
	}
	if c.AttemptID != r.AttemptID || c.Token != r.Token {
		return r, Outcome{Code: LeaseLost}
	}
	return r.byOwner(c, at)
}

// At returns the record as a reader should see it at the given time, without modifying r. The result is nil if the
// record no longer determines the state of its key.
func (r *Record) At(at Moment) *Record {
	if r == nil {
		return nil
	}
	if r = r.settled(at); !r.Live(at.Now) {
		return nil
	}
	return r
}

// Expire updates the record when its Due time has come: an ended lease becomes an unknown outcome, and a record that is
// no longer needed becomes nil. Kept reports whether the record stays, with a later Due time.
func Expire(r *Record, at Moment) (next *Record, kept bool) {
	next = r.settled(at)
	if next.State == Pending || next.Live(at.Now) || next.Due(at) > at.Now {
		return next, true
	}
	return nil, false
}

// settled returns the record with the effects of time applied; most records are unchanged. It does not modify the given
// record.
func (r *Record) settled(at Moment) *Record {
	if r.State != Pending {
		return r.expired(at.Now)
	}
	if at.Now < r.leaseEnd(at) {
		return r
	}
	if r.Policy == TakeOver && at.Now < r.unclaimedEnd(at) {
		return r
	}
	next := *r
	next.State, next.Expires = Indeterminate, at.Now+int64(IndeterminateTTL)
	return &next
}

// expired returns what remains of a record that has expired, if its key is not forgotten yet: all but the result.
func (r *Record) expired(now int64) *Record {
	if r.State == Released || r.State == Expired || now < r.Expires || now >= r.FreeAt() {
		return r
	}
	next := *r
	next.State = Expired
	next.Response, next.ResponseSize, next.ResponseSum = nil, 0, [32]byte{}
	next.Checkpoint, next.CheckpointSize = nil, 0
	return &next
}

// unclaimedEnd returns the time until which the record stays open to the next owner.
func (r *Record) unclaimedEnd(at Moment) int64 {
	return max(r.leaseEnd(at), r.LeaseEnd+int64(UnclaimedTTL))
}

// leaseEnd returns when the lease ends, extended after an outage.
func (r *Record) leaseEnd(at Moment) int64 {
	end := r.LeaseEnd
	if r.LeaseSet > at.Now {
		// The store's clock has been set back since. The lease was set by a clock that ran ahead, and would last longer
		// by that error.
		end = at.Now
	}
	if r.LeaseSet < at.FloorSet {
		return max(end, at.LeaseFloor)
	}
	return end
}

// reserve applies a Reserve. It checks the validity first, then whether the key belongs to another request, then the
// state.
func (r *Record) reserve(c *Command, at Moment) (*Record, Outcome) {
	if at.Now > c.ValidUntil {
		return r, Outcome{Code: Stale}
	}
	if !r.Live(at.Now) {
		return r.reserveFree(c, at)
	}
	if r.State == Written || r.Fingerprint != c.Fingerprint {
		return r, Outcome{Code: Mismatch}
	}
	switch r.State {
	case Pending:
		return r.reservePending(c, at)
	case Indeterminate:
		return r, Outcome{Code: Unknown}
	case Expired:
		return r, Outcome{Code: ResultExpired}
	}
	return r, Outcome{Code: Replay}
}

// Incomparable reports whether the record's fingerprint was made in another way than f, so that a Mismatch does not
// tell whether it is the same request.
func (r *Record) Incomparable(f Fingerprint) bool {
	return r.State != Written && r.Fingerprint.Algorithm != f.Algorithm
}

// reserveFree makes the caller the first owner of a free key.
func (r *Record) reserveFree(c *Command, at Moment) (*Record, Outcome) {
	past := r.PastAttempts(at.Now)
	ended := slices.ContainsFunc(past, func(p PastAttempt) bool { return p.ID == c.AttemptID })
	if ended || r.tombstoneOf(c.AttemptID, at) {
		return r, Outcome{Code: LeaseLost}
	}
	if len(past) >= MaxPastAttempts {
		return r, Outcome{Code: InFlight, RetryAfter: time.Duration(past[0].Until - at.Now)}
	}
	next := &Record{State: Pending, Fingerprint: c.Fingerprint, Created: at.Now, Past: past}
	next.own(c, at)
	return next, Outcome{Code: Acquired, Changed: true}
}

// tombstoneOf reports whether the record is the tombstone that an attempt left when it released the key. A copy of its
// Reserve is refused for as long as the tombstone lasts, even if the copy is valid for longer than the first Reserve.
func (r *Record) tombstoneOf(attempt AttemptID, at Moment) bool {
	return r != nil && r.State == Released && r.AttemptID == attempt && at.Now < r.Expires
}

// reservePending applies a Reserve to a key that has an owner.
func (r *Record) reservePending(c *Command, at Moment) (*Record, Outcome) {
	if c.AttemptID == r.AttemptID {
		// The answer to the first Reserve was lost. The caller is the owner, and starts only now.
		next := *r
		next.LeaseEnd, next.LeaseSet = max(r.leaseEnd(at), at.Now+c.Lease), at.Now
		return &next, Outcome{Code: Acquired, Changed: true}
	}
	if end := r.leaseEnd(at); at.Now < end {
		return r, Outcome{Code: InFlight, RetryAfter: time.Duration(end - at.Now)}
	}
	past := r.PastAttempts(at.Now)
	if slices.ContainsFunc(past, func(p PastAttempt) bool { return p.ID == c.AttemptID }) {
		return r, Outcome{Code: LeaseLost}
	}
	if len(past) >= MaxPastAttempts {
		return r, Outcome{Code: InFlight, RetryAfter: time.Duration(past[0].Until - at.Now)}
	}
	next := *r
	next.Past = past
	next.own(c, at)
	return &next, Outcome{Code: Acquired, Changed: true}
}

// own makes the caller of a Reserve the owner.
func (r *Record) own(c *Command, at Moment) {
	r.Token, r.AttemptID, r.Policy, r.TTL, r.ForgetAfter = at.Token, c.AttemptID, c.Policy, c.TTL, c.ForgetAfter
	r.LeaseEnd, r.LeaseSet, r.ValidUntil = at.Now+c.Lease, at.Now, c.ValidUntil
	r.Attempts++
}

// PastAttempts returns the ended attempts, including the record's own, whose copies could still arrive. The slice is
// new.
func (r *Record) PastAttempts(now int64) (past []PastAttempt) {
	if r == nil {
		return nil
	}
	for _, p := range r.Past {
		if p.Until >= now {
			past = append(past, p)
		}
	}
	if own := (PastAttempt{r.AttemptID, r.ValidUntil}); own.Until >= now {
		past = append(past, own)
	}
	slices.SortFunc(past, func(a, b PastAttempt) int { return int(min(max(a.Until-b.Until, -1), 1)) })
	return past
}

// decideAbsent answers a command when there is no live record. A retried Release or Purge counts as done.
func (r *Record) decideAbsent(c *Command) (*Record, Outcome) {
	switch {
	case c.Kind == Purge || c.Kind == Resolve:
		return r, Outcome{Code: NotFound}
	case c.Kind == Release && r != nil && r.State == Released && r.AttemptID == c.AttemptID && r.Token == c.Token:
		return r, Outcome{Code: OK}
	}
	return r, Outcome{Code: LeaseLost}
}

// byOwner applies a command of the attempt that owns the record.
func (r *Record) byOwner(c *Command, at Moment) (*Record, Outcome) {
	switch {
	case r.State == Expired:
		return r, Outcome{Code: LeaseLost}
	case c.Kind == Complete:
		return r.finish(c, Committed, at)
	case c.Kind == Reject:
		return r.finish(c, Rejected, at)
	case r.State != Pending:
		return r, Outcome{Code: LeaseLost}
	}
	next := *r
	switch c.Kind {
	case Release:
		next = *r.released(at.Now)
	case Heartbeat:
		next.LeaseEnd, next.LeaseSet = max(r.leaseEnd(at), at.Now+c.Lease), at.Now
		if c.Lease == 0 {
			next.LeaseEnd = min(r.leaseEnd(at), at.Now)
			next = *next.settled(at)
		}
	case Checkpoint:
		next.Checkpoint, next.CheckpointSize = c.Data, uint64(len(c.Data))
	default:
		return r, Outcome{Code: LeaseLost}
	}
	return &next, Outcome{Code: OK, Changed: true}
}

// finish stores the result of the work. It also resolves an unknown outcome.
func (r *Record) finish(c *Command, as State, at Moment) (*Record, Outcome) {
	sum := sha256.Sum256(c.Response)
	if r.State.finished() {
		if r.State == as && r.ResponseSum == sum {
			return r, Outcome{Code: OK}
		}
		return r, Outcome{Code: AlreadyCompleted}
	}
	next := *r
	next.State, next.Completed = as, at.Now
	if c.TTL != 0 {
		next.TTL = c.TTL
	}
	next.Expires = at.Now + next.TTL
	next.Response, next.ResponseSize, next.ResponseSum = c.Response, uint64(len(c.Response)), sum
	next.Checkpoint, next.CheckpointSize = nil, 0
	return &next, Outcome{Code: OK, Changed: true}
}

// resolve sets the result of an unknown outcome.
func (r *Record) resolve(c *Command, at Moment) (*Record, Outcome) {
	switch r.State {
	case Pending:
		return r, Outcome{Code: NotFinal}
	case Expired:
		return r, Outcome{Code: ResultExpired}
	}
	return r.finish(c, c.State, at)
}

// purge removes a final record but keeps its attempts.
func (r *Record) purge(at Moment) (*Record, Outcome) {
	if !r.State.finished() && r.State != Expired {
		return r, Outcome{Code: NotFinal}
	}
	return r.released(at.Now), Outcome{Code: OK, Changed: true}
}

// released returns what remains of a record that no longer determines the state of its key.
func (r *Record) released(now int64) *Record {
	return &Record{
		State: Released, Token: r.Token, AttemptID: r.AttemptID, ValidUntil: r.ValidUntil,
		Created: r.Created, Completed: now, Expires: now + int64(TombstoneTTL), Past: r.Past,
	}
}
