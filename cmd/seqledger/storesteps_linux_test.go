package main

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// stepServer is the server of a store.
type stepServer struct {
	failing
	address string
	flags   func(address string) []string // of a gateway that reaches it there
}

// failing is a server that can be killed, started again, paused and continued.
type failing interface {
	Kill()
	Start()
	Pause()
	Continue()
}

// failingLedger is a ledger that is killed and paused.
type failingLedger struct {
	*testServer

	t *testing.T
}

func (l *failingLedger) Kill()     { l.kill() }
func (l *failingLedger) Start()    { l.testServer = serveOn(l.t, l.data, l.address) }
func (l *failingLedger) Pause()    { _ = l.cmd.Process.Signal(syscall.SIGSTOP) }
func (l *failingLedger) Continue() { _ = l.cmd.Process.Signal(syscall.SIGCONT) }

// stepServers start the server of each store.
var stepServers = map[string]func(t *testing.T) *stepServer{
	"ledger": func(t *testing.T) *stepServer {
		l := &failingLedger{serve(t), t}
		return &stepServer{l, l.address, func(address string) []string { return []string{"--ledger", address} }}
	},
	"postgres": func(t *testing.T) *stepServer { return newStepServer(t, servertest.Postgres(t), true) },
	"redis":    func(t *testing.T) *stepServer { return newStepServer(t, servertest.Redis(t), false) },
	"s3":       func(t *testing.T) *stepServer { return newStepServer(t, servertest.S3(t), true) },
}

func newStepServer(t *testing.T, s *servertest.Server, needsInit bool) *stepServer {
	t.Helper()
	if needsInit {
		seqledger(t, "store", "init", s.URL).expect(t, exitDone)
	}
	return &stepServer{s, s.Address, func(address string) []string {
		return []string{"--store", strings.Replace(s.URL, s.Address, address, 1)}
	}}
}

// stepStore is a store whose traffic with one gateway is counted, message by message.
type stepStore struct {
	server  *stepServer
	service *keyedService
	witness *testGateway // reaches the store without the proxy
}

// stepGateway is a gateway whose store is behind a proxy of its own.
type stepGateway struct {
	*testGateway

	proxy *storefaults.Proxy
	start func() *testGateway // once more, with the same journal
}

// stepFlags are those of all gateways of these tests: a lease that ends soon, and no waiting.
var stepFlags = []string{"--lease", "1s", "--wait", "0", "--scope", "acme/main"}

func newStepStore(t *testing.T, server *stepServer) *stepStore {
	t.Helper()
	s := &stepStore{server: server, service: newKeyedService(t)}
	s.witness = s.startGateway(t, t.TempDir(), server.address)
	return s
}

// startGateway starts a gateway that reaches the store at an address.
func (s *stepStore) startGateway(t *testing.T, dir, address string) *testGateway {
	t.Helper()
	return startGateway(t, dir, s.service.URL, append(s.server.flags(address), stepFlags...)...)
}

// gateway starts a gateway.
func (s *stepStore) gateway(t *testing.T) *stepGateway {
	t.Helper()
	proxy, dir := storefaults.Start(t, s.server.address), t.TempDir()
	start := func() *testGateway { return s.startGateway(t, dir, proxy.Address) }
	return &stepGateway{start(), proxy, start}
}

// definite repeats a request until its answer is a result, or that the outcome is unknown where that may stay so.
func (s *stepStore) definite(t *testing.T, key string, mayBeUnknown bool) (status int, text string) {
	t.Helper()
	must.Await(t, func() bool {
		status, _, text = s.witness.charge(`"`+key+`"`, key)
		return status == http.StatusCreated ||
			strings.Contains(text, "outcome-unknown") && (mayBeUnknown || s.service.times(key) == 0)
	})
	return status, text
}

// check fails the test unless the work of a key was done at most once, and what is said of it is true.
func (s *stepStore) check(t *testing.T, key string, answer int, text string, mayBeUnknown bool) {
	t.Helper()
	// A result that was handed out may have to wait in the journal, and is never unknown in the end.
	status, last := s.definite(t, key, mayBeUnknown && answer != http.StatusCreated)
	n := s.service.times(key)
	want := "charge 1 of " + key
	switch {
	case n > 1:
		t.Errorf("the work was done %d times", n)
	case answer == http.StatusCreated && (text != want || status != http.StatusCreated):
		t.Errorf("the client got %q, and a repeat %d %q", text, status, last)
	case status == http.StatusCreated && (last != want || n != 1):
		t.Errorf("a repeat got %q, and the work was done %d times", last, n)
	}
}

