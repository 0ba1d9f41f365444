package admission

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Bound names a bound. A bound that the auth file can set has the name of its field.
type Bound uint8

// The bounds. Those up to Waiters limit what is in use at once. See the table in the package's documentation.
const (
	Requests Bound = iota
	Streams
	Connections
	MessageBytes
	AnswerBytes
	Reads
	LargeReads
	Decodes
	QueuedBytes
	Waiters
	RequestsPerSecond
	WritesPerSecond
	StoredBytes
	DiskReserve
	Unauthenticated
	boundCount

	inUse = Waiters + 1 // the number of bounds on what is in use
)

// Owner is the owner of a bound.
type Owner uint8

// The owners of bounds.
const (
	OfServer     Owner = iota // all callers together
	OfCredential              // the share of one credential
	OfAddress                 // unauthenticated callers of one address
	OfConnection              // unauthenticated callers of one connection
	ownerCount
)

var ownerNames = [ownerCount]string{"server", "credential", "address", "connection"}

// String returns the owner as metrics name it.
func (o Owner) String() string { return ownerNames[o] }

// When to try again. The end of requests under way is not known; a disk fills and empties within minutes.
const (
	busyRetry = 100 * time.Millisecond
	roomRetry = 50 * time.Millisecond
	diskRetry = 10 * time.Second
	fullRetry = time.Minute
)

// table describes the bounds.
var table = [boundCount]struct {
	name   string        // in metrics and messages
	text   string        // what is limited
	retry  time.Duration // when to try again; 0: a rate, which says so
	owners []Owner       // that may refuse; none if callers wait, and are never refused
}{
	Requests:          {"requests", "requests under way", busyRetry, []Owner{OfServer, OfCredential}},
	Streams:           {"streams", "open streams", busyRetry, []Owner{OfServer, OfCredential}},
	Connections:       {"connections", "open connections", busyRetry, []Owner{OfServer, OfCredential, OfAddress}},
	MessageBytes:      {"message_bytes", "memory for large messages", roomRetry, []Owner{OfServer, OfCredential}},
	AnswerBytes:       {"answer_bytes", "memory for unread answers", busyRetry, []Owner{OfServer, OfCredential}},
	Reads:             {"reads", "reads under way", busyRetry, nil},
	LargeReads:        {"large_reads", "large reads under way", busyRetry, nil},
	Decodes:           {"decodes", "large messages being decoded", busyRetry, nil},
	QueuedBytes:       {"queued_bytes", "writes that wait for the log", roomRetry, []Owner{OfCredential}},
	Waiters:           {"waiters", "calls that wait for an owner", busyRetry, nil},
	RequestsPerSecond: {"requests_per_second", "requests per second", 0, []Owner{OfCredential}},
	WritesPerSecond:   {"writes_per_second", "writes per second", 0, []Owner{OfCredential}},
	StoredBytes:       {"stored_bytes", "stored bytes", fullRetry, []Owner{OfCredential}},
	DiskReserve:       {"disk_reserve", "disk space", diskRetry, []Owner{OfServer}},
	Unauthenticated: {
		"unauthenticated", "unauthenticated requests", busyRetry, []Owner{OfServer, OfAddress, OfConnection},
	},
}

// String returns the bound as metrics and messages name it.
func (b Bound) String() string { return table[b].name }

// Refusal reports that something was refused because of a bound, and that nothing was done.
type Refusal struct {
	Bound Bound
	Owner Owner
	// RetryAfter is when to try again: exact for a rate, otherwise an estimate.
	RetryAfter time.Duration
}

// Error implements error.
func (r *Refusal) Error() string {
	switch {
	case r.Bound == DiskReserve:
		return "the disk of the ledger has less free space than its reserve, and nothing was done: " +
			"try again when there is more"
	case r.Bound == StoredBytes:
		return "the credential has stored as many bytes as it may (stored_bytes); nothing was done"
	case r.Owner == OfCredential:
		return fmt.Sprintf("the credential has reached its limit of %s (%s); nothing was done: try again later",
			table[r.Bound].text, r.Bound)
	}
	return fmt.Sprintf("the server has reached its limit of %s; nothing was done: try again later",
		table[r.Bound].text)
}

