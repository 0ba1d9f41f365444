package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the help texts in testdata/help anew")

// TestHelpGolden compares the help of every command with testdata/help: what
// users read changes only on purpose. Write it anew with
//
//	go test ./cmd/seqledger -run TestHelpGolden -update
func TestHelpGolden(t *testing.T) {
	t.Parallel()
	commands := []string{
		"", "serve", "write", "import", "get", "list entities", "list relationships", "list blocks", "list clients",
		"list refusals",
		"tx", "block", "watch", "state", "session open", "status", "config", "config set", "config get", "config list",
		"config update", "backup",
		"restore", "recover", "auth new-key", "auth check",
		"verify", "bench", "demo", "conformance", "journal show", "mcp", "mcp guard", "version", "help",
		"completion", "outbox postgres", "outbox init", "outbox status", "outbox settle",
	}
	for _, command := range commands {
		name := filepath.Join("testdata", "help",
			strings.ReplaceAll(strings.TrimSpace("seqledger "+command), " ", "-")+".txt")
		got := seqledger(t, append(strings.Fields(command), "--help")...).expect(t, exitDone).stdout
		if *update {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: the help has changed; want\n%s\ngot\n%s", name, want, got)
		}
	}
}

// TestHelpCommand: help COMMAND shows what COMMAND --help shows.
func TestHelpCommand(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{}, {"write"}, {"auth", "check"}, {"help"}} {
		want := seqledger(t, append(command, "--help")...).expect(t, exitDone)
		if got := seqledger(t, append([]string{"help"}, command...)...); got != want {
			t.Errorf("help %v: want %v\ngot %v", command, want, got)
		}
	}
	seqledger(t, "help", "fly").expect(t, exitUsage, `there is no command "fly"`, "seqledger help --help")
	seqledger(t, "help", "auth", "fly").expect(t, exitUsage, `there is no command "auth fly"`)
}
