package admission

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"
)

// Options configure a Controller.
type Options struct {
	// Totals are the bounds of the server.
	Totals Totals
	// Shares reports whether credentials have shares of the totals. Without access control
	// callers cannot be distinguished.
	Shares bool
	// Logger receives an occasional line while requests are refused.
	Logger *slog.Logger
	// Disk returns the free bytes and the size of the file system that the ledger
	// writes to; nil for no reserve.
	Disk func() (free, size uint64, err error)
	// DiskReserve is how many bytes must stay free; negative for the default.
	DiskReserve int64
	// StoredFile is the file with the stored bytes of each actor. Empty: only in memory.
	StoredFile string
}

// Controller owns all bounds of a server.
type Controller struct {
	totals Totals
	shares bool
	whole  Party // of all callers, without shares
	logger *slog.Logger

	requests, streams, probes Limiter
	// deciding are the writes of credentials, and the batches of their streams, that
	// are in the engine.
	deciding                 Limiter
	arriving, leaving, reads Budget
	// largeReads has the places of reads of much; see Read.
	largeReads  Budget
	connections connections
	visits      visits
	disk        disk
	accounts    *accounts

	refusals [boundCount][ownerCount]atomic.Uint64
	overload overload
}

// New returns a Controller. An error is about StoredFile.
func New(o Options) (*Controller, error) {
	c := &Controller{totals: o.Totals.withDefaults(), shares: o.Shares, logger: o.Logger}
	c.whole = Party{newShare(""), c.totals.whole()}
	c.connections.init(c)
	c.visits.init()
	c.disk.init(o.Disk, o.DiskReserve)
	var err error
	c.accounts, err = openAccounts(o.StoredFile, o.Logger)
	return c, err
}

// Close saves the stored bytes. Call it when nothing is stored any more.
func (c *Controller) Close() error { return c.accounts.close() }

// Shares reports whether credentials have shares.
func (c *Controller) Shares() bool { return c.shares }

// Totals returns the bounds of the server.
func (c *Controller) Totals() Totals { return c.totals }

// Party returns the party that a request is admitted for.
func (c *Controller) Party(share *Share, own Limits) Party {
	if !c.shares || share == nil {
		return c.whole
	}
	return Party{share, c.totals.share(own)}
}

// refuse counts a refusal and returns it.
func (c *Controller) refuse(ctx context.Context, b Bound, o Owner, retry time.Duration) error {
	c.refusals[b][o].Add(1)
	if o == OfServer || b == DiskReserve {
		c.overload.refuse(ctx, c.logger, b.String())
	}
	return &Refusal{b, o, retry}
}

// EngineFull records that the ledger refused a write because its own queue was full.
func (c *Controller) EngineFull(ctx context.Context) { c.overload.refuse(ctx, c.logger, "queue") }

// Refusals calls visit with how often each bound has refused something, cut it off, or
// slowed the writes of a stream.
func (c *Controller) Refusals(visit func(b Bound, o Owner, n uint64)) {
	for b := range boundCount {
		for _, o := range owners[b] {
			visit(b, o, c.refusals[b][o].Load())
		}
	}
}

// Request opens a request; leave closes it. The error is a *Refusal.
func (c *Controller) Request(ctx context.Context, p Party) (leave func(), err error) {
	own, err := c.OwnRequest(ctx, p)
	if err != nil {
		return nil, err
	}
	if !c.requests.Enter(c.totals.Requests) {
		own()
		return nil, c.refuse(ctx, Requests, OfServer, busyRetry)
	}
	return func() {
		c.requests.Leave()
		own()
	}, nil
}

// OwnRequest is Request for reading the metrics, which must be possible however busy the server
// is: only the credential's share applies.
func (c *Controller) OwnRequest(ctx context.Context, p Party) (leave func(), err error) {
	if !c.shares {
		return func() {}, nil
	}
	if !p.Share.requests.Enter(p.Limits.Requests) {
		return nil, c.refuse(ctx, Requests, OfCredential, busyRetry)
	}
	if err := c.begin(ctx, p); err != nil {
		p.Share.requests.Leave()
		return nil, err
	}
	return p.Share.requests.Leave, nil
}

// begin counts a request that begins. The error is a *Refusal.
func (c *Controller) begin(ctx context.Context, p Party) error {
	if wait := p.Share.requestPace.take(1, p.Limits.RequestsPerSecond, false); wait > 0 {
		return c.refuse(ctx, RequestsPerSecond, OfCredential, wait)
	}
	return nil
}

