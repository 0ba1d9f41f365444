package ledger

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
)

// keyedWriteCall stands for a keyed write among the kinds of calls.
const keyedWriteCall keyed.Kind = 0

// keyedCounters count what becomes of keyed records and of calls. No decision looks at them.
type keyedCounters struct {
	calls  [keyed.Purge + 1][machine.MaxCode + 1]atomic.Uint64
	waited atomic.Uint64

	takeovers, indeterminate, expired atomic.Uint64

	reservations reservations
}

// called counts a call that has been answered.
func (c *keyedCounters) called(kind keyed.Kind, code machine.Code) { c.calls[kind][code].Add(1) }

// applied counts what a log entry has done to records.
func (c *keyedCounters) applied(changes func(func(machine.KeyedChange))) {
	changes(func(change machine.KeyedChange) {
		switch {
		case change.TakenOver:
			c.takeovers.Add(1)
		case change.Before == keyed.Pending && change.After == keyed.Indeterminate:
			c.indeterminate.Add(1)
		case change.After == 0 && change.Before != keyed.Released:
			c.expired.Add(1)
		}
		if change.After == keyed.Pending {
			c.reservations.add(change.Key, change.Created)
		} else if change.Before == keyed.Pending {
			c.reservations.remove(change.Key)
		}
	})
}

// stats returns the counts.
func (c *keyedCounters) stats() stats.Keyed {
	s := stats.Keyed{
		Calls: map[stats.KeyedCall]uint64{}, Waited: c.waited.Load(),
		Takeovers: c.takeovers.Load(), Indeterminate: c.indeterminate.Load(), Expired: c.expired.Load(),
		Oldest: c.reservations.oldest(),
	}
	for kind := range c.calls {
		for code := range c.calls[kind] {
			if n := c.calls[kind][code].Load(); n > 0 {
				s.Calls[stats.KeyedCall{Kind: keyed.Kind(kind), Code: machine.Code(code)}] = n
			}
		}
	}
	return s
}

// The bounds of what is known of reservations: how many are known at once (some 6 MB), and how many
// records the start looks through for them (about a quarter of a second).
const (
	maxReservations    = 100_000
	maxReservationScan = 100_000
)

// reservations knows when the pending records were created, so that the age of the oldest takes no
// scan: a change of a record costs a map entry, and the oldest is at the front of a list that is in
// order. The records themselves are in the state, ordered by their keys and their expiry, which a
// heartbeat moves.
//
// Beyond its bounds it does not know all: the youngest are left out until there is room and their
// owner's next heartbeat, and so are, after a start, those behind the records that the start has
// looked through. What it knows is never too old.
type reservations struct {
	mu    sync.Mutex
	known map[uint64]reservation // by hash of the key
	order []reservation          // by creation; some are over
	added uint64
	seed  maphash.Seed
}

// reservation is a known one, or was.
type reservation struct {
	hash    uint64
	created int64  // Unix nanoseconds of ledger time
	number  uint64 // among all that were added
}

// begin must be called before anything is added.
func (r *reservations) begin() { r.known, r.seed = map[uint64]reservation{}, maphash.MakeSeed() }

// add notes that a record is pending. It does nothing if that is known.
func (r *reservations) add(key []byte, created int64) {
	hash := maphash.Bytes(r.seed, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.known[hash]; ok && known.created == created || !ok && len(r.known) == maxReservations {
		return
	}
	r.added++
	added := reservation{hash, created, r.added}
	r.known[hash] = added
	at := len(r.order) // nearly always the last place
	if at > 0 && r.order[at-1].created > created {
		at, _ = slices.BinarySearchFunc(r.order, created, func(o reservation, created int64) int {
			return cmp.Compare(o.created, created)
		})
	}
	r.order = slices.Insert(r.order, at, added)
}

// remove notes that a record is not pending any more.
func (r *reservations) remove(key []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, maphash.Bytes(r.seed, key))
	if len(r.order) > 2*len(r.known)+64 { // one pass, which removes half of the list or more
		r.order = slices.DeleteFunc(r.order, r.over)
	}
}

func (r *reservations) over(o reservation) bool { return r.known[o.hash].number != o.number }

// oldest returns when the oldest known reservation was made, or zero.
func (r *reservations) oldest() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.order, func(o reservation) bool { return !r.over(o) })
	if i < 0 {
		r.order = r.order[:0]
		return time.Time{}
	}
	r.order = r.order[i:] // so that each is stepped over once
	return time.Unix(0, r.order[0].created)
}
