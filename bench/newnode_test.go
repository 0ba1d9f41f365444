package main

import (
	"context"
	"strings"
	"testing"
)

// A node joins a ledger that is written to, and all that it costs is told.
func TestNewNodeMeasures(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it builds and starts two nodes, which make test-long does")
	}
	o := quickOptions(t)
	o.fraction = 64.0 / (newNodeBytes / newNodePayload) // 4 MiB
	err := onBed(t.Context(), o, func(ctx context.Context, b *bed) error {
		lines, err := measureNewNode(ctx, b)
		if err != nil {
			return err
		}
		told := map[any]string{}
		for _, l := range lines {
			value, _ := l["value"].(string)
			told[l["measure"]] = value
		}
		if len(lines) != 7 || told["in the ledger"] != "4 MiB" {
			t.Errorf("%d lines: %v", len(lines), told)
		}
		for _, measure := range []string{"writes a second before, meanwhile, after", "p99 before, meanwhile, after"} {
			for value := range strings.SplitSeq(strings.TrimSuffix(told[measure], " ms"), ", ") {
				if value == "" || strings.HasPrefix(value, "0") && strings.Trim(value, "0.") == "" {
					t.Errorf("%s: %q", measure, told[measure])
				}
			}
		}
		for _, l := range lines[4:] {
			if l["verdict"] == nil {
				t.Errorf("%v has no verdict", l)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
