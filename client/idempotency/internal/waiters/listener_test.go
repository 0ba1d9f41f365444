package waiters

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// connection is one call of a listener's listen function, controlled by a test.
type connection struct {
	ctx     context.Context //nolint:containedctx // What the function was called with.
	breakIt chan struct{}
}

// newTestListener returns a listener that hands its connections to the test. All pauses have the given length.
func newTestListener(t *testing.T, pause time.Duration) (*Listener, <-chan connection) {
	t.Helper()
	connections := make(chan connection)
	l := NewListener(func(ctx context.Context, _ *Listener) time.Duration {
		c := connection{ctx, make(chan struct{})}
		select {
		case connections <- c:
		case <-ctx.Done():
			return pause
		}
		select {
		case <-c.breakIt:
		case <-ctx.Done():
		}
		return pause
	})
	t.Cleanup(l.Close)
	return l, connections
}

// start makes a listener connect, as its first caller does.
func start(t *testing.T, l *Listener) {
	t.Helper()
	if _, _, err := l.wait(t.Context(), "a"); !errors.Is(err, ErrNotListening) {
		t.Fatalf("before there are notifications: %v", err)
	}
}

func wait(t *testing.T, l *Listener, key string) <-chan struct{} {
	t.Helper()
	ch, leave, err := l.wait(t.Context(), key)
	must.Do(t, err)
	t.Cleanup(leave)
	return ch
}

func TestListenerConnectsForItsFirstCaller(t *testing.T) {
	t.Parallel()
	l, connections := newTestListener(t, 0)
	select {
	case <-connections:
		t.Fatal("it connects although no caller waits")
	default:
	}
	start(t, l)
	start(t, l) // does not connect again
	<-connections
	l.Hearing()
	a, b := wait(t, l, "a"), wait(t, l, "b")
	l.Wake("a")
	if !woken(a) || woken(b) {
		t.Errorf("a notification of a wakes it: %v, and b: %v", woken(a), woken(b))
	}
	select {
	case <-connections:
		t.Error("there are two connections")
	default:
	}
}

// A notification may be lost with its connection. No caller may keep waiting for it.
func TestListenerWakesAllWhenAConnectionBreaks(t *testing.T) {
	t.Parallel()
	l, connections := newTestListener(t, 0)
	start(t, l)
	first := <-connections
	l.Hearing()
	a, b := wait(t, l, "a"), wait(t, l, "b")
	close(first.breakIt)
	<-a
	<-b
	<-connections // the next one, which receives no notifications yet
	if _, _, err := l.wait(t.Context(), "a"); !errors.Is(err, ErrNotListening) {
		t.Errorf("on a new connection: %v", err)
	}
	l.Hearing()
	wait(t, l, "a")
}

// Close ends a connection or a pause, and leaves no caller waiting.
func TestListenerClose(t *testing.T) {
	t.Parallel()
	t.Run("Connected", func(t *testing.T) {
		t.Parallel()
		l, connections := newTestListener(t, time.Hour)
		start(t, l)
		c := <-connections
		l.Hearing()
		a := wait(t, l, "a")
		l.Close()
		if !woken(a) || c.ctx.Err() == nil {
			t.Errorf("the caller is woken: %v; the connection: %v", woken(a), c.ctx.Err())
		}
		l.Close()
	})
	t.Run("Pause", func(t *testing.T) {
		t.Parallel()
		l, connections := newTestListener(t, time.Hour)
		start(t, l)
		close((<-connections).breakIt)
		l.Close()
	})
	t.Run("NeverUsed", func(t *testing.T) {
		t.Parallel()
		l, connections := newTestListener(t, 0)
		l.Close()
		start(t, l) // a late caller polls
		select {
		case <-connections:
			t.Error("it connects after Close")
		default:
		}
	})
}

func TestListenerTellsOfTheCallersEnd(t *testing.T) {
	t.Parallel()
	l, _ := newTestListener(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := l.wait(ctx, "a"); !errors.Is(err, ErrNotListening) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
