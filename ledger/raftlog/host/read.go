package host

import (
	"context"
	"slices"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// Role returns the current role, as far as this node knows.
func (h *Host) Role() core.Role {
	h.shown.mu.Lock()
	defer h.shown.mu.Unlock()
	return h.shown.status.role
}

// IsReady reports whether this node leads and has applied everything committed in earlier terms, and in which term.
func (h *Host) IsReady() (term uint64, ready bool) {
	h.shown.mu.Lock()
	s := h.shown.status
	h.shown.mu.Unlock()
	select {
	case <-h.stop:
		return s.role.Term, false
	default:
		return s.role.Term, s.ready && !s.closing && h.Err() == nil
	}
}

// AwaitApplied waits until this node has applied the log up to index. It fails with the failure of a failed host,
// ErrClosed, or the context's error.
func (h *Host) AwaitApplied(ctx context.Context, index uint64) error {
	for {
		h.mu.Lock()
		err, done := h.stoppedLocked(), h.node.Applied().Index >= index
		wait := make(chan struct{})
		if err == nil && !done {
			h.applied = append(h.applied, appliedWaiter{index, wait})
		}
		h.mu.Unlock()
		if err != nil || done {
			return err
		}
		select {
		case <-wait:
		case <-h.stop:
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
func (h *Host) wakeApplied() {
	if len(h.applied) == 0 {
		return
	}
	at := h.node.Applied().Index
	h.applied = slices.DeleteFunc(h.applied, func(w appliedWaiter) bool {
		if w.index > at {
			return false
		}
		close(w.done)
		return true
	})
}

// Ready waits until this node leads and has applied everything that was ever committed. It fails with the failure of a
// failed host, ErrClosed, or the context's error.
func (h *Host) Ready(ctx context.Context) error {
	for {
		h.mu.Lock()
		err, ready, changed := h.unusableLocked(), h.node.Ready(), h.Changed()
		h.mu.Unlock()
		if err != nil || ready {
			return err
		}
		select {
		case <-changed:
		case <-h.stop:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unusableLocked returns the failure, ErrClosed, or nil.
func (h *Host) unusableLocked() error {
	if err := h.stoppedLocked(); err != nil {
		return err
	}
	if h.closing {
		return ErrClosed
	}
	return nil
}

// ReadsAlone reports whether ReadBarrier returns at once, because this node is a sole voter that has been Ready.
func (h *Host) ReadsAlone() bool { return h.solo.Load() }

// ReadBarrier returns once the state reflects every write acknowledged before the call, by any node. For a sole voter
// that has been Ready it costs an atomic load. Otherwise the leader asks a majority, and this node waits until it has
// applied the log up to the read index. Without a leader it waits for one. It fails with ErrClosed, the host's failure,
// core.ErrTooManyReads or the context's error.
func (h *Host) ReadBarrier(ctx context.Context) error {
	if h.ReadsAlone() {
		return nil // no other node can lead, and this node has applied what it acknowledged
	}
	done := make(chan struct{})
	var number uint64
	err := h.event(func() error {
		if h.closing {
			return ErrClosed
		}
		h.number++
		number = h.number
		h.reads[number] = done
		return h.node.Read(number)
	})
	if err == nil {
		select {
		case <-done:
			return nil
		case <-h.stop:
			h.mu.Lock()
			err = h.stoppedLocked()
			h.mu.Unlock()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	h.mu.Lock()
	delete(h.reads, number)
	h.node.AbandonRead(number)
	h.mu.Unlock()
	return err
}
