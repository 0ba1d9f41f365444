package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/ledger/machine"
)

// grown runs it and returns what it has reported and written.
func grown(t *testing.T, out string, arguments ...string) (growthReport, string) {
	t.Helper()
	dir := t.TempDir()
	var said strings.Builder
	if err := growth(t.Context(), append(arguments, "-duration", "20ms", "-dir", dir, "-out", out), &said); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	b, err := os.ReadFile(filepath.Join(out, "growth.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report growthReport
	if err := json.Unmarshal(b, &report); err != nil {
		t.Fatal(err)
	}
	return report, said.String()
}

// measured reports whether all of these values are more than 0.
func measured(p harness.Values, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return p[name] <= 0 })
}

// measuredCosts are the costs that cannot be 0.
var measuredCosts = []string{"write_us", "write_p99_ms", "write_cpu_us", "replay_us", "replay_cpu_us", "replay_p99_ms",
	"open_s", "checkpoint_s"}

// TestGrowth runs it small, in two parts: every measurement must have been made,
// nothing may be left behind, and the second part keeps what the first reported.
func TestGrowth(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it takes half a minute, which make test-long has")
	}
	out := t.TempDir()
	const marks = 2
	loaded, said := grown(t, out, "-streams", "", "-marks", "300ms,700ms", "-rate", "500")
	if len(loaded.Streams) != 0 || len(loaded.Load) != marks || len(loaded.Marks) != marks ||
		strings.Count(said, "min:") != 2*marks {
		t.Fatalf("something is missing, or too much: %+v, %s", loaded, said)
	}
	for i, p := range loaded.Marks {
		minute := loaded.Load[i]
		if !measured(p, measuredCosts...) || !measured(p, "state_bytes", "log_written") ||
			!measured(minute, "p50_ms", "log_bytes", "memory_bytes") || minute["p99_ms"] < minute["p50_ms"] {
			t.Errorf("not measured: %+v, %+v", p, minute)
		}
		// What is measured at a mark must not count as load.
		due := float64(uint64(500 * p["minutes"] * 60))
		all := p["writes"] + loaded.Load[0]["unserved"]
		if i > 0 {
			all += minute["unserved"]
		}
		if p["writes"] > steadyStreams+due+1 || all+1 < steadyStreams+due {
			t.Errorf("%v writes after %.4f minutes, of which %v were due", p["writes"]-steadyStreams, p["minutes"], due)
		}
	}
	if !measured(loaded.Day, "log_bytes_written", "log_bytes") || loaded.Day["writes_per_s"] != 500 {
		t.Errorf("no day: %+v", loaded.Day)
	}
	both, _ := grown(t, out, "-streams", "300,600", "-marks", "")
	if len(both.Streams) != 2 || !reflect.DeepEqual(both.Marks, loaded.Marks) ||
		!reflect.DeepEqual(both.Load, loaded.Load) || !maps.Equal(both.Day, loaded.Day) {
		t.Fatalf("want the first part kept and the second added: %+v", both)
	}
	again, _ := grown(t, out, "-streams", "300", "-marks", "")
	if len(again.Streams) != 2 || maps.Equal(again.Streams[0], both.Streams[0]) ||
		!maps.Equal(again.Streams[1], both.Streams[1]) {
		t.Errorf("want 300 measured again and 600 kept: %+v", again.Streams)
	}
	for _, p := range both.Streams {
		if !measured(p, measuredCosts...) || !measured(p, "disk_bytes", "memory_bytes", "memory_open_bytes") {
			t.Errorf("not measured: %+v", p)
		}
	}
	retained, _ := grown(t, out, "-streams", "", "-marks", "300ms,700ms", "-rate", "500", "-retain", "1s")
	if len(retained.Retained) != marks || len(retained.RetainedMarks) != marks ||
		!measured(retained.Retained[1], "block_bytes") || !reflect.DeepEqual(retained.Marks, loaded.Marks) ||
		!reflect.DeepEqual(retained.Streams, again.Streams) || !maps.Equal(retained.Day, loaded.Day) {
		t.Errorf("want a load with retention beside what was there: %+v", retained)
	}
	if pictures, _ := filepath.Glob(out + "/growth-*.svg"); len(pictures) != 6 {
		t.Errorf("want 6 pictures, got %v", pictures)
	}
}