// Within admits a call that an admitted request makes in this process. The request and its first call count as one.
// Each further call counts as one more that begins, and as one more under way while another call of the request is.
// The error is a *Refusal.
func (c *Controller) Within(ctx context.Context, p Party) (leave func(), err error) {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return c.Request(ctx, p)
	}
	first := !v.called.Swap(true)
	if v.calling.Swap(true) {
		return c.Request(ctx, p)
	}
	if !first && c.shares {
		if err := c.begin(ctx, p); err != nil {
			v.calling.Store(false)
			return nil, err
		}
	}
	return func() { v.calling.Store(false) }, nil
}

// Stream opens a stream; leave closes it. The error is a *Refusal.
func (c *Controller) Stream(ctx context.Context, p Party) (leave func(), err error) {
	if !p.Share.streams.Enter(p.Limits.Streams) {
		return nil, c.refuse(ctx, Streams, c.owner(), busyRetry)
	}
	if !c.streams.Enter(c.totals.Streams) {
		p.Share.streams.Leave()
		return nil, c.refuse(ctx, Streams, OfServer, busyRetry)
	}
	return func() {
		c.streams.Leave()
		p.Share.streams.Leave()
	}, nil
}

// owner returns the owner of a party's limit.
func (c *Controller) owner() Owner {
	if c.shares {
		return OfCredential
	}
	return OfServer
}

// Probe admits a health check, however busy the server is: otherwise a busy server would look
// dead and be restarted. It is a visit, unless its caller was admitted before. Probes are
// counted, because the ledger must not be closed while a probe uses it.
func (c *Controller) Probe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.Visit(r.Context())
		c.probes.Enter(math.MaxInt)
		defer c.probes.Leave()
		next.ServeHTTP(w, r)
	})
}

// Read takes a place for a read that is building its answer. The returned function releases the
// place and may be called more than once. A credential's reads wait for each other and then,
// with those of other credentials, for a place of the server. No place waits for a client, so a
// wait is as long as the work ahead of it. The error is the cause of ctx.
//
// A large read, whose answer may fill a page, takes some ten milliseconds of a processor. A
// credential has one place for these, and together they leave one processor to all other requests.
func (c *Controller) Read(ctx context.Context, p Party, large bool) (done func(), err error) {
	own, ownLimit, all, allLimit := &p.Share.reads, int64(p.Limits.Reads), &c.reads, int64(maxReads)
	if large {
		own, all, allLimit = &p.Share.largeReads, &c.largeReads, maxLargeReads()
		if ownLimit = allLimit; c.shares {
			ownLimit = 1
		}
	}
	if err := own.Acquire(ctx, 1, ownLimit); err != nil {
		return nil, err
	}
	if err := all.Acquire(ctx, 1, allLimit); err != nil {
		own.Release(1)
		return nil, err
	}
	var returned atomic.Bool
	return func() {
		if !returned.Swap(true) {
			all.Release(1)
			own.Release(1)
		}
	}, nil
}

// maxLargeReads is how many large reads build their answers at the same time.
func maxLargeReads() int64 { return int64(max(1, runtime.GOMAXPROCS(0)-1)) }

// smallAnswer is the size up to which an answer needs no room: its request, which is bounded,
// takes as much memory.
const smallAnswer = 16 << 10

// MayAnswer returns a *Refusal if the party's share has no room for an answer of the given
// size, because building an answer in vain is as expensive as sending one. It takes no room.
func (c *Controller) MayAnswer(ctx context.Context, p Party, size int) error {
	if used := p.Share.leaving.Used(); used > 0 && used+2*int64(size) > int64(p.Limits.MessageBytes) {
		return c.refuse(ctx, AnswerBytes, c.owner(), busyRetry)
	}
	return nil
}

// TryAnswer takes room for an answer of the given size, until release is called, if there is
// enough. An answer takes its size twice: as a message and encoded.
func (c *Controller) TryAnswer(p Party, size int) (release func(), ok bool) {
	release, full := c.tryAnswer(p, size)
	return release, full == ownerCount
}

// tryAnswer returns the owner whose room is full, or ownerCount if there is room.
func (c *Controller) tryAnswer(p Party, size int) (release func(), full Owner) {
	if size <= smallAnswer {
		return func() {}, ownerCount
	}
	n := 2 * int64(size)
	if !p.Share.leaving.TryAcquire(n, int64(p.Limits.MessageBytes)) {
		return nil, c.owner()
	}
	return c.wholeAnswer(p, n)
}

// wholeAnswer takes from the total what was taken from the share.
func (c *Controller) wholeAnswer(p Party, n int64) (release func(), full Owner) {
	if !c.leaving.TryAcquire(n, maxMessageBytes) {
		p.Share.leaving.Release(n)
		return nil, OfServer
	}
	return func() {
		c.leaving.Release(n)
		p.Share.leaving.Release(n)
	}, ownerCount
}

