package admission

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Share is one actor's usage of the bounds. All tokens of a user share one, and a key keeps its share when the auth
// file is read again.
type Share struct {
	actor string

	used                   usage
	requestPace, writePace pace
	// refusedPace counts refused large writes.
	refusedPace pace
	// overdraft is held by the one stream that may continue to read its message when the share of MessageBytes is used
	// up. See Body.
	overdraft Budget

	account atomic.Pointer[account] // nil until the actor stores something
}

func newShare(actor string) *Share {
	now := time.Now()
	return &Share{actor: actor, requestPace: pace{began: now}, writePace: pace{began: now},
		refusedPace: pace{began: now}}
}

// refusedLarge counts a large write that was refused. The delay never exceeds maxSlowed.
func (s *Share) refusedLarge() {
	if s.refusedPace.delay(largeRefusals) < maxSlowed {
		s.refusedPace.take(1, largeRefusals, true)
	}
}

// slowed returns how long to wait before the next large write is read.
func (s *Share) slowed() time.Duration { return min(s.refusedPace.delay(largeRefusals), maxSlowed) }

// idle reports whether the share can be dropped without a loss.
func (s *Share) idle() bool {
	for b := range s.used {
		if s.used[b].Used() != 0 {
			return false
		}
	}
	return s.requestPace.idle() && s.writePace.idle() && s.refusedPace.idle()
}

// maxRememberedActors bounds the shares that are in memory.
const maxRememberedActors = 1 << 16

// Registry maps actors to shares, across tokens and reloads of the auth file. The zero value is empty.
type Registry struct {
	mu    sync.Mutex
	known map[string]*Share
}

// ErrTooManyCallers reports that the server tracks its maximum of callers, and all are active.
var ErrTooManyCallers = errors.New("more callers at once than the server can remember")

// Of returns the share of an actor. If there are too many, it drops those that are idle: at worst the holder of a
// cached token gets a new share. The stored bytes of an actor are not dropped.
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

// Party is what a request is charged to: the share of its actor, with the limits of its credential.
type Party struct {
	Share  *Share
	Limits Limits
}
