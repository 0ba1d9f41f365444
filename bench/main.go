// Command bench measures a ledger on this machine and prints tables. README.md beside this file has its kinds, how they
// measure, and where the results are.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/bench/chaos"
	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// options are the flags.
type options struct {
	duration time.Duration // measured, for each row
	warmup   time.Duration
	only     *regexp.Regexp
	dir      string // below which data directories are made
	profile  string
	json     string
	// fraction of the full size, for allocs and growth.
	fraction float64
	// Of growth: numbers of streams, and lengths of a load, in order, at a rate in writes a second.
	streams []int
	marks   []time.Duration
	rate    float64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// commands are kinds of measurements that are no tables.
var commands = map[string]func(ctx context.Context, arguments []string, stdout io.Writer) error{
	"check": check,
	"chaos": chaos.Run,
}

// table has rows, which are measured one after the other, and the columns of its output.
type table struct {
	title   string
	columns harness.Columns
	rows    func(o *options) []row
	failure string // the error when a target is missed; empty: it is none
}

// row is one or more lines of a table, which are measured on one bed and told to it.
type row struct {
	name    string
	measure func(ctx context.Context, b *bed) error
}

var tables = map[string]table{
	"":       {"128-byte append, acknowledged after fsync", rateColumns, rateRows, ""},
	"allocs": {"allocs", allocColumns, allocRows, allocsFailure},
	"growth": {"growth", growthColumns, growthRows, ""},
}

func run(ctx context.Context, arguments []string, stdout io.Writer) error {
	kind := ""
	if len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") {
		kind, arguments = arguments[0], arguments[1:]
	}
	if command, ok := commands[kind]; ok {
		return command(ctx, arguments, stdout)
	}
	t, ok := tables[kind]
	if !ok {
		return fmt.Errorf("unknown kind %q: growth, chaos, allocs, check, or nothing for the table of rates", kind)
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "measure for a fraction of a second: does it run?")
	only := flags.String("only", "", "measure the rows whose name matches this regular expression")
	serveDir := flags.String("serve", "", "serve a ledger in this directory (used by bench itself)")
	flags.DurationVar(&o.duration, "duration", 8*time.Second, "how long each row is measured")
	flags.StringVar(&o.dir, "dir", "", "make data directories below this one (default: the system's temporary "+
		"directory)")
	flags.StringVar(&o.profile, "profile", "", "write CPU profiles (of the server, too) with this prefix")
	flags.StringVar(&o.json, "json", "", "write the report to this file, too")
	flags.Float64Var(&o.fraction, "fraction", 1, "of the full size, where that is not a duration")
	streams := flags.String("streams", "10000,100000,1000000", "growth: numbers of streams, separated by commas")
	marks := flags.String("marks", "1m,10m,60m", "growth: measure after this much load, separated by commas")
	flags.Float64Var(&o.rate, "rate", 1000, "growth: writes a second of the load")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	case *serveDir != "":
		ctx, stop := process.UntilStdinEnds(ctx)
		defer stop()
		return serve(ctx, &o, *serveDir)
	}
	o.warmup = time.Second
	if *quick {
		o.duration, o.warmup, o.fraction = 200*time.Millisecond, 50*time.Millisecond, quickFraction
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if o.streams, err = harness.Numbers("-streams", *streams, growthWriters); err != nil {
		return err
	}
	if o.marks, err = parseMarks(*marks); err != nil {
		return err
	}
	if o.fraction <= 0 || o.rate <= 0 {
		return errors.New("-fraction and -rate must be more than 0")
	}
	return t.measure(ctx, kind, &o, stdout)
}

// parseMarks reads durations that are separated by commas; nothing has none. Each must be longer than the one before.
func parseMarks(list string) (marks []time.Duration, err error) {
	last := time.Duration(0)
	for field := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		mark, err := time.ParseDuration(field)
		if err != nil || mark <= last {
			return nil, fmt.Errorf("-marks: %q is not a duration, such as 10m, longer than the one before", field)
		}
		marks, last = append(marks, mark), mark
	}
	return marks, nil
}

// quickFraction makes the large rows small enough for CI.
const quickFraction = 0.005

// measure runs the rows one after another. It prints each line at once, because a run takes long, and writes a report
// if the flag names a file.
func (t *table) measure(ctx context.Context, kind string, o *options, stdout io.Writer) error {
	report := harness.NewReport()
	report["kind"], report["fraction"] = kind, o.fraction
	if _, err := fmt.Fprintf(stdout, "%s: %s at %s, %s, %g of the full size\n\n%s", t.title, report["date"],
		report["commit"], report["machine"], o.fraction, t.columns.Head()); err != nil {
		return err
	}
	var findings []harness.Line
	var missed []string
	for _, r := range t.rows(o) {
		if !o.only.MatchString(r.name) {
			continue
		}
		tell := func(lines ...harness.Line) error {
			for _, l := range lines {
				if l["row"] == nil {
					l["row"] = r.name
				}
				if l["verdict"] == verdict(false) {
					missed = append(missed, r.name)
				}
				if _, err := io.WriteString(stdout, t.columns.Line(l)); err != nil {
					return err
				}
			}
			findings = append(findings, lines...)
			return nil
		}
		if err := onBed(ctx, o, tell, r.measure); err != nil {
			return fmt.Errorf("%s: %w", r.name, errors.Join(err, context.Cause(ctx)))
		}
	}
	report["findings"] = findings
	switch {
	case len(findings) == 0:
		return errors.New("-only matches no row")
	case len(missed) > 0 && t.failure != "":
		return fmt.Errorf("%s: %s", strings.Join(missed, ", "), t.failure)
	case o.json == "":
		return nil
	}
	return harness.WriteJSON(o.json, report)
}

// verdict returns the word for a comparison with a target.
func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "MISSED"
}

// scaled returns a part of the full size.
func scaled(o *options, n int) int { return max(1, int(float64(n)*o.fraction)) }

// scaledTime scales a duration, but not below a time in which something happens.
func scaledTime(o *options, d time.Duration) time.Duration {
	return min(d, max(300*time.Millisecond, time.Duration(float64(d)*o.fraction)))
}
