package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	growthWriters = 256    // write at once
	steadyStreams = 10_000 // of the steady load
	costRounds    = 3      // the median of which is a cost
)

// growthColumns are costs, then what the load saw since the mark before, and sizes.
var growthColumns = harness.Columns{
	{Head: "row", Name: "row", Width: -16},
	{Head: "write µs", Name: "write_us", Width: 8, Format: "%.1f"},
	{Head: "p99 ms", Name: "write_p99_ms", Width: 6, Format: "%.1f"},
	{Head: "CPU µs", Name: "write_cpu_us", Width: 6, Format: "%.1f"},
	{Head: "retry µs", Name: "retry_us", Width: 8, Format: "%.1f"},
	{Head: "CPU µs", Name: "retry_cpu_us", Width: 6, Format: "%.1f"},
	{Head: "open s", Name: "open_s", Width: 6, Format: "%.3f"},
	{Head: "checkpoint s", Name: "checkpoint_s", Width: 12, Format: "%.3f"},
	{Head: "load/s", Name: "throughput_per_s", Width: 6, Format: ","},
	{Head: "p50 ms", Name: "p50_ms", Width: 6, Format: "%.2f"},
	{Head: "p99 ms", Name: "p99_ms", Width: 6, Format: "%.2f"},
	{Head: "unserved", Name: "unserved", Width: 8, Format: ","},
	{Head: "writes", Name: "writes", Width: 10, Format: ","},
	{Head: "state MiB", Name: "state_mib", Width: 9, Format: ","},
	{Head: "blocks MiB", Name: "blocks_mib", Width: 10, Format: ","},
	{Head: "log MiB", Name: "log_mib", Width: 7, Format: ","},
	{Head: "memory MiB", Name: "memory_mib", Width: 10, Format: ","},
	{Head: "just opened", Name: "opened_mib", Width: 11, Format: ","},
}

// growthRows measure how costs grow with time and with the number of streams.
func growthRows(o *options) (rows []row) {
	if len(o.marks) > 0 {
		rows = append(rows, row{"load", growLoad})
	}
	for _, n := range o.streams {
		rows = append(rows, row{fmt.Sprintf("streams/%d", n), func(ctx context.Context, b *bed) error {
			return growStreams(ctx, b, max(growthWriters, scaled(b.o, n)))
		}})
	}
	return rows
}

