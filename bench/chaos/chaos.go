package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// options are the flags.
type options struct {
	nodes, appenders, callers int
	duration                  time.Duration
	seed                      uint64
	dir, binary               string
	plain, early, keep        bool
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
	flags.BoolVar(&o.early, "early", false,
		"the other control: clients that take for acknowledged what they have sent, which must fail")
	flags.BoolVar(&o.keep, "keep", false, "leave directories and logs, also when nothing was found")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	switch {
	case o.nodes < 3 || flags.NArg() > 0:
		return errors.New("chaos: -nodes must be at least 3, and there are no arguments")
	case o.plain && o.early:
		return errors.New("chaos: -plain and -early are two controls, one at a time")
	}
	return o.run(ctx, stdout)
}

func (o *options) run(ctx context.Context, stdout io.Writer) (err error) {
	dir, left, err := o.workspace(stdout)
	if err != nil {
		return err
	}
	defer func() { err = left(err) }()
	binary := o.binary
	if binary == "" {
		binary = filepath.Join(dir, "seqledger")
		if err := process.Build(ctx, binary); err != nil {
			return err
		}
	}
	say(stdout, "%d nodes, %d appenders, %d callers, %s; repeat with -seed %d\n", o.nodes, o.appenders,
		o.callers, o.duration, o.seed)
	unmount, disks := o.disks(ctx, dir, stdout)
	defer func() { err = errors.Join(err, unmount()) }()
	network, why := newNamespaces(ctx)
	if why != "" {
		say(stdout, "skipped: cuts between nodes: %s\n", why)
	}
	c, err := startCluster(ctx, binary, dir, disks, network, o.nodes)
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	l := &workload{
		c: c, plain: o.plain, early: o.early, began: time.Now(), attempted: map[string]bool{},
		acked: map[string]string{},
	}
	until := time.Now().Add(o.duration)
	settle := l.start(ctx, o)
	a := &adversary{
		c: c, random: rand.New(rand.NewPCG(o.seed, 0)), log: stdout, counts: map[string]int{}, began: l.began,
	}
	for _, f := range a.faults() {
		a.counts[f.name] = 0 // those that were never drawn are reported, too
	}
	faultErr := a.run(ctx, until)
	if err := errors.Join(faultErr, settle(), ctx.Err()); err != nil {
		return err
	}
	f := l.judge(ctx, filepath.Join(dir, "registers.html"))
	o.report(stdout, a, l, f)
	return f.err()
}

// disks gives each node a disk for itself, if there can be any.
func (o *options) disks(ctx context.Context, dir string, stdout io.Writer) (unmount func() error, have bool) {
	unmount, why := mountDisks(ctx, dir, o.nodes, smallDisk(o.duration))
	if why != "" {
		say(stdout, "skipped: full, slow and hanging disks: %s\n", why)
		return func() error { return nil }, false
	}
	return unmount, true
}

// workspace makes a directory for a run. left is called with what the run came to: it removes the directory, or says
// where it is when something was found.
func (o *options) workspace(stdout io.Writer) (dir string, left func(error) error, err error) {
	dir, err = os.MkdirTemp(o.dir, "seqledger-chaos-*")
	return dir, func(err error) error {
		if err == nil && !o.keep {
			return os.RemoveAll(dir)
		}
		say(stdout, "directories, disks and logs are in %s\n", dir)
		return err
	}, err
}

// run runs a program of an administrator in a directory.
func run(ctx context.Context, dir, name string, arguments ...string) error {
	command := exec.CommandContext(ctx, process.Find(name, "/usr/sbin/"+name), arguments...)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

func (o *options) report(w io.Writer, a *adversary, l *workload, f *findings) {
	say(w, "\n")
	for _, name := range slices.Sorted(maps.Keys(a.counts)) {
		say(w, "%-24s %d\n", name, a.counts[name])
	}
	say(w, "%-24s %d\n%-24s %d\n%-24s %d\n%-24s %s\n%-24s %d\n%-24s %d\n%-24s %d\n%-24s %d, %s\n%-24s %d alike\n",
		"writes meant", len(l.attempted), "acknowledged", len(l.acked), "found", f.transactions,
		"longest wait", fmt.Sprintf("%.3fs, at %.3fs", l.slowest.Seconds(), l.slowestAt.Seconds()),
		"duplicates", f.duplicates, "lost", f.lost, "never meant", f.never,
		"calls on registers", len(l.operations), f.linearizable, "nodes", len(f.digests))
}

// say prints to a terminal; who has closed it reads nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
