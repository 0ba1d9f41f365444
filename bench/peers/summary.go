package main

import (
	"math"
	"slices"
)

// rowResult is a row in a system over all rounds: medians, and the extremes of
// the throughput.
type rowResult struct {
	System         string   `json:"system"`
	Workload       string   `json:"workload"`
	Writers        int      `json:"writers"`
	Pipelined      bool     `json:"pipelined"`
	PayloadBytes   int      `json:"payload_bytes"`
	Throughput     float64  `json:"throughput_per_s"`
	ThroughputMin  float64  `json:"throughput_min"`
	ThroughputMax  float64  `json:"throughput_max"`
	P50            float64  `json:"p50_ms"`
	P99            float64  `json:"p99_ms"`
	P999           float64  `json:"p999_ms"`
	SyncsPerWrite  *float64 `json:"fsyncs_per_write"`        // null: not counted
	BytesPerWrite  float64  `json:"bytes_per_write"`         // to the whole disk, by whomever
	ChargePerWrite float64  `json:"charged_bytes_per_write"` // to the server's processes, by the kernel, in large pages
	LogPerWrite    float64  `json:"log_bytes_per_write"`     // seqledger-inprocess alone
	CPUPerWrite    float64  `json:"cpu_us_per_write"`        // the server's
	ClientPerWrite float64  `json:"client_cpu_us_per_write"` // 0 in process, where cpu_us_per_write has both
	ResidentBytes  int64    `json:"resident_bytes"`          // the server's, after the row
	Connections    int      `json:"connections"`
}

// summarize makes one row of a cell's samples.
func (f *findings) summarize(at cell) rowResult {
	samples := f.samples[at]
	middle := func(value func(*sample) float64) float64 { return median(values(samples, value)) }
	speeds := values(samples, func(s *sample) float64 { return s.perSecond })
	return rowResult{
		System: at.system, Workload: at.row.workload, Writers: at.row.writers,
		Pipelined: at.row.pipelined, PayloadBytes: at.row.payload,
		Throughput: median(speeds), ThroughputMin: slices.Min(speeds), ThroughputMax: slices.Max(speeds),
		P50:            middle(func(s *sample) float64 { return s.p50 }),
		P99:            middle(func(s *sample) float64 { return s.p99 }),
		P999:           middle(func(s *sample) float64 { return s.p999 }),
		SyncsPerWrite:  f.syncs[at],
		BytesPerWrite:  middle(func(s *sample) float64 { return s.disk }),
		ChargePerWrite: middle(func(s *sample) float64 { return s.written }),
		LogPerWrite:    middle(func(s *sample) float64 { return s.log }),
		CPUPerWrite:    middle(func(s *sample) float64 { return s.serverCPU }),
		ClientPerWrite: middle(func(s *sample) float64 { return s.clientCPU }),
		ResidentBytes:  int64(middle(func(s *sample) float64 { return float64(s.resident) })),
		Connections:    f.connections[at],
	}
}

// ratio compares two systems in one row. Rounds are compared with themselves,
// because what disturbs a machine for a minute disturbs both.
type ratio struct {
	System   string  `json:"system"`
	Peer     string  `json:"peer"`
	Row      string  `json:"row"`
	Median   float64 `json:"median"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	Coverage float64 `json:"coverage"` // with which probability low and high enclose the true median
}

// compare returns system's value divided by the peer's; ok is false when one of
// them was not measured.
func (f *findings) compare(system, peer string, r row, value func(*sample) float64) (c ratio, ok bool) {
	ours, theirs := values(f.samples[cell{r, system}], value), values(f.samples[cell{r, peer}], value)
	n := min(len(ours), len(theirs))
	if n == 0 {
		return c, false
	}
	ratios := make([]float64, n)
	for i := range n {
		ratios[i] = ours[i] / theirs[i]
	}
	low, high, coverage := interval(ratios)
	return ratio{System: system, Peer: peer, Row: r.name(), Median: median(ratios),
		Low: low, High: high, Coverage: coverage}, true
}

func values(samples []sample, value func(*sample) float64) []float64 {
	list := make([]float64, len(samples))
	for i := range samples {
		list[i] = value(&samples[i])
	}
	return list
}

// median returns the middle of some values, 0 of none.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// interval returns the narrowest pair of values, equally far from both ends,
// that encloses the true median with a probability of at least 93 %, or the
// extremes. It assumes nothing but that rounds are independent: each value is
// above the true median with probability one half.
func interval(list []float64) (low, high, coverage float64) {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	enough := func(k int) float64 { // both ends k values in
		outside := 0.0
		for i := range k + 1 {
			outside += binomial(n, i) * math.Pow(0.5, float64(n))
		}
		return max(0, 1-2*outside)
	}
	k := 0
	for 2*(k+1) < n && enough(k+1) >= 0.93 {
		k++
	}
	return sorted[k], sorted[n-1-k], enough(k)
}

func binomial(n, k int) float64 {
	b := 1.0
	for i := range k {
		b = b * float64(n-i) / float64(i+1)
	}
	return b
}
