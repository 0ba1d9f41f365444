package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// spyStore records the calls of a store, and which records they were about.
type spyStore struct {
	idempotency.Store

	mu    sync.Mutex
	calls []string
	keys  []idempotency.RecordKey
	fail  error // returned by every call
}

func (s *spyStore) note(call string, key *idempotency.RecordKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.keys = append(s.calls, call), append(s.keys, *key)
	return s.fail
}

// take returns what was recorded since the last call.
func (s *spyStore) take() (calls []string, keys []idempotency.RecordKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, keys = s.calls, s.keys
	s.calls, s.keys = nil, nil
	return calls, keys
}

func (s *spyStore) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	if err := s.note("reserve", &r.Key); err != nil {
		return nil, err
	}
	return s.Store.Reserve(ctx, r)
}

func (s *spyStore) Complete(
	ctx context.Context, o *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	if err := s.note("complete", &o.Key); err != nil {
		return nil, err
	}
	return s.Store.Complete(ctx, o, result)
}

func (s *spyStore) Reject(
	ctx context.Context, o *idempotency.Ownership, result idempotency.Result,
) (*idempotency.Answer, error) {
	if err := s.note("reject", &o.Key); err != nil {
		return nil, err
	}
	return s.Store.Reject(ctx, o, result)
}

// Whatever the state of a principal's key, another principal that sends the same key sees what it would see if that key
// did not exist: the same response, after the same calls of the store, about its own record alone. It cannot read,
// replay, detect or block what belongs to another.
func TestPrincipalsAreApart(t *testing.T) {
	t.Parallel()
	working, finish := make(chan struct{}, 100), make(chan struct{})
	var executed atomic.Int32
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		executed.Add(1)
		if r.Header.Get("Authorization") != "alice" {
			w.Header().Set("Date", "") // it would differ from run to run
			_, _ = fmt.Fprint(w, "for "+r.Header.Get("Authorization"))
			return
		}
		switch state := strings.TrimPrefix(r.URL.Path, "/"); state {
		case "pending":
			working <- struct{}{}
			<-finish
		case "rejected":
			w.WriteHeader(http.StatusNotFound)
		case "unknown":
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = fmt.Fprint(w, "alice's secret")
	}))
	t.Cleanup(upstream.Close)
	defaults := plain(upstream.URL)
	c := must.Get(load(t, defaults, ""))(t)
	spy := &spyStore{Store: idempotency.Memory()}
	base, _ := start(t, c, func(o *Options) { o.Store = spy })
	// bob sends the key a few times, in the same way and in others.
	bob := func(path string) (seen string, keys []idempotency.RecordKey) {
		executedBefore := executed.Load()
		spy.take()
		for _, body := range []string{"same", "same", "other"} {
			status, header, text := sendAs(t, "bob", http.MethodPost, base+path, `"the-key"`, body)
			for _, name := range []string{"X-Request-Id", "Idempotency-Expires", "X-Idempotent-Expires", "Date"} {
				header.Del(name)
			}
			seen += fmt.Sprintln(status, header, text)
		}
		calls, keys := spy.take()
		return seen + fmt.Sprintln(calls, executed.Load()-executedBefore), keys
	}
	want, _ := bob("/none")
	done := make(chan struct{})
	for _, state := range []string{"committed", "rejected", "unknown", "pending"} {
		if state == "pending" {
			go func() { // ends with finish; the receive below waits for it
				defer close(done)
				_, _, _ = sendAs(t, "alice", http.MethodPost, base+"/pending", `"the-key"`, "same")
			}()
			<-working
		} else {
			_, _, _ = sendAs(t, "alice", http.MethodPost, base+"/"+state, `"the-key"`, "same")
		}
		got, keys := bob("/" + state)
		if got != want {
			t.Errorf("alice's key is %s: bob sees\n%s\nand without it\n%s", state, got, want)
		}
		for _, key := range keys {
			if !strings.HasPrefix(key.Principal, "authorization:") || key.Principal != keys[0].Principal {
				t.Errorf("a call about %q", key.Principal)
			}
		}
	}
	close(finish)
	<-done
	_, header, text := sendAs(t, "alice", http.MethodPost, base+"/pending", `"the-key"`, "same")
	if header.Get(idempotency.HeaderReplayed) != "true" || text != "alice's secret" {
		t.Error("alice's own repeat:", header, text)
	}
}

