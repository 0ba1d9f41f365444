package admission

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Share is what one actor uses of the bounds. All tokens of a user have one, and a
// key has the same one before and after the auth file was read again.
type Share struct {
	actor string

	requests, streams, connections Limiter
	// arriving and leaving are bytes of large messages, reads the places of reads
	// at work, and queued bytes of writes in the engine.
	arriving, leaving, reads, queued Budget
	requestPace, writePace           pace
	// overdraft is held by the one stream that may go on reading its message when
	// the share of arriving is used up. See Body.
	overdraft Budget

	account atomic.Pointer[account] // nil until the actor stores something
}

func newShare(actor string) *Share {
	now := time.Now()
	return &Share{actor: actor, requestPace: pace{began: now}, writePace: pace{began: now}}
}

// idle tells whether nothing would be lost if the share was forgotten.
func (s *Share) idle() bool {
	return s.requests.Count() == 0 && s.streams.Count() == 0 && s.connections.Count() == 0 &&
		s.requestPace.idle() && s.writePace.idle()
}

// maxRememberedActors bounds the shares that are in memory.
const maxRememberedActors = 1 << 16

// Registry finds the share of an actor again, across tokens and reloads of the
// auth file. The zero value is empty.
type Registry struct {
	mu    sync.Mutex
	known map[string]*Share
}

// ErrTooManyCallers says that the server remembers as many callers as it can, each
// of which is doing something.
var ErrTooManyCallers = errors.New("more callers at once than the server can remember")

// Of returns the share of an actor. When there are too many, those that do nothing
// at the moment are forgotten: at worst the holder of a token that was looked at
// before is counted anew. What an actor has stored is not forgotten.
func (r *Registry) Of(actor string) (*Share, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.known[actor]; found != nil {
		return found, nil
	}
	if len(r.known) >= maxRememberedActors {
		for name, share := range r.known {
			if share.idle() {
				delete(r.known, name)
			}
		}
	}
	if len(r.known) >= maxRememberedActors {
		return nil, fmt.Errorf("%w: %d", ErrTooManyCallers, maxRememberedActors)
	}
	if r.known == nil {
		r.known = make(map[string]*Share)
	}
	made := newShare(actor)
	r.known[actor] = made
	return made, nil
}

// Party is whom a request is admitted for: the share of its actor, and the limits
// of its credential.
type Party struct {
	Share  *Share
	Limits Limits
}
