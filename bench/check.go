package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// checkOptions are the flags of bench check.
type checkOptions struct {
	baseline string // revision
	rows     string // regular expression
	pairs    int
	duration time.Duration
	tolerate float64 // drop of the median ratio, as a fraction
	dir      string
}

// check measures this tree against an older one, pair by pair in one run: other work on the
// machine then slows both. A figure of another day could not be compared.
func check(ctx context.Context, arguments []string, stdout io.Writer) (err error) {
	var o checkOptions
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.StringVar(&o.baseline, "baseline", "", "revision to compare with (default: on a branch, where it left main; "+
		"on main, 20 commits ago)")
	flags.StringVar(&o.rows, "only", "^(engine/16|replay/2|stream/64|stream/256|unary/64)$",
		"rows to compare, a regular expression")
	flags.IntVar(&o.pairs, "pairs", 7, "how often each side is measured")
	flags.DurationVar(&o.duration, "duration", time.Second, "how long each row is measured each time")
	flags.Float64Var(&o.tolerate, "tolerate", 0.15, "how much slower the median may be, as a fraction")
	flags.StringVar(&o.dir, "dir", "", "build and write below this directory (default: the system's temporary "+
		"directory)")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.pairs < 1 {
		return errors.New("check takes flags alone, and -pairs must be at least 1; see -help")
	}
	if o.baseline == "" {
		if o.baseline, err = defaultBaseline(ctx, ""); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(o.dir, "seqledger-check-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	before, now, err := buildBoth(ctx, o.baseline, dir)
	if err != nil {
		return err
	}
	ratios, err := comparePairs(o.pairs, func(side int) (map[string]float64, error) {
		return speeds(ctx, &o, []string{before, now}[side], dir)
	})
	if err != nil {
		return err
	}
	return judge(stdout, ratios, o.tolerate, o.baseline)
}

// defaultBaseline chooses a revision that differs from the tree of a directory: comparing main with itself
// would never fail.
func defaultBaseline(ctx context.Context, dir string) (string, error) {
	git := func(arguments ...string) (string, error) {
		c := exec.CommandContext(ctx, "git", arguments...)
		c.Dir = dir
		out, err := c.Output()
		return strings.TrimSpace(string(out)), err
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return "", fmt.Errorf("there is no commit to compare with: %w", err)
	}
	if left, err := git("merge-base", "main", "HEAD"); err == nil && left != head {
		return left, nil
	}
	earlier, err := git("rev-parse", "HEAD~20")
	if err != nil {
		return "", fmt.Errorf("there is no earlier commit to compare with; -baseline names one: %w", err)
	}
	return earlier, nil
}

// buildBoth builds bench of a revision and of the tree as it is.
func buildBoth(ctx context.Context, revision, dir string) (before, now string, err error) {
	tree := filepath.Join(dir, "baseline")
	before, now = filepath.Join(dir, "before"), filepath.Join(dir, "now")
	if err := command(ctx, "", "git", "worktree", "add", "--detach", tree, revision); err != nil {
		return "", "", fmt.Errorf("the baseline %s: %w; -baseline names another revision", revision, err)
	}
	err = errors.Join(
		command(ctx, tree, "go", "build", "-o", before, "./bench"),
		command(ctx, "", "go", "build", "-o", now, "./bench"),
	)
	// Not with ctx: remove it also after an interrupt.
	return before, now, errors.Join(err,
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

// speeds runs a bench and reads its table.
func speeds(ctx context.Context, o *checkOptions, binary, dir string) (map[string]float64, error) {
	c := exec.CommandContext(ctx, binary, "-markdown", "-only", o.rows, "-duration", o.duration.String(), "-dir", dir)
	// An interrupt, so that it removes its files and ends its server.
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(binary), err, stderr.String())
	}
	return parseTable(string(out))
}

// parseTable reads the rows and their speeds from a table in Markdown.
func parseTable(text string) (map[string]float64, error) {
	found := make(map[string]float64)
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "/") {
			continue
		}
		speed, err := strconv.ParseFloat(strings.ReplaceAll(strings.TrimSpace(cells[2]), ",", ""), 64)
		if err != nil {
			return nil, fmt.Errorf("the table has %q", strings.TrimSpace(line))
		}
		found[strings.TrimSpace(cells[1])] = speed
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no row in %q", text)
	}
	return found, nil
}

// comparePairs measures both sides in turns, so that a change in the load of the machine hits
// both: 0 is the baseline and 1 this tree. The result is the ratio now / before of each pair, by
// row.
func comparePairs(pairs int, measure func(side int) (map[string]float64, error)) (map[string][]float64, error) {
	var found [2][]map[string]float64
	err := harness.Turns(pairs, 2, func(_, side int) error {
		speeds, err := measure(side)
		found[side] = append(found[side], speeds)
		return err
	})
	if err != nil {
		return nil, err
	}
	ratios := make(map[string][]float64)
	for pair := range pairs {
		for row, before := range found[0][pair] {
			if now, ok := found[1][pair][row]; ok && before > 0 {
				ratios[row] = append(ratios[row], now/before)
			}
		}
	}
	if len(ratios) == 0 {
		return nil, errors.New("the two have no row in common")
	}
	return ratios, nil
}

// judge prints the ratios and fails when one has dropped too far.
func judge(stdout io.Writer, ratios map[string][]float64, tolerate float64, baseline string) error {
	var slower []string
	for _, name := range slices.Sorted(maps.Keys(ratios)) {
		list := ratios[name]
		middle := harness.Median(list)
		verdict := "ok"
		if middle < 1-tolerate {
			verdict = "SLOWER"
			slower = append(slower, fmt.Sprintf("%s: %.2f", name, middle))
		}
		if _, err := fmt.Fprintf(stdout, "%-12s %.2f of %s (%d pairs, %.2f to %.2f)  %s\n",
			name, middle, baseline, len(list), slices.Min(list), slices.Max(list), verdict); err != nil {
			return err
		}
	}
	if len(slower) > 0 {
		return fmt.Errorf(
			"slower than %s by more than %.0f %%: %s; run it again on a quiet machine, then find out with "+
				"-profile what it "+
				"costs",
			baseline, 100*tolerate, strings.Join(slower, ", "))
	}
	return nil
}