// Answer is TryAnswer with a *Refusal if there is no room.
func (c *Controller) Answer(ctx context.Context, p Party, size int) (release func(), err error) {
	release, full := c.tryAnswer(p, size)
	if full != ownerCount {
		return nil, c.refuse(ctx, AnswerBytes, full, busyRetry)
	}
	return release, nil
}

// AwaitAnswer is Answer for a message of a stream, of more than a few KiB: it waits until
// messages on other streams of its credential are read. The error is a *Refusal if the server
// has no room, or the cause of ctx.
func (c *Controller) AwaitAnswer(ctx context.Context, p Party, size int) (release func(), err error) {
	n := 2 * int64(size)
	if err := p.Share.leaving.Acquire(ctx, n, int64(p.Limits.MessageBytes)); err != nil {
		return nil, err
	}
	release, full := c.wholeAnswer(p, n)
	if full != ownerCount {
		return nil, c.refuse(ctx, AnswerBytes, full, busyRetry)
	}
	return release, nil
}

// CommandOverhead is the memory of a write in the engine besides its operations, in bytes.
const CommandOverhead = 900

// Write admits a single write with the given bytes of operations to the engine, until done is
// called: when the write is decided and its stored bytes are counted, whether or not its caller
// still waits. The error is a *Refusal.
func (c *Controller) Write(ctx context.Context, p Party, bytes int) (done func(), err error) {
	return c.command(ctx, p, 1, bytes, c.mayStore)
}

// WriteAll is Write for the writes of one call, which are admitted or refused together.
func (c *Controller) WriteAll(ctx context.Context, p Party, writes, bytes int) (done func(), err error) {
	return c.command(ctx, p, writes, bytes, c.mayStore)
}

// Finish is Write for the end of something that was admitted before: what its owner has done must
// not be lost because the credential has used up its stored bytes meanwhile. So it may exceed them
// by up to finishRoom.
func (c *Controller) Finish(ctx context.Context, p Party, bytes int) (done func(), err error) {
	return c.command(ctx, p, 1, bytes, c.mayFinish)
}

// command admits commands for which room returns nil.
func (c *Controller) command(
	ctx context.Context, p Party, commands, bytes int, room func(context.Context, Party) error,
) (done func(), err error) {
	if !c.shares {
		return func() {}, room(ctx, p)
	}
	defer func() {
		if err != nil && bytes > freeBytes {
			p.Share.refusedLarge()
		}
	}()
	// The rate comes first, because a write for which there is no room is slowed, too: it has
	// arrived, and is looked for among those that are committed.
	if wait := p.Share.writePace.take(writeUnits(commands, bytes), p.Limits.WritesPerSecond, false); wait > 0 {
		return nil, c.refuse(ctx, WritesPerSecond, OfCredential, wait)
	}
	if err := room(ctx, p); err != nil {
		return nil, err
	}
	n := int64(bytes) + int64(commands)*CommandOverhead
	if !p.Share.queued.TryAcquire(n, maxQueuedBytes) {
		return nil, c.refuse(ctx, QueuedBytes, OfCredential, roomRetry)
	}
	return c.inEngine(p, n), nil
}

// inEngine counts a write in the engine until the returned function is called.
func (c *Controller) inEngine(p Party, n int64) (done func()) {
	c.deciding.Enter(math.MaxInt)
	return func() {
		p.Share.queued.Release(n)
		c.deciding.Leave()
	}
}

// mayWrite returns a *Refusal if a party's write, of which the given bytes are known so far,
// would be refused, unless it would be for lack of room: it may repeat a committed write, whose
// receipt needs none.
func (c *Controller) mayWrite(ctx context.Context, p Party, bytes int64) error {
	if !c.shares {
		return nil
	}
	if wait := p.Share.writePace.behind(p.Limits.WritesPerSecond); wait > 0 {
		return c.refuse(ctx, WritesPerSecond, OfCredential, wait)
	}
	if used := p.Share.queued.Used(); used > 0 && used+bytes+CommandOverhead > maxQueuedBytes {
		return c.refuse(ctx, QueuedBytes, OfCredential, roomRetry)
	}
	return nil
}

