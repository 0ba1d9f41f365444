package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestBench measures a real server shortly, and compares what bench says it has
// written with what the ledger has.
func TestBench(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string][]string{
		"as fast as it can": nil,
		"at a rate":         {"--rate", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			said := seqledger(t, append(
				[]string{"bench", "--server", s.address, "--streams", "3", "--duration", "200ms", "--json"},
				arguments...)...).
				expect(t, exitDone, "opening 3 streams in seqledger-bench")
			var r benchResult
			if err := json.Unmarshal([]byte(said.stdout), &r); err != nil {
				t.Fatalf("%v: %s", err, said.stdout)
			}
			if r.Writes == 0 || r.Streams != 3 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 {
				t.Errorf("no sensible measurement: %+v", r)
			}
			clients := seqledger(t, "list", "clients", "--server", s.address, "--json").expect(t, exitDone).stdout
			if streams := strings.Count(clients, `"bench-`); streams != 3 {
				t.Errorf("want 3 streams of bench, got %d in %s", streams, clients)
			}
			if written := committed(t, clients); written < r.Writes {
				t.Errorf("bench counted %d writes, and the ledger has %d", r.Writes, written)
			}
		})
	}
}

// committed adds up the last sequences of all clients.
func committed(t *testing.T, clients string) (sum int64) {
	t.Helper()
	for _, part := range strings.Split(clients, `"lastCommittedSequence":"`)[1:] {
		text, _, _ := strings.Cut(part, `"`)
		n := must.Get(strconv.ParseInt(text, 10, 64))(t)
		sum += n
	}
	return sum
}

// TestBenchKeepsOut: the scope that a shell is set up for is where real writes
// go, and a benchmark must not follow it there.
func TestBenchKeepsOut(t *testing.T) {
	t.Parallel()
	s := serve(t)
	seqledger(t, "SEQLEDGER_SCOPE=acme/main", "SEQLEDGER_ORGANIZATION=acme", "bench", "--server",
		s.address, "--streams", "1", "--duration", "1s").
		expect(t, exitDone, "per second", "p99.9")
	if blocks := seqledger(t, "list", "blocks", "--server", s.address, "--scope", "acme/main").expect(t,
		exitDone).stdout; strings.Contains(blocks, "1") {
		t.Errorf("want nothing written to acme/main, got %s", blocks)
	}
}

func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		arguments []string
		code      int
		text      string
	}{
		{[]string{"--streams", "0"}, exitUsage, "--streams"},
		{[]string{"--streams", "1000000"}, exitUsage, "--streams"},
		{[]string{"--payload", "0"}, exitUsage, "--payload"},
		{[]string{"--payload", "2000000"}, exitUsage, "--payload"},
		{[]string{"--duration", "0s"}, exitUsage, "--duration"},
		{[]string{"--rate", "-1"}, exitUsage, "--rate"},
		{[]string{"--timeout", "0s"}, exitUsage, "--timeout"},
		{[]string{"--server", "127.0.0.1:1", "--timeout", "100ms"}, exitFailed, "127.0.0.1:1"},
	} {
		seqledger(t, append([]string{"bench"}, test.arguments...)...).expect(t, test.code, test.text)
	}
}
