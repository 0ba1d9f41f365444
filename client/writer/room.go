package writer

import (
	"container/list"
	"context"
)

// maxPassed bounds how many writes may pass the one that waits longest, so that small writes do not starve a large one.
const maxPassed = 64

// turn is a call that waits until its Writer can take its write, or, for Resume, until the Writer has opened a session.
type turn struct {
	size int // of the write; negative for none
	// wake holds at most one token; woken is true from when the token is put in until the call checks again.
	wake  chan struct{}
	woken bool
	// full: the journal has no room for the write, so room in the Writer does not help it.
	full  bool
	place *list.Element
}

// fits reports whether a write of the given size can be taken now.
func (w *Writer) fits(size int) bool {
	return w.state == stateRunning && w.queue.len() < w.limit &&
		(w.queue.len() == 0 || w.bytes+size <= w.options.MaxPendingBytes)
}

// mayPass reports whether a call may pass those that wait. t is nil for a new call.
func (w *Writer) mayPass(t *turn) bool {
	first := w.waiting.Front()
	return first == nil || t != nil && t.place == first || w.passed < maxPassed
}

// await blocks a call until it may be able to continue, or freed is closed. t is nil the first
// time. mu is held on entry and on return, and released while waiting.
func (w *Writer) await(ctx context.Context, t *turn, size int, freed <-chan struct{}) (*turn, error) {
	if t == nil {
		t = &turn{size: size, wake: make(chan struct{}, 1)}
		t.place = w.waiting.PushBack(t)
	}
	t.full = freed != nil
	if t.woken {
		// Pass the token on, because this call cannot use it and another one may.
		t.woken = false
		select {
		case <-t.wake:
		default:
		}
		w.wakeNext()
	}
	w.mux.mu.Unlock()
	var err error
	select {
	case <-t.wake:
	case <-freed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.mux.mu.Lock()
	return t, err
}

// leave ends the wait of a call, if it had to wait, and wakes the next one. taken reports whether its write was taken.
func (w *Writer) leave(t *turn, taken bool) {
	switch first := w.waiting.Front(); {
	case first == nil:
		return
	case t != nil && t.place == first:
		w.passed = 0
	case taken:
		w.passed++
	}
	if t != nil {
		w.waiting.Remove(t.place)
	}
	w.wakeNext()
}

// wakeNext wakes the first waiting call that can continue, which wakes the next when it leaves.
// So one settled write wakes one call, and the end of the Writer reaches all of them. A small
// write may find room although a large one in front of it does not.
func (w *Writer) wakeNext() {
	for place := w.waiting.Front(); place != nil; place = place.Next() {
		t := place.Value.(*turn) //nolint:forcetypeassert // The list has nothing else.
		if t.woken {
			return // it wakes the next one after its check
		}
		if w.canGoOn(t) {
			t.woken = true
			t.wake <- struct{}{}
			return
		}
		if w.passed >= maxPassed {
			return // the first call goes first
		}
	}
}

// canGoOn reports whether a waiting call can continue.
func (w *Writer) canGoOn(t *turn) bool {
	switch {
	case w.unavailable() != nil:
		return true
	case t.full:
		return false // await looks out for room in the journal
	case t.size < 0:
		return w.state != stateSettling
	default:
		return w.fits(t.size)
	}
}
