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
	"sync/atomic"
	"syscall"
	"time"
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
	replays   atomic.Uint64 // answers to repeats of writes
	gone      atomic.Uint64 // of these, those without a receipt, because retention had dropped it
}

// withCrowd uses a ledger with so many streams of one write each, and removes it afterwards.
func withCrowd(
	ctx context.Context, o *growthOptions, streams int, use func(ctx context.Context, c *crowd) error,
) error {
	return onBed(ctx, &options{dir: o.dir}, func(ctx context.Context, b *bed) error {
		config := machine.DefaultConfig()
		// Small, so that few writes evict all streams once they are due.
		config.EvictionInterval = 100
		config.RetainBlocks = int64(o.retain)
		config.MaxStreams = max(config.MaxStreams, uint64(streams)+growthWriters)
		c := &crowd{dir: b.data(), config: config, sequences: make([]uint32, streams)}
		if err := c.open(ctx, nil); err != nil {
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

// open opens the ledger; a nil clock is the system's.
func (c *crowd) open(ctx context.Context, clock func() time.Time) (err error) {
	c.ledger, err = ledger.Open(ctx, ledger.Options{Dir: c.dir, Config: c.config, Clock: clock,
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
	syscall.Sync() // otherwise writing the copy would disturb the measurement
	return do(other)
}

// memory returns the bytes of the heap in use, without those of the crowd itself.
func (c *crowd) memory() float64 {
	// Twice, because a sync.Pool survives the first collection. The pools of the
	// ledger that was open before have tens of megabytes.
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

// replay repeats the last write of a stream. A ledger with retention answers a write before its horizon without a
// receipt; no other ledger may.
func (c *crowd) replay(ctx context.Context, stream int) error {
	sequence := uint64(c.sequences[stream])
	out, err := c.ledger.Write(ctx, engineWrite("client-", stream, sequence))
	if err == nil {
		c.replays.Add(1)
	}
	if err == nil && c.config.RetainBlocks > 0 && out.Code == machine.AlreadyCommitted &&
		out.CommittedSequence == sequence {
		c.gone.Add(1)
		return nil
	}
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

// heldBytes returns the bytes of all files below a directory, or of one file, as
// the disk holds them.
func heldBytes(path string) (bytes float64, err error) {
	err = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		var info syscall.Stat_t
		if err == nil && !entry.IsDir() {
			if err = syscall.Stat(path, &info); err == nil {
				const blockBytes = 512 // whatever the file system's own are
				bytes += float64(info.Blocks * blockBytes)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the log removes old files meanwhile
		}
		return err
	})
	return bytes, err
}
