package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

func (c *costs) areMeasured() bool {
	return c.WriteMicros > 0 && c.WriteP99 > 0 && c.WriteCPU > 0 && c.ReplayMicros > 0 && c.ReplayCPU > 0 &&
		c.ReplayP99 > 0 && c.OpenSeconds > 0 && c.CloseSeconds > 0
}

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
		if !p.areMeasured() || p.StateBytes <= 0 || p.Written == 0 || minute.P50 <= 0 || minute.P99 < minute.P50 ||
			minute.LogBytes <= 0 || minute.MemoryBytes <= 0 {
			t.Errorf("not measured: %+v, %+v", p, minute)
		}
		// What is measured at a mark must not count as load.
		due := uint64(500 * p.Minutes * 60)
		if all := p.Writes + uint64(loaded.Load[0].Unserved+loaded.Load[i].Unserved); p.Writes > steadyStreams+due+1 ||
			all+1 < steadyStreams+due {
			t.Errorf("%d writes after %.4f minutes, of which %d were due", p.Writes-steadyStreams, p.Minutes, due)
		}
	}
	if loaded.Day.WrittenBytes <= 0 || loaded.Day.Rate != 500 || loaded.Day.LogBytes <= 0 {
		t.Errorf("no day: %+v", loaded.Day)
	}
	both, _ := grown(t, out, "-streams", "300,600", "-marks", "")
	if len(both.Streams) != 2 || !slices.Equal(both.Marks, loaded.Marks) || !slices.Equal(both.Load, loaded.Load) ||
		both.Day != loaded.Day {
		t.Fatalf("want the first part kept and the second added: %+v", both)
	}
	again, _ := grown(t, out, "-streams", "300", "-marks", "")
	if len(again.Streams) != 2 || again.Streams[0] == both.Streams[0] || again.Streams[1] != both.Streams[1] {
		t.Errorf("want 300 measured again and 600 kept: %+v", again.Streams)
	}
	for _, p := range both.Streams {
		if !p.areMeasured() || p.DiskBytes <= 0 || p.MemoryBytes <= 0 || p.OpenMemory <= 0 {
			t.Errorf("not measured: %+v", p)
		}
	}
	if pictures, _ := filepath.Glob(out + "/growth-*.svg"); len(pictures) != 5 {
		t.Errorf("want 5 pictures, got %v", pictures)
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

// One bad round must not show.
func TestMedianOfCosts(t *testing.T) {
	t.Parallel()
	low := costs{1, 2, 3, 4, 5, 6, 0.5, 8, 9, 10}
	middle := costs{2, 3, 4, 5, 6, 7, 0.6, 9, 10, 11}
	high := costs{100, 100, 100, 100, 100, 100, 1, 100, 100, 100}
	if got := medianOf([]costs{high, low, middle}); got != middle {
		t.Errorf("want %+v, got %+v", middle, got)
	}
}

// The measurement of eviction must have let the streams go.
func TestCrowdIsEvicted(t *testing.T) {
	t.Parallel()
	const streams = 3000
	c, err := openCrowd(t.Context(), t.TempDir(), streams)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
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
	if n := count(c); n != streams {
		t.Fatalf("want %d streams, got %d", streams, n)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	err = c.copied(func(copied *crowd) error {
		_, err := copied.evict(t.Context(), 0)
		if err != nil {
			return err
		}
		if n := count(copied); n > growthWriters {
			t.Errorf("%d streams are left", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The original must not have noticed.
	if err := c.open(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if n := count(c); n != streams {
		t.Errorf("want %d streams in the original, got %d", streams, n)
	}
}

func TestGrowthRefuses(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{
		{"-streams", "many"}, {"-streams", "1"}, {"-streams", "", "-marks", ""}, {"-marks", "1s"}, {"-marks", "2s,1s"},
		{"-marks", "soon,1s"}, {"-rate", "0"}, {"-duration", "0s"}, {"extra"},
	} {
		if err := growth(t.Context(), append(arguments, "-dir", t.TempDir()), &strings.Builder{}); err == nil {
			t.Errorf("%v: want an error", arguments)
		}
	}
}

// What was before the last two marks fills the log up and must not count.
func TestExtrapolateLeavesTheStartAway(t *testing.T) {
	t.Parallel()
	marks := []markPoint{
		{Minutes: 1, Writes: 1000, StateBytes: 1 << 30, Written: 500_000},
		{Minutes: 2, Writes: 2000, StateBytes: 2 << 30, Written: 1_000_000},
		{Minutes: 4, Writes: 4000, StateBytes: 2<<30 + 200_000, Written: 2_000_000},
	}
	minutes := []minutePoint{
		{Minutes: 2, MemoryBytes: 100, LogBytes: 100}, {Minutes: 3, MemoryBytes: 9, LogBytes: 5},
		{Minutes: 4, MemoryBytes: 8, LogBytes: 6},
	}
	const rate, aDay = 10, 24 * 60 * 60 * 10
	want := day{Rate: rate, StateBytes: 100 * aDay, WrittenBytes: 500 * aDay, MemoryBytes: 9, LogBytes: 6}
	if d := extrapolate(rate, marks, minutes); d != want {
		t.Errorf("want %+v, got %+v", want, d)
	}
	if d := extrapolate(rate, []markPoint{{}, {}}, nil); d.StateBytes != 0 {
		t.Errorf("nothing written: got %+v", d)
	}
}
