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
	// SilenceAfter is how long a Client with several servers waits for an answer before it probes the server. An
	// election takes as long.
	SilenceAfter = time.Second
	// silenceFirst is the timeout of a probe. It doubles with each failed attempt, up to silenceMax, because the
	// network may be slow.
	silenceFirst = 2 * time.Second
	silenceMax   = 16 * time.Second
)

// errSilent ends an attempt at a server that does not answer a probe either.
var errSilent = errors.New("the server answers neither the call nor a health check")

// ErrorOfSilence is the failure of an attempt at a server that IsSilent.
func ErrorOfSilence() *failure.Error {
	return failure.FromConnect(connect.NewError(connect.CodeUnavailable, errSilent), 0)
}

// MayLeave reports whether there are other servers to go to.
func (c *Client) MayLeave() bool { return len(c.endpoints.all) > 1 }

// hearing is the result of the last probe of a server.
type hearing struct {
	turn   chan struct{} // a mutex that a context can interrupt; guards the other fields
	asked  time.Time
	silent bool
}

// IsSilent probes a server that is slow to answer, and returns true if the probe gets no answer. Without it a call to a
// stopped process or a vanished machine would last as long as the connection, although another server leads by now. A
// server whose disk or queue is slow answers the probe. attempt is the number of failed attempts so far.
//
// Leaving a server that is merely slow does no harm, because the call is repeated under the same number.
func (e *Endpoint) IsSilent(ctx context.Context, attempt int) bool {
	select {
	case e.hearing.turn <- struct{}{}:
		defer func() { <-e.hearing.turn }()
	case <-ctx.Done():
		return false
	}
	if h := &e.hearing; time.Since(h.asked) >= SilenceAfter { // otherwise another call has just probed
		silent := e.ignoresProbe(ctx, min(silenceMax, silenceFirst<<min(attempt, 10)))
		if ctx.Err() != nil {
			return false
		}
		h.asked, h.silent = time.Now(), silent
	}
	return e.hearing.silent
}

// ignoresProbe reports whether the server does not answer a health check in time.
func (e *Endpoint) ignoresProbe(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.base.String()+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	// Any answer will do, even that of an intermediary. An error is not silence: the call itself will fail, too.
	if answer, err := e.ask(r); err == nil {
		_ = answer.Body.Close()
		return false
	}
	return ctx.Err() != nil
}

// guard returns a context for an attempt at a server. With several servers it ends when the server is silent. silent
// must be called after the attempt and reports whether that happened.
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
