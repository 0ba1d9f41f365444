package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// TestGrowth runs it small: every measurement must have been made, and nothing
// may be left behind.
func TestGrowth(t *testing.T) {
	t.Parallel()
	dir, out := t.TempDir(), t.TempDir()
	var said strings.Builder
	err := growth(t.Context(), []string{"-streams", "300,600", "-minutes", "2", "-duration", "200ms", "-dir", dir, "-out", out}, &said)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(out, "growth.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report growthReport
	if err := json.Unmarshal(b, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Streams) != 2 || len(report.Load) != 2 || report.Day.WrittenBytes <= 0 {
		t.Fatalf("something is missing: %+v", report)
	}
	for _, p := range report.Streams {
		if p.WriteMicros <= 0 || p.ReplayMicros <= 0 || p.OpenSeconds <= 0 || p.CloseSeconds <= 0 || p.DiskBytes <= 0 || p.MemoryBytes <= 0 {
			t.Errorf("not measured: %+v", p)
		}
	}
	if pictures, _ := filepath.Glob(out + "/growth-*.svg"); len(pictures) != 4 {
		t.Errorf("want 4 pictures, got %v", pictures)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
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
		if err := c.ledger.Close(); err != nil {
			t.Error(err)
		}
	}()
	count := func() (n uint64) {
		err := c.ledger.View(t.Context(), func(v machine.View) error {
			n = v.Streams()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != streams {
		t.Fatalf("want %d streams, got %d", streams, n)
	}
	var p streamsPoint
	if err := c.reopen(t.Context(), &p); err != nil {
		t.Fatal(err)
	}
	if err := c.evict(t.Context(), &p); err != nil {
		t.Fatal(err)
	}
	if n := count(); n > growthWriters {
		t.Errorf("%d streams are left", n)
	}
}

func TestGrowthRefuses(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{
		{"-streams", "many"}, {"-streams", "1"}, {"-streams", ""}, {"-minutes", "1"}, {"-duration", "0s"}, {"extra"},
	} {
		if err := growth(t.Context(), append(arguments, "-dir", t.TempDir()), &strings.Builder{}); err == nil {
			t.Errorf("%v: want an error", arguments)
		}
	}
}

// The first half of a load fills the log up and must not count.
func TestExtrapolateLeavesTheStartAway(t *testing.T) {
	t.Parallel()
	d := extrapolate([]minutePoint{
		{Writes: 1000, DiskBytes: 1 << 30, LogBytes: 500_000},
		{Writes: 2000, DiskBytes: 2 << 30, LogBytes: 1_000_000, MemoryBytes: 7},
		{Writes: 3000, DiskBytes: 2<<30 + 100_000, LogBytes: 1_500_000, MemoryBytes: 9},
		{Writes: 4000, DiskBytes: 2<<30 + 200_000, LogBytes: 2_000_000, MemoryBytes: 8},
	})
	const aDay = 24 * 60 * 60 * dayRate
	if d.DiskBytes != 100*aDay || d.WrittenBytes != 500*aDay || d.MemoryBytes != 9 {
		t.Errorf("want 100 bytes on disk and 500 of log a write, and 9 of memory, got %+v of %d writes", d, aDay)
	}
	if d := extrapolate([]minutePoint{{}, {}}); d.DiskBytes != 0 {
		t.Errorf("nothing written: got %+v", d)
	}
}
