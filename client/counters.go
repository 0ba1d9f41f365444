package client

import "sync/atomic"

// Counters count what a Client has done since it was created.
type Counters struct {
	// CallRepeats counts the repeats of calls, opened sessions included.
	CallRepeats uint64
	// Streams counts the write streams that were opened, the first one included.
	Streams uint64
	// Sent counts the writes that were sent on write streams, including repeats.
	Sent uint64
	// Committed, Refused and Unsettled count the writes of Writers by their outcome: with a
	// receipt, not executed, and ended without an outcome.
	Committed, Refused, Unsettled uint64
	// Fences counts the sessions that Writers opened because a copy of a refused write
	// could still be under way.
	Fences uint64
}

// counters holds the Counters of a Client, for concurrent use.
type counters struct {
	callRepeats, streams, sent, committed, refused, unsettled, fences atomic.Uint64
}

// Counters returns what the Client has done so far.
func (c *Client) Counters() Counters {
	n := &c.counters
	return Counters{
		CallRepeats: n.callRepeats.Load(), Streams: n.streams.Load(), Sent: n.sent.Load(),
		Committed: n.committed.Load(), Refused: n.refused.Load(), Unsettled: n.unsettled.Load(),
		Fences: n.fences.Load(),
	}
}
