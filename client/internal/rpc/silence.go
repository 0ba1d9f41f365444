package rpc

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
)

const (
	// SilenceAfter is how long a Client with several servers waits for an answer before it asks whether the
	// server is still there. A leader that was replaced within that time has lost nothing by the wait.
	SilenceAfter = time.Second
	// silenceFirst is how long a server may take to say that it is there. It doubles with each attempt that
	// failed, up to silenceMax, because the way to the server may be slow.
	silenceFirst = 2 * time.Second
	silenceMax   = 16 * time.Second
)

// errSilent ends an attempt at a server that did not say that it is there.
var errSilent = errors.New("the server does not answer, and neither does it say that it is there")

// ErrorOfSilence is the failure of an attempt at a server that IsSilent.
func ErrorOfSilence() *failure.Error {
	return failure.FromConnect(connect.NewError(connect.CodeUnavailable, errSilent), 0)
}

// MayLeave reports whether there are other servers to go to.
func (c *Client) MayLeave() bool { return len(c.endpoints.all) > 1 }

// hearing is what a server was last heard to say when it was asked whether it is there.
type hearing struct {
	turn   chan struct{} // has room for one; guards the others
	asked  time.Time
	silent bool
}

// IsSilent asks a server that is slow to answer whether it is there, and returns true if it says nothing. A process
// that is stopped, or a machine that is gone, would otherwise be waited for as long as the connections to it last,
// although another server leads by now. A server whose disk or queue is slow answers. attempt is how many
// attempts have failed before.
//
// To leave a server that is merely slow does no harm: what was sent to it is sent again with the same number.
func (e *Endpoint) IsSilent(ctx context.Context, attempt int) bool {
	select {
	case e.hearing.turn <- struct{}{}:
		defer func() { <-e.hearing.turn }()
	case <-ctx.Done():
		return false
	}
	if h := &e.hearing; time.Since(h.asked) >= SilenceAfter { // else another call has just asked
		silent := e.saysNothing(ctx, min(silenceMax, silenceFirst<<min(attempt, 10)))
		if ctx.Err() != nil {
			return false
		}
		h.asked, h.silent = time.Now(), silent
	}
	return e.hearing.silent
}

// saysNothing reports whether the server does not answer in time.
func (e *Endpoint) saysNothing(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.base.String()+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	// Any answer will do, also one of something before the server. An error is none, but not silence either: what
	// waits for the server will fail by itself.
	if answer, err := e.ask(r); err == nil {
		_ = answer.Body.Close() // only that it came is of interest
		return false
	}
	return ctx.Err() != nil
}

// guard returns the context of an attempt at a server that ends when the server is silent, if there are others.
// silent, which must be called after the attempt, returns whether it did.
func (c *Client) guard(ctx context.Context, e *Endpoint, attempt int) (guarded context.Context, silent func() bool) {
	if !c.MayLeave() {
		return ctx, func() bool { return false }
	}
	guarded, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(SilenceAfter, func() {
		for !e.IsSilent(guarded, attempt) {
			if Sleep(guarded, SilenceAfter) != nil {
				return
			}
		}
		cancel(errSilent)
	})
	return guarded, func() bool {
		timer.Stop()
		cancel(nil) // ends what the timer has begun
		return errors.Is(context.Cause(guarded), errSilent)
	}
}
