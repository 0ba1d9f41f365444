package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// crowd is a ledger with many streams, divided among the writers.
type crowd struct {
	ledger    *ledger.Ledger
	dir       string
	config    machine.Config
	sequences []uint32 // by stream; each belongs to one writer
	random    []*rand.Rand
}

// withCrowd uses a ledger with a number of streams of one write each, and removes it afterwards.
func withCrowd(
	ctx context.Context, o *growthOptions, streams int, use func(ctx context.Context, c *crowd) error,
) error {
	return onBed(ctx, &options{dir: o.dir}, func(ctx context.Context, b *bed) error {
		config := machine.DefaultConfig()
		config.MaxStreams = max(config.MaxStreams, uint64(streams)+growthWriters)
		c := &crowd{dir: b.data(), config: config, sequences: make([]uint32, streams)}
		if err := c.open(ctx); err != nil {
			return err
		}
		b.later(c.close)
		for i := range growthWriters {
			c.random = append(c.random, rand.New(rand.NewPCG(uint64(i), 1)))
		}
		err := each(ctx, growthWriters, growthWriters, func(ctx context.Context, worker int) error {
			for stream := worker; stream < streams; stream += growthWriters {
				if err := c.write(ctx, stream); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		return use(ctx, c)
	})
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
	dir, err := os.MkdirTemp(filepath.Dir(c.dir), "copy-*")
	if err != nil {
		return err
	}
	other := &crowd{dir: dir, config: c.config, sequences: slices.Clone(c.sequences), random: c.random}
	defer func() { err = errors.Join(err, other.close(), os.RemoveAll(dir)) }()
	if err := os.CopyFS(dir, os.DirFS(c.dir)); err != nil {
		return err
	}
	syscall.Sync() // or writing the copy would disturb the measurement
	return do(other)
}

// memory returns the bytes of the heap in use, without those of the crowd itself.
func (c *crowd) memory() float64 {
	// Twice, because a sync.Pool survives the first collection.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(int64(m.HeapAlloc) - int64(len(c.sequences))*int64(unsafe.Sizeof(c.sequences[0])))
}

// write makes the next write of a stream.
func (c *crowd) write(ctx context.Context, stream int) error {
	c.sequences[stream]++
	out, err := c.ledger.Write(ctx, engineWrite("client-", stream, uint64(c.sequences[stream])))
	return decided(out, err, machine.Committed)
}

// replay repeats the last write of a stream.
func (c *crowd) replay(ctx context.Context, stream int) error {
	out, err := c.ledger.Write(ctx, engineWrite("client-", stream, uint64(c.sequences[stream])))
	return decided(out, err, machine.Replayed)
}

// pick returns any stream of a writer's share.
func (c *crowd) pick(worker int) int {
	share := (len(c.sequences) - worker + growthWriters - 1) / growthWriters
	return worker + growthWriters*c.random[worker].IntN(share)
}

// sizes adds the bytes of the disk that the state file, the block files and the log take.
func (c *crowd) sizes(p harness.Values) (err error) {
	var errLog, errBlocks error
	p["block_bytes"], errBlocks = heldBytes(filepath.Join(c.dir, "blocks"))
	p["state_bytes"], err = heldBytes(filepath.Join(c.dir, "state.db"))
	p["log_bytes"], errLog = heldBytes(filepath.Join(c.dir, "log"))
	return errors.Join(err, errBlocks, errLog)
}

// heldBytes returns the bytes that a file, or all files below a directory, take of the disk.
func heldBytes(path string) (bytes float64, err error) {
	err = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		var info syscall.Stat_t
		if err == nil && !entry.IsDir() {
			if err = syscall.Stat(path, &info); err == nil {
				const blockBytes = 512
				bytes += float64(info.Blocks * blockBytes)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a log file was removed
		}
		return err
	})
	return bytes, err
}
