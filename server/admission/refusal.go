package admission

import (
	"fmt"
	"time"
)

// Bound names a bound. A bound that the auth file can set has the name of its field.
type Bound uint8

// The bounds. The package's documentation says what each is.
const (
	Requests Bound = iota
	RequestsPerSecond
	Streams
	Connections
	MessageBytes
	AnswerBytes
	WritesPerSecond
	QueuedBytes
	StoredBytes
	DiskReserve
	Unauthenticated
	boundCount
)

var boundNames = [boundCount]string{
	"requests", "requests_per_second", "streams", "connections", "message_bytes", "answer_bytes",
	"writes_per_second", "queued_bytes", "stored_bytes", "disk_reserve", "unauthenticated",
}

// String returns the bound as metrics and messages name it.
func (b Bound) String() string { return boundNames[b] }

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

// owners are those whose bound there is.
var owners = [boundCount][]Owner{
	Requests: {OfServer, OfCredential}, RequestsPerSecond: {OfCredential}, Streams: {OfServer, OfCredential},
	Connections: {OfServer, OfCredential, OfAddress}, MessageBytes: {OfServer, OfCredential},
	AnswerBytes: {OfServer, OfCredential}, WritesPerSecond: {OfCredential}, QueuedBytes: {OfCredential},
	StoredBytes: {OfCredential}, DiskReserve: {OfServer}, Unauthenticated: {OfServer, OfAddress, OfConnection},
}

// Refusal reports that something was refused because of a bound, and that nothing was done.
type Refusal struct {
	Bound Bound
	Owner Owner
	// RetryAfter is when to try again: exact for a rate, otherwise an estimate.
	RetryAfter time.Duration
}

// refusalTexts describe the bounds in messages.
var refusalTexts = [boundCount]string{
	Requests:          "requests under way",
	RequestsPerSecond: "requests a second",
	Streams:           "open streams",
	Connections:       "open connections",
	MessageBytes:      "memory for large messages",
	AnswerBytes:       "memory for answers that have not been read",
	WritesPerSecond:   "writes a second",
	QueuedBytes:       "writes that wait for the log",
	Unauthenticated:   "requests of unknown callers",
}

// Error implements error.
func (r *Refusal) Error() string {
	switch {
	case r.Bound == DiskReserve:
		return "the disk of the ledger has less free space than it keeps in reserve; " +
			"writes go on when there is more, and nothing was done: try again later"
	case r.Bound == StoredBytes:
		return "the credential has stored as many bytes as it may (stored_bytes); nothing was done"
	case r.Owner == OfCredential:
		return fmt.Sprintf("the credential has reached its limit of %s (%s); nothing was done: try again later",
			refusalTexts[r.Bound], r.Bound)
	}
	return fmt.Sprintf("the server has as much as it can take of %s; nothing was done: try again later",
		refusalTexts[r.Bound])
}

// When to try again. The end of requests under way is not known; a disk fills and empties
// within minutes.
const (
	busyRetry = 100 * time.Millisecond
	roomRetry = 50 * time.Millisecond
	diskRetry = 10 * time.Second
	fullRetry = time.Minute
)
