package ledger

import (
	"bytes"
	"cmp"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
)

// keyedWriteCall is the kind under which keyed writes are counted.
const keyedWriteCall keyed.Kind = 0

// keyedCounters count what becomes of keyed records and of calls. No decision looks at them.
type keyedCounters struct {
	calls  [keyed.Purge + 1][machine.MaxCode + 1]atomic.Uint64
	waited atomic.Uint64

	takeovers, indeterminate, expired atomic.Uint64

	reservations reservations
	records      recordCounts
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
		c.records.changed(change)
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
		Oldest: c.reservations.oldest(), Records: c.records.counts(),
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

// recordCounts counts the records by state, and knows which keys have none. The state does not hold the counts, so
// after a start all records are counted in the background, in the order of their keys. A change of a record that was
// counted already updates the counts; a change of a later one does not, because the count will reach it.
type recordCounts struct {
	mu      sync.Mutex
	byState [keyed.Expired + 1]uint64
	upTo    []byte
	whole   atomic.Bool // all are counted; set under mu
	present keySet      // the keys of those that are counted; changed under mu
}

// reset forgets everything; it must be called before anything else. The caller holds mu, or is the only user.
func (r *recordCounts) reset() {
	r.whole.Store(false)
	r.byState, r.upTo = [keyed.Expired + 1]uint64{}, nil
	r.present.begin()
}

// lacks reports that a key has no record, as of every acknowledgement so far. It takes no lock, and is false where it
// is not certain.
func (r *recordCounts) lacks(key []byte) bool { return r.whole.Load() && r.present.lacks(key) }

// What one step of the count reads, and how long it pauses then: some 40,000 records a second, of a
// microsecond each.
const (
	countStep  = 200
	countPause = 5 * time.Millisecond
)

// changed notes a change of a record. The applier calls it, beside which no step of the count runs.
func (r *recordCounts) changed(c machine.KeyedChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.whole.Load() && bytes.Compare(c.Key, r.upTo) > 0 {
		return
	}
	if c.Before != 0 {
		r.byState[c.Before]--
	} else {
		r.present.add(c.Key)
	}
	if c.After != 0 {
		r.byState[c.After]++
	} else {
		r.present.remove(c.Key)
	}
}

// step counts the next records, and reports whether there are more.
func (r *recordCounts) step(v machine.View, most int) (more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, err := v.VisitKeyedStates(r.upTo, most, func(key []byte, s keyed.State) {
		r.byState[s]++
		r.present.add(key)
	})
	if more = next != nil; more {
		r.upTo = next
	}
	r.whole.Store(!more && err == nil)
	return more, err
}

// counts returns the counts of what determines the state of a key, or nil before all are counted.
func (r *recordCounts) counts() map[keyed.State]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.whole.Load() {
		return nil
	}
	counts := map[keyed.State]uint64{}
	for s := keyed.Pending; s <= keyed.Expired; s++ {
		counts[s] = r.byState[s]
	}
	return counts
}

// countLoop counts the keyed records that the start has left.
func (l *Ledger) countLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for more := true; more; timer.Reset(countPause) {
		select {
		case <-timer.C:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		err := l.View(l.stopping, func(v machine.View) (err error) {
			more, err = l.keyedCounters.records.step(v, countStep)
			return err
		}, machine.TableKeyed)
		if _, alone := errors.AsType[*cluster.NotLeaderError](err); alone {
			more = true // it has waited for the others, and does so again
			continue
		}
		// Only logged, because nothing is decided by the counts: where they lack, the state is looked at.
		if err != nil && l.Err() == nil && l.stopping.Err() == nil {
			l.options.Logger.Warn("the records of keys could not be counted", "error", err)
		}
		more = more && err == nil
	}
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
// It is bounded: beyond the bound the youngest reservations are missing until capacity is free and
// their owner sends the next heartbeat. After a start, so are those beyond the records that were
// scanned. What it holds is never out of date.
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

// has reports whether a record is known to be pending. One that is pending may not be known.
func (r *reservations) has(key []byte) bool {
	hash := maphash.Bytes(r.seed, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.known[hash]
	return known
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
