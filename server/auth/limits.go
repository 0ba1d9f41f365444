package auth

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound what one credential may have under way; 0 is no limit of its
// own. All tokens of one user are one credential here.
type Limits struct {
	// Requests under way at once, streams included.
	Requests int `json:"requests"`
	// RequestsPerSecond, counted when they begin. A stream counts once,
	// whatever is sent on it. A second's worth may come at once.
	RequestsPerSecond int `json:"requestsPerSecond"`
	// Streams (WriteStream, Watch and other streaming calls) open at once.
	Streams int `json:"streams"`
}

// LimitError says that a credential has reached a limit.
type LimitError struct {
	// Limit is the field of the auth file.
	Limit string
	// RetryAfter is when to try again: exact for a rate, else a guess.
	RetryAfter time.Duration
}

// Error implements error.
func (e *LimitError) Error() string {
	return "the credential has reached its limit of " + e.Limit + "; nothing was done: try again later"
}

// busyRetry is a guess: what is under way ends when it likes.
const busyRetry = 100 * time.Millisecond

// usage is what one actor has under way.
type usage struct {
	requests, streams atomic.Int64
	// due is when the requests begun so far would be over if they came evenly,
	// in nanoseconds since began, which the wall clock cannot move.
	due   atomic.Int64
	began time.Time
}

func newUsage() *usage { return &usage{began: time.Now()} }

func (u *usage) now() int64 { return int64(time.Since(u.began)) }

func enter(count *atomic.Int64, limit int) bool {
	if count.Add(1) > int64(limit) && limit > 0 {
		count.Add(-1)
		return false
	}
	return true
}

// Enter begins a request, which Leave ends. The error is a *LimitError.
func (c *Credential) Enter() error {
	if !enter(&c.usage.requests, c.limits.Requests) {
		return &LimitError{"requests", busyRetry}
	}
	if wait := c.usage.pace(c.limits.RequestsPerSecond); wait > 0 {
		c.Leave()
		return &LimitError{"requests_per_second", wait}
	}
	return nil
}

// Leave ends a request that Enter let in.
func (c *Credential) Leave() { c.usage.requests.Add(-1) }

// EnterStream opens a stream, which LeaveStream closes. The error is a
// *LimitError.
func (c *Credential) EnterStream() error {
	if !enter(&c.usage.streams, c.limits.Streams) {
		return &LimitError{"streams", busyRetry}
	}
	return nil
}

// LeaveStream closes a stream that EnterStream let in.
func (c *Credential) LeaveStream() { c.usage.streams.Add(-1) }

// pace lets so many requests a second through, and returns how long the one at
// hand has to wait.
func (u *usage) pace(perSecond int) time.Duration {
	if perSecond == 0 {
		return 0
	}
	step, now := int64(time.Second)/int64(perSecond), u.now()
	for {
		was := u.due.Load()
		due := max(was, now) + step
		if ahead := due - now; ahead > int64(time.Second) {
			return time.Duration(ahead - int64(time.Second))
		}
		if u.due.CompareAndSwap(was, due) {
			return 0
		}
	}
}

func (u *usage) idle() bool {
	return u.requests.Load() == 0 && u.streams.Load() == 0 && u.due.Load() <= u.now()
}

// maxUsages bounds the actors that are remembered.
const maxUsages = 1 << 16

// usages finds the usage of an actor again, across tokens and reloads.
type usages struct {
	mu    sync.Mutex
	known map[string]*usage
}

// ErrTooManyCallers says that the server remembers as many callers as it may,
// each of whom is doing something.
var ErrTooManyCallers = errors.New("more callers at once than the server remembers")

// of returns the usage of an actor. When there are too many, those who do
// nothing at the moment are forgotten: at worst one of them, who still holds a
// token that was looked at before, is counted anew.
func (u *usages) of(actor string) (*usage, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if found := u.known[actor]; found != nil {
		return found, nil
	}
	if len(u.known) >= maxUsages {
		for name, usage := range u.known {
			if usage.idle() {
				delete(u.known, name)
			}
		}
	}
	if len(u.known) >= maxUsages {
		return nil, fmt.Errorf("%w: %d", ErrTooManyCallers, maxUsages)
	}
	if u.known == nil {
		u.known = make(map[string]*usage)
	}
	made := newUsage()
	u.known[actor] = made
	return made, nil
}
