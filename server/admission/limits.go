package admission

import (
	"cmp"
	"math"
	"runtime"
	"time"

	"github.com/seqledger/seqledger/internal/listen"
)

// Limits are one credential's share of the bounds of a server. A field that is 0 has its default: a quarter of the
// total, so that four credentials that use their whole shares do not affect each other. RequestsPerSecond, and
// StoredBytes while the disk has space, have no limit by default.
type Limits struct {
	// Requests under way at once, streams included.
	Requests int `json:"requests,omitempty"`
	// RequestsPerSecond, counted when they begin. A stream counts once, whatever is sent on it. A second's worth may
	// come at once.
	RequestsPerSecond int `json:"requestsPerSecond,omitempty"`
	// Streams (WriteStream, Watch and other streaming calls) open at once.
	Streams int `json:"streams,omitempty"`
	// Connections open at once. A connection belongs to the credential of its first request.
	Connections int `json:"connections,omitempty"`
	// MessageBytes is the memory for messages larger than a few KiB, in each direction.
	MessageBytes int `json:"messageBytes,omitempty"`
	// Reads that build their answers at the same time. At most one of them is large (a listing, a block, a window of
	// receipts).
	Reads int `json:"reads,omitempty"`
	// WritesPerSecond, those on a WriteStream included. A write of more than a KiB counts once for each whole KiB. A
	// second's worth may come at once.
	WritesPerSecond int `json:"writesPerSecond,omitempty"`
	// StoredBytes is how many bytes of disk the credential's commands may take in total.
	StoredBytes int `json:"storedBytes,omitempty"`
	// Keys is how many keyed records each principal of the credential may have in a scope.
	Keys int `json:"keys,omitempty"`
	// Waiters are the Reserves that wait at once for other owners. Further ones are refused instead of waiting.
	Waiters int `json:"waiters,omitempty"`
}

// shares is the number of credentials that the defaults are for.
const shares = 4

const (
	// maxRequests bounds the requests; each takes some 25 KB and may be runnable: a quarter of them, one credential's
	// share, delays others by some ten milliseconds.
	maxRequests = 4_096
	maxStreams  = 1_024
	// maxMessageBytes is the memory for large messages, in each direction.
	maxMessageBytes = 128 << 20
	// MinMessageBytes is a credential's minimum of it: enough for the largest message, compressed.
	MinMessageBytes = 24 << 20
	// maxReads is how many reads build their answers at the same time. A read that is sending its answer does not
	// count.
	maxReads = 32
	// maxWritesPerSecond is more than a server on two cores takes from the network. It only defines the default share.
	maxWritesPerSecond = 100_000
	// writeUnit is how many bytes of a write count as one write: the cost of a large write grows with its size.
	writeUnit = 1 << 10
	// maxQueuedBytes bounds one credential's writes in the engine, with their overhead. It is small, because another
	// credential's next write waits for all of it.
	maxQueuedBytes = 2 << 20
	// CommandOverhead is the memory of a write in the engine in addition to its operations, in bytes.
	CommandOverhead = 900
	// largeRefusals is how many large writes of one credential per second are refused at once. The bodies of further
	// ones are read later, by up to maxSlowed: a client that repeats them without a pause would otherwise have the
	// server read hundreds of megabytes per second that it refuses.
	largeRefusals = 64
	maxSlowed     = time.Second
	// maxKeys bounds the default share of keyed records, of some 300 bytes each.
	maxKeys = 4_000_000
	// maxWaiters is as many as the ledger lets wait.
	maxWaiters = 10_000
)

// totals returns the bounds of a server; 0 is the default.
func totals(requests, streams, connections int) Limits {
	return Limits{
		Requests: cmp.Or(requests, maxRequests), Streams: cmp.Or(streams, maxStreams),
		Connections:  cmp.Or(connections, listen.Connections().Clients),
		MessageBytes: maxMessageBytes, Reads: maxReads, Waiters: maxWaiters,
	}
}

// share fills in a credential's limits, which are at most the totals.
func (l Limits) share(total *Limits) Limits {
	part := func(own *int, total int) { *own = min(cmp.Or(*own, max(1, total/shares)), total) }
	part(&l.Requests, total.Requests)
	part(&l.Streams, total.Streams)
	part(&l.Connections, total.Connections)
	part(&l.MessageBytes, total.MessageBytes)
	part(&l.Reads, total.Reads)
	part(&l.Waiters, total.Waiters)
	l.Keys = cmp.Or(l.Keys, maxKeys/shares)
	l.WritesPerSecond = cmp.Or(l.WritesPerSecond, maxWritesPerSecond/shares)
	return l
}

// WithDefaults returns the limits that a credential has on a server with the default bounds.
func WithDefaults(l Limits) Limits {
	total := totals(0, 0, 0)
	return l.share(&total)
}

// of returns the limit of a bound on what is in use; math.MaxInt64 for none. Those of queued bytes, large reads
// and decodes cannot be configured.
func (l *Limits) of(b Bound) int64 {
	switch b {
	case Requests:
		return int64(l.Requests)
	case Streams:
		return int64(l.Streams)
	case Connections:
		return int64(l.Connections)
	case MessageBytes, AnswerBytes:
		return int64(l.MessageBytes)
	case Reads:
		return int64(l.Reads)
	case LargeReads, Decodes:
		return maxLargeWork()
	case Waiters:
		return int64(l.Waiters)
	}
	return math.MaxInt64
}

// maxLargeWork leaves one processor to all other requests.
func maxLargeWork() int64 { return int64(max(1, runtime.GOMAXPROCS(0)-1)) }

// total returns how many units of a bound all callers may have in use.
func (c *Controller) total(b Bound) int64 { return c.totals.of(b) }

// limit returns how many units of a bound a party may have in use.
func (c *Controller) limit(p Party, b Bound) int64 {
	switch {
	case b == QueuedBytes:
		return maxQueuedBytes
	case (b == LargeReads || b == Decodes) && c.shares:
		return 1
	}
	return p.Limits.of(b)
}

// writeUnits returns how many units a number of writes with the given total bytes counts as.
func writeUnits(writes, bytes int) int { return max(writes, bytes/writeUnit) }