// A principal that has reached its limit of requests in flight leaves places for the others, and waits only for its own
// requests.
func TestAPrincipalBlocksNoOther(t *testing.T) {
	t.Parallel()
	working, finish := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "alice" {
			working <- struct{}{}
			<-finish
		}
	}))
	t.Cleanup(upstream.Close)
	defaults := plain(upstream.URL)
	defaults.Wait = time.Minute
	c := must.Get(load(t, defaults, ""))(t)
	base, g := start(t, c, func(o *Options) { o.MaxRequests = 8 })
	var group sync.WaitGroup
	for range 4 { // half of 8: one that works, three that wait for it
		group.Go(func() {
			if status, _, _ := sendAs(t, "alice", http.MethodPost, base, `"k"`, ""); status != http.StatusOK {
				t.Errorf("alice: %d", status)
			}
		})
	}
	<-working
	must.Await(t, func() bool {
		g.principals.mu.Lock()
		defer g.principals.mu.Unlock()
		for _, n := range g.principals.of {
			return n == 4
		}
		return false
	})
	if status, _, text := sendAs(t, "alice", http.MethodPost, base, `"k2"`, ""); status != http.StatusTooManyRequests {
		t.Errorf("alice's fifth: %d %s", status, text)
	}
	for i := range 10 {
		if status, _, text := sendAs(t, "bob", http.MethodPost, base, fmt.Sprintf(`"k%d"`, i),
			""); status != http.StatusOK {
			t.Errorf("bob: %d %s", status, text)
		}
	}
	must.Await(t, func() bool { return strings.Contains(scrape(t, g), "seqledger_gateway_waiters 3\n") })
	close(finish)
	group.Wait()
	check.Contains(t, scrape(t, g), "seqledger_gateway_waiters 0\n", "requests wait still")
}

// One address cannot exceed its limit of requests in flight, with keys and without, whatever credentials it makes up.
// Others still get places, and a trusted proxy and this machine have no limit.
func TestAPeerBlocksNoOther(t *testing.T) {
	t.Parallel()
	working, finish := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			working <- struct{}{}
			<-finish
		}
	}))
	t.Cleanup(upstream.Close)
	c := must.Get(load(t, plain(upstream.URL), "", "203.0.113.0/24"))(t)
	_, g := start(t, c, func(o *Options) { o.MaxRequests, o.MaxPerPeer = 8, 3 })
	from := func(peer, path, key string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
		r.RemoteAddr = peer
		r.Header.Set("Authorization", "made up "+key)
		if key != "" {
			r.Header.Set(idempotency.HeaderKey, key)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
			t.Error("a refusal does not say when to come again")
		}
		return w.Code
	}
	var group sync.WaitGroup
	for _, key := range []string{"", "a", "b"} {
		group.Go(func() {
			check.Equal(t, from("[2001:db8::1]:1", "/slow", key), http.StatusOK, "within the bound: %d")
		})
		<-working
	}
	for peer, want := range map[string]int{
		"[2001:db8::1]:2": http.StatusTooManyRequests, "[2001:db8::ffff:0:1%eth0]:1": http.StatusTooManyRequests,
		"[2001:db8:0:1::1]:1": http.StatusOK, "192.0.2.1:1": http.StatusOK, "[::ffff:192.0.2.1]:1": http.StatusOK,
		"203.0.113.9:1": http.StatusOK, "127.0.0.1:1": http.StatusOK, "@": http.StatusOK,
	} {
		for _, key := range []string{"", "c"} {
			check.Equal(t, from(peer, "/quick", key), want, "%s, key %q: %d", peer, key)
		}
	}
	close(finish)
	group.Wait()
	if len(g.peers.of) != 0 || len(g.principals.of) != 0 {
		t.Errorf("counts are left: %v, %v", g.peers.of, g.principals.of)
	}
}

