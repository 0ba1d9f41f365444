package main

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestTargetsAreRows: a target for a number of workers that is not measured would never be missed.
func TestTargetsAreRows(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	for _, r := range rates {
		if kinds[r.kind] {
			t.Errorf("%s is there twice", r.kind)
		}
		kinds[r.kind] = true
		for workers, target := range r.targets {
			if !slices.Contains(r.workers, workers) || target <= 0 {
				t.Errorf("%s: %v a second with %d workers, which are not measured", r.kind, target, workers)
			}
		}
	}
}

// TestCheckReadsTheTableOfRates: the numbers that bench reports are what bench check reads.
func TestCheckReadsTheTableOfRates(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.json = filepath.Join(t.TempDir(), "report.json")
	shown := table{"a title", rateColumns, func(*options) []row {
		return []row{{"engine/16", func(_ context.Context, b *bed) error {
			of := harness.Line{"throughput_per_s": 96849.4, "verdict": "reached"}
			return b.tell(of, harness.Line{"row": "named", "p50_ms": 1.0})
		}}}
	}, ""}
	must.Do(t, shown.measure(t.Context(), "", o, io.Discard))
	content := must.Get(os.ReadFile(o.json))(t)
	found, err := parseReport(content)
	if err != nil || len(found) != 2 || !maps.Equal(found["engine/16"], harness.Values{"throughput_per_s": 96849.4}) ||
		found["named"]["p50_ms"] != 1 {
		t.Errorf("%v, %v of %s", found, err, content)
	}
	if _, err := parseReport(content[:len(content)-3]); err == nil {
		t.Error("half a report is read")
	}
}
