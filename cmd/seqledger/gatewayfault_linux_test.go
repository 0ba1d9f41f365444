package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// faultyStore is a proxy in front of a ledger that loses calls or answers.
type faultyStore struct {
	address string

	mu    sync.Mutex
	fault func(call string) storeFault
}

type storeFault int

const (
	passes     storeFault = iota
	neverComes            // the call does not reach the ledger
	answerLost            // the ledger has decided, but the answer is lost
)

// newFaultyStore starts a proxy in front of a server.
func newFaultyStore(t *testing.T, s *testServer) *faultyStore {
	t.Helper()
	f := &faultyStore{fault: func(string) storeFault { return passes }}
	target := &url.URL{Scheme: "http", Host: s.address}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		fault := f.fault
		f.mu.Unlock()
		switch fault(path.Base(r.URL.Path)) {
		case neverComes:
			panic(http.ErrAbortHandler)
		case answerLost:
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Start()
	t.Cleanup(front.Close)
	f.address = strings.TrimPrefix(front.URL, "http://")
	return f
}

// set sets what happens to calls; nil lets them pass.
func (f *faultyStore) set(fault func(call string) storeFault) {
	if fault == nil {
		fault = func(string) storeFault { return passes }
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// on returns a fault for one call, and a count of how often the call was made.
func on(call string, fault storeFault) (func(string) storeFault, *atomic.Int32) {
	var n atomic.Int32
	return func(c string) storeFault {
		if c != call {
			return passes
		}
		if n.Add(1) > 1 && fault == answerLost {
			return passes // only the first one fails
		}
		return fault
	}, &n
}

// upstream is a service whose charges a test observes.
type upstream struct {
	*httptest.Server

	executed atomic.Int32
	fences   chan uint64   // the fence of each request, when it arrives
	finish   chan struct{} // each request waits for one value
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{fences: make(chan uint64, 2000), finish: make(chan struct{}, 2000)}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := u.executed.Add(1)
		fence, _ := strconv.ParseUint(r.Header.Get("Idempotency-Fence"), 10, 64)
		u.fences <- fence
		select {
		case <-u.finish:
		case <-r.Context().Done():
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", n)
	}))
	t.Cleanup(u.Close)
	return u
}

// send sends a charge in the background.
func (g *testGateway) send(key string) <-chan answer {
	c := make(chan answer, 1)
	go func() { // received by the caller
		status, replayed, text := g.charge(key, "5")
		c <- answer{status, replayed, text}
	}()
	return c
}

// The store is down before the request: nothing is executed, and the client is told to retry with the same key. A
// reservation whose answer was lost does not block its own retry.
func TestGatewayStoreDownBefore(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFaultyStore(t, serve(t))
	g := startGateway(t, t.TempDir(), u.URL, "--ledger", f.address)
	down, _ := on("Reserve", neverComes)
	f.set(down)
	if status, _, text := g.charge(`"k"`, "5"); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "store-unavailable") || u.executed.Load() != 0 {
		t.Errorf("%d %s, executed %d times", status, text, u.executed.Load())
	}
	lost, calls := on("Reserve", answerLost)
	f.set(lost)
	u.finish <- struct{}{}
	if status, _, text := g.charge(`"k"`, "5"); status != http.StatusCreated || text != "charge 1" || calls.Load() < 2 {
		t.Errorf("after a lost answer: %d %s, %d calls", status, text, calls.Load())
	}
	if a := g.until(t, `"k"`, "charge"); !a.replayed || u.executed.Load() != 1 {
		t.Errorf("%+v, executed %d times", a, u.executed.Load())
	}
}

// The store is down during the request and is back before its end: the client does not notice.
func TestGatewayStoreDownDuring(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFaultyStore(t, serve(t))
	g := startGateway(t, t.TempDir(), u.URL, "--ledger", f.address, "--lease", "1s")
	first := g.send(`"k"`)
	<-u.fences
	down, beats := on("Heartbeat", neverComes)
	f.set(down)
	must.Await(t, func() bool { return beats.Load() > 1 })
	f.set(nil)
	u.finish <- struct{}{}
	check.Equal(t, (<-first).status, http.StatusCreated)
	if a := g.until(t, `"k"`, "charge 1"); !a.replayed || u.executed.Load() != 1 {
		t.Errorf("%+v, executed %d times", a, u.executed.Load())
	}
}

// The store is down when the service has answered: the client gets the response, the journal preserves it when the
// gateway is killed, and the retry gets it once the store is back.
func TestGatewayStoreDownAfter(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFaultyStore(t, serve(t))
	dir := t.TempDir()
	flags := []string{"--ledger", f.address, "--wait", "60s", "--lease", "1s"}
	g := startGateway(t, dir, u.URL, flags...)
	down, _ := on("Complete", neverComes)
	f.set(down)
	u.finish <- struct{}{}
	if status, replayed, text := g.charge(`"k"`, "5"); status != http.StatusCreated || replayed || text != "charge 1" {
		t.Errorf("%d %s", status, text)
	}
	g.kill()
	must.Equal(t, len(must.Get(filepath.Glob(filepath.Join(dir, "journal", "*.result")))(t)), 1, "in the journal: %v")
	f.set(nil)
	g = startGateway(t, dir, u.URL, flags...)
	if got := g.until(t, `"k"`, "charge 1"); !got.replayed || got.text != "charge 1" {
		t.Errorf("the repeat: %+v", got)
	}
	check.Equal(t, u.executed.Load(), 1, "executed %d times")
}

