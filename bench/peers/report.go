package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// report is peers.json.
type report struct {
	Machine   string            `json:"machine"`
	Date      string            `json:"date"` // RFC 3339, UTC
	Commit    string            `json:"commit"`
	Rounds    int               `json:"rounds"`
	Duration  float64           `json:"duration_s"` // measured, for each row in each round
	Settings  map[string]string `json:"settings"`
	Lacks     map[string]string `json:"lacks"`
	Rows      []rowResult       `json:"rows"`
	Ratios    []ratio           `json:"ratios"` // seqledger's throughput over the peer's
	Targets   []verdict         `json:"targets"`
	Warnings  []string          `json:"warnings"` // too few syncs
	OpenLoop  []openPoint       `json:"open_loop"`
	Preloaded []preloadPoint    `json:"preloaded"`
	smoke     bool              // it is not for files
}

func newReport(ctx context.Context, o *options, f *findings) *report {
	r := &report{
		Machine: processor(), Date: time.Now().UTC().Format(time.RFC3339), Commit: commit(ctx), Rounds: o.rounds,
		Duration: o.duration.Seconds(), Settings: map[string]string{}, Lacks: map[string]string{},
		OpenLoop: f.open, Preloaded: f.preloaded, Targets: f.judge(), smoke: o.smoke,
	}
	for i := range o.kinds {
		k := &o.kinds[i]
		version, _ := k.find() // it was found before
		r.Settings[k.name] = version + ": " + k.settings
		if k.lacks != "" {
			r.Lacks[k.name] = k.lacks
		}
	}
	for _, row := range o.rows {
		for i := range o.kinds {
			at := cell{row, o.kinds[i].name}
			if len(f.samples[at]) == 0 {
				continue
			}
			r.Rows = append(r.Rows, f.summarize(at))
			c, ok := f.compare("seqledger", at.system, row, func(s *sample) float64 { return s.perSecond })
			if ok && at.system != "seqledger" {
				r.Ratios = append(r.Ratios, c)
			}
		}
	}
	r.Warnings = cheats(r.Rows)
	return r
}

// publish prints the tables and writes the files.
func publish(o *options, r *report, stdout io.Writer) error {
	text := r.markdown()
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if o.out == "" {
		return nil
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	files := map[string]string{"peers.json": string(encoded) + "\n", "peers.md": text}
	for name, picture := range r.pictures() {
		files[name] = picture.SVG()
	}
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(o.out, name), []byte(content), 0o644))
	}
	return err
}

func processor() string {
	name := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := after(string(b), "model name\t: "); found != "" {
			name = found
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // a machine without has no name for it
	return fmt.Sprintf("%d cores of %s, Linux %s, %s", runtime.NumCPU(), name,
		strings.TrimSpace(string(kernel)), runtime.Version())
}

// commit returns the checked-out commit, with -dirty if files differ from it.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty",
		"--abbrev=12", "--exclude", "*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func optional(f *float64) string {
	if f == nil {
		return "?"
	}
	return fmt.Sprintf("%.4f", *f)
}
