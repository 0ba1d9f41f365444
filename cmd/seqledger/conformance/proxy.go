package conformance

import (
	"sync"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// The faults of a case.
type (
	message = faultproxy.Message
	fault   = faultproxy.Fault
)

// proxy is the fault proxy of a case. It also checks the copies of the writes, and notes what it does to each message.
type proxy struct {
	*faultproxy.Proxy

	copies *copies
	trail  *trail

	mu sync.Mutex
	// plan decides about each message; its calls do not overlap.
	plan   func(m *message) fault
	writes int // messages with writes
}

// startProxy listens on a free loopback port.
func startProxy(backend string, t *trail) (p *proxy, err error) {
	p = &proxy{copies: newCopies(), trail: t}
	p.Proxy, err = faultproxy.Start(backend, faultproxy.Options{Plan: p.decide})
	return p, err
}

// setPlan decides what happens to messages from now on; nil lets all pass.
func (p *proxy) setPlan(plan func(m *message) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
}

func (p *proxy) decide(m *message) (f fault) {
	p.copies.note(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.IsWrite() {
		p.writes++
	}
	if p.plan != nil {
		f = p.plan(m)
	}
	p.trail.note("%s %s: %s", m.Protocol, m.Procedure, f)
	return f
}

// seen returns how many messages with writes the proxy has seen.
func (p *proxy) seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes
}
