package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
)

const (
	backoffFirst = 10 * time.Millisecond
	backoffMax   = 2 * time.Second
	// A server's retry_after beyond this is taken for nonsense, so that one
	// bad answer cannot put a Writer to sleep for a day.
	retryAfterMax = time.Minute
)

// backoff returns how long to wait before repeat number attempt (from 0):
// exponential, with the upper half random, so that clients which failed
// together do not come back together.
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

// unary is a generated client method.
type unary[Req, Res any] func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// call does one RPC with bounded repeats. The request is the same message every
// time, so its bytes are too.
func call[Req, Res any](ctx context.Context, c *Client, method unary[Req, Res], request *Req) (*Res, error) {
	var last *Error
	for attempt := range c.options.MaxAttempts {
		if attempt > 0 {
			if err := sleep(ctx, backoff(attempt-1, last.RetryAfter)); err != nil {
				return nil, fmt.Errorf("%w, last answer: %w", err, last)
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		switch closed := c.ctx.Err() != nil; {
		case closed && last != nil:
			return nil, fmt.Errorf("%w, last answer: %w", ErrClosed, last)
		case closed:
			return nil, ErrClosed // nothing was sent
		}
		response, err := method(ctx, connect.NewRequest(request))
		if err == nil {
			return response.Msg, nil
		}
		last = errorFromConnect(err)
		if ctxErr := ctx.Err(); ctxErr != nil {
			return nil, fmt.Errorf("%w: %w", ctxErr, last)
		}
		if !last.worthRetrying() {
			return nil, last
		}
	}
	return nil, fmt.Errorf("gave up after %d attempts: %w", c.options.MaxAttempts, last)
}
