package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/client/internal/rpc"
)

// Event is an event that a [Metrics] counts.
type Event string

// The events.
const (
	EventAcquired      Event = "acquired"      // the work was started
	EventTakeover      Event = "takeover"      // the next owner started it after another owner's lease ended
	EventReplayed      Event = "replayed"      // a stored result was returned
	EventWaited        Event = "waited"        // waited for another owner
	EventInFlight      Event = "in-flight"     // refused: another owner is at work
	EventMismatch      Event = "mismatch"      // refused: the key belongs to another request
	EventIndeterminate Event = "indeterminate" // refused: the outcome is unknown
	EventNotRetained   Event = "not-retained"  // refused: the response was not kept
	EventExpired       Event = "expired"       // refused: made before, and its result has expired
	EventLeaseLost     Event = "lease-lost"    // an owner lost its lease
	EventReleased      Event = "released"      // an owner released the key without executing anything
	EventAbandoned     Event = "abandoned"     // an owner left the outcome unknown
	EventJournaled     Event = "journaled"     // a result waits in the journal until the store takes it
	EventUnstored      Event = "unstored"      // a result could not be stored
	EventBypassed      Event = "bypassed"      // the work ran without the store
	EventStoreFailure  Event = "store-failure" // refused: the store did not answer
)

// Metrics receives the events and latencies that operators watch. It is called often and concurrently, and never with a
// key or a principal.
type Metrics interface {
	// Count adds one to an event.
	Count(event Event)
	// StoreLatency reports how long a store took for a call: "reserve", "complete", "reject",
	// "release", "heartbeat" or "checkpoint".
	StoreLatency(call string, took time.Duration)
}

// WaitMetrics is a [Metrics] that also tracks how many calls are waiting for another owner.
type WaitMetrics interface {
	Metrics
	// Waiting adds to the number of waiting calls: 1 when a call starts to wait, -1 when it stops.
	Waiting(by int)
}

type noMetrics struct{}

func (noMetrics) Count(Event)                        {}
func (noMetrics) StoreLatency(string, time.Duration) {}

// The defaults of the durations in Settings.
const (
	DefaultWait         = 30 * time.Second
	DefaultStoreTimeout = 5 * time.Second
)

// Settings are the settings common to [Middleware], [Interceptor] and [Do]. The zero value is usable.
type Settings struct {
	// Lease is how long the store waits for a silent owner: 1 s to 24 h; 0 means 60 s. Owners send three heartbeats per
	// lease, so the lease does not limit how long the work takes.
	Lease time.Duration
	// TTL is how long a result is replayed after it was stored; 0 means 24 h.
	TTL time.Duration
	// RejectedTTL is TTL for refusals; 0 means 60 s.
	RejectedTTL time.Duration
	// ForgetAfter is how long a key stays taken after the work has ended: at least TTL and at most 100 years, or
	// [Never]. Retries that come after the result has expired are then refused with CodeExpired, and not run again. 0
	// frees the key with its result.
	ForgetAfter time.Duration
	// Wait is how long a retry waits for the first call, at most 60 s; 0 means 30 s, and a negative value disables
	// waiting.
	Wait time.Duration
	// OnLeaseExpired says what happens when an owner's lease ends without a result. The zero value,
	// BecomeIndeterminate, never runs work twice.
	OnLeaseExpired LeaseExpiry
	// StoreTimeout bounds a call to the store, including its retries; 0 means 5 s.
	StoreTimeout time.Duration
	// Journal keeps results that the store does not take. Without a journal, retries never see such a result: they get
	// CodeOutcomeUnknown once the lease has ended.
	Journal *Journal
	// Metrics may be nil.
	Metrics Metrics
	// Logger may be nil. It never receives a key or a principal.
	Logger *slog.Logger
}

