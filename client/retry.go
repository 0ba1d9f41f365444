package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	backoffFirst = 10 * time.Millisecond
	backoffMax   = 2 * time.Second
	// A longer retry_after is reduced to this, so one bad answer cannot stop a Writer for a
	// day.
	retryAfterMax = time.Minute
)

// backoff returns how long to wait before repeat number attempt (from 0): exponential, with the
// upper half random, so that clients that failed together do not retry together.
func backoff(attempt int, retryAfter time.Duration) time.Duration {
	wait := backoffMax
	if attempt < 10 {
		wait = min(backoffMax, backoffFirst<<attempt)
	}
	wait = wait/2 + rand.N(wait/2+1)
	return max(wait, min(retryAfter, retryAfterMax))
}

// sleep waits for d or the end of ctx, whichever is first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call does one RPC, and repeats it until the answer is final or ctx ends. It sends the same
// message, and so the same bytes, every time. each, which may be nil, is called after every
// failed attempt with whether any of it may have been sent.
func call[Req, Res any](
	ctx context.Context, c *Client, method unary[Req, Res], request *Req, each func(sent bool, e *Error),
) (*Res, error) {
	var last *Error
	var renewal tokenRenewal
	for n := 0; ; n++ {
		if c.options.MaxAttempts > 0 && n == c.options.MaxAttempts {
			return nil, fmt.Errorf("no success after %d attempts: %w", n, last)
		}
		if err := c.mayCall(ctx, last); err != nil {
			return nil, err
		}
		e, a, message := c.endpoints.use(), new(attempt), connect.NewRequest(request)
		token, err := c.options.authorize(ctx, message.Header())
		if err != nil {
			return nil, err
		}
		response, err := method(withAttempt(ctx, a), e, message)
		if err == nil {
			return response.Msg, nil
		}
		last = errorFromCall(err, a)
		if each != nil {
			each(a.sent(), last)
		}
		if ctxErr := ctx.Err(); ctxErr != nil {
			return nil, fmt.Errorf("%w: %w", ctxErr, last)
		}
		if !last.worthRetrying() && !renewal.allows(ctx, &c.options, token, last) {
			return nil, last
		}
		if err := c.pause(ctx, e, n, last); err != nil {
			return nil, err
		}
	}
}

// mayCall returns why no further attempt can be made, or nil. last is the answer to the
// previous attempt, nil for the first.
func (c *Client) mayCall(ctx context.Context, last *Error) error {
	err := ctx.Err()
	if err == nil && c.ctx.Err() != nil {
		err = ErrClosed
	}
	if err != nil && last != nil {
		return fmt.Errorf("%w, last answer: %w", err, last)
	}
	return err
}

// tokenRenewal allows one repeat of a call whose token was refused. A Token function may make a
// new token each time it is called, so without a bound an unauthenticated caller would repeat
// for ever.
type tokenRenewal struct{ used bool }

// allows reports whether Options.Token returns another token than the one that was just
// refused. It returns true at most once.
func (r *tokenRenewal) allows(ctx context.Context, o *Options, refused string, e *Error) bool {
	if r.used || o.Token == nil || !e.Is(ErrUnauthenticated) {
		return false
	}
	token, err := o.authorize(ctx, make(http.Header))
	r.used = err == nil && token != refused
	return r.used
}

// pause waits before repeat number n (from 0) of a call that an endpoint did not take. The
// first round over the servers has no wait.
func (c *Client) pause(ctx context.Context, e *endpoint, n int, last *Error) error {
	c.counters.callRepeats.Add(1)
	c.options.Logger.DebugContext(ctx, "a call is repeated", "server", e.base.Host, "reason", last)
	servers := len(c.endpoints.all)
	if last.isElsewhere() {
		c.endpoints.moveOn(e, last.LeaderAddress)
		if n%servers < servers-1 {
			return nil
		}
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	_ = sleep(waiting, backoff(n/servers, last.RetryAfter))
	return c.mayCall(ctx, last)
}

// isElsewhere reports whether another server may take a call that this one did not.
func (e *Error) isElsewhere() bool {
	switch e.Code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING:
		return true
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return e.worthRetrying() && e.ConnectCode != connect.CodeResourceExhausted
	}
	return false
}
