package ledger

import "sync"

// waiters wakes calls that wait for something to happen under a key: the next
// block of a scope, or the end of a reservation. It holds nothing but channels,
// and has an entry for each key that a call waits for. What has happened is read
// from the state by the call that wakes.
type waiters[K comparable] struct {
	// perKey and total bound the calls that wait; 0 means no bound.
	perKey, total int

	mu      sync.Mutex
	waiting map[K]*keyWaiters
	count   int
	closed  bool
}

// keyWaiters are the calls that wait for one key.
type keyWaiters struct {
	next  chan struct{} // closed with the next event
	count int
}

// join returns a channel that is closed with the next event of the key, or with
// the ledger; nil when too many calls wait. A call that stops waiting must call
// leave.
func (w *waiters[K]) join(key K) *keyWaiters {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.waiting[key]
	if w.total > 0 && w.count >= w.total || k != nil && w.perKey > 0 && k.count >= w.perKey {
		return nil
	}
	if k == nil {
		k = &keyWaiters{next: make(chan struct{})}
		// Waiters are not woken after close, so a late call must not begin to wait.
		if w.closed {
			close(k.next)
		} else {
			if w.waiting == nil {
				w.waiting = map[K]*keyWaiters{}
			}
			w.waiting[key] = k
		}
	}
	k.count++
	w.count++
	return k
}

// leave removes a call that waited, and the key with the last of them: keys that
// never see an event must not pile up.
func (w *waiters[K]) leave(key K, k *keyWaiters) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
	if k.count--; k.count == 0 && w.waiting[key] == k {
		delete(w.waiting, key)
	}
}

// wake wakes the calls that wait for keys among those that visit yields.
func (w *waiters[K]) wake(visit func(yield func(K))) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		return
	}
	visit(func(key K) {
		if k := w.waiting[key]; k != nil {
			close(k.next)
			delete(w.waiting, key)
		}
	})
}

// wakeAll wakes all calls. Each of them checks what has happened.
func (w *waiters[K]) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeEach()
}

// close wakes all calls for the last time.
func (w *waiters[K]) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.wakeEach()
}

// wakeEach wakes all calls. mu is held.
func (w *waiters[K]) wakeEach() {
	for key, k := range w.waiting {
		close(k.next)
		delete(w.waiting, key)
	}
}

// len returns how many calls wait.
func (w *waiters[K]) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}