// validate returns the settings with defaults filled in.
func (s Settings) validate() (Settings, error) {
	var err error
	if s.Lease, err = span("Lease", s.Lease, DefaultLease, MinLease, MaxLease); err != nil {
		return s, err
	}
	if s.TTL, err = span("TTL", s.TTL, DefaultTTL, MinTTL, MaxTTL); err != nil {
		return s, err
	}
	if s.RejectedTTL, err = span("RejectedTTL", s.RejectedTTL, DefaultRejectedTTL, MinTTL, MaxTTL); err != nil {
		return s, err
	}
	if s.ForgetAfter, err = forgetAfter(s.ForgetAfter, s.TTL); err != nil {
		return s, err
	}
	s.Wait = max(s.Wait, -1)
	if s.Wait >= 0 {
		if s.Wait, err = span("Wait", s.Wait, DefaultWait, 0, MaxWait); err != nil {
			return s, err
		}
	}
	if s.OnLeaseExpired > TakeOver {
		return s, &InvalidError{"OnLeaseExpired", fmt.Sprintf("is %d, which is not known here", s.OnLeaseExpired)}
	}
	if s.StoreTimeout, err = span("StoreTimeout", s.StoreTimeout, DefaultStoreTimeout, time.Millisecond,
		time.Hour); err != nil {
		return s, err
	}
	if s.Metrics == nil {
		s.Metrics = noMetrics{}
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	return s, nil
}

// guard runs work once per key. It is the core of every entry point: begin, followed by either a replay or the work
// with settle, release or abandon.
type guard struct {
	Settings

	store Store
	// open is set if the work runs even when the store does not answer.
	open bool
}

// timed starts timing a store call; the function it returns reports the latency.
func (g *guard) timed(call string) func() {
	start := time.Now()
	return func() { g.Metrics.StoreLatency(call, time.Since(start)) }
}

// begin reserves a key. It returns the owner, on which the caller must call settle, release or abandon; or the finished
// record, to be replayed; or an [*Error]. ctx is the context of the call, and work that of the work.
func (g *guard) begin(ctx, work context.Context, key RecordKey, f Fingerprint) (*Owner, *Record, error) {
	request := &ReserveRequest{
		Key: key, Fingerprint: f, AttemptID: NewAttemptID(), Lease: g.Lease, TTL: g.TTL,
		ForgetAfter: g.ForgetAfter, OnLeaseExpired: g.OnLeaseExpired,
	}
	if clock, ok := g.store.(Clock); ok { // once, because a retry of the call is a copy, too
		request.ValidUntil = clock.Now().Add(DefaultValidity)
	}
	// Without a wait first, so that only a call that really has to wait is counted as waiting.
	began := time.Now()
	r, err := g.reserve(ctx, request)
	if err == nil && r.Outcome == InFlight && g.Wait > 0 {
		request.Wait = g.Wait
		if r, err = g.await(ctx, request, r); err != nil {
			return nil, nil, err
		}
	}
	if err != nil {
		e, _ := g.notReserved(ctx, request, err)
		return nil, nil, e
	}
	switch r.Outcome {
	case Acquired:
		g.Metrics.Count(EventAcquired)
		if r.Attempt > 1 {
			g.Metrics.Count(EventTakeover)
		}
		return g.newOwner(work, request, r, began), nil, nil
	case Replay:
		return nil, r.Record, nil // the caller counts it, because only the caller knows whether it can be replayed
	case InFlight:
		return nil, nil, g.inFlight(r, nil)
	case Mismatch:
		g.Metrics.Count(EventMismatch)
		return nil, nil, mismatch(r)
	case Unknown:
		g.Metrics.Count(EventIndeterminate)
		return nil, nil, &Error{Code: CodeOutcomeUnknown, Record: r.Record}
	case ResultExpired:
		g.Metrics.Count(EventExpired)
		return nil, nil, &Error{Code: CodeExpired, Record: r.Record}
	case Stale:
		err = errors.New("the reservation came to the store after its validity: the clocks differ by minutes, or " +
			"it was under way for as long")
	default:
		err = fmt.Errorf("the store answered a Reserve with %v", r.Outcome)
	}
	g.Metrics.Count(EventStoreFailure)
	return nil, nil, &Error{Code: CodeStoreUnavailable, RetryAfter: time.Second, Cause: err}
}

// mismatch returns the error of a call whose key belongs to another request. Where the record has a fingerprint of
// another kind, because the settings have changed since or the path is written in another way, it may be the same
// request: a client that then took a new key would have the work done twice.
func mismatch(r *Reservation) *Error {
	if r.Incomparable {
		return &Error{Code: CodeOutcomeUnknown, Cause: errors.New("the key was used for a path in another " +
			"spelling, or when this service compared other parts of requests: whether it was used for this one " +
			"cannot be told")}
	}
	return &Error{Code: CodeKeyReused}
}

// await is reserve for a call that waits for another owner. running is the answer before the wait. The error is an
// [*Error].
func (g *guard) await(ctx context.Context, request *ReserveRequest, running *Reservation) (*Reservation, error) {
	g.Metrics.Count(EventWaited)
	if m, ok := g.Metrics.(WaitMetrics); ok {
		m.Waiting(1)
		defer m.Waiting(-1)
	}
	began := time.Now()
	r, err := g.reserve(ctx, request)
	if err == nil {
		return r, nil
	}
	answer, now := g.notReserved(ctx, request, err)
	if answer.Code == CodeStoreUnavailable {
		// The store has answered that another owner is at work. A failed wait does not change that.
		if ctx.Err() == nil {
			g.Logger.WarnContext(ctx, "the wait for another owner of a key failed", "error", err)
		}
		if now == nil || now.Outcome != InFlight { // the rest of the lease as of the answer before the wait
			now = &Reservation{RetryAfter: running.RetryAfter - time.Since(began)}
		}
		answer = g.inFlight(now, err)
	}
	return nil, answer
}

// inFlight returns the error of a call whose key has another owner.
func (g *guard) inFlight(r *Reservation, cause error) *Error {
	g.Metrics.Count(EventInFlight)
	return &Error{Code: CodeInFlight, RetryAfter: max(time.Second, r.RetryAfter), Cause: cause}
}

func (g *guard) reserve(ctx context.Context, request *ReserveRequest) (*Reservation, error) {
	defer g.timed("reserve")()
	ctx, cancel := context.WithTimeout(ctx, request.Wait+g.StoreTimeout)
	defer cancel()
	return g.store.Reserve(ctx, request)
}

// notReserved returns the error of a failed Reserve. The key may be reserved anyway, without an owner to do the work,
// and retries would have to wait for the lease. So notReserved releases it, unless the work runs without the store. now
// is what the store answers to that; nil for nothing.
func (g *guard) notReserved(
	ctx context.Context, request *ReserveRequest, err error,
) (answer *Error, now *Reservation) {
	answer = fromStore(err)
	if ctx.Err() == nil { // otherwise the caller has gone
		g.Metrics.Count(EventStoreFailure)
	}
	waited := request.Wait > 0
	quota, full := errors.AsType[*QuotaError](err)
	if full && !quota.Unsettled || g.open && answer.silent && !waited && ctx.Err() == nil {
		return answer, nil
	}
	// Not under the call's context, which may have ended because the caller has gone.
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.StoreTimeout)
	defer cancel()
	request.Wait = 0
	now, err = g.store.Reserve(again, request)
	if err == nil && now.Outcome == Acquired {
		_ = g.free(again, &Ownership{request.Key, now.Token, request.AttemptID}, now.Attempt)
	}
	return answer, now
}

