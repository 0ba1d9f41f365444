package admission

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
)

// Options configure a Controller.
type Options struct {
	// Requests, Streams and Connections are bounds of the server; 0 is the default.
	Requests, Streams, Connections int
	// PrincipalKeys is how many keyed records each principal may have in a scope on a server without access control; 0
	// means no bound.
	PrincipalKeys int
	// Shares reports whether credentials have shares of the totals. Without access control callers cannot be
	// distinguished.
	Shares bool
	// Logger receives an occasional line while requests are refused.
	Logger *slog.Logger
	// Disk returns the free bytes and the size of the file system that the ledger writes to; nil for no reserve.
	Disk func() (free, size uint64, err error)
	// DiskReserve is how many bytes must stay free; negative for the default.
	DiskReserve int64
	// StoredFile is the file with the stored bytes of each actor. Empty: only in memory.
	StoredFile string
}

// Controller owns all bounds of a server.
type Controller struct {
	totals Limits
	shares bool
	whole  Party // of all callers, without shares
	logger *slog.Logger

	used        usage
	probes      Budget
	connections connections
	visits      visits
	disk        disk
	accounts    *accounts

	refusals [boundCount][ownerCount]atomic.Uint64
	overload overload
}

// New returns a Controller. An error is about StoredFile.
func New(o Options) (*Controller, error) {
	c := &Controller{totals: totals(o.Requests, o.Streams, o.Connections), shares: o.Shares, logger: o.Logger}
	c.whole = Party{newShare(""), c.totals}
	c.whole.Limits.Keys = cmp.Or(o.PrincipalKeys, math.MaxInt)
	c.connections.controller = c
	c.disk.init(o.Disk, o.DiskReserve)
	var err error
	c.accounts, err = openAccounts(o.StoredFile, o.Logger)
	return c, err
}

// Close saves the stored bytes. Call it when nothing is stored any more.
func (c *Controller) Close() error { return c.accounts.close() }

// Shares reports whether credentials have shares.
func (c *Controller) Shares() bool { return c.shares }

// Party returns the party that a request is admitted for.
func (c *Controller) Party(share *Share, own Limits) Party {
	if !c.shares || share == nil {
		return c.whole
	}
	return Party{share, own.share(&c.totals)}
}

// Request opens a request; leave closes it. The error is a *Refusal.
func (c *Controller) Request(ctx context.Context, p Party) (leave func(), err error) {
	if leave, err = c.admit(ctx, p, Requests, 1); err != nil {
		return nil, err
	}
	if err := c.begin(ctx, p); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// OwnRequest is Request for reading the metrics, which must be possible however busy the server is: only the
// credential's share applies.
func (c *Controller) OwnRequest(ctx context.Context, p Party) (leave func(), err error) {
	if !c.shares {
		return func() {}, nil
	}
	own := &p.Share.used[Requests]
	if !own.TryAcquire(1, c.limit(p, Requests)) {
		return nil, c.refuse(ctx, Requests, OfCredential)
	}
	if err := c.begin(ctx, p); err != nil {
		own.Release(1)
		return nil, err
	}
	return func() { own.Release(1) }, nil
}

// begin counts a request that begins. The error is a *Refusal.
func (c *Controller) begin(ctx context.Context, p Party) error {
	if wait := p.Share.requestPace.take(1, p.Limits.RequestsPerSecond, false); wait > 0 {
		return c.refuseFor(ctx, RequestsPerSecond, OfCredential, wait)
	}
	return nil
}

// Within admits a call that an admitted request makes in this process. The request and its first call count as one.
// Each further call counts as one more that begins, and as one more under way while another call of the request is. The
// error is a *Refusal.
func (c *Controller) Within(ctx context.Context, p Party) (leave func(), err error) {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return c.Request(ctx, p)
	}
	first := !v.called.Swap(true)
	if v.calling.Swap(true) {
		return c.Request(ctx, p)
	}
	if !first {
		if err := c.begin(ctx, p); err != nil {
			v.calling.Store(false)
			return nil, err
		}
	}
	return func() { v.calling.Store(false) }, nil
}

// Stream opens a stream; leave closes it. The error is a *Refusal.
func (c *Controller) Stream(ctx context.Context, p Party) (leave func(), err error) {
	return c.admit(ctx, p, Streams, 1)
}

// Waiter reports whether a call of a party may wait for another one's reservation to end. If so, leave ends the wait.
func (c *Controller) Waiter(p Party) (leave func(), ok bool) {
	leave, full := c.take(p, Waiters, 1)
	return leave, full == ownerCount
}

// Probe admits a health check, however busy the server is: otherwise a busy server would look dead and be restarted. It
// is a visit, unless its caller was admitted before. Probes are counted, because the ledger must not be closed while a
// probe uses it.
func (c *Controller) Probe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.Visit(r.Context())
		c.probes.force(1)
		defer c.probes.Release(1)
		next.ServeHTTP(w, r)
	})
}

