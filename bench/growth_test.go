package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestGrowth runs it small: every value must have been measured, and nothing may be left on disk.
func TestGrowth(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it takes half a minute, which make test-long has")
	}
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "growth.json")
	must.Do(t, growth(t.Context(), []string{
		"-streams", "300,600", "-marks", "300ms,700ms", "-rate", "500", "-duration", "20ms", "-dir", dir, "-json", file,
	}, &strings.Builder{}))
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
	b := must.Get(os.ReadFile(file))(t)
	var report growthReport
	must.Do(t, json.Unmarshal(b, &report))
	if len(report.Load) != 2 || len(report.Marks) != 2 || len(report.Streams) != 2 {
		t.Fatalf("got %s", b)
	}
	positive := func(p harness.Values, names ...string) {
		if slices.ContainsFunc(names, func(name string) bool { return p[name] <= 0 }) {
			t.Errorf("want all of %v above 0, got %v", names, p)
		}
	}
	costs := []string{"write_us", "write_p99_ms", "write_cpu_us", "replay_us", "replay_cpu_us", "open_s",
		"checkpoint_s"}
	for i, p := range report.Marks {
		positive(p, append(costs, "state_bytes")...)
		positive(report.Load[i], "p50_ms", "p99_ms", "log_bytes", "memory_bytes")
		positive(report.Streams[i], append(costs, "disk_bytes", "memory_bytes", "memory_open_bytes")...)
		// What is measured at a mark must not count as load.
		if due := 500 * p["minutes"] * 60; p["writes"] > steadyStreams+due+1 {
			t.Errorf("%v writes after %.4f minutes, of which %v were due", p["writes"]-steadyStreams, p["minutes"], due)
		}
	}
}

func TestGrowthRefuses(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{
		{"-streams", "many"}, {"-streams", "1"}, {"-streams", "", "-marks", ""}, {"-marks", "2s,1s"},
		{"-marks", "soon,1s"}, {"-rate", "0"}, {"-duration", "0s"}, {"extra"},
	} {
		if err := growth(t.Context(), append(arguments, "-dir", t.TempDir()), &strings.Builder{}); err == nil {
			t.Errorf("%v: want an error", arguments)
		}
	}
}