// free gives a key back because its owner has executed nothing. An owner before it may have executed something: then
// the record keeps the fingerprint, the checkpoint and the number of attempts, and only the lease ends, so that the
// next call with the same request becomes the owner.
func (g *guard) free(ctx context.Context, owner *Ownership, attempt uint64) error {
	var err error
	if attempt > 1 {
		_, err = g.store.Heartbeat(ctx, owner, EndLease)
	} else {
		_, err = g.store.Release(ctx, owner)
	}
	return err
}

// Owner is an ownership of a key while the work runs. It is safe for concurrent use.
type Owner struct {
	guard      *guard
	ownership  Ownership
	attempt    uint64
	checkpoint []byte

	// left is the Disposition set by the handler, plus 1; 0 if there is none.
	left atomic.Uint32

	ctx    context.Context // context of the work
	cancel context.CancelCauseFunc
	beats  sync.WaitGroup // the heartbeat goroutine
	quit   context.CancelFunc
}

// Token returns the fencing token. Every later ownership of any key in the store has a higher token, so a resource that
// compares tokens can refuse an owner that has been superseded.
func (o *Owner) Token() uint64 { return o.ownership.Token }

// Attempt returns the number of this ownership of the key, from 1.
func (o *Owner) Attempt() uint64 { return o.attempt }

