package s3

import (
	"context"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/bucket"
)

const (
	tokensName    = "idempotency-tokens.json"
	tokensTimeout = 10 * time.Second
	tokensPause   = 50 * time.Millisecond // maximum pause after losing a race
)

// tokens draws fencing tokens, by compare-and-swap, from an object that holds the last one. Callers that arrive during
// a swap share the next one.
type tokens struct {
	objects *bucket.Objects
	timeout time.Duration // of a swap
	leader  chan struct{} // holds a value during a swap

	mu      sync.Mutex
	waiting []*tokenCall

	// State after the last swap, for the leader.
	last uint64
	etag string
}

// tokenCall is a call waiting for its token.
type tokenCall struct {
	done  chan struct{} // closed when token and err are set
	token uint64
	err   error
}

func newTokens(o *bucket.Objects) *tokens {
	return &tokens{objects: o, timeout: tokensTimeout, leader: make(chan struct{}, 1)}
}

// next returns a token higher than all tokens returned, in any process, before the call.
func (t *tokens) next(ctx context.Context) (uint64, error) {
	call := &tokenCall{done: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, call)
	t.mu.Unlock()
	select {
	case t.leader <- struct{}{}:
		// Ends with the swap, after timeout at the latest. The swap does not end with this call's context, because it
		// also serves other callers, which would have to wait for a new swap. Otherwise this call would have to wait
		// for it, too.
		go func() {
			t.lead(ctx)
			<-t.leader
		}()
	case <-call.done:
	case <-ctx.Done():
		return 0, ctx.Err() // its token, if it gets one, is never used
	}
	select {
	case <-call.done:
		return call.token, call.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// lead draws tokens for all waiting callers. They must not fail when the context of this caller ends.
func (t *tokens) lead(ctx context.Context) {
	t.mu.Lock()
	calls := t.waiting
	t.waiting = nil
	t.mu.Unlock()
	if len(calls) == 0 {
		return // an earlier leader has served them
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.timeout)
	defer cancel()
	first, err := t.draw(ctx, uint64(len(calls)))
	for i, call := range calls {
		call.token, call.err = first+uint64(i), err
		close(call.done)
	}
}

// counter is the content of the object.
type counter struct {
	Last uint64 `json:"last"`
}

// draw adds n to the last token and returns the first of the new ones.
func (t *tokens) draw(ctx context.Context, n uint64) (first uint64, err error) {
	for known := t.etag != ""; ; known = false {
		if !known { // otherwise the swap fails if another process was first
			if err := t.read(ctx); err != nil {
				return 0, err
			}
		}
		body, err := json.Marshal(counter{t.last + n})
		if err != nil {
			return 0, err
		}
		written, etag, err := t.objects.Put(ctx, tokensName, t.etag, body)
		if err != nil {
			t.etag = "" // unknown whether it was written
			return 0, err
		}
		if written {
			first, t.last, t.etag = t.last+1, t.last+n, etag
			return first, nil
		}
		if known {
			continue
		}
		select {
		case <-time.After(mathrand.N(tokensPause)):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// read reads the object; an absent one has the ETag "".
func (t *tokens) read(ctx context.Context) error {
	body, etag, now, err := t.objects.Get(ctx, tokensName)
	if err != nil {
		return err
	}
	var c counter
	if etag != "" {
		if err := json.Unmarshal(body, &c); err != nil || c.Last == 0 {
			return fmt.Errorf("%w: the object %s", idempotency.ErrDamaged, tokensName)
		}
	}
	// Never behind the time, so that tokens grow even if the object was deleted, or is an old one from a backup.
	t.last, t.etag = max(c.Last, uint64(now.UnixMicro())), etag
	return nil
}
