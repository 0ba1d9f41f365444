package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// testGateway is a running seqledger gateway.
type testGateway struct {
	*process
	gatewayReady

	url string
}

// startGateway starts a gateway with its own ledger in a directory.
func startGateway(t *testing.T, dir, upstream string, args ...string) *testGateway {
	t.Helper()
	own := []string{"--journal", filepath.Join(dir, "journal")}
	if upstream != "" {
		own = append(own, "--upstream", upstream)
	}
	return startsGateway(t, binary, append(own, args...)...)
}

// startsGateway starts a gateway with another program.
func startsGateway(t *testing.T, program string, args ...string) *testGateway {
	t.Helper()
	args = append([]string{"gateway", "--json", "--listen", "127.0.0.1:0"}, args...)
	g := &testGateway{process: launch(t, exec.Command(program, args...))}
	if line := g.line(t); json.Unmarshal([]byte(line), &g.gatewayReady) != nil {
		t.Fatalf("gateway said %q; stderr:\n%s", line, g.stderr)
	}
	g.url = "http://" + g.Address
	return g
}

// charge sends a request with a key; status is -1 if the answer was truncated.
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

// The example configuration has no mistakes.
func TestGatewayExample(t *testing.T) {
	t.Parallel()
	const example = "../../docs/examples/gateway.yaml"
	seqledger(t, "gateway", "--config", example, "--check").expect(t, exitDone, "no mistakes; 5 routes")
	checked := seqledger(t, "gateway", "--config", example, "--check", "--json").expect(t, exitDone)
	check.Equal(t, checked.stdout, "{\"routes\":5}\n", "with --json: %v: %v", checked)
	content := must.Get(os.ReadFile(example))(t)
	// The example contains every setting of a route, including the section that is commented out.
	for _, field := range reflect.VisibleFields(reflect.TypeFor[gatewayRoute]()) {
		name := cmp.Or(field.Tag.Get("name"), snake.ReplaceAllString(field.Name, "_$0"))
		name = strings.ToLower(strings.TrimPrefix(strings.ReplaceAll(name, "-", "_"), "_"))
		if !strings.Contains(string(content), name+":") && name != "principal_claim" {
			t.Errorf("the example does not show %s", name)
		}
	}
	with := strings.Replace(string(content), "# jwt:", "jwt:", 1)
	seqledger(t, "gateway", "--config", writeFile(t, "gateway.yaml", with), "--check").expect(t, exitUsage, "jwt.jwks",
		":31:")
}

var snake = regexp.MustCompile(`[A-Z]`)

// All mistakes of a file are reported at once with their lines, together with those of flags.
func TestGatewayConfigMistakes(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "gateway.yaml", `upstream: 127.0.0.1:80
ttl: 0s
trusted_proxies: [10.0.0.0/8, home]
routes:
  - path: charges
    wait: 2h
  - {path: /jobs, color: red}
`)
	r := seqledger(t, "gateway", "--config", file, "--check").expect(t, exitUsage, "gateway.yaml:1: --upstream",
		"gateway.yaml:2: --ttl", "gateway.yaml:3: --trusted-proxies", "gateway.yaml:5: routes[0].path",
		"gateway.yaml:6: routes[0].wait", "gateway.yaml:7: routes[1].color")
	check.Equal(t, strings.Count(r.stderr, "  next: "), 1, "%v: %v", r)
	seqledger(t, "gateway", "--config", writeFile(t, "c.yaml", "upstram: http://a\n"), "--check").expect(t, exitUsage,
		"c.yaml:1", "upstram")
	errors := func(content string) result {
		return seqledger(t, "gateway", "--config", writeFile(t, "c.yaml", "upstream: http://a\n"+content), "--check")
	}
	errors("server_errors: {503: release, default: store}\n").expect(t, exitDone)
	errors("server_errors: {404: release}\n").expect(t, exitUsage, "c.yaml:2", "--server-errors", `"404"`)
	errors("ttl: {503: release}\n").expect(t, exitUsage, "c.yaml:2", "ttl")
}

