// Command bench measures a ledger on this machine and prints a table.
//
//	go run ./bench                     # everything, about five minutes
//	go run ./bench -only stream -duration 10s
//	go run ./bench -quick              # a fraction of a second each: does it run?
//	go run ./bench gateway             # seqledger gateway beside a bare proxy and a bare service
//	go run ./bench abuse               # hostile clients, about half an hour
//	go run ./bench abuse -fraction 0.1 -json out.json
//	go run ./bench check               # against an older revision, pair by pair
//	go run ./bench allocs              # allocations per write against allocs.json
//	go run ./bench growth              # how costs grow with streams and with time
//	go run ./bench chaos               # a cluster of real processes under faults, checked
//
// The engine is measured in this process. The server runs as a process of its
// own, started from the same binary, and client and server share the machine's
// cores. Every write is acknowledged after its fsync. README.md beside this file
// has the method and the results.
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
)

// options are the flags.
type options struct {
	duration time.Duration // measured, for each row
	warmup   time.Duration
	only     *regexp.Regexp
	dir      string // below which data directories are made
	markdown bool
	profile  string
	json     string
	// fraction of the full size, for abuse and gateway.
	fraction float64
	// checkpointBytes is ledger.Options.CheckpointBytes of the servers.
	checkpointBytes int64
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

// commands are the other kinds of measurements.
var commands = map[string]func(ctx context.Context, arguments []string, stdout io.Writer) error{
	"allocs": checkAllocs,
	"check":  check,
	"growth": growth,
	"chaos":  chaos.Run,
}

// table has rows, which are measured one after the other, and the columns of its output.
type table struct {
	title   string
	columns []harness.Column
	rows    func() []row
}

// row is one or more lines of a table, measured on one bed.
type row struct {
	name    string
	measure func(ctx context.Context, b *bed) ([]harness.Line, error)
}

var tables = map[string]table{
	"":        {"128-byte append, acknowledged after fsync", rateColumns, rateRows},
	"abuse":   {"abuse", findingColumns, abuseRows},
	"gateway": {"gateway", findingColumns, gatewayRows},
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
		return fmt.Errorf("unknown kind %q: gateway, abuse, growth, chaos, allocs, "+
			"check, or nothing for the table of rates", kind)
	}
	var o options
	var s serverOptions
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "measure for a fraction of a second: does it run?")
	only := flags.String("only", "", "measure the rows whose name matches this regular expression")
	upstream := flags.String("relay", "", "be a bare proxy before this service (used by bench itself)")
	attack := flags.Bool("attack", false, "be a bad tenant (used by bench itself)")
	s.flags(flags)
	flags.DurationVar(&o.duration, "duration", 8*time.Second, "how long each row is measured")
	flags.StringVar(&o.dir, "dir", "", "make data directories below this one (default: the system's temporary "+
		"directory)")
	flags.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	flags.StringVar(&o.profile, "profile", "", "write CPU profiles (of the server, too) with this prefix")
	flags.StringVar(&o.json, "json", "", "write the report to this file, too")
	flags.Int64Var(&o.checkpointBytes, "checkpoint-bytes", 0,
		"how many bytes of changes a server gathers before it writes them; 0 lets it find out")
	flags.Float64Var(&o.fraction, "fraction", 1, "abuse and gateway: of the full size")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	if *attack {
		return runAttack(ctx, os.Stdin, stdout)
	}
	if *upstream != "" {
		return relay(ctx, *upstream)
	}
	if s.dir != "" {
		return s.serve(ctx, &o)
	}
	o.warmup = time.Second
	if *quick {
		o.duration, o.warmup, o.fraction = 200*time.Millisecond, 50*time.Millisecond, quickFraction
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if o.fraction <= 0 {
		return errors.New("-fraction must be more than 0")
	}
	return t.measure(ctx, kind, &o, stdout)
}

// quickFraction makes the large rows small enough for CI.
const quickFraction = 0.005

// measure runs the rows one after another. It prints each at once, because a run takes long, and
// writes a report if the flag names a file.
func (t *table) measure(ctx context.Context, kind string, o *options, stdout io.Writer) error {
	report := harness.NewReport()
	report["kind"], report["fraction"] = kind, o.fraction
	shown := &harness.Table{Columns: t.columns, Markdown: o.markdown}
	if _, err := fmt.Fprintf(stdout, "%s: %s at %s, %s, %g of the full size\n\n%s", t.title, report["date"],
		report["commit"], report["machine"], o.fraction, shown.Head()); err != nil {
		return err
	}
	var findings []harness.Line
	for _, r := range t.rows() {
		if !o.only.MatchString(r.name) {
			continue
		}
		var lines []harness.Line
		err := onBed(ctx, o, func(ctx context.Context, b *bed) (err error) {
			lines, err = r.measure(ctx, b)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, errors.Join(err, context.Cause(ctx)))
		}
		for _, l := range lines {
			if l["row"] == nil {
				l["row"] = r.name
			}
			if _, err := io.WriteString(stdout, shown.Line(l)); err != nil {
				return err
			}
		}
		findings = append(findings, lines...)
	}
	if len(findings) == 0 {
		return errors.New("-only matches no row")
	}
	if o.json == "" {
		return nil
	}
	report["findings"] = findings
	return harness.WriteJSON(o.json, report)
}

// findingColumns are those of tables whose lines are one finding each.
var findingColumns = []harness.Column{
	{Head: "row", Name: "row", Width: -28},
	{Head: "measure", Name: "measure", Width: -46},
	{Head: "value", Name: "value", Width: 18},
	{Head: "target", Name: "target", Width: 14},
	{Name: "verdict", Width: -8},
}

// told is a finding for the record.
func told(measure, value string) harness.Line {
	return harness.Line{"measure": measure, "value": value}
}

// held is a finding and whether it reaches its target.
func held(measure, value, target string, reached bool) harness.Line {
	return harness.Line{"measure": measure, "value": value, "target": target, "verdict": verdict(reached)}
}

// verdict returns the word for a comparison with a target.
func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "MISSED"
}

func milliseconds(ms float64) string { return fmt.Sprintf("%.2f ms", ms) }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }

// scaled returns a part of the full size.
func scaled(o *options, n int) int { return max(1, int(float64(n)*o.fraction)) }

// scaledTime scales a duration, but not below a time in which something happens.
func scaledTime(o *options, d time.Duration) time.Duration {
	return min(d, max(300*time.Millisecond, time.Duration(float64(d)*o.fraction)))
}
