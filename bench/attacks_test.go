package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// quickAttacks are those that run here; go run ./bench abuse -quick runs all.
var quickAttacks = []string{"huge headers", "only gaps", "foreign transactions"}

// nothingDone matches what an attack says that has not got anywhere.
var nothingDone = regexp.MustCompile(`: 0 requests|: 0 committed|^0 `)

// runAttacks runs attacks one after the other on one server, a moment each, and looks at the server afterwards.
func runAttacks(t *testing.T, o *options, attacks []attack, target *target) {
	t.Helper()
	for _, a := range attacks {
		if !slices.Contains(quickAttacks, a.name) {
			continue
		}
		if a.prepare != nil {
			if err := a.prepare(t.Context(), o, target); err != nil {
				t.Fatalf("%s: %v", a.name, err)
			}
		}
		// Longer and longer, because a busy machine may get nowhere in a moment.
		for lasts := 100 * time.Millisecond; ; lasts *= 4 {
			done, err := a.runFor(t.Context(), o, target, lasts)
			if err == nil && done != "" && !nothingDone.MatchString(done) {
				break
			}
			if lasts > 10*time.Second {
				t.Errorf("%s: %q, %v", a.name, done, err)
				break
			}
		}
		if len(target.keys) > 0 {
			continue // without a key the server does not show what it still has
		}
		if err := (&process{address: target.address}).healthy(t.Context()); err != nil {
			t.Errorf("after %s: %v", a.name, err)
		}
	}
}

// runFor runs an attack for a time, or until it is done if that is how long it lasts.
func (a *attack) runFor(ctx context.Context, o *options, target *target, lasts time.Duration) (string, error) {
	if a.lasts == 0 && len(target.keys) == 0 {
		return a.run(ctx, o, target)
	}
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	return a.run(ctx, o, target)
}

