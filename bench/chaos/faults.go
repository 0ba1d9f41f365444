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

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/load"
)

// fault is something that is done to a node, or to the cluster, and undone.
type fault struct {
	name   string
	weight int
	node   func(*adversary, context.Context) *node // nil for the whole cluster
	do     func(*adversary, context.Context, *node) error
}

// faults are drawn by their weights. Each leaves the cluster whole.
var faults = []fault{
	{"kill the leader", 4, (*adversary).leader, (*adversary).killAndStart},
	{"kill any node", 2, (*adversary).any, (*adversary).killAndStart},
	{"stop a node in order", 2, (*adversary).leader, (*adversary).stopAndStart},
	{"freeze the leader", 3, (*adversary).leader, (*adversary).freeze},
	{"freeze any node", 1, (*adversary).any, (*adversary).freeze},
	{"kill all nodes", 1, nil, (*adversary).killAll},
	{"a node loses its disk", 1, nil, (*adversary).wipe},
	{"a node leaves", 2, nil, (*adversary).leave},
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
		a.counts[f.name] = 0 // those that are never drawn are reported, too
	}
	for time.Now().Before(until) && ctx.Err() == nil {
		drawn := a.random.IntN(total)
		for _, f := range faults {
			if drawn -= f.weight; drawn >= 0 {
				continue
			}
			began := time.Now()
			var d *node
			if f.node != nil {
				d = f.node(a, ctx)
			}
			if err := f.do(a, ctx, d); err != nil {
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

func (a *adversary) any(context.Context) *node { return a.c.nodes[a.random.IntN(len(a.c.nodes))] }

// leader returns the node that leads, or any if none can be asked.
func (a *adversary) leader(ctx context.Context) (leader *node) {
	leader = a.any(ctx)
	_ = a.c.ask(ctx, a.c.servers(), func(ctx context.Context, conn *client.Client) error {
		cluster, err := admin.GetCluster(ctx, conn)
		for _, m := range cluster.GetMembers() {
			i := slices.IndexFunc(a.c.nodes, func(d *node) bool { return d.peer == m.PeerAddress })
			if i >= 0 && m.Id == cluster.Leader {
				leader = a.c.nodes[i]
			}
		}
		return err
	})
	return leader
}

func (a *adversary) killAndStart(ctx context.Context, d *node) error {
	err := d.kill()
	load.Pause(ctx, a.between(0, 2*time.Second))
	return errors.Join(err, a.c.start(ctx, d))
}

func (a *adversary) stopAndStart(ctx context.Context, d *node) error {
	return errors.Join(d.stop(), a.c.start(ctx, d))
}

func (a *adversary) freeze(ctx context.Context, d *node) error {
	err := d.signal(syscall.SIGSTOP)
	load.Pause(ctx, a.between(time.Second, 4*time.Second))
	return errors.Join(err, d.signal(syscall.SIGCONT))
}

func (a *adversary) killAll(ctx context.Context, _ *node) error {
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
func (a *adversary) wipe(ctx context.Context, _ *node) error {
	if err := a.c.awaitVoters(ctx); err != nil {
		return err
	}
	leader := a.leader(ctx)
	d := a.any(ctx)
	for d == leader {
		d = a.any(ctx)
	}
	return a.renew(ctx, d, d.kill(), a.c.retire(ctx, d))
}

// leave takes a node that works out of the cluster, in order, and lets another one join in its place.
func (a *adversary) leave(ctx context.Context, _ *node) error {
	if err := a.c.awaitVoters(ctx); err != nil {
		return err
	}
	d := a.any(ctx)
	// It stops once it learns that it was removed.
	return a.renew(ctx, d, a.c.retire(ctx, d), d.stop())
}

// renew lets a node with nothing join in place of one, unless that one could not be taken out.
func (a *adversary) renew(ctx context.Context, d *node, out ...error) error {
	if err := errors.Join(append(out, os.RemoveAll(d.dir))...); err != nil {
		return err
	}
	return a.c.start(ctx, d)
}
