// Package storefaults puts a proxy with faults between a store of idempotency keys and its server, and checks what
// every store must do then.
package storefaults

import (
	"net"
	"sync"
	"testing"
)

// Mode is what a proxy does.
type Mode int

// The modes.
const (
	Pass        Mode = iota
	Refuse           // breaks its connections, and new ones
	Stall            // passes nothing on until the mode changes
	LoseAnswers      // passes requests on, and breaks the connection instead of passing an answer on
)

// Proxy passes TCP connections on to a server.
type Proxy struct {
	Address string

	listener net.Listener
	joined   sync.WaitGroup

	mu      sync.Mutex
	target  string
	mode    Mode
	changed chan struct{} // closed when the mode changes
	passed  int           // messages since At
	at      int
	do      func()
	conns   map[net.Conn]struct{}
	closed  bool
}

// Start starts a proxy before a server. It ends with the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		Address: l.Addr().String(), target: target, listener: l, changed: make(chan struct{}),
		conns: map[net.Conn]struct{}{},
	}
	// Ends with the listener; the cleanup waits for it.
	p.joined.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Set(Refuse)
		p.joined.Wait()
	})
	return p
}

// Set changes what the proxy does.
func (p *Proxy) Set(mode Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = mode
	close(p.changed)
	p.changed = make(chan struct{})
	if mode == Refuse {
		for c := range p.conns {
			_ = c.Close()
		}
	}
}

// Lead makes new connections lead to another server. Open ones stay, as when a failover moves an address.
func (p *Proxy) Lead(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// At calls do before the n-th message from now on, a request or an answer, is passed on, from 1. The message waits for
// it. It counts what was read at once as a message. With 0 it only counts. It reports whether what the last At was
// given is called, which may not have returned yet.
func (p *Proxy) At(n int, do func()) (called bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	called = p.at > 0 && p.passed >= p.at
	p.passed, p.at, p.do = 0, n, do
	return called
}

// Passed returns how many messages came since At.
func (p *Proxy) Passed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// count counts a message, and calls what was given to At when it is time.
func (p *Proxy) count() {
	p.mu.Lock()
	p.passed++
	now, do := p.passed == p.at, p.do
	p.mu.Unlock()
	if now {
		do()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.add(client, server) {
			continue
		}
		// Each ends when one of the connections does; the cleanup breaks them and waits.
		p.joined.Go(func() { p.pass(server, client, false) })
		p.joined.Go(func() { p.pass(client, server, true) })
	}
}

// add registers connections, unless new ones are refused.
func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed || p.mode == Refuse {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return !p.closed && p.mode != Refuse
}

// pass copies until a connection breaks.
func (p *Proxy) pass(to, from net.Conn, answers bool) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, to)
		delete(p.conns, from)
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			p.count()
			if !p.await(answers) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits until bytes may be passed on, and reports whether they may be.
func (p *Proxy) await(answers bool) bool {
	for {
		p.mu.Lock()
		mode, changed := p.mode, p.changed
		p.mu.Unlock()
		switch {
		case mode == Stall:
			<-changed
		case mode == Refuse, mode == LoseAnswers && answers:
			return false
		default:
			return true
		}
	}
}