// A repeat of a write before the horizon has no receipt to answer with. That counts as an answer where the ledger
// drops its history, and nowhere else.
func TestReplayBeforeTheHorizon(t *testing.T) {
	t.Parallel()
	const streams = 300 // the first is repeated; the others are enough for a pass, which moves the horizon
	o := &growthOptions{dir: t.TempDir(), retain: time.Hour}
	err := withCrowd(t.Context(), o, streams, func(ctx context.Context, c *crowd) error {
		if err := c.replay(ctx, 0); err != nil || c.gone.Load() != 0 || c.replays.Load() != 1 {
			t.Errorf("before anything is old: %v, %d of %d gone", err, c.gone.Load(), c.replays.Load())
		}
		// The first pass at a later time marks what there is, and one at a time after that drops it.
		for later := 2 * time.Hour; later <= 4*time.Hour; later += 2 * time.Hour {
			clock := func() time.Time { return time.Now().Add(later) }
			if err := errors.Join(c.close(), c.open(ctx, clock)); err != nil {
				return err
			}
			for stream := 1; stream < streams; stream++ {
				if err := c.write(ctx, stream); err != nil {
					return err
				}
			}
		}
		if err := c.replay(ctx, 0); err != nil || c.gone.Load() != 1 || c.replays.Load() != 2 {
			t.Errorf("before the horizon: %v, %d of %d gone", err, c.gone.Load(), c.replays.Load())
		}
		if err := c.replay(ctx, streams-1); err != nil || c.gone.Load() != 1 {
			t.Errorf("behind the horizon: %v, %d gone", err, c.gone.Load())
		}
		c.config.RetainBlocks = 0 // what the crowd expects; the ledger goes on as it is
		if err := c.replay(ctx, 0); err == nil {
			t.Error("want an error where nothing may be dropped")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Another file of that name is not overwritten.
func TestGrowthKeepsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	file := filepath.Join(out, "growth.json")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := growth(t.Context(), []string{"-streams", "300", "-marks", "", "-out", out}, &strings.Builder{})
	if b, _ := os.ReadFile(file); err == nil || !strings.Contains(err.Error(), file) || string(b) != "mine" {
		t.Errorf("want an error with the file's name, and the file as it was; got %v and %q", err, b)
	}
}

// What is committed can be continued and drawn.
func TestCommittedGrowth(t *testing.T) {
	t.Parallel()
	report, err := priorGrowth("results")
	if err != nil || len(report.Streams) == 0 || len(report.Load) == 0 || len(report.Marks) < 2 {
		t.Fatalf("got %+v, %v", report, err)
	}
	for name, picture := range report.pictures() {
		was, err := os.ReadFile(filepath.Join("results", name))
		if err != nil || picture.SVG() != string(was) {
			t.Errorf("%s is not the picture of growth.json, %v", name, err)
		}
	}
}

// The measurement of eviction must have let the streams go.
func TestCrowdIsEvicted(t *testing.T) {
	t.Parallel()
	const streams = 3000
	count := func(c *crowd) (n uint64) {
		err := c.ledger.View(t.Context(), func(v machine.View) error {
			n = v.Streams()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	err := withCrowd(t.Context(), &growthOptions{dir: t.TempDir()}, streams, func(ctx context.Context, c *crowd) error {
		if n := count(c); n != streams {
			t.Fatalf("want %d streams, got %d", streams, n)
		}
		if err := c.close(); err != nil {
			return err
		}
		err := c.copied(func(copied *crowd) error {
			_, err := copied.evict(ctx, 0)
			if err != nil {
				return err
			}
			if n := count(copied); n > growthWriters {
				t.Errorf("%d streams are left", n)
			}
			return nil
		})
		if err != nil {
			return err
		}
		// The original must not have noticed.
		if err := c.open(ctx, nil); err != nil {
			return err
		}
		if n := count(c); n != streams {
			t.Errorf("want %d streams in the original, got %d", streams, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestGrowthRefuses(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{
		{"-streams", "many"}, {"-streams", "1"}, {"-streams", "", "-marks", ""}, {"-marks", "1s"}, {"-marks", "2s,1s"},
		{"-marks", "soon,1s"}, {"-rate", "0"}, {"-duration", "0s"}, {"extra"},
		{"-retain", "1ms"}, {"-retain", "1m", "-marks", "", "-streams", "300"},
	} {
		if err := growth(t.Context(), append(arguments, "-dir", t.TempDir()), &strings.Builder{}); err == nil {
			t.Errorf("%v: want an error", arguments)
		}
	}
}

// What was before the last two marks fills the log up and must not count.
func TestExtrapolateLeavesTheStartAway(t *testing.T) {
	t.Parallel()
	mark := func(minutes, writes, blocks, written float64) harness.Values {
		return harness.Values{"minutes": minutes, "writes": writes, "state_bytes": 7, "log_written": written,
			"block_bytes": blocks}
	}
	minute := func(minutes, memory, log, state float64) harness.Values {
		return harness.Values{"minutes": minutes, "memory_bytes": memory, "log_bytes": log, "state_bytes": state}
	}
	marks := []harness.Values{mark(1, 1000, 1<<30, 500_000), mark(2, 2000, 2<<30, 1_000_000),
		mark(4, 4000, 2<<30+200_000, 2_000_000)}
	minutes := []harness.Values{minute(2, 100, 100, 100), minute(3, 9, 5, 8), minute(4, 8, 6, 7)}
	const rate, aDay = 10, 24 * 60 * 60 * 10
	want := harness.Values{"writes_per_s": rate, "state_bytes": 8, "log_bytes_written": 500 * aDay,
		"block_bytes": 100 * aDay, "memory_bytes": 9, "log_bytes": 6}
	if d := extrapolate(rate, marks, minutes); !maps.Equal(d, want) {
		t.Errorf("want %+v, got %+v", want, d)
	}
	if d := extrapolate(rate, []harness.Values{{}, {}}, nil); d["state_bytes"] != 0 {
		t.Errorf("nothing written: got %+v", d)
	}
}