// TestAbuses does for a moment what go run ./bench abuse does to a server for minutes: an attack gets somewhere, and
// leaves nothing behind.
func TestAbuses(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.fraction = 0.001
	err := onBed(t.Context(), o, func(ctx context.Context, b *bed) error {
		if err := b.startServer(ctx); err != nil {
			return err
		}
		runAttacks(t, o, abuses, &target{address: b.server.address})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTenantAttacks is the same for the attacks of a tenant that has a key.
func TestTenantAttacks(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.fraction = 0.001
	err := onBed(t.Context(), o, func(ctx context.Context, b *bed) error {
		tenants, err := b.startTenants(ctx, 0)
		if err != nil {
			return err
		}
		runAttacks(t, o, tenantAttacks, tenants)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAbuseIsMeasured: one attack of each kind, with all that is told of it.
func TestAbuseIsMeasured(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: each is measured for a second, which make test-long has")
	}
	o := quickOptions(t)
	o.fraction = 0.001
	for name, measure := range map[string]func(context.Context, *bed) ([]harness.Line, error){
		"abuse":  (&attack{run: doNothing}).measureAbuse,
		"tenant": tenantAttacks[0].measureTenant,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []harness.Line
			err := onBed(t.Context(), o, func(ctx context.Context, b *bed) (err error) {
				lines, err = measure(ctx, b)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(lines) < 6 || lines[0]["measure"] != "nothing" {
				t.Errorf("%v", lines)
			}
			for _, l := range lines[1:] {
				if l["value"] == "" {
					t.Errorf("not measured: %v", l)
				}
			}
		})
	}
}

// TestAttackJobs that a bad tenant's process cannot do are refused.
func TestAttackJobs(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"": "EOF", "{": "EOF", "[]": "cannot unmarshal", `{"name":"peace"}`: `no attack "peace"`,
	} {
		if err := runTenantAttackAsTest(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: want %q, got %v", text, says, err)
		}
	}
}

// runTenantAttackAsTest runs a job in a process of its own, whose priority it lowers.
func runTenantAttackAsTest(t *testing.T, job string) error {
	t.Helper()
	command := harness.Self("-attack")
	var stderr bytes.Buffer
	command.Stdin, command.Stderr = strings.NewReader(job), &stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	return nil
}

// loopback serves one answer to all that connect, whatever they send, and counts them.
func loopback(t *testing.T, answer string) (address string, count *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	count = new(atomic.Int64)
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			go func() { // ends with the connection, which the other side closes or we do
				defer func() { _ = c.Close() }()
				if _, err := c.Read(make([]byte, 1)); err != nil {
					return
				}
				if _, err := io.WriteString(c, answer); err == nil {
					_, _ = io.Copy(io.Discard, c)
				}
			}()
		}
	}()
	return l.Addr().String(), count
}

// TestOneShotClientsCount what was committed, refused and cut off.
func TestOneShotClientsCount(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\n\r\n":           "10 clients: 10 committed, 0 refused, 0 cut off",
		"HTTP/1.1 429 Too Many\r\n\r\n":     "10 clients: 0 committed, 10 refused, 0 cut off",
		"HTTP/1.1 503 Unavailable 2000\r\n": "10 clients: 0 committed, 10 refused, 0 cut off",
	} {
		address, count := loopback(t, answer)
		done, err := oneShotClients(t.Context(), &options{fraction: 1e-5}, &target{address: address})
		if err != nil || done != want || count.Load() != 10 {
			t.Errorf("%q: %q, %v, %d connections; want %q", answer, done, err, count.Load(), want)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens
	done, err := oneShotClients(t.Context(), &options{fraction: 1e-5}, &target{address: l.Addr().String()})
	if err != nil || done != "10 clients: 0 committed, 0 refused, 10 cut off" {
		t.Errorf("%q, %v", done, err)
	}
}

// TestHugeHeadersMustBeRefused: any other answer is a failure of the server.
func TestHugeHeadersMustBeRefused(t *testing.T) {
	t.Parallel()
	for answer, fails := range map[string]bool{
		"HTTP/1.1 431 Request Header Fields Too Large\r\n": false, "HTTP/1.1 200 OK\r\n": true,
	} {
		address, _ := loopback(t, answer)
		_, err := hugeHeaders(t.Context(), &options{fraction: 1e-4}, &target{address: address})
		if (err != nil) != fails {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

// metricsServer is a server of metrics, ready or not.
func metricsServer(t *testing.T, status int, metrics string) *process {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, metrics)
			return
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return &process{address: s.Listener.Addr().String()}
}

// released are the metrics of a server that has nothing left of an attack.
const released = "# HELP seqledger_requests_open Requests.\nseqledger_requests_open 1\nseqledger_streams_open 0\n" +
	"seqledger_arriving_bytes 0\nseqledger_panics_total 0\nseqledger_queue_items 0\nseqledger_connections_open 3\n"

// TestHealth: a server is healthy when it is ready and has let everything go.
func TestHealth(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status   int
		from, to string // of the metrics
		says     string
	}{
		"well":           {http.StatusOK, "", "", ""},
		"not ready":      {http.StatusServiceUnavailable, "", "", "503"},
		"a stream":       {http.StatusOK, "streams_open 0", "streams_open 2", "streams_open is 2"},
		"bytes":          {http.StatusOK, "bytes 0", "bytes 5e6", "bytes is 5e+06"},
		"a panic":        {http.StatusOK, "panics_total 0", "panics_total 1", "panics_total is 1"},
		"no metric":      {http.StatusOK, "queue_items", "queue_things", "no seqledger_queue_items"},
		"no number":      {http.StatusOK, "queue_items 0", "queue_items x", "invalid syntax"},
		"of another one": {http.StatusOK, "queue_items 0", `queue_items{a="b"} 0`, "no seqledger_queue_items"},
	} {
		p := metricsServer(t, test.status, strings.Replace(released, test.from, test.to, 1))
		err := p.looksHealthy(t.Context())
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: want %q, got %v", name, test.says, err)
		}
		if err == nil && p.healthy(t.Context()) != nil {
			t.Errorf("%s: it looks healthy and is not", name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.healthy(ctx); err == nil {
			t.Errorf("%s: healthy, and nobody has looked", name)
		}
	}
	p := &process{address: "127.0.0.1:1"}
	if _, err := p.metric("x"); err == nil {
		t.Error("a server that is not there has a metric")
	}
}

// TestBeside: calls are measured alone and during the attack; what the server refuses ends a call that has no pause,
// and is noted of one that has.
func TestBeside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{o: &options{fraction: 1}, server: &process{Process: &harness.Process{Pid: os.Getpid()}}}
		work := func(took time.Duration, err error) func(context.Context) error {
			return func(ctx context.Context) error { harness.Pause(ctx, took); return err }
		}
		calls := []call{
			{"quick", 0, work(10*time.Millisecond, nil)},
			{"paused", 40 * time.Millisecond, work(10*time.Millisecond, nil)},
			{"refused once", 0, work(time.Second, errors.New("no"))},
		}
		m, err := b.beside(t.Context(), calls, func() (string, error) {
			harness.Pause(t.Context(), 2*time.Second)
			return "done", nil
		})
		if err != nil || m.done != "done" || len(m.refused) != 1 || m.memory <= 0 {
			t.Errorf("%+v, %v", m, err)
		}
		for i, want := range [][2]int64{{500, 200}, {100, 40}, {0, 0}} {
			alone, meanwhile := m.alone[i].TotalCount(), m.meanwhile[i].TotalCount()
			if alone < want[0]-2 || alone > want[0]+2 || meanwhile < want[1]-2 || meanwhile > want[1]+2 {
				t.Errorf("%s: %d alone and %d meanwhile, want about %v", calls[i].name, alone, meanwhile, want)
			}
		}
		total := uint64(0)
		for i := range calls {
			total += uint64(m.alone[i].TotalCount() + m.meanwhile[i].TotalCount())
		}
		if m.acknowledged < total || m.acknowledged > total+3 { // those that end later are acknowledged, too
			t.Errorf("%d acknowledged, %d measured", m.acknowledged, total)
		}
	})
}

// TestEachIsBounded: no more at once than it is told, everything once, and nothing after a failure.
func TestEachIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most, done atomic.Int64
		err := each(t.Context(), 100, 7, func(ctx context.Context, _ int) error {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			harness.Pause(ctx, time.Millisecond)
			now.Add(-1)
			done.Add(1)
			return nil
		})
		if err != nil || most.Load() != 7 || done.Load() != 100 {
			t.Errorf("%d at once, %d of 100 done, %v", most.Load(), done.Load(), err)
		}
		broken, begun := errors.New("broken"), atomic.Int64{}
		err = each(t.Context(), 100, 1, func(context.Context, int) error { begun.Add(1); return broken })
		if !errors.Is(err, broken) || begun.Load() > 2 {
			t.Errorf("%v after %d", err, begun.Load())
		}
	})
}

