package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/seqledger/seqledger/bench/harness"
)

const throughput = "throughput_per_s"

// The columns of the tables, and the names of their values in peers.json.
var (
	latencyColumns = harness.Columns{
		{Head: "p50 ms", Name: "p50_ms", Format: "%.3f"}, {Head: "p99 ms", Name: "p99_ms", Format: "%.3f"},
		{Head: "p99.9 ms", Name: "p999_ms", Format: "%.3f"},
	}
	rowColumns = slices.Concat(harness.Columns{
		{Head: "workload", Name: "workload"}, {Head: "pipelined", Name: "pipelined"},
		{Head: "writers", Name: "writers", Format: "%.0f"}, {Head: "bytes", Name: "payload_bytes", Format: "%.0f"},
		{Head: "system", Name: "system"}, {Head: "connections", Name: "connections", Format: "%.0f"},
		{Head: "per second", Name: throughput, Format: ","},
		{Head: "lowest", Name: "throughput_min", Format: ","},
		{Head: "highest", Name: "throughput_max", Format: ","},
	}, latencyColumns, harness.Columns{
		{Head: "syncs/write", Name: "fsyncs_per_write", Format: "%.4f"},
		// The disk counts bytes of any process; the kernel charges large pages to the server.
		{Head: "B/write (disk)", Name: "bytes_per_write", Format: ","},
		{Head: "B/write (charged)", Name: "charged_bytes_per_write", Format: ","},
		{Head: "CPU µs (server)", Name: "cpu_us_per_write", Format: "%.1f"},
		{Head: "CPU µs (client)", Name: "client_cpu_us_per_write", Format: "%.1f"},
		{Head: "resident bytes", Name: "resident_bytes", Format: ","},
	})
	ratioColumns = harness.Columns{
		{Head: "row", Name: "row"}, {Head: "other", Name: "peer"}, {Head: "ratio", Name: "median", Format: "%.2f"},
		{Head: "between", Name: "low", Format: "%.2f"}, {Head: "and", Name: "high", Format: "%.2f"},
		{Head: "with probability", Name: "coverage", Format: "%.2f"},
	}
	openColumns = append(harness.Columns{
		{Head: "system", Name: "system"}, {Head: "wanted/s", Name: "rate_per_s", Format: ","},
		{Head: "served/s", Name: throughput, Format: ","}, {Head: "unserved", Name: "unserved", Format: ","},
	}, latencyColumns...)
)

// publish joins the rounds, prints the tables and writes the files.
func (f *findings) publish(o *options, stdout io.Writer) error {
	r := f.report(o)
	text := fmt.Sprintf("# seqledger and others\n\n%s, %s, commit %s: %d rounds of %gs for each row.\n\n", r["date"],
		r["machine"], r["commit"], o.rounds, o.duration.Seconds())
	for i := range o.kinds {
		text += fmt.Sprintf("- `%s`: %s\n", o.kinds[i].name, o.kinds[i].settings)
	}
	for _, section := range []struct {
		title, name string
		columns     harness.Columns
	}{
		{"Rows", "rows", rowColumns},
		{"Throughput of seqledger over that of another", "ratios", ratioColumns},
		{"Latency at a fixed rate, from the moment a write was due", "open_loop", openColumns},
		{"Too few syncs to be honest", "warnings", harness.Columns{{Head: "what", Name: "what"}}},
	} {
		if lines := r[section.name].([]harness.Line); len(lines) > 0 {
			text += "\n## " + section.title + "\n\n" + section.columns.Table(lines)
		}
	}
	if _, err := io.WriteString(stdout, text); err != nil || o.out == "" {
		return err
	}
	return errors.Join(os.MkdirAll(o.out, 0o755), harness.WriteJSON(filepath.Join(o.out, "peers.json"), r),
		os.WriteFile(filepath.Join(o.out, "peers.md"), []byte(text), 0o644))
}

// report is peers.json.
func (f *findings) report(o *options) harness.Report {
	var rows, ratios []harness.Line
	for _, r := range o.rows {
		for i := range o.kinds {
			at := cell{r, o.kinds[i].name}
			if len(f.samples[at]) == 0 {
				continue
			}
			rows = append(rows, f.line(at))
			if c, ok := f.compare(at); ok {
				ratios = append(ratios, c)
			}
		}
	}
	report := harness.NewReport()
	maps.Copy(report, harness.Report{
		"rounds": o.rounds, "duration_s": o.duration.Seconds(), "rows": rows, "ratios": ratios,
		"warnings": cheats(rows), "open_loop": f.open,
	})
	return report
}

// line makes one line of a cell's samples: medians, and the extremes of the throughput.
func (f *findings) line(at cell) harness.Line {
	speeds := harness.Of(f.samples[at], throughput)
	l := harness.Line{
		"system": at.system, "workload": at.row.workload, "writers": float64(at.row.writers),
		"pipelined": at.row.pipelined, "payload_bytes": float64(at.row.payload),
		"connections":    float64(f.connections[at]),
		"throughput_min": slices.Min(speeds), "throughput_max": slices.Max(speeds), "fsyncs_per_write": nil,
	}
	if syncs, counted := f.syncs[at]; counted {
		l["fsyncs_per_write"] = syncs
	}
	return l.With(harness.Medians(f.samples[at]))
}

// compare returns the throughput of seqledger divided by that of a peer, and a range that has the true median with a
// probability; ok is false where there is nothing to compare.
func (f *findings) compare(at cell) (l harness.Line, ok bool) {
	const own = "seqledger"
	ratios := harness.Ratios(harness.Of(f.samples[cell{at.row, own}], throughput),
		harness.Of(f.samples[at], throughput))
	if len(ratios) == 0 || at.system == own {
		return nil, false
	}
	low, high, coverage := harness.Interval(ratios)
	return harness.Line{"peer": at.system, "row": at.row.name(), "median": harness.Median(ratios),
		"low": low, "high": high, "coverage": coverage}, true
}

// cheats returns the rows in which a system synced less often than one sync for all waiting callers explains.
func cheats(rows []harness.Line) (list []harness.Line) {
	for _, r := range rows {
		syncs, counted := r["fsyncs_per_write"].(float64)
		steps := map[any]float64{"fresh": 1, keyedPairs: 2}[r["workload"]]
		// A tenth less is what begins and ends outside the time that is counted.
		if least := 0.9 * steps / r["writers"].(float64); counted && syncs < least {
			list = append(list, harness.Line{"what": fmt.Sprintf(
				"%s, %.0f writers: %.5f syncs per write, at least %.5f are needed", r["system"], r["writers"], syncs,
				least)})
		}
	}
	return list
}
