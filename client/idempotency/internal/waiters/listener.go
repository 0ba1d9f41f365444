package waiters

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNotListening tells a caller to poll.
var ErrNotListening = errors.New("notifications do not arrive")

// Listener wakes waiting callers when the database sends notifications. It listens from the first waiting caller until
// Close.
type Listener struct {
	listen  func(ctx context.Context, l *Listener) (pause time.Duration)
	waiters Set
	hearing atomic.Bool

	mu      sync.Mutex
	started bool
	closed  bool
	ctx     context.Context //nolint:containedctx // The life of the listener, which Close ends.
	cancel  context.CancelFunc
	joined  sync.WaitGroup
}

// NewListener returns a listener. listen makes one connection, calls Hearing once notifications arrive on it, and calls
// Wake with each of them. It returns when the connection breaks or ctx ends, with the pause before the next connection.
// The caller must call Close.
func NewListener(listen func(ctx context.Context, l *Listener) (pause time.Duration)) *Listener {
	l := &Listener{listen: listen}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Close stops the listener, waits for it, and wakes all callers. It may be called again.
func (l *Listener) Close() {
	l.mu.Lock()
	l.closed = true // under the lock, so that nothing joins afterwards
	l.mu.Unlock()
	l.cancel()
	l.joined.Wait()
	l.waiters.WakeAll()
}

// Wait registers a caller for the notifications of a key; see [Set.Add]. While notifications do not arrive, it returns
// ErrNotListening.
func (l *Listener) Wait(ctx context.Context, key string) (woken <-chan struct{}, leave func(), err error) {
	l.mu.Lock()
	if !l.started && !l.closed {
		l.started = true
		// Close ends this goroutine and waits for it.
		l.joined.Go(l.run)
	}
	l.mu.Unlock()
	if !l.hearing.Load() {
		return nil, nil, errors.Join(ErrNotListening, ctx.Err())
	}
	return l.waiters.Add(key)
}

// pollInterval is how often a waiting caller looks at its key besides, in case a notification was lost.
const pollInterval = time.Second

// Changed returns when a key may have changed, and after pollInterval. isChanged looks whether it has: a change from
// before the caller waits sends it no notification.
func (l *Listener) Changed(ctx context.Context, key string, isChanged func() (bool, error)) error {
	woken, leave, err := l.Wait(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	if changed, err := isChanged(); changed || err != nil {
		return err
	}
	select {
	case <-woken:
		return nil
	case <-time.After(pollInterval):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Hearing lets callers wait for notifications, until listen returns.
func (l *Listener) Hearing() { l.hearing.Store(true) }

// Wake wakes the callers that wait for a key.
func (l *Listener) Wake(key string) { l.waiters.Wake(key) }

// run listens until Close, on one connection after another.
func (l *Listener) run() {
	for l.ctx.Err() == nil {
		pause := l.listen(l.ctx, l)
		// The order matters: from now on new callers poll, and earlier ones may have missed a notification.
		l.hearing.Store(false)
		l.waiters.WakeAll()
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
	}
}
