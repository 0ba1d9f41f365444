package ledger

import (
	"hash/maphash"
	"sync/atomic"
)

// keySet tells of a key that it is not in a set, without a lock and in about a tenth of a microsecond, or that it may
// be. It is a Bloom filter that counts, so that keys can be removed. Changes must be serialized; any number of
// goroutines may ask meanwhile.
//
// Its memory is the same however many keys there are, and is taken with the first one. With a million keys it
// says of one in twenty of the others that they may be there; with ten million it says so of nearly all.
type keySet struct {
	seed     maphash.Seed
	counters atomic.Pointer[[keySetWords]atomic.Uint64] // sixteen to a word
}

const (
	keySetWords = 1 << 19 // 4 MiB
	// keySetMost is where a counter stops. It is never taken back from there, because how many keys it counts is
	// not known any more.
	keySetMost = 15
)

// begin must be called before anything else, and empties the set.
func (s *keySet) begin() {
	s.seed = maphash.MakeSeed()
	s.counters.Store(nil)
}

// add adds a key that is not in the set.
func (s *keySet) add(key []byte) {
	counters := s.counters.Load()
	if counters == nil {
		counters = new([keySetWords]atomic.Uint64)
		s.counters.Store(counters)
	}
	for _, at := range s.slots(key) {
		// Load and Store rather than a compare-and-swap, because changes are serialized.
		word, shift := &counters[at/16], at%16*4
		if now := word.Load(); now>>shift&keySetMost < keySetMost {
			word.Store(now + 1<<shift)
		}
	}
}

// remove removes a key that is in the set.
func (s *keySet) remove(key []byte) {
	counters := s.counters.Load()
	if counters == nil {
		return
	}
	for _, at := range s.slots(key) {
		word, shift := &counters[at/16], at%16*4
		if now := word.Load(); now>>shift&keySetMost > 0 && now>>shift&keySetMost < keySetMost {
			word.Store(now - 1<<shift)
		}
	}
}

// lacks reports whether a key is certainly not in the set.
func (s *keySet) lacks(key []byte) bool {
	counters := s.counters.Load()
	if counters == nil {
		return true
	}
	for _, at := range s.slots(key) {
		if counters[at/16].Load()>>(at%16*4)&keySetMost == 0 {
			return true
		}
	}
	return false
}

// slots returns the counters of a key. Nobody who chooses keys can choose them, because the seed is random.
func (s *keySet) slots(key []byte) [2]uint64 {
	hash := maphash.Bytes(s.seed, key)
	return [2]uint64{hash % (16 * keySetWords), hash >> 32 % (16 * keySetWords)}
}
