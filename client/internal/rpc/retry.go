package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
)

const (
	backoffFirst = 10 * time.Millisecond
	backoffMax   = 2 * time.Second
	// backoffShort is the last round with a short wait, of 80 to 160 ms, where there are several servers. It is
	// repeated shortRounds times before the waits grow.
	backoffShort = 4
	shortRounds  = 20
	// A longer retry_after is reduced to this, so that one bad answer cannot stop a Writer for a day.
	retryAfterMax = time.Minute
	// TokenPatience is how long the ledger must refuse the token before the refusal is final, because
	// the token may be renewed, or an operator may restore a key that was removed by mistake.
	TokenPatience = time.Minute
)

// Backoff returns how long to wait before repeat number attempt (from 0): exponential, with the
// upper half random, so that clients that failed together do not retry together.
func Backoff(attempt int, retryAfter time.Duration) time.Duration {
	wait := backoffMax
	// Bounded, otherwise the shift would overflow after many attempts.
	if attempt < 10 {
		wait = min(backoffMax, backoffFirst<<attempt)
	}
	wait = wait/2 + rand.N(wait/2+1)
	return max(wait, min(retryAfter, retryAfterMax))
}

// Backoff returns how long to wait after a number of failed attempts at the servers of a Client. The wait grows with
// each round over the servers, because the failure of one server does not predict that of another. With several servers
// the first rounds have short waits and last several times as long as an election.
func (c *Client) Backoff(attempts int, retryAfter time.Duration) time.Duration {
	servers := len(c.endpoints.all)
	round := attempts / servers
	if servers > 1 {
		round = min(round, max(backoffShort, round-shortRounds))
	}
	return Backoff(round, retryAfter)
}

// Sleep waits for d or the end of ctx, whichever is first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type lostKey struct{}

// WithLost returns a context for a Call that sets lost if one of its attempts may have been executed without an answer.
// The answer to a later attempt does not show that.
func WithLost(ctx context.Context, lost *bool) context.Context {
	return context.WithValue(ctx, lostKey{}, lost)
}

// noteLost sets the flag of WithLost. A server that was too busy for the call has done nothing.
func noteLost(ctx context.Context, sent bool, e *failure.Error) {
	lost, asked := ctx.Value(lostKey{}).(*bool)
	full := e.IsWire() && e.ConnectCode == connect.CodeResourceExhausted
	if asked && sent && e.IsOpen() && !full {
		*lost = true
	}
}

// Unary is a method of a service on one server, such as (*Endpoint).GetEntity.
type Unary[Req, Res any] func(*Endpoint, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// Call does one RPC, and repeats it until the answer is final or ctx ends. It sends the same
// message, and so the same bytes, every time. each, which may be nil, is called after every
// failed attempt with whether any of it may have been sent.
func Call[Req, Res any](
	ctx context.Context, c *Client, method Unary[Req, Res], request *Req, each func(sent bool, e *failure.Error),
) (*Res, error) {
	var last *failure.Error
	var renewal TokenRenewal
	stale, _ := ctx.Value(staleReadKey{}).(*StaleRead)
	var others []*Endpoint // that refused the call one after the other, because they have another ledger
	for n := 0; ; n++ {
		if c.Options.MaxAttempts > 0 && n == c.Options.MaxAttempts {
			return nil, fmt.Errorf("no success after %d attempts: %w", n, last)
		}
		if err := c.mayCall(ctx, last); err != nil {
			return nil, err
		}
		e, a, message := c.endpoints.use(), new(Attempt), connect.NewRequest(request)
		token, err := c.Options.Authorize(ctx, message.Header())
		if err != nil {
			return nil, err
		}
		stale.ask(message.Header())
		guarded, silent := c.guard(ctx, e, n)
		response, err := method(e, WithAttempt(guarded, a), message)
		if left := silent(); err == nil {
			stale.learn(response.Header())
			return response.Msg, nil
		} else if last = FromCall(err, a); left {
			last = ErrorOfSilence()
		}
		if each != nil {
			each(a.sent(), last)
		}
		noteLost(ctx, a.sent(), last)
		if ctxErr := ctx.Err(); ctxErr != nil {
			return nil, fmt.Errorf("%w: %w", ctxErr, last)
		}
		if others = withOther(others, e, last); len(others) == len(c.endpoints.all) {
			return nil, last
		}
		if !last.IsTemporary() && !renewal.Allows(ctx, &c.Options, token, last) {
			return nil, last
		}
		if err := c.Pause(ctx, e, n, last); err != nil {
			return nil, err
		}
	}
}

// withOther adds a server to those that have another ledger. It forgets them all when the server failed for another
// reason, because that server may have the right ledger.
func withOther(others []*Endpoint, e *Endpoint, failed *failure.Error) []*Endpoint {
	switch {
	case !errors.Is(failed, failure.ErrOtherLedger):
		return nil
	case slices.Contains(others, e):
		return others
	}
	return append(others, e)
}

// mayCall returns why no further attempt can be made, or nil. last is the answer to the
// previous attempt, nil for the first.
func (c *Client) mayCall(ctx context.Context, last *failure.Error) error {
	err := ctx.Err()
	if err == nil && c.ctx.Err() != nil {
		err = failure.ErrClosed
	}
	if err != nil && last != nil {
		return fmt.Errorf("%w, last answer: %w", err, last)
	}
	return err
}

// TokenRenewal allows one repeat of a call whose token was refused. A Token function may return a new token on every
// call, so without a bound an unauthenticated caller would never stop.
type TokenRenewal struct{ used bool }

// Allows reports whether Options.Token returns another token than the one that was just
// refused. It returns true at most once.
func (r *TokenRenewal) Allows(ctx context.Context, o *Options, refused string, e *failure.Error) bool {
	if r.used || o.Token == nil || !e.Is(failure.ErrUnauthenticated) {
		return false
	}
	token, err := o.Authorize(ctx, make(http.Header))
	r.used = err == nil && token != refused
	return r.used
}

// Pause waits before repeat number n (from 0) of a call that an endpoint did not take. The
// first round over the servers has no wait.
func (c *Client) Pause(ctx context.Context, e *Endpoint, n int, last *failure.Error) error {
	c.Counters.CallRepeats.Add(1)
	c.Options.Logger.DebugContext(ctx, "a call is repeated", "server", e.base.Host, "reason", last)
	servers := len(c.endpoints.all)
	if last.IsElsewhere() {
		c.endpoints.moveOn(e, last.LeaderAddress)
		if n%servers < servers-1 {
			return nil
		}
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	_ = Sleep(waiting, c.Backoff(n, last.RetryAfter))
	return c.mayCall(ctx, last)
}

// FromCall converts the error of one attempt at a call.
func FromCall(err error, a *Attempt) *failure.Error {
	return failure.FromConnect(err, int(a.status.Load()))
}

// ProtocolError describes an answer that cannot be right.
func ProtocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", failure.ErrProtocol, fmt.Sprintf(format, args...))
}
