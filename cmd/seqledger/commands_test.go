package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestWriteReplay repeats a write with the sequence and the key that the first
// one announced before it sent anything.
func TestWriteReplay(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := []string{"write", "--scope", "acme/main", "--client-id", "till-7", "--set", "balance/42=100", "--json"}
	first := s.do(t, write...).expect(t, exitDone)
	var sequence uint64
	var key string
	var announced noticeReport // with --json notices are objects
	must.Do(t, json.Unmarshal([]byte(first.stderr), &announced), "want a notice, got %q", first.stderr)
	if _, err := fmt.Sscanf(strings.ReplaceAll(announced.Notice, ",", " "),
		"writing sequence %d  key %s", &sequence, &key); err != nil {
		t.Fatalf("want the sequence and the key announced: %v in %q", err, first.stderr)
	}
	repeat := append(write, "--sequence", fmt.Sprint(sequence), "--key", key)
	again := s.do(t, repeat...).expect(t, exitDone)
	if again.field(t, "replayed") != true || again.field(t, "txId") != first.field(t, "txId") {
		t.Errorf("want the receipt of the first write again, got %v after %v", again, first)
	}
	// Without a key the ledger recognises a repeat by sequence and content.
	again = s.do(t, append(write, "--sequence", "1")...).expect(t, exitDone)
	if again.field(t, "replayed") != true {
		t.Errorf("want a replay, got %v", again)
	}
	if state := s.do(t, "state", "--scope", "acme/main", "--client-id", "till-7",
		"--json"); state.field(t, "lastCommittedSequence") != "1" {
		t.Errorf("want one write committed, got %v", state)
	}
}

// TestExitCodes checks the codes that scripts rely on, and the hints that tell users what to
// do.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := serve(t)
	stream := []string{"--scope", "acme/main", "--client-id", "till-7"}
	write := func(args ...string) result {
		t.Helper()
		return s.do(t, append(append([]string{"write"}, stream...), args...)...)
	}
	write("--set", "a=1").expect(t, exitDone, "sequence", "1")
	write("--set", "a=2", "--if-not-exists", "a").expect(t, exitRefused, "KEY_EXISTS", `"a"`, "still free")
	write("--set", "b=2", "--if-exists", "b").expect(t, exitRefused, "KEY_NOT_FOUND")
	write("--set", "a=2", "--if-version", "a=77").expect(t, exitRefused, "VERSION_MISMATCH", "version is 2")
	write("--delete", "a", "--if-value", "a=3").expect(t, exitRefused, "VALUE_MISMATCH")
	write("--set", "a=2", "--sequence", "9").expect(t, exitRefused, "SEQUENCE_GAP", "next sequence of this stream is 2")
	write("--set", "a=2", "--sequence", "1").expect(t, exitRefused, "SEQUENCE_REUSED")
	write("--set", "a=2", "--session", "1000000").expect(t, exitRefused, "SESSION_EXPIRED", "evicted")
	write().expect(t, exitUsage, "nothing to write")
	write("--set", "a").expect(t, exitUsage, "KEY=")
	s.do(t, "get", "--scope", "acme/main", "absent").expect(t, exitRefused, "not_found",
		`no entity "absent" in acme/main`)
	s.do(t, "tx", "no-id").expect(t, exitRefused, "tx_id")
	s.do(t, "tx", "8f14e45f-ceea-867a-8000-000000000007").expect(t, exitRefused, "not_found",
		"8f14e45f-ceea-867a-8000-000000000007")
	s.do(t, "block", "--scope", "acme/main", "99").expect(t, exitRefused, "not_found", "no block 99 of acme/main")
	s.do(t, "state", "--scope", "a b", "--client-id", "c").expect(t, exitRefused, "INVALID_ARGUMENT", "correct --scope")
	s.do(t, "state", "--scope", "acme/main").expect(t, exitUsage, "--client-id")

	opened := s.do(t, append([]string{"session", "open", "--json"}, stream...)...).expect(t, exitDone, "attempt id")
	session := opened.field(t, "state").(map[string]any)["session"].(string)
	write("--set", "a=2").expect(t, exitRefused, "SESSION_REQUIRED", "session open")
	write("--set", "a=2", "--session", session, "--include-proof").expect(t, exitDone, "proof")
	s.do(t, append([]string{"session", "open", "--expected-session", "1"}, stream...)...).expect(t, exitRefused,
		"SESSION_FENCED")
	s.do(t, append([]string{"session", "open"}, stream...)...).expect(t, exitDone)
	write("--set", "a=3", "--session", session).expect(t, exitRefused, "SESSION_FENCED", "newer session")

	s.kill()
	s.do(t, "status", "--timeout", "100ms").expect(t, exitFailed, s.address, "is the server running")
}

