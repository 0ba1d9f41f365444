package main

import (
	"context"
	"errors"
	"regexp"
	"sync/atomic"
	"testing"
	"time"
)

func quickOptions(t *testing.T) *options {
	return &options{
		duration: 50 * time.Millisecond, warmup: 10 * time.Millisecond, dir: t.TempDir(), only: regexp.MustCompile(""),
	}
}

// drive counts what was done between warm-up and end, and nothing else.
func TestDriveCountsWhatItMeasures(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	var done atomic.Int64
	r, err := drive(t.Context(), o, 3, func(context.Context, int) error {
		done.Add(1)
		return nil
	}, sampler(o.dir))
	if err != nil {
		t.Fatal(err)
	}
	if r.operations == 0 || r.operations > done.Load() || r.latency.TotalCount() != r.operations {
		t.Errorf("measured %d operations of %d, %d latencies", r.operations, done.Load(), r.latency.TotalCount())
	}
	if r.elapsed < o.duration {
		t.Errorf("measured for %s, want %s", r.elapsed, o.duration)
	}
}

// A row that fails must not print a number.
func TestDriveReportsFailure(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	broken := errors.New("broken")
	_, err := drive(t.Context(), o, 2, func(_ context.Context, worker int) error {
		if worker == 1 {
			return broken
		}
		return nil
	}, sampler(o.dir))
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestEngineRowsCommit(t *testing.T) {
	t.Parallel()
	for _, r := range rows() {
		if r.name != "engine/16" && r.name != "replay/2" {
			continue // the others need the binary as a server: CI runs them with -quick
		}
		result, err := r.measure(t.Context(), quickOptions(t), &r)
		if err != nil || result.operations == 0 {
			t.Errorf("%s: %d operations, %v", r.name, result.operations, err)
		}
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for number, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(number); got != want {
			t.Errorf("%v is written %q, want %q", number, got, want)
		}
	}
}