// messages returns how many messages the first request of a gateway makes, when nothing disturbs it.
func (s *stepStore) messages(t *testing.T) int {
	t.Helper()
	g := s.gateway(t)
	g.proxy.At(0, nil)
	if status, _, text := g.charge(`"undisturbed"`, "undisturbed"); status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}
	n := g.proxy.Passed()
	if n < 6 { // a reservation, a token and a result are a question and an answer each, at least
		t.Fatalf("a request makes %d messages", n)
	}
	return n
}

// storeEvents are what happens at a step, and afterwards. Each returns what the gateway's client got.
var storeEvents = []struct {
	name         string
	mayBeUnknown bool
	happen       func(t *testing.T, s *stepStore, g *stepGateway, step int, key string) (status int, text string)
}{
	{"gateway killed", true, func(t *testing.T, _ *stepStore, g *stepGateway, step int, key string) (int, string) {
		g.proxy.At(step, func() { _ = g.cmd.Process.Kill() })
		status, _, text := g.charge(`"`+key+`"`, key)
		g.kill()
		g.proxy.At(0, nil)
		g.start() // which stores what the journal has
		return status, text
	}},
	{"gateway paused", true, func(t *testing.T, s *stepStore, g *stepGateway, step int, key string) (int, string) {
		reached := make(chan struct{})
		g.proxy.At(step, func() {
			_ = g.cmd.Process.Signal(syscall.SIGSTOP)
			close(reached)
		})
		answered := make(chan struct{})
		var status int
		var text string
		// Ends with the answer, received below.
		go func() {
			defer close(answered)
			status, _, text = g.charge(`"`+key+`"`, key)
		}()
		select {
		case <-reached:
			s.definite(t, key, true) // another one goes on, or waits for the end of the lease
		case <-answered: // it took fewer messages
			if g.proxy.At(0, nil) {
				<-reached
			}
		}
		g.signal(t, syscall.SIGCONT)
		<-answered
		return status, text
	}},
	{"store killed", false, func(t *testing.T, s *stepStore, g *stepGateway, step int, key string) (int, string) {
		killed := make(chan struct{})
		g.proxy.At(step, func() {
			s.server.Kill()
			close(killed)
		})
		status, _, text := g.charge(`"`+key+`"`, key)
		if g.proxy.At(0, nil) { // otherwise it took fewer messages
			<-killed
			s.server.Start()
		}
		return status, text
	}},
	{"store paused", false, func(t *testing.T, s *stepStore, g *stepGateway, step int, key string) (int, string) {
		goingOn := make(chan struct{})
		g.proxy.At(step, func() {
			defer close(goingOn)
			s.server.Pause()
			<-time.After(1500 * time.Millisecond) // until the lease is over
			s.server.Continue()
		})
		status, _, text := g.charge(`"`+key+`"`, key)
		if g.proxy.At(0, nil) {
			<-goingOn
		}
		return status, text
	}},
}

// A gateway, or its store, is killed or paused before each message between the two: the work is done at most once,
// a result that was handed out stays, and what a gateway has done that lives is known in the end.
func TestGatewayStoreAtEachStep(t *testing.T) {
	t.Parallel()
	for name, start := range stepServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStepStore(t, start(t))
			messages := s.messages(t)
			for i, event := range storeEvents {
				for step := 1; step <= messages+1; step++ {
					if testing.Short() && (i > 1 || step != messages/2) {
						continue // each of them begins with a process
					}
					t.Run(fmt.Sprintf("%s/%d", event.name, step), func(t *testing.T) {
						key := fmt.Sprintf("%s-%d", strings.ReplaceAll(event.name, " ", "-"), step)
						status, text := event.happen(t, s, s.gateway(t), step, key)
						s.check(t, key, status, text, event.mayBeUnknown)
					})
				}
			}
		})
	}
}