func TestReads(t *testing.T) {
	t.Parallel()
	s := serve(t)
	scope := []string{"--scope", "acme/main"}
	do := func(args ...string) result {
		t.Helper()
		return s.do(t, append(args, scope...)...).expect(t, exitDone)
	}
	binaryValue := writeFile(t, "value", "\x00\x01\xff")
	do("write", "--client-id", "c", "--set", "k/1=one", "--set-file", "k/2="+binaryValue, "--set", "other=x",
		"--expires-at", "k/1=2090-01-02T03:04:05Z", "--relate", "doc:1#viewer@user:a@b.c", "--append-file", binaryValue)
	do("get", "k/1").expect(t, exitDone, "one", "2090-01-02T03:04:05Z")
	do("get", "k/2").expect(t, exitDone, "base64:AAH/")
	if r := do("list", "--prefix", "k/", "--json"); strings.Count(r.stdout, "\n") != 2 ||
		strings.Contains(r.stdout, "other") {
		t.Errorf("want two entities, one a line, got %v", r)
	}
	do("list", "entities").expect(t, exitDone, "KEY", "k/1", "k/2", "other")
	do("list", "relationships", "--resource", "doc:1").expect(t, exitDone, "doc:1", "viewer", "user:a@b.c")
	s.do(t, "list", "relationships", "--scope", "acme/main", "--relation", "viewer").expect(t, exitUsage, "--resource")
	do("list", "blocks").expect(t, exitDone, "HEIGHT")
	do("list", "clients").expect(t, exitDone, "acme/main", "c")
	s.do(t, "list", "clients").expect(t, exitDone, "acme/main")
	do("block", "1").expect(t, exitDone, "relate", "base64:AAH/", "user:a@b.c", "expires 2090")
	do("watch", "--limit", "1").expect(t, exitDone, "block", "set")
	tx := do("state", "--client-id", "c", "--receipts", "--json")
	receipt := tx.field(t, "receipts").([]any)[0].(map[string]any)
	s.do(t, "tx", receipt["txId"].(string), "--proof").expect(t, exitDone, "leaf 0 of 1", "append", "acme/main")
	do("state", "--client-id", "nobody").expect(t, exitDone, "unknown")
}

// TestPastExpiry: what expires before it is written is said, and written.
func TestPastExpiry(t *testing.T) {
	t.Parallel()
	s := serve(t)
	stream := []string{"--scope", "acme/main", "--client-id", "c"}
	s.do(t, append([]string{"write", "--set", "k=1", "--expires-at", "k=2001-01-01T00:00:00Z"}, stream...)...).
		expect(t, exitDone, `warning: the key "k"`, "2001-01-01T00:00:00Z", "in the past")
	s.do(t, append([]string{"write", "--set", "k=1", "--expires-at", "k=2100-01-01T00:00:00Z"}, stream...)...).expect(t,
		exitDone)
	input := writeFile(t, "in", `{"append":"x"}
{"set":{"key":"k","value":"","expires_at":"2001-01-01T00:00:00Z"}}
{"set":{"key":"k","value":"","expires_at":"2001-01-01T00:00:00Z"}}
`)
	s.do(t, importArgs(input)...).expect(t, exitDone,
		"warning: on 2 lines, line 2 the first of them, expires_at is in the past")
	if r := s.do(t, importArgs(input)...).expect(t, exitDone); strings.Contains(r.stderr, "warning") {
		t.Errorf("a second warning: %v", r)
	}
}

// TestBrokenPipe closes the reading end after one line: the process must end by
// itself and must not complain.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.do(t, "import", "--scope", "acme", "--client-id", "c", numberedLines(t, 5000)).expect(t, exitDone)
	cmd := exec.Command("sh", "-c", `"$0" watch --scope acme --server "$1" --json | head -n 1`, binary, s.address)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || bytes.Count(out, []byte("\n")) != 1 || stderr.Len() > 0 {
		t.Errorf("want one line and silence, got %d lines, %v, %q", bytes.Count(out, []byte("\n")), err,
			stderr.String())
	}
}

func TestOperationsFromJSON(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := []string{"write", "--scope", "acme", "--client-id", "c", "--server", s.address, "--operations"}
	seqledgerInput(t, `[{"set": {"key": "a", "value": "1"}}, {"append": "x"}]`, append(write, "-")...).expect(t,
		exitDone)
	s.do(t, "block", "--scope", "acme", "1").expect(t, exitDone, "a=1", "append")
	file := writeFile(t, "op.json", "{\"delete\": {\"key\": \"a\"}}\n")
	seqledger(t, append(write, file)...).expect(t, exitDone)
	s.do(t, "get", "--scope", "acme", "a").expect(t, exitRefused)
	seqledgerInput(t, `{"set": {"key": "a", "valeu": "1"}}`,
		append(write, "-")...).expect(t, exitUsage, "value is missing")
	seqledger(t, append(write, filepath.Join(t.TempDir(), "absent"))...).expect(t, exitUsage, "no such file")
}
