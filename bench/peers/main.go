// Command peers measures seqledger against PostgreSQL, Redis, NATS JetStream, etcd and Restate, all doing the same work
// with the same durability on this machine. The work, the method, its rules of fairness, and what a system does not do
// are in ../README.md.
//
// measure.go has the rows and their order, system.go the interface of a system; each system has its own file.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// options are the flags.
type options struct {
	kinds    []kind
	rows     []row
	rounds   int
	duration time.Duration // measured, for each row in each round
	warmup   time.Duration
	rates    []int  // writes a second
	dir      string // below which systems write
	out      string // where results go; empty: nowhere
	notice   func(format string, args ...any)
}

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(arguments []string, stdout, stderr io.Writer) error {
	o := &options{warmup: 300 * time.Millisecond, notice: func(format string, args ...any) {
		_, _ = fmt.Fprintf(stderr, format+"\n", args...) // a closed output must not end a measurement
	}}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	systems := flags.String("systems", "", "measure these, separated by commas (default: all that are here)")
	rows := flags.String("rows", "",
		"measure the rows whose name matches this regular expression: fresh/64, retry-hot/64, …")
	rates := flags.String("rates", "1000,5000,20000,50000",
		"writes a second for the open loops, separated by commas; empty: none")
	quick := flags.Bool("quick", false, "one short round of little, without results in files: does it run?")
	list := flags.Bool("list", false, "tell which systems are here and how to get the others, and measure nothing")
	serve := flags.String("serve", "", "be the server of a system (used by peers itself)")
	members := flags.String("members", "", "with -serve etcd: the members' addresses (used by peers itself)")
	flags.IntVar(&o.rounds, "rounds", 5, "how often each row is measured")
	flags.DurationVar(&o.duration, "duration", 1500*time.Millisecond, "how long each row is measured in each round")
	flags.StringVar(&o.dir, "dir", "",
		"let systems write below this directory (default: the system's temporary directory)")
	flags.StringVar(&o.out, "out", "", "write peers.json and peers.md into this directory")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see -help", flags.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if *serve != "" { // a child of the harness, which ends with it
		ctx, stop := process.UntilStdinEnds(ctx)
		defer stop()
		if *serve == "nats" {
			return serveNATS(ctx, o.dir)
		}
		return serveEtcd(ctx, o.dir, strings.Split(*members, ","))
	}
	if err := o.choose(*systems, *rows, *rates); err != nil || *list {
		return err
	}
	if *quick {
		o.rounds, o.duration, o.warmup, o.rates, o.out = 1, 50*time.Millisecond, 10*time.Millisecond, []int{500}, ""
		large := func(r row) bool { return r.writers > 64 && !r.pipelined }
		if few := slices.DeleteFunc(slices.Clone(o.rows), large); len(few) > 0 {
			o.rows = few
		}
	}
	found, err := measureAll(ctx, o)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return found.publish(o, stdout)
}

// choose checks the flags, and looks for the systems and tells which are here.
func (o *options) choose(systems, rows, rates string) (err error) {
	if o.rounds < 1 || o.duration <= 0 {
		return errors.New("-rounds and -duration must be more than 0")
	}
	pattern, err := regexp.Compile(rows)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	o.rows = slices.DeleteFunc(slices.Clone(allRows), func(r row) bool { return !pattern.MatchString(r.name()) })
	if len(o.rows) == 0 {
		return errors.New("-rows matches no row")
	}
	if o.rates, err = harness.Numbers("-rates", rates, 1); err != nil {
		return err
	}
	wanted := strings.Split(systems, ",")
	all := kinds()
	for _, name := range wanted {
		if name != "" && !slices.ContainsFunc(all, func(k kind) bool { return k.name == name }) {
			return fmt.Errorf("-systems: there is no system %q", name)
		}
	}
	for _, k := range all {
		fits := func(r row) bool { return r.fits(&k) }
		chosen := slices.Contains(wanted, k.name) || systems == "" && !k.named
		if !chosen || !slices.ContainsFunc(o.rows, fits) {
			continue
		}
		version, err := k.version()
		if err != nil {
			o.notice("%-20s not measured: %v", k.name, err)
			continue
		}
		o.notice("%-20s %s\n%-20s   %s", k.name, version, "", k.settings)
		o.kinds = append(o.kinds, k)
	}
	if len(o.kinds) == 0 {
		return errors.New("none of the chosen systems is here")
	}
	return nil
}