// growLoad writes at a steady rate and measures the costs at the marks, on a copy, because that writes more than
// minutes of load.
func growLoad(ctx context.Context, b *bed) error {
	c, err := newCrowd(ctx, b, steadyStreams)
	if err != nil {
		return err
	}
	loaded, writes := time.Duration(0), float64(steadyStreams)
	for _, mark := range b.o.marks {
		mark = scaledTime(b.o, mark)
		measured, err := load.Run(ctx, load.Load{Workers: growthWriters, Duration: mark - loaded, Rate: b.o.rate},
			func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
		if err != nil {
			return err
		}
		loaded = mark
		writes += float64(measured.Operations)
		line := harness.Line{
			"row": fmt.Sprint("load/", mark), "writes": writes, "unserved": float64(measured.Unserved),
			"memory_mib": c.memory(),
		}.With(measured.Values())
		if err := errors.Join(c.close(), c.sizes(line)); err != nil {
			return err
		}
		err = c.copied(func(copied *crowd) error {
			if err := copied.open(ctx); err != nil {
				return err
			}
			costs, err := copied.costs(ctx, b.o)
			return errors.Join(err, b.tell(line.With(costs)))
		})
		if err := errors.Join(err, c.open(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// growStreams measures a ledger with a number of streams.
func growStreams(ctx context.Context, b *bed, streams int) error {
	c, err := newCrowd(ctx, b, streams)
	if err != nil {
		return err
	}
	line := harness.Line{"memory_mib": c.memory(), "writes": float64(streams)}
	if err := errors.Join(c.close(), c.sizes(line), c.open(ctx)); err != nil {
		return err
	}
	line["opened_mib"] = c.memory()
	costs, err := c.costs(ctx, b.o)
	return errors.Join(err, b.tell(line.With(costs)))
}

// crowd is a ledger with many streams, divided among the writers.
type crowd struct {
	ledger    *ledger.Ledger // nil while it is closed
	dir       string
	config    machine.Config
	sequences []uint32 // by stream; each belongs to one writer
	random    []*rand.Rand
}

// newCrowd makes a ledger with a number of streams of one write each.
func newCrowd(ctx context.Context, b *bed, streams int) (*crowd, error) {
	config := machine.DefaultConfig()
	config.MaxStreams = max(config.MaxStreams, uint64(streams)+growthWriters)
	c := &crowd{dir: b.data(), config: config, sequences: make([]uint32, streams)}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	b.later(c.close)
	for i := range growthWriters {
		c.random = append(c.random, rand.New(rand.NewPCG(uint64(i), 1)))
	}
	group, ctx := errgroup.WithContext(ctx)
	for worker := range growthWriters {
		group.Go(func() error {
			for stream := worker; stream < streams; stream += growthWriters {
				if err := c.write(ctx, stream); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c, group.Wait()
}

func (c *crowd) open(ctx context.Context) (err error) {
	c.ledger, err = ledger.Open(ctx, ledger.Options{Dir: c.dir, Config: c.config,
		Logger: slog.New(slog.DiscardHandler)})
	return err
}

// close closes the ledger if it is open.
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
	other := &crowd{dir: c.dir + "-copy", config: c.config, sequences: slices.Clone(c.sequences), random: c.random}
	defer func() { err = errors.Join(err, other.close(), os.RemoveAll(other.dir)) }()
	if err := os.CopyFS(other.dir, os.DirFS(c.dir)); err != nil {
		return err
	}
	syscall.Sync() // or writing the copy would disturb the measurement
	return do(other)
}

// pick returns any stream of a writer's share.
func (c *crowd) pick(worker int) int {
	share := (len(c.sequences) - worker + growthWriters - 1) / growthWriters
	return worker + growthWriters*c.random[worker].IntN(share)
}

// write makes the next write of a stream.
func (c *crowd) write(ctx context.Context, stream int) error {
	c.sequences[stream]++
	return c.last(ctx, stream, machine.Committed)
}

// last submits the last write of a stream, for the first time or again.
func (c *crowd) last(ctx context.Context, stream int, want machine.Code) error {
	out, err := c.ledger.Write(ctx, engineWrite("client-", stream, uint64(c.sequences[stream])))
	return decided(out, err, want)
}

// costs measures an open crowd, in medians.
func (c *crowd) costs(ctx context.Context, o *options) (harness.Values, error) {
	rounds := make([]harness.Values, costRounds)
	for i := range rounds {
		rounds[i] = harness.Values{}
		for _, kind := range []struct {
			name string
			do   func(ctx context.Context, stream int) error
		}{
			{"write", c.write},
			{"retry", func(ctx context.Context, stream int) error { return c.last(ctx, stream, machine.Replayed) }},
		} {
			// The time for one by throughput, and the processor time of the whole process, checkpoints included.
			measured, err := load.RunSome(ctx, load.Load{
				Workers: growthWriters, Warmup: o.duration / 10, Duration: o.duration, Meter: harness.Usage(c.dir),
			}, func(ctx context.Context, worker int) error { return kind.do(ctx, c.pick(worker)) })
			if err != nil {
				return nil, err
			}
			v := measured.Values()
			maps.Copy(rounds[i], harness.Values{
				kind.name + "_us": 1e6 / measured.PerSecond(), kind.name + "_p99_ms": v["p99_ms"],
				kind.name + "_cpu_us": v["client_cpu_us_per_write"],
			})
		}
		if err := c.reopen(ctx, rounds[i]); err != nil {
			return nil, err
		}
	}
	return harness.Medians(rounds), nil
}

// reopen measures a clean stop after 1,000 changed streams and the next start.
func (c *crowd) reopen(ctx context.Context, p harness.Values) error {
	// Reopen first, so that pending changes of the load do not count.
	if err := errors.Join(c.close(), c.open(ctx)); err != nil {
		return err
	}
	for i := range min(1000, len(c.sequences)) {
		if err := c.write(ctx, c.pick(i%growthWriters)); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := c.close(); err != nil {
		return err
	}
	stopped := time.Now()
	err := c.open(ctx)
	p["checkpoint_s"], p["open_s"] = stopped.Sub(began).Seconds(), time.Since(stopped).Seconds()
	return err
}

// memory returns the mebibytes of the heap in use, without those of the crowd itself.
func (c *crowd) memory() float64 {
	// Twice, because a sync.Pool survives the first collection.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(int64(m.HeapAlloc)-int64(len(c.sequences))*int64(unsafe.Sizeof(c.sequences[0]))) / (1 << 20)
}

// sizes adds what the state file, the block files and the log of a closed crowd take of the disk.
func (c *crowd) sizes(line harness.Line) error {
	for name, path := range map[string]string{"state_mib": "state.db", "blocks_mib": "blocks", "log_mib": "log"} {
		blocks := int64(0)
		err := filepath.WalkDir(filepath.Join(c.dir, path), func(path string, _ fs.DirEntry, err error) error {
			var info syscall.Stat_t
			err = errors.Join(err, syscall.Stat(path, &info))
			blocks += info.Blocks
			return err
		})
		if err != nil {
			return err
		}
		line[name] = float64(blocks*512) / (1 << 20)
	}
	return nil
}
