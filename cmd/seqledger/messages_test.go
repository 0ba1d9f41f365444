package main

import (
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