// Every event that a gateway knows is counted, and neither the metrics nor the log contain a key, a principal, a body
// or a path that a client chose.
func TestMetricsAndLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var logging sync.Mutex
	working, finish := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			working <- struct{}{}
			<-finish
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: x\n\n"))
		case "/broken":
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(upstream.Close)
	defaults := plain(upstream.URL)
	defaults.Open = true
	c := must.Get(load(t, defaults, "routes: [{path: /slow}, {path: /waits, wait: 60s}]"))(t)
	spy := &spyStore{Store: idempotency.Memory()}
	journal := must.Get(idempotency.OpenJournal(t.TempDir(), failingStore{}, nil))(t)
	t.Cleanup(func() { _ = journal.Close() })
	base, g := start(t, c, func(o *Options) {
		o.Store, o.Journal = spy, journal
		o.Logger = slog.New(slog.NewTextHandler(lockedWriter{&logging, &log}, nil))
	})
	post := func(path, key, body string) {
		_, _, _ = sendAs(t, "Bearer secret-token", http.MethodPost, base+path, key, body)
	}
	post("/a", `"secret-key"`, "secret-body") // acquired
	post("/a", `"secret-key"`, "secret-body") // replayed
	post("/a", `"secret-key"`, "other")       // mismatch
	post("/a", `secret-key`, "secret-body")   // replayed
	done := make(chan struct{})
	go func() { // received below
		defer close(done)
		post("/slow", `"secret-key"`, "") // acquired
	}()
	<-working
	post("/slow", `"secret-key"`, "") // in flight
	check.Contains(t, scrape(t, g), "seqledger_gateway_requests_open 1\n", "not one request under way")
	close(finish)
	<-done
	post("/events", `"secret-key"`, "") // acquired
	post("/events", `"secret-key"`, "") // not retained
	post("/broken", `"secret-key"`, "") // acquired, abandoned
	post("/chosen-by-a-client", "", "")
	spy.mu.Lock()
	spy.fail = errors.New("unreachable")
	spy.mu.Unlock()
	post("/a", `"secret-key"`, "") // store failure, bypassed
	text := scrape(t, g)
	for event, want := range map[idempotency.Event]int{
		idempotency.EventAcquired: 4, idempotency.EventReplayed: 2, idempotency.EventMismatch: 1,
		idempotency.EventInFlight: 1, idempotency.EventNotRetained: 1, idempotency.EventAbandoned: 1,
		idempotency.EventStoreFailure: 1, idempotency.EventBypassed: 1, idempotency.EventLeaseLost: 0,
		idempotency.EventTakeover: 0, idempotency.EventIndeterminate: 0, idempotency.EventWaited: 0,
	} {
		check.Contains(t, text, fmt.Sprintf("seqledger_gateway_events_total{event=%q} %d\n", event, want),
			"not %d of %s", want, event)
	}
	for _, want := range []string{
		`seqledger_gateway_store_duration_seconds_count{operation="complete"}`, `{route="/slow",status="2xx"} 1`,
		`{route="other",status="5xx"} 1`, "seqledger_gateway_journal_results 0", `reloads_total{result="failed"} 0`,
		`seqledger_gateway_bypassed_total{route="other"} 1`, `seqledger_gateway_bypassed_total{route="/slow"} 0`,
		"seqledger_gateway_waiters 0",
	} {
		check.Contains(t, text, want)
	}
	logging.Lock()
	defer logging.Unlock()
	if !strings.Contains(log.String(), "key_hash=") || !strings.Contains(log.String(), "replayed=true") {
		t.Error("the access log:", log.String())
	}
	for name, content := range map[string]string{"metrics": text, "log": log.String()} {
		for _, secret := range []string{"secret", "authorization:"} {
			if strings.Contains(content, secret) {
				t.Errorf("the %s have %q:\n%s", name, secret, content)
			}
		}
	}
	if strings.Contains(text, "chosen-by-a-client") {
		t.Error("a client chooses a label")
	}
}

// failingStore is an unreachable store.
type failingStore struct{ idempotency.Store }

// lockedWriter is for loggers whose output a test reads.
type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// scrape returns all metrics as text.
func scrape(t *testing.T, g *Gateway) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g.Gatherer(), promhttp.HandlerOpts{}).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Body.String()
}

// Requests that arrive while the configuration keeps changing are all answered by one of the services, each key once;
// those in flight finish with the configuration they began with.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	executed := map[string]int{}
	working, finish := make(chan struct{}, 2), make(chan struct{})
	service := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				working <- struct{}{}
				<-finish
			}
			mu.Lock()
			defer mu.Unlock()
			executed[r.URL.Path+r.Header.Get(idempotency.HeaderKey)]++
			_, _ = fmt.Fprint(w, name)
		}))
		t.Cleanup(s.Close)
		return s
	}
	configs := make([]*Config, 2)
	for i, s := range []*httptest.Server{service("0"), service("1")} {
		defaults := plain(s.URL)
		defaults.Shared = true
		defaults.Timeout = time.Duration(i+1) * time.Hour // so that a reload also changes the transports
		configs[i] = must.Get(load(t, defaults, "routes: [{path: /keyed}]"))(t)
	}
	base, g := start(t, configs[0])
	slow := make(chan string)
	go func() { // received below
		_, _, text := send(t, http.MethodPost, base+"/slow", `"slow"`, "")
		slow <- text
	}()
	<-working
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for n := range 25 {
				g.Reload(configs[n%2])
				key := fmt.Sprintf(`"%d-%d"`, i, n)
				for _, replayed := range []string{"false", "true"} {
					status, header, text := send(t, http.MethodPost, base+"/keyed", key, "x")
					if status != http.StatusOK || header.Get(idempotency.HeaderReplayed) != replayed || text != "0" &&
						text != "1" {
						t.Errorf("%s: %d %v %s", key, status, header, text)
					}
				}
			}
		})
	}
	group.Wait()
	g.Reload(configs[1])
	close(finish)
	check.Equal(t, <-slow, "0", "what was under way ended at %s")
	mu.Lock()
	defer mu.Unlock()
	check.Equal(t, len(executed), 201, "%d keys reached a service")
	for key, n := range executed {
		check.Equal(t, n, 1, "%s ran %d times", key)
	}
	check.Equal(t, len(g.transports), 1, "%d transports are left")
}
