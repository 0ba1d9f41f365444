package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seqledger/seqledger/bench/chart"
)

// markdown returns all tables.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# seqledger and others\n\n%s, %s, commit %s: %d rounds of %gs for each row.\n\n", r.Date,
		r.Machine, r.Commit, r.Rounds, r.Duration)
	if r.smoke {
		b.WriteString("A quick run: it shows that everything works, and its figures mean nothing.\n\n")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		fmt.Fprintf(&b, "- `%s`: %s", name, r.Settings[name])
		if lacks := r.Lacks[name]; lacks != "" {
			fmt.Fprintf(&b, ". Does not do: %s", lacks)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	r.rowTable(&b)
	table(&b, "Targets", []string{"target", "want", "got", "between", ""}, r.Targets, func(v verdict) []string {
		sign := "≥"
		if v.AtMost {
			sign = "≤"
		}
		if v.Verdict == "not measured" {
			return []string{v.Target, fmt.Sprintf("%s %.4g", sign, v.Want), "", "", v.Verdict}
		}
		return []string{v.Target, fmt.Sprintf("%s %.4g", sign, v.Want), fmt.Sprintf("%.2f", v.Got),
			fmt.Sprintf("%.2f and %.2f", v.Low, v.High), v.Verdict}
	})
	table(&b, "Throughput of seqledger over that of another",
		[]string{"row", "other", "ratio", "between", "with probability"}, r.Ratios,
		func(c ratio) []string {
			return []string{c.Row, c.Peer, fmt.Sprintf("%.2f", c.Median), fmt.Sprintf("%.2f and %.2f", c.Low, c.High),
				fmt.Sprintf("%.0f %%", 100*c.Coverage)}
		})
	table(&b, "Latency at a fixed rate, from the moment a write was due",
		[]string{"system", "wanted/s", "served/s", "unserved", "p50 ms", "p99 ms", "p99.9 ms"},
		r.OpenLoop, func(p openPoint) []string {
			return []string{p.System, count(p.Rate), count(p.Served),
				count(float64(p.Unserved)), ms(p.P50), ms(p.P99), ms(p.P999)}
		})
	table(&b, "Beside idle streams",
		[]string{"system", "streams", "writers", "per second", "p50 ms", "p99 ms", "memory MiB", "restart s"},
		r.Preloaded, func(p preloadPoint) []string {
			return []string{p.System, count(float64(p.Streams)), fmt.Sprint(p.Writers),
				count(p.Throughput), ms(p.P50), ms(p.P99),
				count(float64(p.Resident >> 20)), fmt.Sprintf("%.1f", p.Restart)}
		})
	table(&b, "Too few syncs to be honest", []string{"what"}, r.Warnings,
		func(w string) []string { return []string{w} })
	return b.String()
}

func (r *report) rowTable(b *strings.Builder) {
	table(b, "Rows", []string{
		"workload", "writers", "bytes", "system", "connections", "per second", "lowest to highest",
		"p50 ms", "p99 ms", "p99.9 ms", "syncs/write",
		"B/write (disk)", "B/write (charged)", "CPU µs (server)", "CPU µs (client)", "memory MiB",
	}, r.Rows, func(m rowResult) []string {
		workload := m.Workload
		if m.Pipelined {
			workload += ", pipelined"
		}
		return []string{
			workload, fmt.Sprint(m.Writers), fmt.Sprint(m.PayloadBytes), m.System,
			fmt.Sprint(m.Connections), count(m.Throughput),
			count(m.ThroughputMin) + " to " + count(m.ThroughputMax), ms(m.P50),
			ms(m.P99), ms(m.P999), optional(m.SyncsPerWrite),
			count(m.BytesPerWrite), count(m.ChargePerWrite),
			fmt.Sprintf("%.1f", m.CPUPerWrite), fmt.Sprintf("%.1f", m.ClientPerWrite),
			count(float64(m.ResidentBytes >> 20)),
		}
	})
}

// table writes a table in Markdown, or nothing when it has no lines.
func table[T any](b *strings.Builder, title string, columns []string, lines []T, cells func(T) []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "## %s\n\n| %s |\n|%s\n", title, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, line := range lines {
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells(line), " | "))
	}
	b.WriteString("\n")
}

func ms(f float64) string { return fmt.Sprintf("%.3f", f) }

// count writes a number with commas.
func count(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// pictures returns the charts by the names of their files.
func (r *report) pictures() map[string]*chart.Chart {
	throughput := &chart.Chart{Title: "Fresh writes of 128 bytes, each durable before its answer", X: "writers",
		Y: "writes per second", LogX: true, LogY: true}
	for _, m := range r.Rows {
		if m.Workload == "fresh" && !m.Pipelined && m.PayloadBytes == smallPayload {
			add(throughput, m.System, float64(m.Writers), m.Throughput)
		}
	}
	latency := &chart.Chart{Title: "Latency at a fixed rate (99 %), from the moment a write was due",
		X: "writes per second wanted", Y: "ms", LogX: true, LogY: true}
	for _, p := range r.OpenLoop {
		add(latency, p.System, p.Rate, p.P99)
	}
	streams := &chart.Chart{Title: "64 writers beside idle streams", X: "streams",
		Y: "writes per second", LogX: true, LogY: true}
	for _, p := range r.Preloaded {
		add(streams, p.System, float64(p.Streams), p.Throughput)
	}
	return map[string]*chart.Chart{"peers-throughput.svg": throughput,
		"peers-latency.svg": latency, "peers-streams.svg": streams}
}

// add puts a point on the line of a name.
func add(c *chart.Chart, name string, x, y float64) {
	i := slices.IndexFunc(c.Lines, func(l chart.Line) bool { return l.Name == name })
	if i < 0 {
		c.Lines = append(c.Lines, chart.Line{Name: name})
		i = len(c.Lines) - 1
	}
	c.Lines[i].Points = append(c.Lines[i].Points, chart.Point{X: x, Y: y})
}
