//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// peersVariable names a directory with the packages of testdata/mcpservers; make mcp-peers installs them and runs the
// tests that need them.
const peersVariable = "MCP_PEERS"

const peerRules = `
server: files
wait: 0s
lease: 1s
tools:
  edit_file:
`

// startPeer starts a guard in front of a third-party server, which may use the directory files.
func startPeer(t *testing.T, dir, files string) *agentHost {
	t.Helper()
	peers := os.Getenv(peersVariable)
	if peers == "" {
		t.Skip("skipped: MCP_PEERS names no directory with packages from npm; make mcp-peers makes one")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("skipped: there is no node here")
	}
	server := filepath.Join(peers, "node_modules", "@modelcontextprotocol", "server-filesystem", "dist", "index.js")
	if !exists(server) {
		t.Fatal("there is no", server)
	}
	return startGuard(t, dir, "--", "sh", "-c", `echo $$ >"$1"; exec "$2" "$3" "$4"`, "sh",
		filepath.Join(dir, "pid"), node, server, files)
}

// edit returns the arguments that double every letter a of a file.
func edit(path string) map[string]any {
	return map[string]any{"path": path, "edits": []map[string]string{{"oldText": "a", "newText": "aa"}}}
}

// A third-party server behind a guard: a non-idempotent edit happens once, everything else works as without the guard,
// and a server that is killed in the middle of a call leaves an unknown outcome.
func TestGuardBeforeAServerOfOthers(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	text, pipe := filepath.Join(files, "text"), filepath.Join(files, "pipe")
	must.Do(t, errors.Join(os.WriteFile(text, []byte("a"), 0o600), syscall.Mkfifo(pipe, 0o600),
		os.WriteFile(filepath.Join(dir, "guard.yaml"), []byte(peerRules), 0o600)))
	h := startPeer(t, dir, files)
	tools, err := h.session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) < 5 {
		t.Fatal(tools, err)
	}
	for _, tool := range tools.Tools {
		if tool.Name == "edit_file" && (tool.Annotations == nil || !tool.Annotations.IdempotentHint) {
			t.Errorf("%s: %+v", tool.Name, tool.Annotations)
		}
	}
	first := callTool(t.Context(), h.session, "edit_file", edit(text))
	again := callTool(t.Context(), h.session, "edit_file", edit(text))
	if first.isError || first.replayed || !again.replayed || again.text != first.text {
		t.Errorf("first %+v, again %+v", first, again)
	}
	read := callTool(t.Context(), h.session, "read_text_file", map[string]any{"path": text})
	if content, err := os.ReadFile(text); err != nil || string(content) != "aa" || read.text != "aa" || read.replayed {
		t.Errorf("the file has %q (%v), read as %+v", content, err, read)
	}
	cut := make(chan toolReply, 1)
	go func() { cut <- callTool(t.Context(), h.session, "edit_file", edit(pipe)) }() // received below
	awaitReader(t, pipe, true)
	number := must.Get(os.ReadFile(filepath.Join(dir, "pid")))(t)
	pid := must.Get(strconv.Atoi(strings.TrimSpace(string(number))))(t)
	must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
	if r := <-cut; r.code != "outcome-unknown" {
		t.Errorf("the call of a killed server: %+v", r)
	}
	if code := h.wait(t); code != exitSignal+9 {
		t.Errorf("exit code %d: %s", code, h.stderr.String())
	}
	h = startPeer(t, dir, files)
	must.Await(t, func() bool {
		r := callTool(t.Context(), h.session, "edit_file", edit(pipe))
		if r.code != "outcome-unknown" && r.code != "in-flight" {
			t.Fatalf("the repeat: %+v", r)
		}
		return r.code == "outcome-unknown"
	}, "the end of the lease")
	awaitReader(t, pipe, false)
	if r := callTool(t.Context(), h.session, "edit_file", edit(text)); !r.replayed || r.text != first.text {
		t.Errorf("after the restart: %+v", r)
	}
}

// awaitReader waits until a named pipe has a reader, or checks that it has none.
func awaitReader(t *testing.T, path string, want bool) {
	t.Helper()
	var f *os.File
	opens := func() (is bool) {
		var err error
		f, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // fails with ENXIO while there is no reader
		return err == nil
	}
	if want {
		must.Await(t, opens, "a reader of", path)
		t.Cleanup(func() { _ = f.Close() }) // otherwise the reader would get EOF
	} else if opens() {
		_ = f.Close()
		t.Errorf("%s has a reader", path)
	}
}
