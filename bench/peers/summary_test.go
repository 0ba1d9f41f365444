package main

import (
	"math"
	"strings"
	"testing"
)

func TestMedianAndInterval(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		values              []float64
		median, low, high   float64
		coverage, tolerance float64
	}{
		"one":   {[]float64{3}, 3, 3, 3, 0, 1e-9},
		"two":   {[]float64{4, 2}, 3, 2, 4, 0.5, 1e-9},
		"five":  {[]float64{5, 1, 4, 2, 3}, 3, 1, 5, 0.9375, 1e-9},
		"seven": {[]float64{7, 6, 5, 4, 3, 2, 1}, 4, 1, 7, 0.984, 1e-3},
		// With eight or more rounds one disturbed round does not stretch it.
		"eight, one disturbed": {[]float64{1, 2, 3, 4, 5, 6, 7, 1000}, 4.5, 1, 1000, 0.992, 1e-3},
		"nine, one disturbed":  {[]float64{1, 2, 3, 4, 5, 6, 7, 8, 1000}, 5, 2, 8, 0.961, 1e-3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			low, high, coverage := interval(test.values)
			if m := median(test.values); m != test.median {
				t.Errorf("median %v, want %v", m, test.median)
			}
			if low != test.low || high != test.high || math.Abs(coverage-test.coverage) > test.tolerance {
				t.Errorf("interval %v to %v with %v, want %v to %v with %v", low, high,
					coverage, test.low, test.high, test.coverage)
			}
		})
	}
}

// speeds gives a cell one sample for each speed.
func speeds(list ...float64) []sample {
	samples := make([]sample, len(list))
	for i, s := range list {
		samples[i].perSecond = s
	}
	return samples
}

// Rounds are compared with themselves: the machine was three times faster in
// the second round, and the ratio is the same.
func TestCompareIsPaired(t *testing.T) {
	t.Parallel()
	r := row{"fresh", 64, false, smallPayload}
	f := &findings{samples: map[cell][]sample{
		{r, "seqledger"}: speeds(100, 300, 50), {r, "redis"}: speeds(50, 150, 25),
	}}
	speed := func(s *sample) float64 { return s.perSecond }
	if c, ok := f.compare("seqledger", "redis", r, speed); !ok || c.Median != 2 || c.Low != 2 || c.High != 2 {
		t.Errorf("want exactly 2, got %+v, %v", c, ok)
	}
	if _, ok := f.compare("seqledger", "etcd", r, speed); ok {
		t.Error("compared with what was not measured")
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	row64 := row{"fresh", 64, false, smallPayload}
	inProcess := row{"fresh", 256, false, smallPayload}
	f := &findings{samples: map[cell][]sample{
		{row64, "seqledger"}: speeds(100, 100, 100), {row64, "redis"}: speeds(50, 50, 50),
		{row64, "postgres"}:                speeds(50, 50, 50),
		{inProcess, "seqledger-inprocess"}: {{log: 300, disk: 3000}},
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
		found[v.Target] = v.Verdict
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
	number := func(f float64) *float64 { return &f }
	rows := []rowResult{
		{System: "honest", Workload: "fresh", Writers: 64, SyncsPerWrite: number(1.0 / 64)},
		{System: "lazy", Workload: "fresh", Writers: 64, SyncsPerWrite: number(1.0 / 200)},
		{System: "never", Workload: "fresh", Writers: 1, SyncsPerWrite: number(0)},
		{System: "retries need none", Workload: "retry-hot", Writers: 1, SyncsPerWrite: number(0)},
		{System: "not counted", Workload: "fresh", Writers: 1},
	}
	found := strings.Join(cheats(rows), "\n")
	for system, caught := range map[string]bool{"honest": false, "lazy": true, "never": true,
		"retries need none": false, "not counted": false} {
		if strings.Contains(found, system+",") != caught {
			t.Errorf("%s caught: %v, want %v; in %q", system, !caught, caught, found)
		}
	}
}