// TestBadWrites have the bytes that they are said to have, in operations that the ledger takes.
func TestBadWrites(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3 << 20} {
		w, total := badWrite("c", 7, size), 0
		for _, o := range w.GetOperations() {
			if n := len(o.GetAppend().GetPayload()); n <= 1<<20 {
				total += n
			}
		}
		if total != size || len(w.GetOperations()) == 0 || w.GetSequence() != 7 || w.GetScope() != badScope {
			t.Errorf("%d bytes in place of %d, in %d operations", total, size, len(w.GetOperations()))
		}
	}
	for i, w := range frame(3, 5, appendOf(nil)) {
		if w.GetClientId() != fmt.Sprint("huge-", i) || w.GetSequence() != 1 || len(w.GetOperations()) != 5 {
			t.Errorf("write %d of a frame is %v", i, w)
		}
	}
}

// TestKeysOfTenants are sent as they are, by those that have one.
func TestKeysOfTenants(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.Close)
	tenants := &target{address: s.Listener.Addr().String(), keys: map[string]string{"good": "k1"}}
	for id, want := range map[string]string{"": "", "good": "Bearer k1"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := tenants.as(id, s.Client()).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got.Load() != want || request.Header.Get("Authorization") != "" {
			t.Errorf("%q sends %q; the caller's request has %q", id, got.Load(), request.Header.Get("Authorization"))
		}
	}
}

// TestAnswersThatAreNotRead are given up, and a refusal is told.
func TestAnswersThatAreNotRead(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Type") != "application/json" || !json.Valid(body) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	tenants := &target{address: s.Listener.Addr().String()}
	release, err := tenants.askUnread(t.Context(), s.Client(), "/x", "{}")
	if err != nil {
		t.Fatal(err)
	}
	release()
	status = http.StatusTooManyRequests
	if _, err := tenants.askUnread(t.Context(), s.Client(), "/x", "{}"); err == nil ||
		!strings.Contains(err.Error(), "429") {
		t.Errorf("a refusal: %v", err)
	}
}

// TestRawCalls: the bare client reads answers one after the other, and tells a refusal.
func TestRawCalls(t *testing.T) {
	t.Parallel()
	var sequences []uint64
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m := new(seqledgerv1.WriteRequest)
		if err != nil || m.UnmarshalVT(body) != nil || r.Header.Get("Content-Type") != "application/proto" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		sequences = append(sequences, m.GetSequence())
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.Repeat("x", len(sequences)*100))
	}))
	t.Cleanup(s.Close)
	b := &bed{server: &process{address: s.Listener.Addr().String()}}
	call, err := rawCalls(t.Context(), b, 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := call(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(sequences, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("the writes have the sequences %v", sequences)
	}
	status = http.StatusServiceUnavailable
	if err := call(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a refusal: %v", err)
	}
	for _, closer := range b.closers {
		if err := closer(); err != nil {
			t.Error(err)
		}
	}
	if err := call(t.Context(), 0); err == nil {
		t.Error("a call on a closed connection has an answer")
	}
}
