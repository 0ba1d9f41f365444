package admission

import (
	"cmp"
	"math"
	"time"

	"github.com/seqledger/seqledger/internal/listen"
)

// Limits are one credential's share of the bounds of a server. A field that is 0
// has its default: a quarter of what the server has, so that four credentials that
// use all they may do not meet; no limit for RequestsPerSecond, and none for StoredBytes
// while the disk has room.
type Limits struct {
	// Requests under way at once, streams included.
	Requests int `json:"requests,omitempty"`
	// RequestsPerSecond, counted when they begin. A stream counts once, whatever
	// is sent on it. A second's worth may come at once.
	RequestsPerSecond int `json:"requestsPerSecond,omitempty"`
	// Streams (WriteStream, Watch and other streaming calls) open at once.
	Streams int `json:"streams,omitempty"`
	// Connections open at once. A connection belongs to the credential of its first
	// request.
	Connections int `json:"connections,omitempty"`
	// MessageBytes is the memory for messages larger than a few KiB, in each direction.
	MessageBytes int `json:"messageBytes,omitempty"`
	// Reads that build their answers at the same time. Of reads whose answer may fill a page
	// (listings, blocks, windows of receipts) there is never more than one.
	Reads int `json:"reads,omitempty"`
	// WritesPerSecond, those on a WriteStream included. A write of more than a KiB
	// counts once for each whole KiB. A second's worth may come at once.
	WritesPerSecond int `json:"writesPerSecond,omitempty"`
	// StoredBytes is how many bytes of disk the credential's commands may take, in all time.
	StoredBytes int `json:"storedBytes,omitempty"`
	// Keys is how many keyed records each principal of the credential may have in a scope.
	Keys int `json:"keys,omitempty"`
	// Waiters are the Reserves that wait at once for other owners. Further ones that would wait are refused at
	// once.
	Waiters int `json:"waiters,omitempty"`
}

// shares is the number of credentials that the defaults are for.
const shares = 4

// Totals are the bounds of a server. A field that is 0 has its default.
type Totals struct {
	Requests, Streams, Connections int
	// PrincipalKeys is how many keyed records each principal may have in a scope on a server
	// without access control; 0 means no bound.
	PrincipalKeys int
}

const (
	// maxRequests bounds the requests; each takes some 25 KB and may be runnable: a quarter of
	// them, one credential's share, delays others by some ten milliseconds.
	maxRequests = 4_096
	maxStreams  = 1_024
	// maxMessageBytes is the memory for large messages, in each direction.
	maxMessageBytes = 128 << 20
	// MinMessageBytes is a credential's minimum of it: room for the largest message,
	// compressed.
	MinMessageBytes = 24 << 20
	// maxReads is how many reads build their answers at the same time. A read that is sending
	// its answer does not count.
	maxReads = 32
	// maxWritesPerSecond is more than a server on two cores takes from the network. It only
	// defines the default share, a quarter of it.
	maxWritesPerSecond = 100_000
	// writeUnit is how many bytes of a write count as one write: the cost of a large write
	// grows with its size.
	writeUnit = 1 << 10
	// maxQueuedBytes bounds one credential's writes in the engine, with their overhead. It is
	// small, because another credential's next write waits behind all of it.
	maxQueuedBytes = 2 << 20
	// largeRefusals is how many large writes of one credential a second are refused at once. The
	// bodies of those that follow are read later, by up to maxSlowed: a client that repeats them
	// without a pause would otherwise have the server read hundreds of megabytes a second that it
	// refuses.
	largeRefusals = 64
	maxSlowed     = time.Second
	// maxKeys bounds the default share of keyed records, of some 300 bytes each.
	maxKeys = 4_000_000
	// maxWaiters is as many as the ledger lets wait.
	maxWaiters = 10_000
)

// withDefaults replaces zero fields by their defaults.
func (t Totals) withDefaults() Totals {
	if t.Requests == 0 {
		t.Requests = maxRequests
	}
	if t.Streams == 0 {
		t.Streams = maxStreams
	}
	if t.Connections == 0 {
		t.Connections = listen.Connections().Clients
	}
	return t
}

// writeUnits returns how many units a number of writes with the given total bytes counts as.
func writeUnits(writes, bytes int) int { return max(writes, bytes/writeUnit) }

// share fills in a credential's limits. No share is larger than the total.
func (t Totals) share(l Limits) Limits {
	part := func(own *int, total int) {
		if *own == 0 {
			*own = max(1, total/shares)
		}
		*own = min(*own, total)
	}
	part(&l.Requests, t.Requests)
	part(&l.Streams, t.Streams)
	part(&l.Connections, t.Connections)
	part(&l.MessageBytes, maxMessageBytes)
	part(&l.Reads, maxReads)
	if l.Keys == 0 {
		l.Keys = maxKeys / shares
	}
	part(&l.Waiters, maxWaiters)
	if l.WritesPerSecond == 0 {
		l.WritesPerSecond = maxWritesPerSecond / shares
	}
	return l
}

// WithDefaults returns the limits that a credential has on a server with the default
// bounds.
func WithDefaults(l Limits) Limits { return Totals{}.withDefaults().share(l) }

// whole returns the limits of callers on a server without access control: all callers share the
// totals.
func (t Totals) whole() Limits {
	return Limits{
		Requests: t.Requests, Streams: t.Streams, Connections: t.Connections,
		MessageBytes: maxMessageBytes, Reads: maxReads, Keys: cmp.Or(t.PrincipalKeys, math.MaxInt), Waiters: maxWaiters,
	}
}
