// Command bench measures a ledger on this machine and prints a table.
//
//	go run ./bench                     # everything, a few minutes
//	go run ./bench -only stream -duration 10s
//	go run ./bench -quick              # a fraction of a second each: does it run?
//	go run ./bench scale               # large ledgers, about ten minutes
//	go run ./bench abuse               # clients that mean no good, about ten minutes
//	go run ./bench scale -fraction 0.1 -json out.json
//	go run ./bench check               # against the branch main, pair by pair
//	go run ./bench allocs              # allocations per write against allocs.json
//	go run ./bench growth              # how costs grow with streams and with time
//	go run ./bench apply               # search for the commands that apply slowest
//
// The engine is measured in this process. The server runs as a process of its
// own, started from the same binary, and client and server share the machine's
// cores. Every write is acknowledged after its fsync. README.md beside this file
// gives the method, and what was measured where and when.
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
	"runtime"
	"strings"
	"syscall"
	"time"
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
	// fraction of the full size, for scale and abuse.
	fraction float64
	// checkpointBytes is ledger.Options.CheckpointBytes of the servers.
	checkpointBytes int64
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// commands are what bench does besides its table.
var commands = map[string]func(ctx context.Context, arguments []string, stdout io.Writer) error{
	"allocs": checkAllocs,
	"check":  check,
	"growth": growth,
	"apply":  worstApply,
}

func run() error {
	if len(os.Args) > 1 {
		if command, ok := commands[os.Args[1]]; ok {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return command(ctx, os.Args[2:], os.Stdout)
		}
	}
	var o options
	quick := flag.Bool("quick", false, "measure for a fraction of a second: does it run?")
	only := flag.String("only", "", "measure the rows whose name matches this regular expression")
	serve := flag.String("serve", "", "serve a ledger in this directory (used by bench itself)")
	attack := flag.Bool("attack", false, "be a bad tenant (used by bench itself)")
	authFile := flag.String("auth", "", "with -serve: the auth file (used by bench itself)")
	diskReserve := flag.Int64("disk-reserve", -1,
		"with -serve: refuse writes while fewer bytes are free (used by bench itself)")
	flag.DurationVar(&o.duration, "duration", 8*time.Second, "how long each row is measured")
	flag.StringVar(&o.dir, "dir", "", "make data directories below this one (default: the system's temporary directory)")
	flag.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	flag.StringVar(&o.profile, "profile", "", "write CPU profiles (of the server, too) with this prefix")
	flag.StringVar(&o.json, "json", "", "scale and abuse: write the report to this file, too")
	flag.Int64Var(&o.checkpointBytes, "checkpoint-bytes", 0,
		"how many bytes of changes a server gathers before it writes them; 0 lets it find out")
	flag.Float64Var(&o.fraction, "fraction", 1, "scale and abuse: of the full size")
	kind, arguments := "", os.Args[1:]
	if len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") {
		kind, arguments = arguments[0], arguments[1:]
	}
	_ = flag.CommandLine.Parse(arguments) // it exits
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see -help", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *attack {
		return runTenantAttack(ctx, os.Stdin, os.Stdout)
	}
	if *serve != "" {
		return serveLedger(ctx, *serve, *authFile, o.profile, o.checkpointBytes, *diskReserve)
	}
	o.warmup = time.Second
	if *quick {
		o.duration, o.warmup = 200*time.Millisecond, 50*time.Millisecond
		o.fraction = quickFraction
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if o.fraction <= 0 {
		return errors.New("-fraction must be more than 0")
	}
	switch kind {
	case "":
		return measureAll(ctx, &o)
	case "scale":
		return measureRows(ctx, kind, &o, scaleRows())
	case "abuse":
		return measureRows(ctx, kind, &o, abuseRows())
	}
	return fmt.Errorf("unknown kind %q: scale, abuse, or nothing for the table of rates", kind)
}

// quickFraction makes the large rows small enough for CI.
const quickFraction = 0.005

// largeRow is a row of scale or abuse.
type largeRow struct {
	name    string
	measure func(ctx context.Context, o *options) ([]finding, error)
}

// measureRows runs the rows one after another and reports what they find.
func measureRows(ctx context.Context, kind string, o *options, rows []largeRow) error {
	r := newReport(kind, o)
	r.header(o)
	for _, row := range rows {
		if !o.only.MatchString(row.name) {
			continue
		}
		findings, err := row.measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, errors.Join(err, context.Cause(ctx)))
		}
		for i := range findings {
			findings[i].Row = row.name
		}
		r.add(o, findings...)
	}
	if len(r.Findings) == 0 {
		return errors.New("-only matches no row")
	}
	return r.save(o.json)
}

// row is one line of the table.
type row struct {
	name       string
	mustReach  float64 // operations a second
	measure    func(ctx context.Context, o *options, r *row) (result, error)
	concurrent int
}

func rows() []row {
	var rows []row
	add := func(kind string, measure func(context.Context, *options, *row) (result, error),
		targets map[int]float64, counts ...int) {
		for _, n := range counts {
			rows = append(rows, row{name: fmt.Sprintf("%s/%d", kind, n), mustReach: targets[n], measure: measure,
				concurrent: n})
		}
	}
	add("engine", measureEngine, map[int]float64{1: 8_000, 16: 50_000, 256: 200_000}, 1, 16, 256)
	add("replay", measureReplay, map[int]float64{2: 1_000_000}, 2)
	add("stream", measureStream, map[int]float64{1: 4_500, 64: 45_000, 256: 65_000, 1024: 80_000}, 1, 64, 256, 1024)
	add("unary", measureUnary, map[int]float64{1: 2_500, 64: 20_000, 256: 28_000}, 1, 64, 256)
	add("unary-h2", measureUnaryHTTP2, map[int]float64{1: 1_500, 64: 11_000, 256: 15_000}, 1, 64, 256)
	add("unary-raw", measureRawCalls, nil, 1, 64, 256)
	return rows
}

func measureAll(ctx context.Context, o *options) error {
	fmt.Printf("%s, %s, %d cores, %s, 128-byte append, acknowledged after fsync\n\n",
		time.Now().UTC().Format("2006-01-02"), processor(), runtime.NumCPU(), runtime.Version())
	printHeader(o)
	measured := 0
	for _, r := range rows() {
		if !o.only.MatchString(r.name) {
			continue
		}
		result, err := r.measure(ctx, o, &r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, errors.Join(err, context.Cause(ctx)))
		}
		measured++
		printRow(o, &r, &result)
	}
	if measured == 0 {
		return errors.New("-only matches no row")
	}
	return nil
}
