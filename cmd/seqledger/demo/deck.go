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

// pack is the set of faults for a fixed number of requests; the seed decides the order. A
// shuffled deck, unlike independent draws, gives even a short run its share of each.
var pack = map[fault]int{faultNone: 34, faultLoseRequest: 4, faultLoseAnswer: 4, faultDelay: 4, faultTwice: 4}

// deck deals faults. Two decks with the same seed deal the same faults.
type deck struct {
	mu     sync.Mutex
	random *rand.Rand
	cards  []fault
	calm   bool
}

func newDeck(seed uint64) *deck { return &deck{random: rand.New(rand.NewPCG(seed, 1))} }

// draw returns the fault for the next request, and its delay.
func (d *deck) draw() (fault, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calm {
		return faultNone, 0
	}
	if len(d.cards) == 0 {
		for kind := faultNone; kind <= faultTwice; kind++ {
			for range pack[kind] {
				d.cards = append(d.cards, kind)
			}
		}
		d.random.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
	}
	card := d.cards[0]
	d.cards = d.cards[1:]
	return card, 1 + time.Duration(d.random.Int64N(int64(maxDelay)))
}

// rest ends the faults.
func (d *deck) rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calm = true
}