// LastCheckpoint returns the checkpoint stored by the previous owner, or nil.
func (o *Owner) LastCheckpoint() []byte { return o.checkpoint }

// Leave sets what happens to the key after the handler's work, overriding its status, error or panic: for example
// [ReleaseKey] for a 502 when nothing was sent upstream. It has no effect on the result of [Do], or on a success in
// [Interceptor].
func (o *Owner) Leave(d Disposition) { o.left.Store(uint32(d) + 1) }

// leave ends the ownership after the work as the handler has set, or else with d, and returns when a stored response
// expires.
func (o *Owner) leave(d Disposition, kind resultKind, response func() []byte) time.Time {
	if said := o.left.Load(); said > 0 {
		d = Disposition(said - 1)
	}
	switch d {
	case ReleaseKey:
		o.release()
	case LeaveUnknown:
		o.abandon()
	case StoreResult:
		return o.settle(kind, Result{Response: response()})
	}
	return time.Time{}
}

// ErrLeaseLost is returned to an owner that no longer owns its key, or may no longer own it. The work must stop.
var ErrLeaseLost = errors.New("idempotency: the lease is lost: another owner may have taken the key over")

// Checkpoint stores progress for the next owner, at most 64 KiB. The work must stop after [ErrLeaseLost].
func (o *Owner) Checkpoint(ctx context.Context, data []byte) error {
	defer o.guard.timed("checkpoint")()
	ctx, cancel := context.WithTimeout(ctx, o.guard.StoreTimeout)
	defer cancel()
	answer, err := o.guard.store.Checkpoint(ctx, &o.ownership, data)
	if err == nil && answer.Outcome != OK {
		err = ErrLeaseLost
	}
	return err
}

// newOwner starts the heartbeats of a new ownership. The context of its work ends when work ends, or when another owner
// takes over, or may. began is when the reservation was begun.
func (g *guard) newOwner(work context.Context, request *ReserveRequest, r *Reservation, began time.Time) *Owner {
	o := &Owner{
		guard: g, ownership: Ownership{request.Key, r.Token, request.AttemptID}, attempt: r.Attempt,
		checkpoint: r.Checkpoint,
	}
	o.ctx, o.cancel = context.WithCancelCause(context.WithValue(work, ownerKey{}, o))
	// Not ended by the context of the work, so that work that continues after its end keeps the lease.
	beating, quit := context.WithCancel(context.WithoutCancel(work))
	o.quit = quit
	// The goroutine ends with the ownership; Owner.end waits for it.
	o.beats.Go(func() { o.beat(beating, began) })
	return o
}

type ownerKey struct{}

// FromContext returns the ownership that a handler runs under, or nil if its request has no key.
func FromContext(ctx context.Context) *Owner {
	o, _ := ctx.Value(ownerKey{}).(*Owner)
	return o
}

// beat extends the lease until ctx ends or the lease is lost. With TakeOver it ends the context of the work when the
// lease has passed since it was last extended, because another owner may run afterwards; otherwise no other owner can
// start, and the work's own late result settles the unknown outcome.
func (o *Owner) beat(ctx context.Context, began time.Time) {
	lease, interval := o.guard.Lease, o.guard.Lease/3
	lose := sync.OnceFunc(func() {
		o.guard.Metrics.Count(EventLeaseLost)
		if o.guard.OnLeaseExpired == TakeOver {
			o.cancel(ErrLeaseLost)
		}
	})
	wait := interval
	var over *time.Timer // nil without TakeOver
	if o.guard.OnLeaseExpired == TakeOver {
		// The store has counted the lease from a time after began. If that is long ago, for example because the
		// reservation has waited, the first heartbeat finds out at once how much is left.
		wait = max(0, interval-time.Since(began))
		over = time.AfterFunc(max(interval, lease-time.Since(began)), func() {
			o.guard.Logger.WarnContext(ctx, "a lease has passed without being extended; the work is told to stop")
			lose()
		})
		defer over.Stop()
	}
	for rpc.Sleep(ctx, wait) == nil {
		sent := time.Now()
		beat, cancel := context.WithTimeout(ctx, interval)
		lost, err := o.extend(beat, lease)
		cancel()
		switch {
		case lost:
			lose()
			return
		case err == nil && over != nil:
			// Counted from before the call, so that this clock's end of the lease is never after the store's.
			over.Reset(max(0, lease-time.Since(sent)))
		case err != nil && ctx.Err() == nil:
			o.guard.Logger.WarnContext(ctx, "a lease could not be extended", "error", err)
		}
		wait = max(0, interval-time.Since(sent)) // a call that hangs must not cost two of the three heartbeats
	}
}

