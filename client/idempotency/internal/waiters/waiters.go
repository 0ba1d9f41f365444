// Package waiters wakes the callers in this process that wait for database keys to change.
package waiters

import (
	"context"
	"errors"
	"sync"
	"time"
)

// The limits on waiting callers. Callers beyond them poll the database instead.
const (
	maxPerKey = 64
	maxInAll  = 10_000
)

// pollInterval is how often a waiting caller looks at its key besides, in case a notification was lost.
const pollInterval = time.Second

var (
	// ErrNotListening tells a caller to poll.
	ErrNotListening = errors.New("notifications do not arrive")
	// errFull is returned when too many callers wait.
	errFull = errors.New("too many callers wait for notifications")
)

// Listener wakes waiting callers when the database sends notifications. It listens from the first waiting caller until
// Close.
type Listener struct {
	listen func(ctx context.Context, l *Listener) (pause time.Duration)
	ctx    context.Context //nolint:containedctx // The life of the listener, which Close ends.
	cancel context.CancelFunc
	joined sync.WaitGroup

	mu              sync.Mutex
	started, closed bool
	hearing         bool
	// keys has a channel for each waiting caller, which is closed when its key may have changed; waiting counts them.
	keys    map[string]map[chan struct{}]struct{}
	waiting int
}

// NewListener returns a listener. listen makes one connection, calls Hearing once notifications arrive on it, and calls
// Wake with each of them. It returns when the connection breaks or ctx ends, with the pause before the next connection.
// The caller must call Close.
func NewListener(listen func(ctx context.Context, l *Listener) (pause time.Duration)) *Listener {
	l := &Listener{listen: listen, keys: map[string]map[chan struct{}]struct{}{}}
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
	l.deaf()
}

// wait registers a caller for the notifications of a key. The caller must call leave once, at the end of the wait.
// While notifications do not arrive, it returns ErrNotListening.
func (l *Listener) wait(ctx context.Context, key string) (woken <-chan struct{}, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started && !l.closed {
		l.started = true
		// Close ends this goroutine and waits for it.
		l.joined.Go(l.run)
	}
	switch {
	case !l.hearing:
		return nil, nil, errors.Join(ErrNotListening, ctx.Err())
	case l.waiting >= maxInAll || len(l.keys[key]) >= maxPerKey:
		return nil, nil, errFull
	}
	if l.keys[key] == nil {
		l.keys[key] = map[chan struct{}]struct{}{}
	}
	ch := make(chan struct{})
	l.keys[key][ch] = struct{}{}
	l.waiting++
	return ch, func() { l.leave(key, ch) }, nil
}

func (l *Listener) leave(key string, ch chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waiting := l.keys[key][ch]; !waiting {
		return // already woken
	}
	delete(l.keys[key], ch)
	l.waiting--
	if len(l.keys[key]) == 0 {
		delete(l.keys, key)
	}
}

// Changed returns when a key may have changed, and after pollInterval. isChanged looks whether it has: a change from
// before the caller waits sends it no notification. While notifications do not arrive, it returns ErrNotListening.
func (l *Listener) Changed(ctx context.Context, key string, isChanged func() (bool, error)) error {
	woken, leave, err := l.wait(ctx, key)
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
func (l *Listener) Hearing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hearing = true
}

// Wake wakes the callers that wait for a key.
func (l *Listener) Wake(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(key)
}

// deaf makes new callers poll, and wakes the waiting ones, because they may have missed a notification.
func (l *Listener) deaf() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hearing = false
	for key := range l.keys {
		l.wake(key)
	}
}

// wake closes the channels of a key. The caller holds mu.
func (l *Listener) wake(key string) {
	for ch := range l.keys[key] {
		close(ch)
		l.waiting--
	}
	delete(l.keys, key)
}

// run listens until Close, on one connection after another.
func (l *Listener) run() {
	for l.ctx.Err() == nil {
		pause := l.listen(l.ctx, l)
		l.deaf()
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
	}
}
