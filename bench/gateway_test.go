package main

import (
	"context"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
)

// The four sides are measured, every answer is what it must be, and a fresh key costs two commands.
func TestGatewayMeasures(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it builds seqledger, which make test-long has")
	}
	o := quickOptions(t)
	o.fraction = quickFraction
	lines := measured(t, o, func(ctx context.Context, b *bed) error { return measureGateway(ctx, b, 2) })
	if last := lines[len(lines)-1]; last["value"] != "2.00" || last["verdict"] != "reached" {
		t.Errorf("want two commands for a fresh key, got %v", last)
	}
}

// Replays are held against the proxy's requests of the same round.
func TestGatewayFindings(t *testing.T) {
	t.Parallel()
	round := func(rates ...float64) (list []harness.Values) {
		for _, rate := range rates {
			list = append(list, harness.Values{"throughput_per_s": rate})
		}
		return list
	}
	for name, test := range map[string]struct {
		replays      []harness.Values
		commands     float64
		replay, most string
	}{
		"dearer":             {round(90, 900, 9), 2, "MISSED", "reached"},
		"as cheap":           {round(100, 1000, 9), 2.004, "reached", "reached"},
		"a command too many": {round(100, 1000, 10), 2.01, "reached", "MISSED"},
	} {
		sides := [4][]harness.Values{round(1, 1, 1), round(100, 1000, 10), round(1, 1, 1), test.replays}
		lines := gatewayFindings(sides, test.commands)
		replay, commands := lines[len(lines)-2]["verdict"], lines[len(lines)-1]["verdict"]
		if replay != test.replay || commands != test.most {
			t.Errorf("%s: got %s and %s", name, replay, commands)
		}
	}
}