// Read admits a read that is building its answer. done ends that and may be called more than once. A credential's reads
// wait for each other and then for those of other credentials. No read waits for a client meanwhile, so a wait is as
// long as the work of the reads before it. The error is the cause of ctx.
//
// A large read, whose answer may fill a page, takes some ten milliseconds of a processor. Large reads have a bound of
// their own, which leaves one processor to all other requests.
func (c *Controller) Read(ctx context.Context, p Party, large bool) (done func(), err error) {
	bound := Reads
	if large {
		bound = LargeReads
	}
	if done, err = c.await(ctx, p, bound, 1, true); err != nil {
		return nil, err
	}
	return sync.OnceFunc(done), nil
}

// Decode admits the decoding of a large message. JSON of some mebibytes takes a tenth of a second of a processor, and
// several times as much if its mistake has to be found, so one processor is left to all other requests. A credential's
// messages wait for each other and then for those of other credentials. done ends the decoding and may be called more
// than once; nothing is to wait for a client meanwhile. The error is the cause of ctx.
func (c *Controller) Decode(ctx context.Context, p Party) (done func(), err error) {
	if done, err = c.await(ctx, p, Decodes, 1, true); err != nil {
		return nil, err
	}
	return sync.OnceFunc(done), nil
}

// smallAnswer is the size up to which an answer is not charged: its request, which is bounded, takes as much memory.
const smallAnswer = 16 << 10

// answerCopies is how often an answer is in memory: as a message and encoded.
const answerCopies = 2

// MayAnswer returns a *Refusal if the party's share is used up for an answer of the given size, because building an
// answer that is then refused is as expensive as sending one. It charges nothing.
func (c *Controller) MayAnswer(ctx context.Context, p Party, size int) error {
	if !p.Share.used[AnswerBytes].mayAcquire(answerCopies*int64(size), c.limit(p, AnswerBytes)) {
		return c.refuse(ctx, AnswerBytes, c.shareOwner())
	}
	return nil
}

// TryAnswer charges an answer of the given size until release is called, if the bounds allow it.
func (c *Controller) TryAnswer(p Party, size int) (release func(), ok bool) {
	if size <= smallAnswer {
		return func() {}, true
	}
	release, full := c.take(p, AnswerBytes, answerCopies*int64(size))
	return release, full == ownerCount
}

// Answer is TryAnswer with a *Refusal.
func (c *Controller) Answer(ctx context.Context, p Party, size int) (release func(), err error) {
	if size <= smallAnswer {
		return func() {}, nil
	}
	return c.admit(ctx, p, AnswerBytes, answerCopies*int64(size))
}

// AwaitAnswer is Answer for a message of a stream, of more than a few KiB: it waits until messages on other streams of
// its credential are read. The error is a *Refusal if the total is used up, or the cause of ctx.
func (c *Controller) AwaitAnswer(ctx context.Context, p Party, size int) (release func(), err error) {
	return c.await(ctx, p, AnswerBytes, answerCopies*int64(size), false)
}

// AwaitStreams returns once no stream is open, or the cause of ctx.
func (c *Controller) AwaitStreams(ctx context.Context) error {
	return c.used[Streams].AwaitEmpty(ctx, "streams are still open")
}

// AwaitDecisions returns once no write of a credential is in the engine, or the cause of ctx. Without shares nothing is
// counted, and it returns at once.
func (c *Controller) AwaitDecisions(ctx context.Context) error {
	return c.used[QueuedBytes].AwaitEmpty(ctx, "bytes of writes are not decided yet")
}

// AwaitRequests returns once no request is open, streams and probes included, or the cause of ctx.
func (c *Controller) AwaitRequests(ctx context.Context) error {
	if err := c.used[Requests].AwaitEmpty(ctx, "requests are still open"); err != nil {
		return err
	}
	return c.AwaitProbes(ctx)
}

// AwaitProbes returns once no probe is open, or the cause of ctx.
func (c *Controller) AwaitProbes(ctx context.Context) error {
	return c.probes.AwaitEmpty(ctx, "probes are still open")
}

// Gauges are what is in use.
type Gauges struct {
	Requests, Streams, Connections, UnknownConnections, Visits int64
	ArrivingBytes, AnswerBytes, Reads, Decodes                 int64
	// DiskLevel is 0 while the disk has space, 1 when less than twice the reserve is free, and 2 when writes are
	// refused.
	DiskLevel int64
}

// Gauges returns what is in use.
func (c *Controller) Gauges() Gauges {
	return Gauges{
		Requests: c.used[Requests].Used(), Streams: c.used[Streams].Used(),
		Connections: c.used[Connections].Used(), UnknownConnections: c.connections.unknownCount(),
		Visits: c.visits.count(), ArrivingBytes: c.used[MessageBytes].Used(), AnswerBytes: c.used[AnswerBytes].Used(),
		Reads:   c.used[Reads].Used() + c.used[LargeReads].Used(),
		Decodes: c.used[Decodes].Used(), DiskLevel: int64(c.disk.level()),
	}
}
