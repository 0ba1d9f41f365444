package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A client that does not read would keep its handler, and what the handler
// holds, for as long as its connection answers pings. Therefore whoever sends
// nothing that he has promised, and reads nothing that he has asked for, is
// disconnected after a time. What he has written stands, and his retry is
// answered with the same receipts.

const (
	// strangerTimeout is how long an answer may take that says nothing but no, or
	// that everybody gets: no gate counts who does not take it.
	strangerTimeout = 10 * time.Second
	// answerTimeout is how long a request that is no stream may take from its
	// first byte to the last of its answer, once its caller is known.
	answerTimeout = 5 * time.Minute
	// readTimeout is the same for the answer to a read, from the moment that it
	// may use memory for it.
	readTimeout = 30 * time.Second
	// stallTimeout is how long a stream may leave a message unread.
	stallTimeout = 2 * time.Minute
	// maxReads is how many reads may make or send their answers at once. An
	// answer may have 4 MiB, which take twice as much while it is sent, and the
	// request for it a hundred bytes. See isSmall for those that need no place.
	maxReads = 32
)

// lateness interrupts a handler that waits for its client for too long.
type lateness struct {
	timer *time.Timer

	mu       sync.Mutex // held by the interrupt
	limit    time.Duration
	waiting  bool
	deadline time.Time // of the wait
	// fires is when the timer does; zero when it is not set. It is left to run when
	// a wait is over, and set again only to come earlier: a stream waits some
	// thousand times a second, and each setting may wake up a thread of the runtime.
	fires  time.Time
	closed bool
}

// newLateness returns one that waits for nothing yet. Whoever makes it calls
// close before the handler ends, because an interrupt must not come after it.
func newLateness(limit time.Duration, interrupt func()) *lateness {
	l := &lateness{limit: limit}
	l.timer = time.AfterFunc(limit, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.fires = time.Time{}
		switch {
		case l.closed || !l.waiting:
		case time.Now().Before(l.deadline):
			l.set()
		default:
			interrupt()
		}
	})
	l.timer.Stop()
	return l
}

// set makes the timer come at the deadline. mu is held.
func (l *lateness) set() {
	l.fires = l.deadline
	l.timer.Reset(time.Until(l.deadline))
}

// expect says that from now on the handler waits for its client.
func (l *lateness) expect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = true
	l.deadline = time.Now().Add(l.limit)
	if l.fires.IsZero() || l.deadline.Before(l.fires) {
		l.set()
	}
}

// arrived says that it does not any more.
func (l *lateness) arrived() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = false
}

// shorten sets the limit from now on. A wait that is under way begins anew.
func (l *lateness) shorten(limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit = limit; l.waiting && !l.closed {
		l.deadline = time.Now().Add(limit)
		l.set()
	}
}

func (l *lateness) close() {
	l.timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// lettingIn bounds what a caller of whom nothing is known may take: his answer,
// and the body that net/http reads and drops before it sends one.
func lettingIn(next http.Handler) http.Handler {
	return answerWithin(strangerTimeout, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hasBody(r) { // readWithin moves it, mayLast takes it away
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		}
		next.ServeHTTP(w, r)
	}))
}

// answerWithin ends a request whose answer is not read. Streams take the
// deadline away (see mayLast).
func answerWithin(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The end of a small answer is written after the handler has returned, so
		// that the deadline stays; over HTTP/1.1 the next request moves it. Only a
		// writer that is not net/http's own refuses.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit))
		next.ServeHTTP(w, r)
	})
}

// readsKey finds a request's readSlot in its context.
type readsKey struct{}

// readSlot is the place of one read among those that make an answer.
type readSlot struct {
	reads    *semaphore.Weighted
	controls *http.ResponseController
	held     bool
}

// boundedReads gives a read its place back once its answer is sent.
func (s *Server) boundedReads(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		slot := &readSlot{reads: s.reads, controls: http.NewResponseController(w)}
		defer func() {
			if slot.held {
				slot.reads.Release(1)
			}
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), readsKey{}, slot)))
	})
}

// isSmall tells whether the answer to a read has a few KiB at most, whatever is
// asked for. Such a read needs no place, so that clients which read nothing cannot
// keep others from finding out where to resume, or operators from looking.
func isSmall(m any) bool {
	switch m := m.(type) {
	case *seqledgerv1.GetStatusRequest:
		return true
	case *seqledgerv1.GetClientStateRequest:
		return !m.GetIncludeReceipts()
	}
	return false
}

// takeReadSlot waits for a place. It is called when the request is decoded, so
// that one which does not arrive takes none. The error is that of ctx.
func takeReadSlot(ctx context.Context, m any) error {
	slot, ok := ctx.Value(readsKey{}).(*readSlot)
	if !ok {
		return nil // no read
	}
	if !isSmall(m) {
		if err := slot.reads.Acquire(ctx, 1); err != nil {
			return err
		}
		slot.held = true
	}
	_ = slot.controls.SetWriteDeadline(time.Now().Add(readTimeout)) // see answerWithin
	return nil
}