// Writes is Write for the writes of a stream. It waits for the credential's rate and for room,
// which only the credential's own writes can delay. hurry ends the wait for the rate, so that
// an ending stream does not take longer than necessary. done is nil if nothing is counted. The
// error is a *Refusal because of stored bytes, or the cause of ctx.
func (c *Controller) Writes(
	ctx context.Context, hurry <-chan struct{}, p Party, writes, bytes int,
) (done func(), err error) {
	if !c.shares {
		return nil, c.mayStore(ctx, p)
	}
	if wait := p.Share.writePace.take(writeUnits(writes, bytes), p.Limits.WritesPerSecond, true); wait > 0 {
		c.refusals[WritesPerSecond][OfCredential].Add(1)
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-hurry:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	// Check after the rate, so that refused writes are slowed too: reading them costs others as
	// much.
	if err := c.mayStore(ctx, p); err != nil {
		return nil, err
	}
	n := int64(bytes) + int64(writes)*CommandOverhead
	if err := p.Share.queued.Acquire(ctx, n, maxQueuedBytes); err != nil {
		return nil, err
	}
	return c.inEngine(p, n), nil
}

// DiskRoom reports whether less than the reserve is free on the disk, so that writes are refused, and whether at least
// twice the reserve is.
func (c *Controller) DiskRoom() (below, ample bool) {
	level := c.disk.level()
	return level == diskFull, level == diskRoomy
}

// mayStore returns why nothing more may be stored, or nil.
func (c *Controller) mayStore(ctx context.Context, p Party) error { return c.mayStoreBeyond(ctx, p, 0) }

// mayFinish is mayStore for the end of something that was admitted.
func (c *Controller) mayFinish(ctx context.Context, p Party) error {
	return c.mayStoreBeyond(ctx, p, finishRoom)
}

// mayStoreBeyond is mayStore for a party that may exceed its stored bytes by as many more.
func (c *Controller) mayStoreBeyond(ctx context.Context, p Party, more int64) error {
	level := c.disk.level()
	if level == diskFull {
		return c.refuse(ctx, DiskReserve, OfServer, diskRetry)
	}
	if c.shares && c.accounts.full(p, level, more) {
		return c.refuse(ctx, StoredBytes, OfCredential, fullRetry)
	}
	return nil
}

// Stored counts bytes that the disk keeps for a party.
func (c *Controller) Stored(p Party, bytes int) {
	if c.shares && bytes > 0 {
		c.accounts.add(p.Share, int64(bytes))
	}
}

// StoredBytes returns how many bytes were counted for a party.
func (c *Controller) StoredBytes(p Party) int64 {
	if !c.shares {
		return 0
	}
	return c.accounts.of(p.Share).bytes.Load()
}

// Gauges are what is in use.
type Gauges struct {
	Requests, Streams, Probes, Connections, UnknownConnections, Visits int64
	ArrivingBytes, AnswerBytes, Reads                                  int64
	// DiskLevel is 0 while there is room on the disk, 1 when less than twice the
	// reserve is free, and 2 when writes are refused.
	DiskLevel int64
}

// Gauges returns what is in use.
func (c *Controller) Gauges() Gauges {
	return Gauges{
		Requests: c.requests.Count(), Streams: c.streams.Count(), Probes: c.probes.Count(),
		Connections: c.connections.open.Count(), UnknownConnections: c.connections.unknownCount(),
		Visits: c.visits.count(), ArrivingBytes: c.arriving.Used(), AnswerBytes: c.leaving.Used(),
		Reads:     c.reads.Used() + c.largeReads.Used(),
		DiskLevel: int64(c.disk.level()),
	}
}

// Waiter reports whether a call of a party may wait for another one's reservation to end. If so,
// leave ends the wait.
func (c *Controller) Waiter(p Party) (leave func(), ok bool) {
	if !p.Share.waiters.Enter(p.Limits.Waiters) {
		return nil, false
	}
	return p.Share.waiters.Leave, true
}

// AwaitStreams returns once no stream is open, or the cause of ctx.
func (c *Controller) AwaitStreams(ctx context.Context) error { return c.streams.AwaitEmpty(ctx) }

// AwaitDecisions returns once no write of a credential is in the engine, or the cause of
// ctx. Without shares nothing is counted, and it returns at once.
func (c *Controller) AwaitDecisions(ctx context.Context) error { return c.deciding.AwaitEmpty(ctx) }

// AwaitRequests returns once no request is open, streams and probes included, or
// the cause of ctx.
func (c *Controller) AwaitRequests(ctx context.Context) error {
	if err := c.requests.AwaitEmpty(ctx); err != nil {
		return err
	}
	return c.AwaitProbes(ctx)
}

// AwaitProbes returns once no probe is open, or the cause of ctx.
func (c *Controller) AwaitProbes(ctx context.Context) error { return c.probes.AwaitEmpty(ctx) }
