package demo

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// maxDelay bounds how long a request waits, and how late a copy follows.
const maxDelay = 60 * time.Millisecond

// delayed is a request that waits, which the proxy does not count among its faults.
const delayed = faultproxy.Kind(-1)

// mix is the set of faults for a fixed number of requests; the seed decides their order.
// It is shuffled rather than drawn, so that even a short run has its share of each.
var mix = []struct {
	kind  faultproxy.Kind
	times int
}{{faultproxy.Pass, 34}, {faultproxy.Drop, 4}, {faultproxy.Lose, 4}, {delayed, 4}, {faultproxy.Twice, 4}}

// proxy is the proxy of a side. It decides which request meets which fault, and counts. Two proxies with the same seed
// decide the same.
type proxy struct {
	*faultproxy.Proxy

	tally  *tally
	ctx    context.Context //nolint:containedctx // It ends the delays and the copies.
	cancel context.CancelFunc
	copies sync.WaitGroup
	// sending is held while copies are sent, so that settle also waits for those of sendCopies.
	sending sync.Mutex

	mu     sync.Mutex
	random *rand.Rand
	faults []faultproxy.Kind
	calm   bool
}

// startProxy listens on a free port of the loopback.
func startProxy(backend string, seed uint64, t *tally) (p *proxy, err error) {
	p = newProxy(seed, t)
	p.Proxy, err = faultproxy.Start(backend, faultproxy.Options{
		Plan: p.plan, Answered: func(receipts []*seqledgerv1.Receipt) { t.answered(receipts...) },
	})
	if err != nil {
		p.cancel()
		return nil, err
	}
	p.copies.Go(p.sendCopies)
	return p, nil
}

func newProxy(seed uint64, t *tally) *proxy {
	p := &proxy{tally: t, random: rand.New(rand.NewPCG(seed, 1))}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// close ends everything and waits for it.
func (p *proxy) close() {
	p.cancel()
	p.Proxy.Close()
	p.copies.Wait()
}

// sendCopies sends the copies of requests, each at most maxDelay after its answer, until the proxy is closed.
func (p *proxy) sendCopies() {
	for child.Pause(p.ctx, maxDelay) {
		p.settle()
	}
}

// settle sends the copies that are held, and waits for their answers. A copy that meets a server that was killed is
// lost.
func (p *proxy) settle() {
	p.sending.Lock()
	defer p.sending.Unlock()
	_, _ = p.Release(p.ctx)
}

// stop ends the faults.
func (p *proxy) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calm = true
}

// next returns the fault for the next request, and its delay.
func (p *proxy) next() (faultproxy.Kind, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calm {
		return faultproxy.Pass, 0
	}
	if len(p.faults) == 0 {
		for _, m := range mix {
			for range m.times {
				p.faults = append(p.faults, m.kind)
			}
		}
		p.random.Shuffle(len(p.faults), func(i, j int) { p.faults[i], p.faults[j] = p.faults[j], p.faults[i] })
	}
	kind := p.faults[0]
	p.faults = p.faults[1:]
	return kind, 1 + time.Duration(p.random.Int64N(int64(maxDelay)))
}

// plan counts a message and returns its fault.
func (p *proxy) plan(m *faultproxy.Message) faultproxy.Fault {
	p.tally.sent(m.Writes...)
	kind, wait := p.next()
	p.tally.add(func(c *Counts) {
		switch kind {
		case faultproxy.Drop:
			c.LostRequests++
		case faultproxy.Lose:
			c.LostAnswers++
		case faultproxy.Twice:
			c.Twice++
		case delayed:
			c.Delayed++
		}
	})
	if kind == delayed {
		return faultproxy.Fault{Before: func() { child.Pause(p.ctx, wait) }}
	}
	return faultproxy.Fault{Kind: kind}
}

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
