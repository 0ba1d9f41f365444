package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// options are the flags.
type options struct {
	nodes, appenders, callers int
	duration                  time.Duration
	seed                      uint64
	dir, binary               string
	plain, keep               bool
}

// Run is bench chaos.
func Run(ctx context.Context, arguments []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench chaos", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 3, "how many nodes")
	flags.IntVar(&o.appenders, "appenders", 8, "how many clients append what is meant once")
	flags.IntVar(&o.callers, "callers", 4, "how many clients read and write registers")
	flags.DurationVar(&o.duration, "duration", 30*time.Second, "how long there are faults")
	flags.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the faults and the clients")
	flags.StringVar(&o.dir, "dir", "",
		"make the data directories below this one (default: the system's temporary directory)")
	flags.StringVar(&o.binary, "binary", "", "this seqledger (default: built from this tree)")
	flags.BoolVar(&o.plain, "plain", false, "the control: clients that repeat under new numbers, which must fail")
	flags.BoolVar(&o.keep, "keep", false, "leave directories and logs, also when nothing was found")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.nodes < 3 || flags.NArg() > 0 {
		return errors.New("chaos: -nodes must be at least 3, and there are no arguments")
	}
	return o.run(ctx, stdout)
}

func (o *options) run(ctx context.Context, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-chaos-*")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil && !o.keep {
			err = os.RemoveAll(dir)
			return
		}
		say(stdout, "directories and logs are in %s\n", dir)
	}()
	binary := o.binary
	if binary == "" {
		binary = filepath.Join(dir, "seqledger")
		build := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/seqledger/seqledger/cmd/seqledger")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	say(stdout, "%d nodes, %d appenders, %d callers, %s; repeat with -seed %d\n", o.nodes, o.appenders,
		o.callers, o.duration, o.seed)
	c, err := startCluster(ctx, binary, dir, o.nodes)
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	l := &load{
		c: c, plain: o.plain, began: time.Now(), attempted: map[string]bool{}, acked: map[string]string{},
	}
	until := time.Now().Add(o.duration)
	settled := make(chan struct{})
	// Ends with until, when all is settled, or with ctx.
	go func() {
		defer close(settled)
		l.run(ctx, o.appenders, o.callers, o.seed, until)
	}()
	a := &adversary{c: c, random: rand.New(rand.NewPCG(o.seed, 0)), log: stdout, counts: map[string]int{}}
	faultErr := a.run(ctx, until)
	<-settled
	if err := errors.Join(faultErr, ctx.Err()); err != nil {
		return err
	}
	f := l.judge(ctx, filepath.Join(dir, "registers.html"))
	o.report(stdout, a, l, f)
	return f.err()
}

func (o *options) report(w io.Writer, a *adversary, l *load, f *findings) {
	say(w, "\n")
	for _, fault := range faults {
		say(w, "%-24s %d\n", fault.name, a.counts[fault.name])
	}
	say(w, "%-24s %d\n%-24s %d\n%-24s %d\n%-24s %s\n%-24s %d\n%-24s %d\n%-24s %d\n%-24s %d, %s\n%-24s %d alike\n",
		"writes meant", len(l.attempted), "acknowledged", len(l.acked), "found", f.transactions,
		"longest wait", l.slowest.Round(time.Millisecond),
		"duplicates", f.duplicates, "lost", f.lost, "never meant", f.never,
		"calls on registers", len(l.operations), f.linearizable, "nodes", len(f.digests))
}

// say prints to a terminal; who has closed it reads nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
