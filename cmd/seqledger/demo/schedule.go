package demo

import (
	"math/rand/v2"
	"sync"
	"time"
)

// fault is what the proxy does to one request.
type fault uint8

const (
	faultNone        fault = iota
	faultLoseRequest       // the request never reaches the server
	faultLoseAnswer        // the server executes it, the answer is lost
	faultDelay             // it is delayed
	faultTwice             // a copy follows some time after its answer
)

// maxDelay bounds how long a request waits, and how late a copy follows.
const maxDelay = 60 * time.Millisecond

// mix is the set of faults for a fixed number of requests; the seed decides their order.
// It is shuffled rather than drawn, so that even a short run has its share of each.
var mix = map[fault]int{faultNone: 34, faultLoseRequest: 4, faultLoseAnswer: 4, faultDelay: 4, faultTwice: 4}

// schedule says which request meets which fault. Two schedules with the same seed say the same.
type schedule struct {
	mu     sync.Mutex
	random *rand.Rand
	faults []fault
	calm   bool
}

func newSchedule(seed uint64) *schedule { return &schedule{random: rand.New(rand.NewPCG(seed, 1))} }

// next returns the fault for the next request, and its delay.
func (s *schedule) next() (fault, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm {
		return faultNone, 0
	}
	if len(s.faults) == 0 {
		for kind := faultNone; kind <= faultTwice; kind++ {
			for range mix[kind] {
				s.faults = append(s.faults, kind)
			}
		}
		s.random.Shuffle(len(s.faults), func(i, j int) { s.faults[i], s.faults[j] = s.faults[j], s.faults[i] })
	}
	kind := s.faults[0]
	s.faults = s.faults[1:]
	return kind, 1 + time.Duration(s.random.Int64N(int64(maxDelay)))
}

// stop ends the faults.
func (s *schedule) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = true
}