// usage is what is in use of each bound, of a share or of all callers.
type usage [inUse]Budget

// take takes n units of a bound for a party: of its share, and then of the total. full is the owner whose bound is
// reached, or ownerCount if there are enough units.
func (c *Controller) take(p Party, b Bound, n int64) (release func(), full Owner) {
	if !p.Share.used[b].TryAcquire(n, c.limit(p, b)) {
		return nil, c.shareOwner()
	}
	if !c.used[b].TryAcquire(n, c.total(b)) {
		p.Share.used[b].Release(n)
		return nil, OfServer
	}
	return func() { c.release(p, b, n) }, ownerCount
}

// release releases what take or await has taken.
func (c *Controller) release(p Party, b Bound, n int64) {
	c.used[b].Release(n)
	p.Share.used[b].Release(n)
}

// admit is take with a *Refusal if a bound is reached.
func (c *Controller) admit(ctx context.Context, p Party, b Bound, n int64) (release func(), err error) {
	release, full := c.take(p, b, n)
	if full != ownerCount {
		return nil, c.refuse(ctx, b, full)
	}
	return release, nil
}

// await is admit that waits for units of the share, which only the credential itself uses. With all it waits for those
// of the total, too; without, the error is a *Refusal if they are in use. Otherwise the error is the cause of ctx.
func (c *Controller) await(ctx context.Context, p Party, b Bound, n int64, all bool) (release func(), err error) {
	if err := p.Share.used[b].Acquire(ctx, n, c.limit(p, b)); err != nil {
		return nil, err
	}
	switch {
	case all:
		err = c.used[b].Acquire(ctx, n, c.total(b))
	case !c.used[b].TryAcquire(n, c.total(b)):
		err = c.refuse(ctx, b, OfServer)
	}
	if err != nil {
		p.Share.used[b].Release(n)
		return nil, err
	}
	return func() { c.release(p, b, n) }, nil
}

// shareOwner returns the owner of a party's limits: without shares they are those of the server.
func (c *Controller) shareOwner() Owner {
	if c.shares {
		return OfCredential
	}
	return OfServer
}

// refuse counts a refusal and returns it, with the bound's time after which to retry.
func (c *Controller) refuse(ctx context.Context, b Bound, o Owner) error {
	return c.refuseFor(ctx, b, o, table[b].retry)
}

// refuseFor is refuse with another time.
func (c *Controller) refuseFor(ctx context.Context, b Bound, o Owner, retry time.Duration) error {
	c.refusals[b][o].Add(1)
	if o == OfServer || b == DiskReserve {
		c.overload.refuse(ctx, c.logger, b.String())
	}
	return &Refusal{b, o, retry}
}

// Refusals calls visit with how often each bound has refused something, cut it off, or slowed the writes of a stream.
func (c *Controller) Refusals(visit func(b Bound, o Owner, n uint64)) {
	for b := range boundCount {
		for _, o := range table[b].owners {
			visit(b, o, c.refusals[b][o].Load())
		}
	}
}

// EngineFull records that the ledger refused a write because its own queue was full.
func (c *Controller) EngineFull(ctx context.Context) { c.overload.refuse(ctx, c.logger, "queue") }

// overloadEvery is how often the log tells of refusals: a line for each would make an overload worse.
const overloadEvery = 10 * time.Second

// overload logs occasionally that the server refuses requests. The metrics count every refusal.
type overload struct {
	next    atomic.Int64 // Unix nanoseconds; no line earlier
	refused atomic.Int64 // since the last line
}

// refuse counts a refusal, and logs all since the last line unless that was written recently.
func (o *overload) refuse(ctx context.Context, logger *slog.Logger, bound string) {
	o.refused.Add(1)
	now, next := time.Now().UnixNano(), o.next.Load()
	if now < next || !o.next.CompareAndSwap(next, now+int64(overloadEvery)) {
		return
	}
	logger.WarnContext(ctx, "requests are refused because of a bound", "bound", bound, "refused", o.refused.Swap(0))
}
