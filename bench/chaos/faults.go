package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/internal/load"
)

// fault is something that is done to a cluster and undone.
type fault struct {
	name   string
	weight int
	do     func(context.Context, *adversary) error
}

// faults are drawn by their weights. Each leaves the cluster whole.
var faults = []fault{
	{"kill the leader", 4, func(ctx context.Context, a *adversary) error { return a.killAndStart(ctx, a.leader(ctx)) }},
	{"kill any node", 2, func(ctx context.Context, a *adversary) error { return a.killAndStart(ctx, a.any()) }},
	{"stop a node in order", 2, func(ctx context.Context, a *adversary) error {
		d := a.leader(ctx)
		return errors.Join(d.stop(), a.c.start(ctx, d))
	}},
	{"freeze the leader", 3, func(ctx context.Context, a *adversary) error { return a.freeze(ctx, a.leader(ctx)) }},
	{"freeze any node", 1, func(ctx context.Context, a *adversary) error { return a.freeze(ctx, a.any()) }},
	{"kill all nodes", 1, killAll},
	{"a node loses its disk", 1, wipe},
	{"a node leaves", 2, leave},
}

// faults returns those that there can be.
func (a *adversary) faults() []fault {
	all := slices.Clip(faults)
	if a.c.network != nil {
		all = append(all, networkFaults...)
	}
	if a.c.disks {
		all = append(all, diskFaults...)
	}
	return all
}

// adversary draws faults from a seed.
type adversary struct {
	c      *cluster
	random *rand.Rand
	log    io.Writer
	counts map[string]int
	began  time.Time // of the run
}

// run makes faults until ctx ends, with pauses in which the cluster works.
func (a *adversary) run(ctx context.Context, until time.Time) error {
	total, faults := 0, a.faults()
	for _, f := range faults {
		total += f.weight
	}
	for time.Now().Before(until) && ctx.Err() == nil {
		drawn := a.random.IntN(total)
		for _, f := range faults {
			if drawn -= f.weight; drawn >= 0 {
				continue
			}
			began := time.Now()
			if err := f.do(ctx, a); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			a.counts[f.name]++
			took := time.Since(began).Round(time.Millisecond)
			say(a.log, "%8.3fs %s for %s\n", began.Sub(a.began).Seconds(), f.name, took)
			break
		}
		load.Pause(ctx, a.between(500*time.Millisecond, 2*time.Second))
	}
	return nil
}

func (a *adversary) between(least, most time.Duration) time.Duration {
	return least + time.Duration(a.random.Int64N(int64(most-least)))
}

func (a *adversary) any() *node { return a.c.nodes[a.random.IntN(len(a.c.nodes))] }

// leader returns the node that leads, or any if none can be asked.
func (a *adversary) leader(ctx context.Context) *node {
	cluster, err := a.c.describe(ctx)
	for _, m := range cluster.GetMembers() {
		for _, d := range a.c.nodes {
			if err == nil && m.Id == cluster.Leader && m.PeerAddress == d.peer {
				return d
			}
		}
	}
	return a.any()
}

func (a *adversary) killAndStart(ctx context.Context, d *node) error {
	err := d.kill()
	load.Pause(ctx, a.between(0, 2*time.Second))
	return errors.Join(err, a.c.start(ctx, d))
}

func (a *adversary) freeze(ctx context.Context, d *node) error {
	err := d.signal(syscall.SIGSTOP)
	load.Pause(ctx, a.between(time.Second, 4*time.Second))
	return errors.Join(err, d.signal(syscall.SIGCONT))
}

// part parts a node from others for a while.
func (a *adversary) part(ctx context.Context, d *node, set func(context.Context, *node, bool) error) error {
	err := set(ctx, d, true)
	load.Pause(ctx, a.between(time.Second, 4*time.Second))
	return errors.Join(err, set(ctx, d, false))
}

func killAll(ctx context.Context, a *adversary) error {
	var errs []error
	for _, d := range a.c.nodes {
		errs = append(errs, d.kill())
	}
	for _, d := range a.c.nodes {
		errs = append(errs, a.c.start(ctx, d))
	}
	return errors.Join(errs...)
}

// wipe takes a node out of the cluster, removes its directory and lets it join anew. The others are a majority.
func wipe(ctx context.Context, a *adversary) error {
	if err := a.c.awaitVoters(ctx); err != nil {
		return err
	}
	leader := a.leader(ctx)
	d := a.any()
	for d == leader {
		d = a.any()
	}
	if err := errors.Join(d.kill(), a.c.retire(ctx, d), os.RemoveAll(d.dir)); err != nil {
		return err
	}
	return a.c.start(ctx, d)
}

// leave takes a node that works out of the cluster, in order, and lets another one join in its place.
func leave(ctx context.Context, a *adversary) error {
	if err := a.c.awaitVoters(ctx); err != nil {
		return err
	}
	d := a.any()
	if err := a.c.retire(ctx, d); err != nil {
		return err
	}
	// It stops once it learns that it was removed.
	if err := errors.Join(d.stop(), os.RemoveAll(d.dir)); err != nil {
		return err
	}
	return a.c.start(ctx, d)
}
