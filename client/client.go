package client

import (
	"context"

	"github.com/seqledger/seqledger/client/internal/rpc"
)

// Client calls one ledger. It is safe for concurrent use. Close it after use.
type Client struct{ core *rpc.Client }

// New checks the options and returns a Client. The first call connects.
func New(options Options) (*Client, error) {
	core, err := rpc.New(rpc.Options(options))
	if err != nil {
		return nil, err
	}
	return &Client{core}, nil
}

// Core returns the part that other packages of the client share. Programs have no use for it.
func (c *Client) Core() *rpc.Client { return c.core }

// Close ends every Writer at once, without waiting for unanswered writes; use [Client.Shutdown] or the Close of a
// Writer to wait for them. It waits for every goroutine of the Client, but at most five seconds for a journal's disk
// that does not answer. Calls under way fail, because Close closes their connections. It does not close the connections
// of Options.HTTPClient, which belong to the caller. The error joins a *writer.UnsettledError for each Writer that had
// unsettled writes.
func (c *Client) Close() error { return c.core.Close() }

// Shutdown refuses new writes, waits until the submitted ones are settled or ctx ends, and
// closes the Client. The error is the one of Close.
func (c *Client) Shutdown(ctx context.Context) error { return c.core.Shutdown(ctx) }

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
	// Fences counts the sessions that Writers opened because a copy of a refused write could still be under way.
	Fences uint64
}

// Counters returns what the Client has done so far.
func (c *Client) Counters() Counters {
	n := &c.core.Counters
	return Counters{
		CallRepeats: n.CallRepeats.Load(), Streams: n.Streams.Load(), Sent: n.Sent.Load(),
		Committed: n.Committed.Load(), Refused: n.Refused.Load(), Unsettled: n.Unsettled.Load(),
		Fences: n.Fences.Load(),
	}
}
