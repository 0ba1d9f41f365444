package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testGateway is a running seqledger gateway.
type testGateway struct {
	*process
	url string
}

// startGateway starts a gateway with its own ledger in a directory.
func startGateway(t *testing.T, dir, upstream string, args ...string) *testGateway {
	t.Helper()
	g := &testGateway{process: &process{ended: make(chan struct{})}}
	g.cmd = exec.Command(binary, append([]string{
		"gateway", "--json", "--listen", "127.0.0.1:0", "--upstream", upstream,
		"--journal", filepath.Join(dir, "journal"),
	}, args...)...)
	g.cmd.Stderr = &g.stderr
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	// Ends with the process, which the cleanup kills; the cleanup waits for it.
	go func() {
		defer close(g.ended)
		_ = g.cmd.Wait()
	}()
	t.Cleanup(func() { g.kill() })
	var ready gatewayReady
	if err != nil || json.Unmarshal(line, &ready) != nil {
		g.kill()
		t.Fatalf("gateway said %q (%v); stderr:\n%s", line, err, g.stderr.String())
	}
	g.url = "http://" + ready.Address
	return g
}

// charge sends a request with a key, and returns -1 for an answer that was cut off.
func (g *testGateway) charge(key, body string) (status int, replayed bool, text string) {
	r, err := http.NewRequest(http.MethodPost, g.url+"/charge", strings.NewReader(body))
	if err != nil {
		return -1, false, err.Error()
	}
	r.Header.Set("Authorization", "Bearer demo")
	r.Header.Set("Idempotency-Key", key)
	answer, err := (&http.Client{Timeout: hangs}).Do(r)
	if err != nil {
		return -1, false, err.Error()
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return -1, false, err.Error()
	}
	return answer.StatusCode, answer.Header.Get("Idempotent-Replayed") == "true", string(b)
}

// One command before a service: many requests with one key reach it once, a restart changes nothing,
// and misuse reaches it never.
func TestGateway(t *testing.T) {
	t.Parallel()
	var executed atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d of %s", executed.Add(1), b)
	}))
	defer service.Close()
	dir := t.TempDir()
	data := []string{"--data", filepath.Join(dir, "data")}
	g := startGateway(t, dir, service.URL, data...)
	var group sync.WaitGroup
	var fresh atomic.Int32
	for range 50 {
		group.Go(func() {
			status, replayed, text := g.charge(`"one"`, "5")
			if !replayed {
				fresh.Add(1)
			}
			if status != http.StatusCreated || text != "charge 1 of 5" {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	group.Wait()
	if executed.Load() != 1 || fresh.Load() != 1 {
		t.Errorf("executed %d times, %d answers were no replays", executed.Load(), fresh.Load())
	}
	if status, _, text := g.charge(`"one"`, "6"); status != http.StatusUnprocessableEntity ||
		!strings.Contains(text, "key-reused") {
		t.Errorf("another request with the key: %d %s", status, text)
	}
	if status, _, text := g.charge(`"`, "6"); status != http.StatusBadRequest ||
		!strings.Contains(text, "key-invalid") {
		t.Errorf("a malformed key: %d %s", status, text)
	}
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := g.wait(t); code != exitDone {
		t.Errorf("stopped with exit code %d: %s", code, g.stderr.String())
	}
	g = startGateway(t, dir, service.URL, data...)
	if status, replayed, text := g.charge(`"one"`, "5"); status != http.StatusCreated || !replayed ||
		text != "charge 1 of 5" {
		t.Errorf("after a restart: %d %v %s", status, replayed, text)
	}
	if executed.Load() != 1 {
		t.Errorf("executed %d times", executed.Load())
	}
	if strings.Contains(g.stderr.String(), `"one"`) || strings.Contains(g.stderr.String(), "Bearer demo") {
		t.Error("the log has a key:", g.stderr.String())
	}
}

// A gateway that is killed while the service works leaves an unknown outcome: the request is not sent
// again by itself, also by a second gateway on the same ledger, and an operator settles it.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	var executed atomic.Int32
	working, release := make(chan struct{}, 10), make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		executed.Add(1)
		working <- struct{}{}
		<-release
	}))
	defer service.Close()
	defer close(release)
	s := serve(t)
	flags := []string{"--ledger", s.address, "--lease", "1s", "--wait", "0", "--scope", "acme/main"}
	first, second := startGateway(t, t.TempDir(), service.URL, flags...),
		startGateway(t, t.TempDir(), service.URL, flags...)
	cut := make(chan int, 1)
	go func() { // received below
		status, _, _ := first.charge(`"k"`, "5")
		cut <- status
	}()
	<-working
	if status, _, text := second.charge(`"k"`, "5"); status != http.StatusConflict ||
		!strings.Contains(text, "in-flight") {
		t.Errorf("beside the first one: %d %s", status, text)
	}
	first.kill()
	if status := <-cut; status != -1 {
		t.Errorf("the client of a killed gateway got %d", status)
	}
	deadline := time.Now().Add(hangs)
	for {
		status, _, text := second.charge(`"k"`, "5")
		if strings.Contains(text, "outcome-unknown") && status == http.StatusConflict {
			break
		}
		if time.Now().After(deadline) || !strings.Contains(text, "in-flight") {
			t.Fatalf("%d %s", status, text)
		}
	}
	records := s.do(t, "key", "list", "--scope", "acme/main", "--all", "--state", "indeterminate", "--json").expect(t,
		exitDone)
	if n := strings.Count(records.stdout, "\n"); n != 1 {
		t.Errorf("%d records are indeterminate: %s", n, records.stdout)
	}
	if executed.Load() != 1 {
		t.Errorf("executed %d times", executed.Load())
	}
}

// A mistake on the command line is told before anything is opened.
func TestGatewayUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--upstream":          {"--upstream", "127.0.0.1:80"},
		"--wait":              {"--upstream", "http://a", "--wait", "61s"},
		"--lease":             {"--upstream", "http://a", "--lease", "1ms"},
		"--ttl":               {"--upstream", "http://a", "--ttl", "0s"},
		"--rejected-ttl":      {"--upstream", "http://a", "--rejected-ttl", "9000h"},
		"--methods":           {"--upstream", "http://a", "--methods", "HEAD"},
		"--ledger-token-file": {"--upstream", "http://a", "--ledger-token-file", "x"},
		"--ledger ":           {"--upstream", "http://a", "--ledger", "http://a?b"},
		"--upstream-timeout":  {"--upstream", "http://a", "--upstream-timeout", "-1s"},
		"--drain-timeout":     {"--upstream", "http://a", "--drain-timeout", "0s"},
		"--scope":             {"--upstream", "http://a", "--scope", "a/b/c"},
	} {
		dir := t.TempDir()
		args = append([]string{"gateway", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "d"), "--journal",
			filepath.Join(dir, "j")}, args...)
		seqledger(t, args...).expect(t, exitUsage, want)
	}
}
