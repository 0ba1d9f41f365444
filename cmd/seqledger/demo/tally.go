package demo

import (
	"sync"

	"github.com/seqledger/seqledger/client/payments"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Counts are a column's counts so far, as the proxy sees them.
type Counts struct {
	Payments      uint64 `json:"-"`                    // different ones sent
	Retried       uint64 `json:"retried,string"`       // times that a client sent one again
	Replayed      uint64 `json:"replayed,string"`      // answers that repeated an earlier receipt
	LostRequests  uint64 `json:"lostRequests,string"`  // requests dropped
	LostAnswers   uint64 `json:"lostAnswers,string"`   // answers dropped
	Delayed       uint64 `json:"delayed,string"`       // requests delayed
	Twice         uint64 `json:"twice,string"`         // requests sent twice
	ServersKilled uint64 `json:"serversKilled,string"` // with SIGKILL
	ClientsKilled uint64 `json:"clientsKilled,string"` // with SIGKILL
}

// tally counts. It is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	counts Counts
	// seen has every payment of the run, as the clients' books do.
	seen map[string]struct{}
}

func newTally() *tally { return &tally{seen: make(map[string]struct{})} }

// snapshot returns the current counts.
func (t *tally) snapshot() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// complete reports whether each kind of fault, kill and repeat has happened.
func (t *tally) complete() bool {
	c := t.snapshot()
	return c.Retried > 0 && c.Replayed > 0 && c.LostRequests > 0 && c.LostAnswers > 0 && c.Delayed > 0 && c.Twice > 0 &&
		c.ServersKilled > 0 && c.ClientsKilled > 0
}

// add changes the counts.
func (t *tally) add(change func(*Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// sent counts what a client has sent, whatever its outcome.
func (t *tally) sent(writes ...*seqledgerv1.WriteRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, write := range writes {
		p, ok := payments.Of(write.GetOperations())
		if !ok {
			continue
		}
		if _, again := t.seen[p.Tag]; again {
			t.counts.Retried++
			continue
		}
		t.seen[p.Tag] = struct{}{}
		t.counts.Payments++
	}
}

// answered counts what the server has answered, even if the answer is lost.
func (t *tally) answered(receipts ...*seqledgerv1.Receipt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, receipt := range receipts {
		if receipt.GetReplayed() {
			t.counts.Replayed++
		}
	}
}
