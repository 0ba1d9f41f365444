package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestBench measures a real server shortly, and compares what bench says it has
// written with what the ledger has.
func TestBench(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string][]string{
		"as fast as it can": {"--payload", "1"},
		"at a rate":         {"--rate", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			// The scope that a shell is set up for is where real writes go; bench must not follow it there.
			said := seqledger(t, append([]string{"SEQLEDGER_SCOPE=acme/main", "SEQLEDGER_ORGANIZATION=acme", "bench",
				"--server", s.address, "--streams", "3", "--duration", "200ms", "--json"}, arguments...)...).
				expect(t, exitDone, "opening 3 streams in seqledger-bench")
			var r benchResult
			if err := json.Unmarshal([]byte(said.stdout), &r); err != nil {
				t.Fatalf("%v: %s", err, said.stdout)
			}
			if r.Writes == 0 || r.Streams != 3 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 {
				t.Errorf("no sensible measurement: %+v", r)
			}
			clients := seqledger(t, "list", "clients", "--server", s.address, "--json").expect(t, exitDone).stdout
			if streams := strings.Count(clients, `"bench-`); streams != 3 || strings.Contains(clients, "acme") {
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

// TestBenchForPeople: what is measured is shown in words, and what was wanted only with a rate.
func TestBenchForPeople(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]string{
		0: "per second  0\nlatency", 20: "wanted      20 per second, 3 unserved\nlatency",
	} {
		var out strings.Builder
		c := benchCommand{Streams: 2, Payload: 5, Rate: rate}
		must.Do(t, c.show(&environment{stdout: &out}, &load.Result{Unserved: 3, Latency: load.NewLatencies()}))
		if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "p99.9 0.000 ms") {
			t.Errorf("want %q, got %s", want, out.String())
		}
	}
}
