package client

import (
	"container/list"
	"context"
)

// maxPassed bounds how many writes may be taken ahead of the one that waits longest: a
// large one must not wait for ever while small ones find room.
const maxPassed = 64

// turn is a call that waits until its Writer can take its write, or, for Resume, until
// the Writer has opened a session.
type turn struct {
	size int // of the write; negative for none
	// wake holds at most one token; woken is true from when it is put in until the call
	// looks again.
	wake  chan struct{}
	woken bool
	place *list.Element
}

// fits says whether a write of a size can be taken now.
func (w *Writer) fits(size int) bool {
	return w.state == stateRunning && w.queue.len() < w.limit &&
		(w.queue.len() == 0 || w.bytes+size <= w.options.MaxPendingBytes)
}

// mayPass says whether a call may go ahead of those that wait. t is nil for one that has
// just come.
func (w *Writer) mayPass(t *turn) bool {
	first := w.waiting.Front()
	return first == nil || t != nil && t.place == first || w.passed < maxPassed
}

// await waits for the turn of a call: until something changed that lets it go on, or
// freed is closed. t is nil the first time. mu is held before and after, not meanwhile.
func (w *Writer) await(ctx context.Context, t *turn, size int, freed <-chan struct{}) (*turn, error) {
	if t == nil {
		t = &turn{size: size, wake: make(chan struct{}, 1)}
		t.place = w.waiting.PushBack(t)
	} else if t.woken {
		// It has found nothing, but another one may.
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

// leave ends the wait of a call, if it had to wait, and lets the next one look. taken
// tells that its write was taken.
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

// wakeNext wakes the first waiting call that can go on, which wakes the next when it
// leaves: so one settled write wakes one call, and an end reaches all of them. A small
// write finds room behind a large one that does not.
func (w *Writer) wakeNext() {
	for place := w.waiting.Front(); place != nil; place = place.Next() {
		t := place.Value.(*turn) //nolint:forcetypeassert // The list has nothing else.
		if t.woken {
			return // it passes on when it has looked
		}
		if w.canGoOn(t) {
			t.woken = true
			t.wake <- struct{}{}
			return
		}
		if w.passed >= maxPassed {
			return // first the first
		}
	}
}

// canGoOn says whether a waiting call would find what it waits for.
func (w *Writer) canGoOn(t *turn) bool {
	switch {
	case w.unavailable() != nil:
		return true
	case t.size < 0:
		return w.state != stateSettling
	default:
		return w.fits(t.size)
	}
}
