package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
)

// speeds gives a cell one sample for each speed.
func speeds(list ...float64) []harness.Values {
	samples := make([]harness.Values, len(list))
	for i, s := range list {
		samples[i] = harness.Values{"throughput_per_s": s}
	}
	return samples
}

// Rounds are compared with themselves: the machine was three times faster in
// the second round, and the ratio is the same.
func TestCompareIsPaired(t *testing.T) {
	t.Parallel()
	r := row{"fresh", 64, false, smallPayload}
	f := &findings{samples: map[cell][]harness.Values{
		{r, "seqledger"}: speeds(100, 300, 50), {r, "redis"}: speeds(50, 150, 25),
	}}
	c, ok := f.compare(cell{r, "redis"})
	if !ok || c["median"] != 2.0 || c["low"] != 2.0 || c["high"] != 2.0 {
		t.Errorf("want exactly 2, got %+v, %v", c, ok)
	}
	if _, ok := f.compare(cell{r, "etcd"}); ok {
		t.Error("compared with what was not measured")
	}
}

// One sync serves all callers that wait for it, and no others.
func TestCheats(t *testing.T) {
	t.Parallel()
	fresh := func(system string, writers float64, syncs any) harness.Line {
		return harness.Line{"system": system, "workload": "fresh", "writers": writers, "fsyncs_per_write": syncs}
	}
	retries := fresh("retries need none", 1, 0.0)
	retries["workload"] = "retry-hot"
	pair := fresh("half a pair", 64, 1.0/64)
	pair["workload"] = keyedPairs
	found := fmt.Sprint(cheats([]harness.Line{pair, fresh("honest", 64, 1.0/64), fresh("lazy", 64, 1.0/200),
		fresh("never", 1, 0.0), retries, fresh("not counted", 1, nil)}))
	for system, caught := range map[string]bool{"honest": false, "lazy": true, "never": true, "half a pair": true,
		"retries need none": false, "not counted": false} {
		if strings.Contains(found, system+",") != caught {
			t.Errorf("%s caught: %v, want %v; in %q", system, !caught, caught, found)
		}
	}
}
