package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// faultServerVariable turns the test binary into an MCP server with faults. It names the directory in which the server
// records its effects.
const faultServerVariable = "FAULT_SERVER"

// faultServer is an MCP server with the tool charge, whose argument mode selects its behavior. Each effect is a line in
// the file effects.
func faultServer(dir string) int {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP, syscall.SIGTERM)
	s := faultTools(dir)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background(), &mcp.StdioTransport{}) }() // ends with the process
	fmt.Fprintln(os.Stderr, "fault server: ready")
	select {
	case <-ended:
		return 0
	case got := <-hangups:
		fmt.Fprintln(os.Stderr, "fault server: got", got)
		return 42
	}
}

type faultInput struct {
	Order string `json:"order"`
	Mode  string `json:"mode,omitempty"`
}

func faultTools(dir string) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "fault", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "charge"},
		func(_ context.Context, _ *mcp.CallToolRequest, in faultInput) (*mcp.CallToolResult, any, error) {
			n, err := addEffect(dir, in.Order)
			if err != nil {
				return nil, nil, err
			}
			if in.Mode == "late" {
				awaitAnswer(dir)
			}
			return &mcp.CallToolResult{Content: []mcp.Content{
				&mcp.TextContent{Text: fmt.Sprintf("charge %d for %s", n, in.Order)}}}, nil, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "charges", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			content, err := os.ReadFile(filepath.Join(dir, "effects"))
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(content)}}}, nil, err
		})
	addFormTools(s, dir)
	return s
}

// awaitAnswer waits until another process creates the file answer. A server whose guard was killed exits.
func awaitAnswer(dir string) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for parent := os.Getppid(); !exists(filepath.Join(dir, "answer")); <-tick.C {
		if os.Getppid() != parent {
			os.Exit(4)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// addEffect appends a line to the effects and returns the number of lines.
func addEffect(dir, order string) (int, error) {
	f, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	if _, err = f.WriteString(order + "\n"); err != nil {
		return 0, err
	}
	return effects(dir, ""), f.Close()
}

// effects returns the number of effects of an order, or of all orders.
func effects(dir, order string) (n int) {
	content, _ := os.ReadFile(filepath.Join(dir, "effects"))
	for line := range strings.Lines(string(content)) {
		if order == "" || strings.TrimSpace(line) == order {
			n++
		}
	}
	return n
}

// agentHost is an agent's program that has started a guard.
type agentHost struct {
	*process
	session *mcp.ClientSession
	dir     string // directory of the fault server, and of the guard
}

const guardRules = `
server: payments
wait: 0s
lease: 1s
tools:
  charge:
    arguments: [order]
    if-unknown: Call charges.
`

// startGuard starts a guard in front of a server: the fault server in dir, unless args end with -- and another one.
func startGuard(t *testing.T, dir string, args ...string) *agentHost {
	t.Helper()
	rules := filepath.Join(dir, "guard.yaml")
	if !exists(rules) {
		must.Do(t, os.WriteFile(rules, []byte(guardRules), 0o600))
	}
	command := append([]string{"mcp", "guard", "--config", rules, "--journal", filepath.Join(dir, "journal"),
		"--data", filepath.Join(dir, "data")}, args...)
	if !strings.Contains(strings.Join(args, " "), "--upstream") && !slices.Contains(args, "--") {
		command = append(command, "--", os.Args[0])
	}
	cmd := exec.Command(binary, command...)
	cmd.Env = append(os.Environ(), faultServerVariable+"="+dir)
	h := connectAgent(t, cmd)
	h.dir = dir
	return h
}

// connectAgent starts a command and connects a client to its standard input and output.
func connectAgent(t *testing.T, cmd *exec.Cmd) *agentHost {
	t.Helper()
	in := must.Get(cmd.StdinPipe())(t)
	fromProcess, out := io.Pipe()
	cmd.Stdout = out
	h := &agentHost{process: launch(t, cmd)}
	go func() { // ends with the process
		<-h.ended
		_ = out.Close()
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = fromProcess.Close()
	})
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: fromProcess, Writer: in}, nil)
	if err != nil {
		h.kill()
		t.Fatalf("%v; stderr:\n%s", err, h.stderr)
	}
	h.session = session
	return h
}

// toolReply is the answer of a tool.
type toolReply struct {
	text              string
	isError, replayed bool
	code              any
}

