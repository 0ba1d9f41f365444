package rpc

import "sync/atomic"

// Counters hold what a Client counts; client.Counters describes them.
type Counters struct {
	CallRepeats, Streams, Sent, Committed, Refused, Unsettled, Fences atomic.Uint64
}