// extend renews the lease from now on, or ends it.
func (o *Owner) extend(ctx context.Context, lease time.Duration) (lost bool, err error) {
	defer o.guard.timed("heartbeat")()
	answer, err := o.guard.store.Heartbeat(ctx, &o.ownership, lease)
	return err == nil && answer.Outcome != OK, err
}

// end stops the heartbeats and ends the context of the work.
func (o *Owner) end() {
	o.quit()
	o.beats.Wait()
	o.cancel(context.Canceled)
}

// settle stores the result of the work and returns when it expires, or zero if the store did not take it. Such a result
// goes into the journal: the key is never released after the work.
func (o *Owner) settle(kind resultKind, result Result) time.Time {
	o.end()
	g := o.guard
	// The context of the work has ended here, and must not keep its result from being stored.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), g.StoreTimeout)
	defer cancel()
	answer, err := g.finish(ctx, kind, &o.ownership, result)
	switch {
	case err != nil:
		g.postpone(ctx, &journalEntry{Kind: kind, Owner: o.ownership, Result: result}, err)
	case answer.Outcome == OK:
		return answer.Expires
	case answer.Outcome == LeaseLost:
		g.Metrics.Count(EventLeaseLost)
		g.Logger.WarnContext(ctx, "a result came after the lease and was not stored")
	default:
		g.Metrics.Count(EventUnstored)
		g.Logger.ErrorContext(ctx, "a result was not stored", "outcome", answer.Outcome.String())
	}
	return time.Time{}
}

// resultKind names the call that stores a result.
type resultKind string

const (
	resultCommitted resultKind = "complete"
	resultRejected  resultKind = "reject"
)

// finish calls Complete or Reject.
func (g *guard) finish(ctx context.Context, kind resultKind, owner *Ownership, result Result) (*Answer, error) {
	defer g.timed(string(kind))()
	if kind == resultRejected {
		result.TTL = g.RejectedTTL
		return g.store.Reject(ctx, owner, result)
	}
	return g.store.Complete(ctx, owner, result)
}

// postpone puts a result into the journal.
func (g *guard) postpone(ctx context.Context, entry *journalEntry, cause error) {
	err := errors.New("there is no journal")
	if entry.Kind == resultRejected {
		entry.Result.TTL = g.RejectedTTL
	}
	if g.Journal != nil {
		if err = g.Journal.add(entry); err == nil {
			g.Metrics.Count(EventJournaled)
			g.Logger.WarnContext(ctx, "a result waits in the journal for the store", "error", cause)
			return
		}
	}
	g.Metrics.Count(EventUnstored)
	g.Logger.ErrorContext(ctx, "a result was not stored: its outcome will be unknown", "error", cause, "journal", err)
}

// release frees the key because nothing was executed; see free.
func (o *Owner) release() {
	o.end()
	g := o.guard
	defer g.timed("release")()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), g.StoreTimeout)
	defer cancel()
	if err := g.free(ctx, &o.ownership, o.attempt); err != nil {
		g.Logger.WarnContext(ctx, "a key was not released: its outcome will be unknown", "error", err)
		return
	}
	g.Metrics.Count(EventReleased)
}

// abandon leaves the outcome unknown. It ends the lease at once, so that retries learn of it without waiting. With
// TakeOver it lets the lease run out: effects that the work started elsewhere may still be in progress, and the next
// owner would start beside them.
func (o *Owner) abandon() {
	o.end()
	g := o.guard
	g.Metrics.Count(EventAbandoned)
	if g.OnLeaseExpired == TakeOver {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), g.StoreTimeout)
	defer cancel()
	if _, err := o.extend(ctx, EndLease); err != nil {
		g.Logger.WarnContext(ctx, "an unknown outcome was not stored: it will be known when the lease has ended",
			"error", err)
	}
}
