package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/load"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// crowd is a ledger with many streams, shared out among the writers.
type crowd struct {
	ledger    *ledger.Ledger
	dir       string
	config    machine.Config
	sequences []uint32 // by stream; one writer alone looks at each
	random    []*rand.Rand
}

// crowdPayload is what every write of a crowd appends.
var crowdPayload = make([]byte, payloadBytes)

func crowdWrite(name string, stream int, sequence uint64) *machine.Write {
	w := &machine.Write{
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: fmt.Sprint(name, stream), Actor: "system:bench",
		Sequence: sequence, Operations: []machine.Operation{{Kind: machine.OpAppend, Value: crowdPayload}},
	}
	w.Key.Present = true
	binary.BigEndian.PutUint64(w.Key.UUID[:8], uint64(stream))
	binary.BigEndian.PutUint64(w.Key.UUID[8:], sequence)
	return w
}

// openCrowd makes a ledger with so many streams of one write each.
func openCrowd(ctx context.Context, dir string, streams int) (*crowd, error) {
	config := machine.DefaultConfig()
	// Small, so that few writes let all streams go once they are due.
	config.EvictionInterval = 100
	config.MaxStreams = max(config.MaxStreams, uint64(streams)+growthWriters)
	c := &crowd{dir: dir, config: config, sequences: make([]uint32, streams)}
	var err error
	if c.ledger, err = quietLedger(ctx, dir, config, nil); err != nil {
		return nil, err
	}
	for i := range growthWriters {
		c.random = append(c.random, rand.New(rand.NewPCG(uint64(i), 1)))
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for worker := range growthWriters {
		group.Go(func() error {
			for stream := worker; stream < streams; stream += growthWriters {
				if err := c.write(groupCtx, stream); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, c.ledger.Close())
	}
	return c, nil
}

// write makes the next write of a stream.
func (c *crowd) write(ctx context.Context, stream int) error {
	c.sequences[stream]++
	out, err := c.ledger.Write(ctx, crowdWrite("client-", stream, uint64(c.sequences[stream])))
	return decided(out, err, machine.Committed)
}

// replay repeats the last write of a stream.
func (c *crowd) replay(ctx context.Context, stream int) error {
	out, err := c.ledger.Write(ctx, crowdWrite("client-", stream, uint64(c.sequences[stream])))
	return decided(out, err, machine.Replayed)
}

func decided(out machine.Outcome, err error, want machine.Code) error {
	if err == nil && out.Code != want {
		err = fmt.Errorf("%s instead of %s", out.Code, want)
	}
	return err
}

// pick returns any stream of a writer's share.
func (c *crowd) pick(worker int) int {
	share := (len(c.sequences) - worker + growthWriters - 1) / growthWriters
	return worker + growthWriters*c.random[worker].IntN(share)
}

// growStreams measures a ledger with so many streams.
func growStreams(ctx context.Context, o *growthOptions, streams int) (p streamsPoint, err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-growth-*")
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := openCrowd(ctx, dir, streams)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, c.ledger.Close()) }()
	p.Streams = streams
	if p.DiskBytes, p.MemoryBytes, err = footprint(dir); err != nil {
		return p, err
	}
	p.BytesAStream, p.MemoryAStream = float64(p.DiskBytes)/float64(streams), float64(p.MemoryBytes)/float64(streams)
	step := load.Options{Workers: growthWriters, Warmup: o.duration / 100, Duration: o.duration / 10}
	written, err := something(ctx, step, func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
	if err != nil {
		return p, err
	}
	p.WriteMicros, p.WriteP99 = 1e6/written.PerSecond(), written.Milliseconds(99)
	replayed, err := something(ctx, step, func(ctx context.Context, worker int) error { return c.replay(ctx, c.pick(worker)) })
	if err != nil {
		return p, err
	}
	p.ReplayMicros, p.ReplayP99 = 1e6/replayed.PerSecond(), replayed.Milliseconds(99)
	if err := c.reopen(ctx, &p); err != nil {
		return p, err
	}
	return p, c.evict(ctx, &p)
}

// something runs a closed loop until at least one operation is measured: a disk
// that others keep busy may take longer for a sync than a short step lasts.
func something(ctx context.Context, o load.Options, operation load.Operation) (load.Result, error) {
	for {
		measured, err := load.Closed(ctx, o, operation)
		if err != nil || measured.Operations > 0 {
			return measured, err
		}
		o.Duration *= 2
	}
}

// reopen measures an orderly end and the next start, which is a day later for
// the ledger: everything is due then.
func (c *crowd) reopen(ctx context.Context, p *streamsPoint) error {
	if err := c.ledger.Close(); err != nil { // what the load has left behind
		return err
	}
	var err error
	if c.ledger, err = quietLedger(ctx, c.dir, c.config, nil); err != nil {
		return err
	}
	const changed = 1000
	for i := range min(changed, len(c.sequences)) {
		if err := c.write(ctx, c.pick(i%growthWriters)); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := c.ledger.Close(); err != nil {
		return err
	}
	p.CloseSeconds = time.Since(began).Seconds()
	later := time.Now().Add(2 * time.Duration(c.config.ClientTTL))
	began = time.Now()
	c.ledger, err = quietLedger(ctx, c.dir, c.config, func() time.Time { return later })
	p.OpenSeconds = time.Since(began).Seconds()
	return err
}

// evict lets all streams go, by writes of other streams, and takes the time of
// these writes off.
func (c *crowd) evict(ctx context.Context, p *streamsPoint) error {
	sequences := make([]uint64, growthWriters)
	began := time.Now()
	writes := 0
	for {
		group, groupCtx := errgroup.WithContext(ctx)
		for worker := range growthWriters {
			group.Go(func() error {
				sequences[worker]++
				out, err := c.ledger.Write(groupCtx, crowdWrite("late-", worker, sequences[worker]))
				return decided(out, err, machine.Committed)
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		writes += growthWriters
		var left uint64
		err := c.ledger.View(ctx, func(v machine.View) error {
			left = v.Streams()
			return nil
		})
		if err != nil {
			return err
		}
		if left <= growthWriters {
			break
		}
		if writes > 10*len(c.sequences)+100_000 {
			return fmt.Errorf("%d streams are still there after %d writes", left, writes)
		}
	}
	micros := float64(time.Since(began).Microseconds()) - float64(writes)*p.WriteMicros
	p.EvictMicros = max(0, micros/float64(len(c.sequences)))
	return nil
}

// blocksOf returns how many bytes of the disk a file holds.
func blocksOf(path string) (int64, error) {
	var info syscall.Stat_t
	if err := syscall.Stat(path, &info); err != nil {
		return 0, err
	}
	const blockBytes = 512 // whatever the file system's own are
	return info.Blocks * blockBytes, nil
}
