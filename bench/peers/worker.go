package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/load"
)

// caller is one client: it has one call under way at most.
type caller struct {
	id         int
	job        job // the last write
	reply      string
	operations int
}

// fresh makes the next write.
func (c *caller) fresh(ctx context.Context, to conn) error {
	c.job.sequence++
	a, err := to.write(ctx, c.id, &c.job)
	if err != nil {
		return fmt.Errorf("write %d of %s: %w", c.job.sequence, c.job.client(), err)
	}
	if a.replayed || a.reply == "" {
		return fmt.Errorf("write %d of %s was answered as a repeat, or with nothing: %+v", c.job.sequence,
			c.job.client(), a)
	}
	c.reply = a.reply
	return nil
}

// again repeats the last write and wants the same answer.
func (c *caller) again(ctx context.Context, to conn) error {
	a, err := to.retry(ctx, c.id, &c.job)
	if err != nil {
		return fmt.Errorf("retry %d of %s: %w", c.job.sequence, c.job.client(), err)
	}
	if !a.replayed || a.reply != c.reply {
		return fmt.Errorf("retry %d of %s was answered with %+v, want the stored reply %q",
			c.job.sequence, c.job.client(), a, c.reply)
	}
	return nil
}

// operation returns what the callers of a row do, after what has to be there
// before.
func operation(ctx context.Context, r row, callers []*caller, to conn) (load.Operation, error) {
	for _, c := range callers {
		if len(c.job.payload) != r.payload {
			c.job.payload = payload(r.payload)
		}
	}
	// Everybody connects, and has something to retry.
	group, groupCtx := errgroup.WithContext(ctx)
	for _, c := range callers {
		group.Go(func() error { return c.fresh(groupCtx, to) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	every := r.retryEvery()
	return func(ctx context.Context, worker int) error {
		c := callers[worker]
		c.operations++
		if r.workload == "retry-hot" || every > 0 && c.operations%every == 0 {
			return c.again(ctx, to)
		}
		return c.fresh(ctx, to)
	}, nil
}

// store is a set of streams with one write each, to be asked for again.
type store struct {
	first   int // stream
	replies []string
	payload []byte
}

// fill commits the one write of each stream.
func (s *store) fill(ctx context.Context, to conn, callers int) error {
	group, ctx := errgroup.WithContext(ctx)
	for worker := range callers {
		group.Go(func() error {
			for i := worker; i < len(s.replies); i += callers {
				c := &caller{id: worker, job: job{stream: s.first + i, payload: s.payload}}
				if err := c.fresh(ctx, to); err != nil {
					return err
				}
				s.replies[i] = c.reply
			}
			return nil
		})
	}
	return group.Wait()
}

// cold returns an operation that asks for each write once, far apart.
func (s *store) cold(workers int, to conn) load.Operation {
	next := make([]int, workers)
	share := len(s.replies) / workers
	// Coprime to the share, so that all are visited.
	stride := 7919
	for share > 1 && gcd(share, stride) != 1 {
		stride++
	}
	return func(ctx context.Context, worker int) error {
		if next[worker] >= share {
			return load.ErrDone
		}
		i := worker*share + next[worker]*stride%share
		next[worker]++
		c := &caller{id: worker, job: job{stream: s.first + i, sequence: 1, payload: s.payload}, reply: s.replies[i]}
		return c.again(ctx, to)
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// errEmpty says that a speed of zero was measured, which is a fault and no speed.
var errEmpty = errors.New("nothing was done in the time")
