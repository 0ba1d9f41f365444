package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mustSay runs a command that is to fail. Its message has the texts, and no word
// that is the program's and not the user's.
func mustSay(t *testing.T, args []string, code int, texts ...string) {
	t.Helper()
	r := seqledger(t, args...)
	if r.code != code {
		t.Errorf("%v: want exit code %d, got %v", args, code, r)
	}
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			t.Errorf("%v: want %q, got %v", args, text, r)
		}
	}
	if word := innerWord(r.stderr); word != "" {
		t.Errorf("%v: it says %q: %v", args, word, r)
	}
}

// TestFlagMessages: a flag whose value cannot be read is named, with what it
// takes.
func TestFlagMessages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		says []string
	}{
		{"serve --client-ttl 5", []string{`--client-ttl: "5" must be a duration with its unit`, "seqledger serve --help"}},
		{"status --timeout soon", []string{`--timeout: "soon" must be a duration`, "seqledger status --help"}},
		{"serve --log-level loud", []string{`--log-level: "loud" must be debug, info`}},
		{"bench --streams 1.5", []string{`--streams: "1.5" must be a whole number`}},
		{"bench --rate x", []string{`--rate: "x" must be a number`}},
		{"state --scope a --client-id c --session 0x1", []string{`--session: "0x1" must be a number from 0 to 18446744073709551615`}},
		{"block --scope a x", []string{`<height>: "x" must be a number`}},
		{"list entities --scope", []string{"--scope: its value is missing", "seqledger list entities --help"}},
		{"config --max-streams", []string{"--max-streams: its value is missing"}},
		{"SEQLEDGER_TIMEOUT=5 status", []string{`--timeout: "5" must be a duration`, `SEQLEDGER_TIMEOUT="5"`}},
		{"fly", []string{"unexpected argument fly", "seqledger COMMAND --help"}},
	} {
		mustSay(t, strings.Fields(test.args), exitUsage, test.says...)
	}
}

// TestNumbersAreDecimal: a zero in front makes no other number of one.
func TestNumbersAreDecimal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for range 9 {
		s.do(t, "write", "--scope", "a", "--client-id", "c", "--append", "x").expect(t, exitDone)
	}
	s.do(t, "write", "--scope", "a", "--client-id", "c", "--append", "x", "--sequence", "010").expect(t, exitDone, "sequence 10,")
}

// TestUnknownVariables: a mistyped variable is named, and stops nothing.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	r := seqledger(t, "SEQLEDGER_TOKNE=secret", "SEQLEDGER_TOKEN=x", "SEQLEDGER_LISTEN=y", "version").expect(t, exitDone, "SEQLEDGER_TOKNE")
	if strings.Contains(r.stderr, "secret") || strings.Contains(r.stderr, "SEQLEDGER_TOKEN ") || strings.Contains(r.stderr, "SEQLEDGER_LISTEN") {
		t.Errorf("want the mistyped variable named and nothing else, got %v", r)
	}
	if r := seqledger(t, "SEQLEDGER_TOKEN=x", "version").expect(t, exitDone); r.stderr != "" {
		t.Errorf("want silence, got %v", r)
	}
}

