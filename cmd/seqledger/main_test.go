package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// binary is the program under test, built once by TestMain: the tests run real
// processes, because signals, exit codes and kills are what they are about.
var binary string

// buildFlags are what make build gives the linker, and -w, which makes it faster.
const buildFlags = "-w -X main.version=v9.8.7-dirty -X main.revision=0123abc"

func TestMain(m *testing.M) {
	if dir := os.Getenv(faultServerVariable); dir != "" {
		os.Exit(faultServer(dir)) // this process is the MCP server of a test
	}
	if variable := os.Getenv(inboxVariable); variable != "" {
		os.Exit(inbox(variable)) // this process is an inbox of a test
	}
	if variable := os.Getenv(senderVariable); variable != "" {
		os.Exit(sender(variable)) // this process is an inbox of a test
	}
	if mode := os.Getenv(naiveVariable); mode != "" {
		os.Exit(naiveClient(mode, os.Stdin, os.Stdout)) // this process is the client of a test
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "seqledger-test-*")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "seqledger")
		if out, err := exec.Command("go", "build", "-ldflags", buildFlags, "-o", binary,
			".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		// What the developer's own shell says must not reach the tests; COLUMNS is the width of help texts. With GOGC,
		// which make test sets, a server would not set its collector.
		os.Unsetenv("COLUMNS")
		os.Unsetenv("GOGC")
		for _, variable := range os.Environ() {
			if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "SEQLEDGER_") {
				os.Unsetenv(name)
			}
		}
		for _, variable := range servertest.S3Environment() { // of the gateways of a test
			name, value, _ := strings.Cut(variable, "=")
			os.Setenv(name, value)
		}
		return m.Run()
	}())
}

// hangs bounds a wait that should be short. It is no assertion about speed: a
// test that reaches it would otherwise hang for ever.
const hangs = 2 * time.Minute

// result is what a finished process has said.
type result struct {
	code           int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout:\n%sstderr:\n%s", r.code, r.stdout, r.stderr)
}

// seqledger runs a command to its end: in this process, which is far cheaper than another one, unless the command
// needs its own (see needsProcess). args may begin with NAME=value settings of the environment.
func seqledger(t *testing.T, args ...string) result {
	t.Helper()
	return seqledgerInput(t, "", args...)
}

func seqledgerInput(t *testing.T, input string, args ...string) result {
	t.Helper()
	if needsProcess(args) {
		return program(t, input, args...)
	}
	var stdout, stderr bytes.Buffer
	code := run(args, strings.NewReader(input), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// needsProcess tells the commands that change or end their process, or that a test gives an environment or a version.
func needsProcess(args []string) bool {
	switch args[0] {
	case "serve", "gateway", "witness", "mcp", "outbox", "demo", "conformance", "bench", "help", "version":
		return true
	}
	return slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "SEQLEDGER_") || arg == "--help" || arg == "--version"
	})
}

// program runs the binary to its end.
func program(t *testing.T, input string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	var environment []string
	for len(args) > 0 && strings.HasPrefix(args[0], "SEQLEDGER_") {
		environment, args = append(environment, args[0]), args[1:]
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// expect fails unless a process ended with a code and its two outputs together
// hold every one of the texts.
func (r result) expect(t *testing.T, code int, texts ...string) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("want exit code %d, got %v", code, r)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			t.Fatalf("want %q in the output, got %v", text, r)
		}
	}
	return r
}

// field returns a field of the one JSON object on standard output.
func (r result) field(t *testing.T, name string) any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &o); err != nil {
		t.Fatalf("want one JSON object: %v\n%v", err, r)
	}
	return o[name]
}

// process is one that runs in the background.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{} // closed once it has been waited for
}

// output is the name of a file that a process writes to: what it said before it answers is there then, which is not
// so of a pipe that a goroutine reads.
type output string

func (o output) String() string {
	b, err := os.ReadFile(string(o))
	return string(b) + strings.TrimSuffix(fmt.Sprint(err), "<nil>")
}

// start runs the binary in the background.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return launch(t, exec.Command(binary, args...))
}

// launch starts a command whose outputs go to files, unless its standard output goes elsewhere already. The process is
// killed, by its own id, at the end of the test.
func launch(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{cmd: cmd, stdout: output(dir + "/out"), stderr: output(dir + "/err"), ended: make(chan struct{})}
	out, err := must.Get(os.Create(string(p.stdout)))(t), must.Get(os.Create(string(p.stderr)))(t)
	defer out.Close()
	defer err.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = err
	must.Do(t, cmd.Start())
	// Ends with the process, which the cleanup kills; the cleanup waits for it.
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// line waits for the first line that the process prints, and returns "" if it ends without one.
func (p *process) line(t testing.TB) (line string) {
	t.Helper()
	must.Await(t, func() bool {
		ended := p.hasEnded()
		var whole bool
		if line, _, whole = strings.Cut(p.stdout.String(), "\n"); !whole {
			line = ""
		}
		return whole || ended
	}, "a first line")
	return line
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill is kill -9, and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(hangs):
		t.Fatalf("%v does not end; stderr:\n%s", p.cmd.Args, p.stderr.String())
		return 0
	}
}

// testServer is a running seqledger serve.
type testServer struct {
	*process
	data, address, ledgerID string
}

// serve starts a server on a free port and returns once it answers.
func serve(t *testing.T, args ...string) *testServer {
	t.Helper()
	return serveOn(t, t.TempDir(), "127.0.0.1:0", args...)
}

// serveOn returns once the server has said that it serves.
func serveOn(t *testing.T, data, listen string, args ...string) *testServer {
	t.Helper()
	return serveWith(t, binary, data, listen, args...)
}

// serveWith is serveOn with another program.
func serveWith(t *testing.T, program, data, listen string, args ...string) *testServer {
	t.Helper()
	if listen == "127.0.0.1:0" { // an address that stays free while the server is restarted
		free := must.Get(freeport.Address())(t)
		listen = free
	}
	args = append([]string{"serve", "--json", "--listen", listen, "--data", data}, args...)
	s := &testServer{data: data, process: launch(t, exec.Command(program, args...))}
	var ready serveReady
	if line := s.line(t); json.Unmarshal([]byte(line), &ready) != nil {
		t.Fatalf("serve said %q; stderr:\n%s", line, s.stderr)
	}
	s.address, s.ledgerID = ready.Address, ready.LedgerID
	return s
}

// do runs a client command against the server.
func (s *testServer) do(t *testing.T, args ...string) result {
	t.Helper()
	return seqledger(t, append(args, "--server", s.address)...)
}

// client returns a connection to the server.
func (s *testServer) client(t *testing.T) *client.Client {
	t.Helper()
	c := must.Get(client.New(client.Options{Server: s.address}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// writeFile writes a file into a directory of the test.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