// signal sends a signal. For a stop signal it waits until every thread has stopped, because the system lets threads run
// on for a moment.
func (g *testGateway) signal(t *testing.T, s os.Signal) {
	t.Helper()
	must.Do(t, g.cmd.Process.Signal(s))
	if s != syscall.SIGSTOP {
		return
	}
	must.Await(t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", g.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatal("no threads to look at", err)
		}
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			// The state follows the name, which is in parentheses.
			if _, state, ok := strings.Cut(string(stat), ") "); err == nil && ok && state[0] != 'T' {
				return false
			}
		}
		return true
	})
}

// With takeover the next gateway runs the request again, under a higher fencing token, and the paused gateway's later
// result is ignored.
func TestGatewayPausedTakeover(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	s := serve(t)
	flags := []string{"--ledger", s.address, "--lease", "1s", "--wait", "0", "--on-lease-expired", "takeover"}
	first, second := startGateway(t, t.TempDir(), u.URL, flags...), startGateway(t, t.TempDir(), u.URL, flags...)
	paused := first.send(`"k"`)
	lower := <-u.fences
	first.signal(t, syscall.SIGSTOP)
	u.finish <- struct{}{} // the paused gateway's response waits for it on its connection
	u.finish <- struct{}{}
	taken := second.until(t, `"k"`, "charge")
	if taken.text != "charge 2" || taken.replayed {
		t.Errorf("the taker: %+v", taken)
	}
	if higher := <-u.fences; higher <= lower {
		t.Errorf("the fences are %d and %d", lower, higher)
	}
	first.signal(t, syscall.SIGCONT)
	if a := <-paused; a.text == "charge 2" {
		t.Errorf("the paused one's client: %+v", a)
	}
	for _, g := range []*testGateway{first, second} {
		if a := g.until(t, `"k"`, "charge"); a.text != "charge 2" || !a.replayed {
			t.Errorf("the repeat: %+v", a)
		}
	}
	check.Equal(t, u.executed.Load(), 2, "executed %d times")
}

// A thousand clients retry one key at once, through two gateways on one ledger: the service gets one call, and in the
// end there are a thousand equal answers. Clients beyond the limit of waiters get 429, and retry. On a busy machine,
// clients whose ledger call takes over five seconds get 503, and retry, too.
func TestGatewayThousandClients(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	s := serve(t)
	flags := []string{"--ledger", s.address, "--wait", "60s", "--max-requests", "2000"}
	gateways := []*testGateway{startGateway(t, t.TempDir(), u.URL, flags...),
		startGateway(t, t.TempDir(), u.URL, flags...)}
	clients := 1000
	if testing.Short() {
		clients = 300
	}
	var group sync.WaitGroup
	var equal, fresh, waiting atomic.Int32
	released := make(chan struct{})
	t.Cleanup(func() { u.finish <- struct{}{} }) // before the service is closed, because closing waits for its response
	for i := range clients {
		group.Go(func() {
			for {
				status, replayed, text := gateways[i%2].charge(`"k"`, "5")
				switch {
				case status == http.StatusCreated && text == "charge 1":
					equal.Add(1)
					if !replayed {
						fresh.Add(1)
					}
					return
				case status == http.StatusTooManyRequests && strings.Contains(text, "quota"):
					waiting.Add(1)
					<-released
				case status == http.StatusServiceUnavailable && strings.Contains(text, "store-unavailable"):
				default:
					t.Errorf("%d %s", status, text)
					return
				}
			}
		})
	}
	<-u.fences
	must.Await(t, func() bool { return int(waiting.Load()) >= clients-100 }) // at most 64 wait for a key
	u.finish <- struct{}{}
	close(released)
	group.Wait()
	if u.executed.Load() != 1 || int(equal.Load()) != clients || fresh.Load() != 1 {
		t.Errorf("executed %d times, %d equal answers, %d of them fresh", u.executed.Load(), equal.Load(), fresh.Load())
	}
}

// A gateway that is told to stop answers the requests in flight, and accepts no new ones.
func TestGatewayDrains(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	dir := t.TempDir()
	g := startGateway(t, dir, u.URL, "--data", filepath.Join(dir, "data"))
	first := g.send(`"k"`)
	<-u.fences
	g.signal(t, syscall.SIGTERM)
	awaitLog(t, g.process, "stopping")
	if answer, err := http.Get(g.url + "/"); err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		t.Errorf("a draining gateway answers %d", answer.StatusCode)
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Log(err) // the connection was closed
	}
	u.finish <- struct{}{}
	check.Equal(t, (<-first).status, http.StatusCreated)
	if code := g.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, g.stderr.String())
	}
}

// A gateway whose own ledger fails exits, and says what to do.
func TestGatewayLedgerFails(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	dir := t.TempDir()
	flags := []string{"--upstream", u.URL, "--journal", filepath.Join(dir, "journal"), "--data",
		filepath.Join(dir, "data")}
	g := startsGateway(t, behindPipe(t), flags...)
	u.finish <- struct{}{}
	if status, _, text := g.charge(`"a"`, "5"); status != http.StatusCreated {
		t.Fatal(status, text)
	}
	limit := unix.Rlimit{Cur: 1, Max: math.MaxUint64}
	must.Do(t, unix.Prlimit(g.cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil))
	if status, _, text := g.charge(`"b"`, "5"); status == http.StatusCreated {
		t.Errorf("%d %s: acknowledged what was not stored", status, text)
	}
	check.Equal(t, g.wait(t), exitFailed, "exit code %d")
	awaitLog(t, g.process, "repair the disk")
	check.Equal(t, u.executed.Load(), 1, "executed %d times")
	g = startsGateway(t, binary, flags...)
	if status, replayed, text := g.charge(`"a"`, "5"); status != http.StatusCreated || !replayed {
		t.Errorf("after a restart: %d %s", status, text)
	}
}
