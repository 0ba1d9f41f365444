package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

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

// The ledger is down when the service has answered: the client gets the response, the journal preserves it when the
// gateway is killed, and the retry gets it once the ledger is back. Meanwhile nothing is executed, and clients are told
// to retry with the same key.
func TestGatewayWithoutItsLedger(t *testing.T) {
	t.Parallel()
	u, s, dir := newUpstream(t), serve(t), t.TempDir()
	flags := []string{"--ledger", s.address, "--wait", "60s", "--lease", "1s"}
	g := startGateway(t, dir, u.URL, flags...)
	first := g.send(`"k"`)
	<-u.fences
	s.kill()
	u.finish <- struct{}{}
	if a := <-first; a.status != http.StatusCreated || a.replayed || a.text != "charge 1" {
		t.Errorf("the first request: %+v", a)
	}
	if status, _, text := g.charge(`"other"`, "5"); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "store-unavailable") {
		t.Errorf("another key: %d %s", status, text)
	}
	g.kill()
	must.Equal(t, len(must.Get(filepath.Glob(filepath.Join(dir, "journal", "*.result")))(t)), 1, "in the journal: %v")
	serveOn(t, s.data, s.address)
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