// SIGHUP reads the file again: new requests use it, and a file with mistakes changes nothing. Metrics report both.
func TestGatewayReload(t *testing.T) {
	t.Parallel()
	service := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, name)
		}))
		t.Cleanup(s.Close)
		return s
	}
	first, second := service("first"), service("second")
	file := writeFile(t, "gateway.yaml", "")
	write := func(content string) {
		must.Do(t, os.WriteFile(file, []byte(content), 0o600))
	}
	routes := func(upstream string) string { return "routes:\n- {path: /charge, upstream: '" + upstream + "'}\n" }
	write(routes(first.URL))
	dir := t.TempDir()
	g := startGateway(t, dir, "", "--config", file, "--data", filepath.Join(dir, "data"), "--debug-listen",
		"127.0.0.1:0")
	if status, _, text := g.charge(`"1"`, "5"); status != http.StatusOK || text != "first" || g.Routes != 1 {
		t.Errorf("%d %s, %d routes", status, text, g.Routes)
	}
	hangUp := func(says string) {
		t.Helper()
		before := strings.Count(g.stderr.String(), says)
		must.Do(t, g.cmd.Process.Signal(syscall.SIGHUP))
		awaitCount(t, g.process, says, before+1)
	}
	write(routes(second.URL) + "- {path: charge, wait: 2h}\n")
	hangUp("routes[1].wait")
	awaitCount(t, g.process, "gateway.yaml:3: routes[1].path", 1) // every mistake is in the log
	if _, _, text := g.charge(`"2"`, "5"); text != "first" {
		t.Errorf("after a file with mistakes: %s", text)
	}
	write(routes(second.URL) + "listen: 127.0.0.1:1\n")
	hangUp("the configuration was read again")
	if _, _, text := g.charge(`"3"`, "5"); text != "second" {
		t.Errorf("after a good file: %s", text)
	}
	if _, replayed, text := g.charge(`"1"`, "5"); text != "first" || !replayed {
		t.Errorf("the repeat of an earlier request: %s", text)
	}
	metrics := must.Get(http.Get("http://" + g.Debug + "/metrics"))(t)
	defer metrics.Body.Close()
	content, _ := io.ReadAll(metrics.Body)
	for _, want := range []string{`seqledger_gateway_reloads_total{result="failed"} 1`,
		`seqledger_gateway_reloads_total{result="taken"} 1`, `seqledger_gateway_events_total{event="acquired"} 3`,
		"seqledger_index ", "go_goroutines "} {
		if !strings.Contains(string(content), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

// While a gateway runs, the records of its own ledger can be looked up, settled and purged, with a credential if the
// operator requires one; and a principal cannot exceed its number of keys.
func TestGatewayLedgerListen(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == `"lost"` {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	auth := filepath.Join(dir, "auth.yaml")
	made := seqledger(t, "auth", "new-key", "--id", "operator", "--role", "admin", "--scope", "*", "--append", auth,
		"--json")
	must.Equal(t, made.code, exitDone, "%v: %v", made)
	key, _ := made.field(t, "key").(string)
	g := startGateway(t, dir, service.URL, "--data", filepath.Join(dir, "data"), "--ledger-listen", "127.0.0.1:0",
		"--ledger-auth", auth, "--lease", "1s", "--wait", "0", "--max-keys-per-principal", "2")
	if status, _, text := g.charge(`"kept"`, "5"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	if status, _, text := g.charge(`"lost"`, "5"); status != http.StatusInternalServerError {
		t.Fatal(status, text)
	}
	if status, _, text := g.charge(`"third"`, "5"); status != http.StatusTooManyRequests ||
		!strings.Contains(text, "quota") {
		t.Errorf("a third key of a principal: %d %s", status, text)
	}
	do := func(args ...string) result {
		return seqledger(t, append(append([]string{"SEQLEDGER_TOKEN=" + key, "key"}, args...), "--server", g.Ledger)...)
	}
	seqledger(t, "key", "list", "--scope", "gateway/main", "--all", "--server", g.Ledger).expect(t, exitRefused)
	list := do("list", "--scope", "gateway/main", "--all", "--json").expect(t, exitDone)
	if strings.Count(list.stdout, "\n") != 2 || strings.Contains(list.stdout, "kept") {
		t.Error(list)
	}
	sum, noHost := sha256.Sum256([]byte("bearer demo")), sha256.Sum256(nil) // an address is no host
	record := []string{"--scope", "gateway/main", "--namespace", "POST /charge", "--principal",
		"authorization:" + hex.EncodeToString(sum[:]) + "/host:" + hex.EncodeToString(noHost[:])}
	do(append([]string{"get", "kept"}, record...)...).expect(t, exitDone, "committed", "authorization, host")
	must.Await(t, func() bool {
		return strings.Contains(do(append([]string{"get", "lost"}, record...)...).stdout, "indeterminate")
	}, "the end of its lease")
	if status, _, text := g.charge(`"lost"`, "5"); status != http.StatusConflict ||
		!strings.Contains(text, "outcome-unknown") {
		t.Errorf("before it is settled: %d %s", status, text)
	}
	do(append([]string{"resolve", "lost", "--as", "committed"}, record...)...).expect(t, exitDone, "committed")
	if status, _, text := g.charge(`"lost"`, "5"); status != http.StatusGone {
		t.Errorf("settled without a response: %d %s", status, text)
	}
	do(append([]string{"purge", "lost"}, record...)...).expect(t, exitDone, "purged")
	do(append([]string{"get", "lost"}, record...)...).expect(t, exitRefused, "no record of this key")
	must.Do(t, g.cmd.Process.Signal(syscall.SIGTERM))
	if code := g.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, g.stderr.String())
	}
}

// answer is what a client got; the status is -1 if the answer was truncated.
type answer struct {
	status   int
	replayed bool
	text     string
}

// until sends charges until the answer contains a text.
func (g *testGateway) until(t *testing.T, key, want string) answer {
	t.Helper()
	var got answer
	must.Await(t, func() bool {
		got.status, got.replayed, got.text = g.charge(key, "5")
		found := strings.Contains(got.text, want)
		if !found && got.status == http.StatusCreated {
			t.Fatalf("%+v, want %s", got, want)
		}
		return found
	}, want)
	return got
}