// charge calls the tool charge; a text that begins with "rpc:" is an error of the connection.
func (h *agentHost) charge(order, mode string) toolReply {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	return callTool(ctx, h.session, "charge", faultInput{order, mode})
}

func callTool(ctx context.Context, session *mcp.ClientSession, tool string, arguments any) (r toolReply) {
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return toolReply{text: "rpc: " + err.Error(), isError: true}
	}
	r.isError, r.replayed, r.code = result.IsError, result.Meta["replayed"] == true, result.Meta["seqledger.dev/code"]
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			r.text += text.Text
		}
	}
	return r
}

// One command in front of a server: a charge happens once, even if both are restarted; unguarded messages pass; the
// guard passes on the server's log, exit code and signals.
func TestGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startGuard(t, dir)
	if r := h.charge("A", ""); r.text != "charge 1 for A" || r.replayed {
		t.Errorf("%+v", r)
	}
	if r := h.charge("A", ""); r.text != "charge 1 for A" || !r.replayed {
		t.Errorf("again: %+v", r)
	}
	if r := callTool(t.Context(), h.session, "charges", struct{}{}); r.text != "A\n" || r.replayed {
		t.Errorf("a tool that is not guarded: %+v", r)
	}
	tools := must.Get(h.session.ListTools(t.Context(), nil))(t)
	for _, tool := range tools.Tools {
		if guarded := tool.Name == "charge"; (tool.Annotations != nil && tool.Annotations.IdempotentHint) != guarded {
			t.Errorf("%s: %+v", tool.Name, tool.Annotations)
		}
	}
	_ = h.session.Close() // closes the guard's input
	if code := h.wait(t); code != exitDone || !strings.Contains(h.stderr.String(), "fault server: ready") {
		t.Errorf("ended with exit code %d: %s", code, h.stderr.String())
	}
	h = startGuard(t, dir)
	if r := h.charge("A", ""); r.text != "charge 1 for A" || !r.replayed {
		t.Errorf("after a restart: %+v", r)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		must.Do(t, h.cmd.Process.Signal(s))
		if code := h.wait(t); code != 42 || !strings.Contains(h.stderr.String(), "fault server: got "+s.String()) {
			t.Errorf("%v: exit code %d: %s", s, code, h.stderr.String())
		}
		h = startGuard(t, dir)
	}
	check.Equal(t, effects(dir, ""), 1, "%d effects")
}

// A guard that is repeatedly killed at random moments never lets an order be charged twice. The last guard answers for
// every order: with the first result, or with an unknown outcome.
func TestGuardKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	const orders, kills = 12, 8
	s, dir := serve(t), t.TempDir()
	for range kills {
		h := startGuard(t, dir, "--ledger", s.address)
		var calls sync.WaitGroup
		for order := range orders {
			calls.Go(func() { _ = h.charge(fmt.Sprint("order-", order), "") })
		}
		kill := time.AfterFunc(rand.N(30*time.Millisecond), func() { _ = h.cmd.Process.Kill() })
		calls.Wait()
		kill.Stop()
		h.kill()
	}
	h := startGuard(t, dir, "--ledger", s.address)
	for i := range orders {
		order := fmt.Sprint("order-", i)
		var r toolReply
		must.Await(t, func() bool {
			r = h.charge(order, "")
			return r.code != "in-flight"
		}, "the end of a lease")
		n := effects(dir, order)
		if n > 1 || r.code == nil && n != 1 || r.code != nil && r.code != "outcome-unknown" {
			t.Errorf("%s: %d effects, answered %+v", order, n, r)
		}
	}
}

// awaitEffect waits until an order has an effect.
func awaitEffect(t *testing.T, dir, order string) {
	t.Helper()
	must.Await(t, func() bool { return effects(dir, order) > 0 }, "an effect of", order)
}

