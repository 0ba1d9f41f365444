package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// check measures this tree against an older one, pair by pair in one run: other work on the
// machine then slows both. A figure of another day could not be compared.
func check(ctx context.Context, arguments []string, stdout io.Writer) (err error) {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	baseline := flags.String("baseline", "", "revision to compare with (default: 20 commits ago, or where this branch "+
		"has left main if that was earlier)")
	rows := flags.String("only", "^(engine/16|replay/2|stream/64|stream/256|unary/64)$",
		"rows to compare, a regular expression")
	rounds := flags.Int("pairs", 7, "how often each side is measured")
	duration := flags.Duration("duration", time.Second, "how long each row is measured each time")
	tolerate := flags.Float64("tolerate", 0.15, "how much slower the median may be, as a fraction")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 {
		return errors.New("check takes flags alone, and -pairs must be at least 1; see -help")
	}
	dir, err := os.MkdirTemp("", "seqledger-check-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binaries, err := buildBoth(ctx, *baseline, dir)
	if err != nil {
		return err
	}
	pairs, err := comparePairs(*rounds, func(side int) (map[string]harness.Values, error) {
		return runRows(ctx, binaries[side], *rows, *duration, dir)
	})
	if err != nil {
		return err
	}
	return judge(stdout, pairs, *tolerate)
}

// buildBoth builds bench of a revision, or of the default one, and of the tree as it is.
func buildBoth(ctx context.Context, revision, dir string) (binaries [2]string, err error) {
	if revision == "" {
		out, err := exec.CommandContext(ctx, "git", "merge-base", "main", "HEAD~20").Output()
		if err != nil {
			return binaries, fmt.Errorf("there is no earlier commit to compare with; -baseline names one: %w", err)
		}
		revision = strings.TrimSpace(string(out))
	}
	tree := filepath.Join(dir, "baseline")
	binaries = [2]string{filepath.Join(dir, "before"), filepath.Join(dir, "now")}
	if err := command(ctx, "", "git", "worktree", "add", "--detach", tree, revision); err != nil {
		return binaries, fmt.Errorf("the baseline %s: %w; -baseline names another revision", revision, err)
	}
	return binaries, errors.Join(
		command(ctx, tree, "go", "build", "-o", binaries[0], "./bench"),
		command(ctx, "", "go", "build", "-o", binaries[1], "./bench"),
		// Not with ctx: remove it also after an interrupt.
		command(context.WithoutCancel(ctx), "", "git", "worktree", "remove", "--force", tree))
}

// command runs a program. Its error includes the output.
func command(ctx context.Context, dir, name string, arguments ...string) error {
	c := exec.CommandContext(ctx, name, arguments...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, out)
	}
	return nil
}

// runRows runs a bench and returns what it has measured, by row.
func runRows(
	ctx context.Context, binary, rows string, duration time.Duration, dir string,
) (map[string]harness.Values, error) {
	report := filepath.Join(dir, "report.json")
	c := exec.CommandContext(ctx, binary, "-json", report, "-only", rows, "-duration", duration.String(), "-dir", dir)
	// An interrupt, so that it removes its files and ends its server.
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(binary), err, stderr.String())
	}
	content, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	return parseReport(content)
}

// parseReport reads the numbers of a report, by row.
func parseReport(content []byte) (map[string]harness.Values, error) {
	var report struct{ Findings []harness.Line }
	if err := json.Unmarshal(content, &report); err != nil {
		return nil, err
	}
	found := make(map[string]harness.Values)
	for _, line := range report.Findings {
		values := harness.Values{}
		for name, value := range line {
			if number, ok := value.(float64); ok {
				values[name] = number
			}
		}
		row, _ := line["row"].(string)
		found[row] = values
	}
	return found, nil
}

// pair is what was measured of a row on both sides, turn by turn.
type pair [2][]harness.Values

// ratios returns a value of side 1 divided by that of side 0.
func (p *pair) ratios(value string) []float64 {
	return harness.Ratios(harness.Of(p[1], value), harness.Of(p[0], value))
}

// comparePairs measures both sides in turns, so that a change in the load of the machine hits
// both: 0 is the baseline and 1 this tree. The result is by row.
func comparePairs(
	pairs int, measure func(side int) (map[string]harness.Values, error),
) (map[string]*pair, error) {
	found := make(map[string]*pair)
	err := harness.Turns(pairs, 2, func(_, side int) error {
		rows, err := measure(side)
		for row, values := range rows {
			if found[row] == nil {
				found[row] = new(pair)
			}
			found[row][side] = append(found[row][side], values)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(found, func(_ string, p *pair) bool { return len(p[0]) != len(p[1]) })
	if len(found) == 0 {
		return nil, errors.New("the two have no row in common")
	}
	return found, nil
}

var checkColumns = harness.Columns{
	{Head: "row", Name: "row", Width: -12},
	{Head: "of the baseline", Name: "median", Width: 15, Format: "%.2f"},
	{Head: "from", Name: "least", Width: 6, Format: "%.2f"},
	{Head: "to", Name: "most", Width: 6, Format: "%.2f"},
}

// judge prints the ratios and fails when one has dropped too far.
func judge(stdout io.Writer, pairs map[string]*pair, tolerate float64) error {
	var slower []string
	var lines []harness.Line
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		list := pairs[name].ratios("throughput_per_s")
		middle := harness.Median(list)
		if middle < 1-tolerate {
			slower = append(slower, fmt.Sprintf("%s: %.2f", name, middle))
		}
		lines = append(lines, harness.Line{
			"row": name, "median": middle, "least": slices.Min(list), "most": slices.Max(list),
		})
	}
	_, err := io.WriteString(stdout, checkColumns.Table(lines))
	if len(slower) > 0 {
		return fmt.Errorf("slower than the baseline by more than %.0f %%: %s; run it again on a quiet machine, then "+
			"find out with -profile what it costs", 100*tolerate, strings.Join(slower, ", "))
	}
	return err
}
