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
	r := rowOf64
	f := &findings{samples: map[cell][]harness.Values{
		{r, "seqledger"}: speeds(100, 300, 50), {r, "redis"}: speeds(50, 150, 25),
	}}
	c, ok := f.compare("seqledger", "redis", r, "throughput_per_s")
	if !ok || c["median"] != 2.0 || c["low"] != 2.0 || c["high"] != 2.0 {
		t.Errorf("want exactly 2, got %+v, %v", c, ok)
	}
	if _, ok := f.compare("seqledger", "etcd", r, "throughput_per_s"); ok {
		t.Error("compared with what was not measured")
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	f := &findings{samples: map[cell][]harness.Values{
		{rowOf64, "seqledger"}: speeds(100, 100, 100), {rowOf64, "redis"}: speeds(50, 50, 50),
		{rowOf64, "postgres"}:             speeds(50, 50, 50),
		{rowOf256, "seqledger-inprocess"}: {{"log_bytes_per_write": 300, "bytes_per_write": 3000}},
	}}
	want := map[string]string{
		"fresh/64: seqledger / redis":                                     "reached", // 2 of 1.5
		"fresh/64: seqledger / postgres":                                  "MISSED",  // 2 of 8
		"fresh/64: seqledger / etcd":                                      "not measured",
		"fresh/256: bytes of log / bytes of payload, in process":          "reached", // 2.3 of at most 2.5
		"fresh/256: all bytes to the disk / bytes of payload, in process": "MISSED",  // 23 of at most 6
		"fresh/1: median latency in process / bare append and fdatasync":  "not measured",
		"fresh/1024/pipelined: seqledger / redis":                         "not measured",
		"retry-hot/64: seqledger / postgres":                              "not measured",
		"an unknown target, to see that the lookup below detects one":     "",
	}
	found := make(map[string]string)
	for _, v := range f.judge() {
		found[v["target"].(string)] = v["verdict"].(string)
	}
	for target, verdict := range want {
		if found[target] != verdict {
			t.Errorf("%s: %q, want %q", target, found[target], verdict)
		}
	}
}

// One sync serves all callers that wait for it, and no others.
func TestCheats(t *testing.T) {
	t.Parallel()
	fresh := func(system string, writers int, syncs any) harness.Line {
		return harness.Line{"system": system, "workload": "fresh", "writers": writers, "fsyncs_per_write": syncs}
	}
	retries := fresh("retries need none", 1, 0.0)
	retries["workload"] = "retry-hot"
	found := fmt.Sprint(cheats([]harness.Line{fresh("honest", 64, 1.0/64), fresh("lazy", 64, 1.0/200),
		fresh("never", 1, 0.0), retries, fresh("not counted", 1, nil)}))
	for system, caught := range map[string]bool{"honest": false, "lazy": true, "never": true,
		"retries need none": false, "not counted": false} {
		if strings.Contains(found, system+",") != caught {
			t.Errorf("%s caught: %v, want %v; in %q", system, !caught, caught, found)
		}
	}
}
