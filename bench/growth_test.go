package main

import (
	"os"
	"testing"
	"time"
)

// TestGrowth runs it small: every value must have been measured, and nothing may be left on disk.
func TestGrowth(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it takes half a minute, which make test-long has")
	}
	o := quickOptions(t)
	o.fraction, o.duration, o.rate = 1, 20*time.Millisecond, 500
	o.marks, o.streams = []time.Duration{300 * time.Millisecond, 700 * time.Millisecond}, []int{300, 600}
	costs := []string{"write_us", "write_p99_ms", "write_cpu_us", "retry_us", "retry_cpu_us", "open_s", "checkpoint_s",
		"state_mib", "log_mib", "memory_mib"}
	for _, r := range growthRows(o) {
		lines, names := measured(t, o, r.measure), append(costs, "opened_mib")
		if r.name == "load" {
			names = append(costs, "throughput_per_s", "p50_ms", "p99_ms")
			// What is measured at a mark must not count as load.
			if last := lines[1]["writes"].(float64); len(lines) != 2 || last > steadyStreams+0.7*o.rate+2 {
				t.Errorf("%d marks, %v writes", len(lines), last)
			}
		}
		for _, line := range lines {
			for _, name := range names {
				if value, _ := line[name].(float64); value <= 0 {
					t.Errorf("%s: %s is %v", r.name, name, line[name])
				}
			}
		}
	}
	if left, _ := os.ReadDir(o.dir); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
}
