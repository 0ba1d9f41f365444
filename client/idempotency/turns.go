package idempotency

import (
	"context"
	"sync"
)

// turns bound what is done at once. A party does one thing at a time, so that others wait for one of them and not for
// all that it has sent.
type turns struct {
	all chan struct{} // has an element for each thing that is done

	mu      sync.Mutex
	parties map[string]*turn
}

// turn is the turn of one party.
type turn struct {
	taken chan struct{} // has an element while the party does something or is next to
	users int           // that have it or wait for it
}

// take takes a turn, and waits for it until ctx ends. The party "" is several, which do not wait for each other first.
func (t *turns) take(ctx context.Context, party string) (leave func(), err error) {
	own, forget := t.of(party)
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
		return func() {
			<-t.all
			<-own
			forget()
		}, nil
	case <-ctx.Done():
		<-own
		forget()
		return nil, ctx.Err()
	}
}

// of returns the turn of a party. forget must be called once it is not used any more.
func (t *turns) of(party string) (taken chan struct{}, forget func()) {
	if party == "" {
		return make(chan struct{}, 1), func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.parties[party]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		if t.parties == nil {
			t.parties = map[string]*turn{}
		}
		t.parties[party] = own
	}
	own.users++
	return own.taken, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(t.parties, party)
		}
	}
}
