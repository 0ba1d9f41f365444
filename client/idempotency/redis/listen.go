package redis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency/internal/waiters"
)

// relisten is the pause after a subscription broke.
const relisten = time.Second

// errNotListening makes a caller poll.
var errNotListening = errors.New("there is no subscription to notifications")

// listener wakes waiting callers on notifications. It subscribes when the first caller waits.
type listener struct {
	client  *redis.Client
	channel string

	waiters waiters.Set
	hearing atomic.Bool // the subscription is in place

	mu     sync.Mutex
	start  bool
	closed bool
	ctx    context.Context //nolint:containedctx // The life of the listener, which close ends.
	cancel context.CancelFunc
	joined sync.WaitGroup
}

func newListener(client *redis.Client, channel string) *listener {
	l := &listener{client: client, channel: channel}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// close ends the listener and waits for it.
func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.joined.Wait()
	l.waiters.WakeAll()
}

// wait registers a caller for the notifications of a key; see [waiters.Set.Add].
func (l *listener) wait(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	l.mu.Lock()
	if !l.start && !l.closed {
		l.start = true
		// Ended and waited for by close.
		l.joined.Go(l.run)
	}
	l.mu.Unlock()
	if !l.hearing.Load() {
		return nil, nil, errors.Join(errNotListening, ctx.Err())
	}
	return l.waiters.Add(key)
}

// run listens until close, over one subscription after another.
func (l *listener) run() {
	for l.ctx.Err() == nil {
		l.listen()
		l.hearing.Store(false)
		l.waiters.WakeAll()
		timer := time.NewTimer(relisten)
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
		}
	}
}

// listen wakes callers until its connection breaks. Callers poll meanwhile and afterwards, so that its
// errors need no report.
func (l *listener) listen() {
	subscription := l.client.Subscribe(l.ctx, l.channel)
	// A receive does not end with its context.
	stop := context.AfterFunc(l.ctx, func() { _ = subscription.Close() })
	defer func() {
		if stop() {
			_ = subscription.Close()
		}
	}()
	if _, err := subscription.Receive(l.ctx); err != nil { // the confirmation
		return
	}
	l.hearing.Store(true)
	for {
		message, err := subscription.ReceiveMessage(l.ctx)
		if err != nil {
			return
		}
		l.waiters.Wake(message.Payload)
	}
}
