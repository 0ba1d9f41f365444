package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

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
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: fmt.Sprint(name, stream),
		Actor:    "system:bench",
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
	if err := c.open(ctx, nil); err != nil {
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
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// open opens the ledger; a nil clock is the system's.
func (c *crowd) open(ctx context.Context, clock func() time.Time) (err error) {
	c.ledger, err = quietLedger(ctx, c.dir, c.config, clock)
	return err
}

// close ends the ledger in order, if it is open.
func (c *crowd) close() error {
	if c.ledger == nil {
		return nil
	}
	ended := c.ledger
	c.ledger = nil
	return ended.Close()
}

// copied calls do with a copy of a closed crowd, which is removed afterwards.
func (c *crowd) copied(do func(*crowd) error) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(c.dir), "seqledger-growth-*")
	if err != nil {
		return err
	}
	other := &crowd{dir: dir, config: c.config, sequences: slices.Clone(c.sequences), random: c.random}
	defer func() { err = errors.Join(err, other.close(), os.RemoveAll(dir)) }()
	if err := os.CopyFS(dir, os.DirFS(c.dir)); err != nil {
		return err
	}
	syscall.Sync() // otherwise writing the copy would disturb the measurement
	return do(other)
}

// memory returns the bytes of the heap that are in use, without what the
// crowd itself takes for each stream.
func (c *crowd) memory() int64 {
	// What a sync.Pool holds survives the first collection: that of the ledger
	// that was open before is tens of megabytes.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) - int64(len(c.sequences))*int64(unsafe.Sizeof(c.sequences[0]))
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
	defer func() { err = errors.Join(err, c.close()) }()
	p.Streams, p.MemoryBytes = streams, c.memory()
	if p.DiskBytes, err = heldBytes(dir); err != nil {
		return p, err
	}
	p.BytesAStream = float64(p.DiskBytes) / float64(streams)
	if err := errors.Join(c.close(), c.open(ctx, nil)); err != nil {
		return p, err
	}
	p.OpenMemory = c.memory()
	p.costs, err = c.measure(ctx, o)
	return p, err
}

// costRounds is how often a cost is measured; its median counts, because others
// may use the machine.
const costRounds = 3

// measure returns what the operations of an open crowd cost, and leaves it
// closed.
func (c *crowd) measure(ctx context.Context, o *growthOptions) (costs, error) {
	rounds := make([]costs, costRounds)
	for i := range rounds {
		if err := errors.Join(c.speeds(ctx, o, &rounds[i]), c.reopen(ctx, &rounds[i])); err != nil {
			return costs{}, err
		}
	}
	if err := c.close(); err != nil {
		return costs{}, err
	}
	middle := medianOf(rounds)
	for i := range rounds {
		err := c.copied(func(copied *crowd) (err error) {
			rounds[i].EvictMicros, err = copied.evict(ctx, middle.WriteMicros)
			return err
		})
		if err != nil {
			return costs{}, err
		}
	}
	return medianOf(rounds), nil
}

// medianOf takes the median of each cost.
func medianOf(rounds []costs) (m costs) {
	median := func(of func(*costs) *float64) {
		values := make([]float64, len(rounds))
		for i := range rounds {
			values[i] = *of(&rounds[i])
		}
		slices.Sort(values)
		*of(&m) = values[len(values)/2]
	}
	median(func(c *costs) *float64 { return &c.WriteMicros })
	median(func(c *costs) *float64 { return &c.WriteP99 })
	median(func(c *costs) *float64 { return &c.WriteCPU })
	median(func(c *costs) *float64 { return &c.ReplayMicros })
	median(func(c *costs) *float64 { return &c.ReplayP99 })
	median(func(c *costs) *float64 { return &c.ReplayCPU })
	median(func(c *costs) *float64 { return &c.ReplayCached })
	median(func(c *costs) *float64 { return &c.OpenSeconds })
	median(func(c *costs) *float64 { return &c.CloseSeconds })
	median(func(c *costs) *float64 { return &c.EvictMicros })
	return m
}

// speeds measures writes and replays.
func (c *crowd) speeds(ctx context.Context, o *growthOptions, p *costs) error {
	var began, used time.Duration
	step := load.Options{
		Workers: growthWriters, Warmup: o.duration / 10, Duration: o.duration,
		Begin: func() (err error) {
			began, err = processorTime()
			return err
		},
		End: func() error {
			ended, err := processorTime()
			used = ended - began
			return err
		},
	}
	written, err := something(ctx, step,
		func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
	if err != nil {
		return err
	}
	p.WriteMicros, p.WriteP99 = 1e6/written.PerSecond(), written.Milliseconds(99)
	p.WriteCPU = float64(used.Microseconds()) / float64(written.Operations)
	before := c.ledger.Stats()
	replayed, err := something(ctx, step,
		func(ctx context.Context, worker int) error { return c.replay(ctx, c.pick(worker)) })
	if err != nil {
		return err
	}
	p.ReplayMicros, p.ReplayP99 = 1e6/replayed.PerSecond(), replayed.Milliseconds(99)
	p.ReplayCPU = float64(used.Microseconds()) / float64(replayed.Operations)
	after := c.ledger.Stats()
	hits, misses := after.CacheHits-before.CacheHits, after.CacheMisses-before.CacheMisses
	p.ReplayCached = float64(hits) / float64(max(1, hits+misses))
	return nil
}

// processorTime returns the processor time of this process so far. Other load on the machine
// affects it less than wall-clock time.
func processorTime() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
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

// reopen measures an orderly end and the next start.
func (c *crowd) reopen(ctx context.Context, p *costs) error {
	// Without what the load has left behind.
	if err := errors.Join(c.close(), c.open(ctx, nil)); err != nil {
		return err
	}
	const changed = 1000
	for i := range min(changed, len(c.sequences)) {
		if err := c.write(ctx, c.pick(i%growthWriters)); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := c.close(); err != nil {
		return err
	}
	p.CloseSeconds = time.Since(began).Seconds()
	began = time.Now()
	err := c.open(ctx, nil)
	p.OpenSeconds = time.Since(began).Seconds()
	return err
}

// evict opens a closed crowd at a time when all of its streams are due, lets
// them go by writes of other streams, takes the time of these writes off, and
// returns the microseconds for each stream.
func (c *crowd) evict(ctx context.Context, writeMicros float64) (float64, error) {
	later := time.Now().Add(2 * time.Duration(c.config.ClientTTL))
	if err := c.open(ctx, func() time.Time { return later }); err != nil {
		return 0, err
	}
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
			return 0, err
		}
		writes += growthWriters
		var left uint64
		err := c.ledger.View(ctx, func(v machine.View) error {
			left = v.Streams()
			return nil
		})
		if err != nil {
			return 0, err
		}
		if left <= growthWriters {
			break
		}
		if writes > 10*len(c.sequences)+100_000 {
			return 0, fmt.Errorf("%d streams are still there after %d writes", left, writes)
		}
	}
	micros := float64(time.Since(began).Microseconds()) - float64(writes)*writeMicros
	return max(0, micros/float64(len(c.sequences))), nil
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