// TestServeMessages: what serve cannot work with is named by its flag, before
// anything is made.
func TestServeMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := selfSigned(t)
	_, otherKey := selfSigned(t)
	file, absent, data := writeFile(t, "file", "garbage"), filepath.Join(dir, "absent"), filepath.Join(dir, "data")
	for _, test := range []struct {
		args []string
		says []string
	}{
		{[]string{"--tls-cert", absent, "--tls-key", key}, []string{"--tls-cert", absent}},
		{[]string{"--tls-cert", cert, "--tls-key", absent}, []string{"--tls-key", absent}},
		{[]string{"--tls-cert", dir, "--tls-key", key}, []string{"--tls-cert", dir, "is a directory"}},
		{[]string{"--tls-cert", file, "--tls-key", key}, []string{"--tls-cert " + file, "failed to find any PEM data"}},
		{[]string{"--tls-cert", key, "--tls-key", cert}, []string{"--tls-cert " + key, "may have been switched"}},
		{[]string{"--tls-cert", cert, "--tls-key", otherKey}, []string{"--tls-key " + otherKey, "does not match"}},
		{[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", file}, []string{"--tls-client-ca " + file, "no certificate"}},
		{[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", dir}, []string{"--tls-client-ca", dir, "is a directory"}},
		{[]string{"--auth", absent}, []string{"--auth", absent, "no such file"}},
		{[]string{"--auth", dir}, []string{"--auth", dir, "not a regular file"}},
		{[]string{"--auth", file}, []string{"--auth", file + ":1"}},
		{[]string{"--cors-origin", "example.com"}, []string{"--cors-origin", `"example.com"`}},
		{[]string{"--client-ttl", "1ms"}, []string{"--client-ttl: must be at least 1 s"}},
		{[]string{"--eviction-interval", "0"}, []string{"--eviction-interval: must be"}},
		{[]string{"--eviction-limit", "0"}, []string{"--eviction-limit: must be"}},
		{[]string{"--receipt-window", "5000"}, []string{"--receipt-window: must be 1 to 1024"}},
		{[]string{"--max-streams", "0"}, []string{"--max-streams: must be"}},
		{[]string{"--drain-timeout", "0s"}, []string{"--drain-timeout: must be more than 0"}},
		{[]string{"--checkpoint-bytes", "1"}, []string{"--checkpoint-bytes: must be 0 or from 1048576"}},
		{[]string{"--checkpoint-bytes=-1"}, []string{"--checkpoint-bytes: must be"}},
		{[]string{"--backup-rate=-2"}, []string{"--backup-rate: must be"}},
		{[]string{"--listen", "127.0.0.1"}, []string{"--listen 127.0.0.1: must be a host and a port"}},
		{[]string{"--listen", "127.0.0.1:99999"}, []string{"--listen 127.0.0.1:99999:", "from 0 to 65535"}},
		{[]string{"--debug-listen", "127.0.0.1:99999"}, []string{"--debug-listen 127.0.0.1:99999:", "from 0 to 65535"}},
	} {
		mustSay(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--data", data}, test.args...), exitUsage, test.says...)
	}
	// The same from a file, with its line.
	config := writeFile(t, "c.yaml", "listen: 127.0.0.1:0\nreceipt-window: 0\n")
	mustSay(t, []string{"serve", "--config", config, "--data", data}, exitUsage, config+":2: --receipt-window: must be")
	if _, err := os.Stat(data); err == nil {
		t.Error("a ledger was made")
	}
	for _, command := range []string{"serve --listen 127.0.0.1:0", "verify", "restore " + file} {
		mustSay(t, append(strings.Fields(command), "--data", file), exitFailed, file+" is a file and no directory")
	}
}

// TestAuthMessages: new-key names its flags, not the fields of the file.
func TestAuthMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"--scope", "a b", "--role", "reader"}, `--scope "a b"`},
		{[]string{"--scope", "a/b/c", "--role", "reader"}, `--scope "a/b/c" has more than one slash`},
		{[]string{"--scope", "a", "--role", "king"}, "--role must be one of"},
		{[]string{"--scope", "a", "--role", "writer"}, "--client-id must have a pattern"},
		{[]string{"--scope", "a", "--role", "writer", "--client-id", ""}, `--client-id "" must have`},
		{[]string{"--scope", "a", "--role", "reader", "--expires", "tomorrow"}, `--expires: "tomorrow" is no time`},
		{[]string{"--scope", "a", "--role", "reader", "--expires", "2001-01-01T00:00:00Z"}, "--expires 2001-01-01T00:00:00Z: is in the past"},
		{[]string{"--scope", "a", "--role", "reader", "--append", dir}, "--append: read " + dir},
		{[]string{"--scope", "a", "--role", "reader", "--append", filepath.Join(dir, "no", "such")}, "--append " + filepath.Join(dir, "no", "such")},
	} {
		mustSay(t, append([]string{"auth", "new-key", "--id", "a"}, test.args...), exitUsage, test.says)
	}
	mustSay(t, []string{"backup", filepath.Join(dir, "no", "such"), "--server", "127.0.0.1:1"}, exitUsage, filepath.Join(dir, "no"), "no such file")
}