// While the ledger does not answer, no guarded tool runs, and everything else passes. A result that the ledger cannot
// take waits in the journal, even across a restart of the guard, and is stored later.
func TestGuardWithoutItsLedger(t *testing.T) {
	t.Parallel()
	s, dir := serve(t), t.TempDir()
	flags := []string{"--ledger", s.address}
	h := startGuard(t, dir, flags...)
	got := make(chan toolReply, 1)
	go func() { got <- h.charge("A", "late") }() // received below
	awaitEffect(t, dir, "A")
	s.kill()
	must.Do(t, os.WriteFile(filepath.Join(dir, "answer"), nil, 0o600))
	if r := <-got; r.text != "charge 1 for A" || r.replayed {
		t.Errorf("the call whose result was not stored: %+v", r)
	}
	if r := h.charge("B", ""); r.code != "store-unavailable" || !strings.Contains(r.text, "Nothing was done") {
		t.Errorf("a call without the ledger: %+v", r)
	}
	check.Equal(t, callTool(t.Context(), h.session, "charges", struct{}{}).text, "A\n",
		"a tool that is not guarded: %+v")
	h.kill()
	serveOn(t, s.data, s.address)
	h = startGuard(t, dir, flags...)
	must.Await(t, func() bool {
		r := h.charge("A", "")
		known := r.text == "charge 1 for A" && r.replayed
		if !known && r.code != "in-flight" && r.code != "outcome-unknown" {
			t.Fatalf("%+v", r)
		}
		return known
	}, "its result")
	check.Equal(t, effects(dir, ""), 1, "%d effects")
}

// A server over streamable HTTP is guarded in the same way.
func TestGuardBeforeHTTP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tools := faultTools(dir)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, nil)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer upstream.Close()
	token := filepath.Join(dir, "token")
	must.Do(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	h := startGuard(t, dir, "--upstream", upstream.URL, "--upstream-token-file", token)
	if r := h.charge("A", ""); r.text != "charge 1 for A" || r.replayed {
		t.Errorf("%+v", r)
	}
	if r := h.charge("A", ""); r.text != "charge 1 for A" || !r.replayed {
		t.Errorf("again: %+v", r)
	}
	check.Equal(t, callTool(t.Context(), h.session, "charges", struct{}{}).text, "A\n",
		"a tool that is not guarded: %+v")
	upstream.CloseClientConnections()
	upstream.Config.SetKeepAlivesEnabled(false)
	upstream.Listener.Close()
	// A call on a connection that is closed, which the guard has not noticed yet, may have arrived.
	for order := 0; ; order++ {
		r := h.charge(fmt.Sprint("B", order), "")
		if !r.isError || order == 100 {
			t.Fatalf("a server that is gone: %+v", r)
		}
		if strings.Contains(r.text, "Nothing was done") {
			break
		}
	}
	if r := callTool(t.Context(), h.session, "charges", struct{}{}); !strings.HasPrefix(r.text, "rpc:") {
		t.Errorf("a tool that is not guarded, of a server that is gone: %+v", r)
	}
	_ = h.session.Close()
	if code := h.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, h.stderr.String())
	}
	check.Equal(t, effects(dir, ""), 1, "%d effects")
}

// A command that is no program is told.
func TestGuardOfNoServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seqledger(t, "mcp", "guard", "--config", writeFile(t, "guard.yaml", guardRules),
		"--data", filepath.Join(dir, "data"), "--journal", filepath.Join(dir, "journal"),
		"--", filepath.Join(dir, "absent")).
		expect(t, exitFailed, "must be a program")
}

// An agent gets the ledger's tools on standard input and output.
func TestMCP(t *testing.T) {
	t.Parallel()
	s := serve(t)
	h := connectAgent(t, exec.Command(binary, "mcp", "--server", s.address, "--scope", "acme/agents", "--namespace",
		"charge"))
	reserve := map[string]any{"key": "order-1", "request": map[string]int{"amount": 5}}
	if r := callTool(t.Context(), h.session, "reserve", reserve); r.isError || !strings.Contains(r.text, "ACQUIRED") {
		t.Errorf("%+v", r)
	}
	s.do(t, "key", "get", "--scope", "acme/agents", "--namespace", "charge", "order-1").expect(t, exitDone, "pending")
	s.kill()
	if r := callTool(t.Context(), h.session, "look_up", map[string]any{"scope": "a//b", "key": "x"}); !r.isError {
		t.Errorf("%+v", r)
	}
	_ = h.session.Close()
	if code := h.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, h.stderr.String())
	}
}

// The server offers the same tools over HTTP, if configured.
func TestServeMCP(t *testing.T) {
	t.Parallel()
	s := serve(t, "--mcp")
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session := must.Get(client.Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: "http://" + s.address + "/mcp"}, nil))(t)
	defer session.Close()
	look := map[string]any{"scope": "acme/agents", "key": "order-1"}
	if r := callTool(t.Context(), session, "look_up", look); r.isError || !strings.Contains(r.text, `"found":false`) {
		t.Errorf("%+v", r)
	}
}
