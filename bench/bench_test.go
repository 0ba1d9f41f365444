package main

import (
	"context"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func quickOptions(t *testing.T) *options {
	return &options{
		duration: 50 * time.Millisecond, warmup: 10 * time.Millisecond, dir: t.TempDir(), only: regexp.MustCompile(""),
	}
}

// measured returns what a row tells.
func measured(t *testing.T, o *options, measure func(context.Context, *bed) error) (lines []harness.Line) {
	t.Helper()
	tell := func(more ...harness.Line) error {
		lines = append(lines, more...)
		return nil
	}
	must.Do(t, onBed(t.Context(), o, tell, measure))
	return lines
}

// TestMain lets the test binary be a server, as the harness's own binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-serve" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every row of the table measures something, in this process and on a server of its own.
func TestRatesMeasure(t *testing.T) {
	t.Parallel()
	for _, r := range rates {
		t.Run(r.kind, func(t *testing.T) {
			t.Parallel()
			var measured load.Result
			must.Do(t, onBed(t.Context(), quickOptions(t), nil, func(ctx context.Context, b *bed) (err error) {
				measured, err = r.measure(ctx, b, 2)
				return err
			}))
			v := measured.Values()
			// What a server has used is known to a hundredth of a second.
			if measured.Operations == 0 || v["client_cpu_us_per_write"] <= 0 || v["allocs_per_write"] <= 0 ||
				v["cpu_us_per_write"] > 0 && !r.server {
				t.Errorf("%d operations, %v", measured.Operations, v)
			}
		})
	}
}
