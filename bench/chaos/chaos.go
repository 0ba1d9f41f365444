// Package chaos runs a cluster of real processes under load, kills, stops and disconnects its nodes, and checks what
// the clients saw: the ledger has each acknowledged write once, registers are linearizable (Porcupine), the nodes end
// with one digest, and their directories pass seqledger verify. A fault is a row of the table in faults.go.
//
// As root, each node has a disk (disk.go), which is full, slow or hangs now and then, and a network namespace
// (namespaces.go), whose packets a router drops. Other users have neither, and the run says so.
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
	nodes        int
	duration     time.Duration
	seed         uint64
	plain, early bool
}

// Run is bench chaos.
func Run(ctx context.Context, arguments []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench chaos", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 3, "how many nodes")
	flags.DurationVar(&o.duration, "duration", 30*time.Second, "how long there are faults")
	flags.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the faults and the clients")
	flags.BoolVar(&o.plain, "plain", false, "the control: clients that repeat under new numbers, which must fail")
	flags.BoolVar(&o.early, "early", false,
		"the other control: clients that take for acknowledged what they have sent, which must fail")
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
	dir, err := os.MkdirTemp("", "seqledger-chaos-*")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
			return
		}
		say(stdout, "directories, disks and logs are in %s\n", dir)
	}()
	binary := filepath.Join(dir, "seqledger")
	if err := process.Build(ctx, binary); err != nil {
		return err
	}
	say(stdout, "%d nodes, %s; repeat with -seed %d\n", o.nodes, o.duration, o.seed)
	unmount, noDisks := mountDisks(ctx, dir, o.nodes, smallDisk(o.duration))
	if noDisks != "" {
		say(stdout, "skipped: full, slow and hanging disks: %s\n", noDisks)
	} else {
		defer func() { err = errors.Join(err, unmount()) }()
	}
	network, noNetwork := newNamespaces(ctx)
	if noNetwork != "" {
		say(stdout, "skipped: cuts between nodes: %s\n", noNetwork)
	}
	c, err := startCluster(ctx, binary, dir, noDisks == "", network, o.nodes)
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	l := &workload{
		c: c, plain: o.plain, early: o.early, began: time.Now(), attempted: map[string]bool{}, acked: map[string]bool{},
	}
	settle := l.start(ctx, o)
	a := &adversary{
		c: c, random: rand.New(rand.NewPCG(o.seed, 0)), log: stdout, counts: map[string]int{}, began: l.began,
	}
	faultErr := a.run(ctx, l.began.Add(o.duration))
	if err := errors.Join(faultErr, settle(), ctx.Err()); err != nil {
		return err
	}
	f := l.judge(ctx, filepath.Join(dir, "registers.html"))
	o.report(stdout, a, l, f)
	return f.err()
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
