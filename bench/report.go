package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// finding is one line of the tables of scale and abuse.
type finding struct {
	Row     string `json:"row"`
	Measure string `json:"measure"`
	Value   string `json:"value"`
	Target  string `json:"target,omitempty"`  // empty: for the record
	Verdict string `json:"verdict,omitempty"` // reached, MISSED or empty
}

// report is the stored result of a run.
type report struct {
	Kind     string    `json:"kind"`
	Commit   string    `json:"commit"`
	Date     string    `json:"date"`
	Machine  string    `json:"machine"`
	Cores    int       `json:"cores"`
	Go       string    `json:"go"`
	Fraction float64   `json:"fraction"` // of the full size
	Findings []finding `json:"findings"`
}

func newReport(kind string, o *options) *report {
	return &report{
		Kind: kind, Commit: commit(), Date: time.Now().UTC().Format(time.RFC3339), Machine: processor(),
		Cores: runtime.NumCPU(), Go: runtime.Version(), Fraction: o.fraction,
	}
}

// commit names the sources, as far as git knows.
func commit() string {
	revision, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(revision))
	if changed, err := exec.Command("git", "status", "--porcelain").Output(); err != nil || len(changed) > 0 {
		name += "+changes"
	}
	return name
}

// verdict words a comparison with a target.
func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "MISSED"
}

const (
	plainFinding    = "%-22s %-46s %18s %14s %s\n"
	markdownFinding = "| %s | %s | %s | %s | %s |\n"
)

func (r *report) header(o *options) {
	fmt.Printf("%s at %s, %s, %s, %d cores, %s, %g of the full size\n\n",
		r.Kind, r.Commit, r.Date, r.Machine, r.Cores, r.Go, r.Fraction)
	if o.markdown {
		fmt.Printf(markdownFinding+"|---|---|---:|---:|---|\n", "row", "measure", "value", "target", "")
		return
	}
	fmt.Printf(plainFinding, "row", "measure", "value", "target", "")
}

// add prints findings at once, because a run takes long.
func (r *report) add(o *options, findings ...finding) {
	format := plainFinding
	if o.markdown {
		format = markdownFinding
	}
	for _, f := range findings {
		fmt.Printf(format, f.Row, f.Measure, f.Value, f.Target, f.Verdict)
	}
	r.Findings = append(r.Findings, findings...)
}

// save writes the report as JSON if there is a name for it.
func (r *report) save(path string) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func milliseconds(nanoseconds int64) string { return fmt.Sprintf("%.2f ms", float64(nanoseconds)/1e6) }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }
