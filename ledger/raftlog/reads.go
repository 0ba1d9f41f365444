package raftlog

import (
	"context"
	"slices"
)

// Role returns the current role, as far as this node knows.
func (l *Log) Role() Role {
	l.shown.mu.Lock()
	defer l.shown.mu.Unlock()
	return l.shown.status.role
}

// IsReady reports whether this node leads and has applied everything committed in earlier terms, and in which term.
func (l *Log) IsReady() (term uint64, ready bool) {
	l.shown.mu.Lock()
	s := l.shown.status
	l.shown.mu.Unlock()
	select {
	case <-l.stopped:
		return s.role.Term, false
	default:
		return s.role.Term, s.ready && !s.closing && l.Err() == nil
	}
}

// AwaitApplied waits until this node has applied the log up to index. It fails with the failure of a failed log,
// ErrClosed, or the context's error.
func (l *Log) AwaitApplied(ctx context.Context, index uint64) error {
	for {
		l.mu.Lock()
		err, done := l.stoppedLocked(), l.node.Applied().Index >= index
		wait := make(chan struct{})
		if err == nil && !done {
			l.applied = append(l.applied, appliedWaiter{index, wait})
		}
		l.mu.Unlock()
		if err != nil || done {
			return err
		}
		select {
		case <-wait:
		case <-l.stopped:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// appliedWaiter waits until an index has been applied.
type appliedWaiter struct {
	index uint64
	done  chan struct{}
}

// wakeApplied wakes the waiters whose index has been applied. A waiter whose caller has left stays until its index is
// applied. The number of waiters is bounded by the calls of AwaitApplied: one for each start and for each membership
// change.
func (l *Log) wakeApplied() {
	if len(l.applied) == 0 {
		return
	}
	at := l.node.Applied().Index
	l.applied = slices.DeleteFunc(l.applied, func(w appliedWaiter) bool {
		if w.index > at {
			return false
		}
		close(w.done)
		return true
	})
}

// Ready waits until this node leads and has applied everything that was ever committed. It fails with the failure of a
// failed log, ErrClosed, or the context's error.
func (l *Log) Ready(ctx context.Context) error {
	for {
		l.mu.Lock()
		err, ready, changed := l.unusableLocked(), l.node.Ready(), l.Changed()
		l.mu.Unlock()
		if err != nil || ready {
			return err
		}
		select {
		case <-changed:
		case <-l.stopped:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unusableLocked returns the failure, ErrClosed, or nil.
func (l *Log) unusableLocked() error {
	if err := l.stoppedLocked(); err != nil {
		return err
	}
	if l.closing {
		return ErrClosed
	}
	return nil
}

// ReadsAlone reports whether ReadBarrier returns at once, because this node is a sole voter that has been Ready.
func (l *Log) ReadsAlone() bool { return l.solo.Load() }

// ReadBarrier returns once the state reflects every write acknowledged before the call, by any node. For a sole voter
// that has been Ready it costs an atomic load. Otherwise the leader asks a majority, and this node waits until it has
// applied the log up to the read index. Without a leader it waits for one. It fails with ErrClosed, the log's failure,
// core.ErrTooManyReads or the context's error.
func (l *Log) ReadBarrier(ctx context.Context) error {
	if l.ReadsAlone() {
		return nil // no other node can lead, and this node has applied what it acknowledged
	}
	done := make(chan struct{})
	var number uint64
	err := l.event(func() error {
		if l.closing {
			return ErrClosed
		}
		l.number++
		number = l.number
		l.reads[number] = done
		return l.node.Read(number)
	})
	if err == nil {
		select {
		case <-done:
			return nil
		case <-l.stopped:
			l.mu.Lock()
			err = l.stoppedLocked()
			l.mu.Unlock()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.mu.Lock()
	delete(l.reads, number)
	l.node.AbandonRead(number)
	l.mu.Unlock()
	return err
}
