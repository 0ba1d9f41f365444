package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
)

// row is something that every system is asked to do.
type row struct {
	workload  string // fresh, retry-hot, mixed-1, mixed-10, keyed
	writers   int
	pipelined bool
	payload   int // bytes
}

const (
	smallPayload = 128
	largePayload = 4096
	maxWriters   = 1024
	// openWriters is how many callers share a fixed rate.
	openWriters = 256
	// keyedPairs is the workload of keyed pairs, each with a fresh key.
	keyedPairs = "keyed"
)

// allRows are measured in this order.
var allRows = []row{
	{"fresh", 1, false, smallPayload},
	{"fresh", 16, false, smallPayload},
	{"fresh", 64, false, smallPayload},
	{"fresh", 256, false, smallPayload},
	{"fresh", maxWriters, false, smallPayload},
	{"fresh", maxWriters, true, smallPayload},
	{"fresh", 64, false, largePayload},
	{"retry-hot", 64, false, smallPayload},
	{"mixed-1", 64, false, smallPayload},
	{"mixed-10", 64, false, smallPayload},
	{keyedPairs, 1, false, smallPayload},
	{keyedPairs, 16, false, smallPayload},
	{keyedPairs, 64, false, smallPayload},
	{keyedPairs, 256, false, smallPayload},
}

// name tells the row, as -rows matches it.
func (r row) name() string {
	name := fmt.Sprintf("%s/%d", r.workload, r.writers)
	if r.pipelined {
		name += "/pipelined"
	}
	if r.payload != smallPayload {
		name += fmt.Sprintf("/%dB", r.payload)
	}
	return name
}

// fits reports whether a system can do a row.
func (r row) fits(k *kind) bool {
	if r.workload == keyedPairs {
		return k.keyed != ""
	}
	return !k.unnumbered && (!r.pipelined || k.pipelines)
}

// retryEvery is how many operations of a row have one retry, 0 for none.
func (r row) retryEvery() int {
	return map[string]int{"mixed-1": 100, "mixed-10": 10, "retry-hot": 1}[r.workload]
}

// cell is a row in a system.
type cell struct {
	row    row
	system string
}

// findings are all measurements of a run.
type findings struct {
	connections map[cell]int              // that suited best
	syncs       map[cell]harness.Values   // with fsyncs_per_write, where they could be counted
	samples     map[cell][]harness.Values // one for each round
	open        []harness.Line            // what callers saw at a fixed rate
}

// measureAll measures in rounds. In each the systems start with nothing, and
// take turns for every row, forwards in one round and backwards in the next.
func measureAll(ctx context.Context, o *options) (*findings, error) {
	f := &findings{connections: map[cell]int{}, syncs: map[cell]harness.Values{}, samples: map[cell][]harness.Values{}}
	for round := range o.rounds + 1 {
		err := onStage(ctx, o, func(s *stage) error {
			if round == 0 {
				return f.prepare(ctx, s)
			}
			return f.round(ctx, s, round)
		})
		if err != nil {
			return nil, err
		}
	}
	if len(o.rates) > 0 {
		if err := onStage(ctx, o, func(s *stage) error { return f.openLoops(ctx, s) }); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// instance is a system that runs, for one round.
type instance struct {
	kind    *kind
	system  system
	dir     string
	callers []*caller
}

// stage runs the systems of one round.
type stage struct {
	o         *options
	instances []*instance
}

// onStage starts every system with nothing in it, has something done, ends them and removes what
// they have written.
func onStage(ctx context.Context, o *options, do func(s *stage) error) (err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-peers-*")
	if err != nil {
		return err
	}
	s := &stage{o: o}
	defer func() {
		for _, in := range s.instances {
			if stopErr := in.system.stop(); stopErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", in.kind.name, stopErr))
			}
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	for i := range o.kinds {
		k := &o.kinds[i]
		in := &instance{kind: k, system: k.make(), dir: filepath.Join(dir, k.name)}
		for id := range maxWriters {
			in.callers = append(in.callers, &caller{job: job{stream: id}})
		}
		s.instances = append(s.instances, in)
		if err := os.Mkdir(in.dir, 0o755); err != nil {
			return err
		}
		if err := in.system.start(ctx, in.dir); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", k.name, err), context.Cause(ctx))
		}
	}
	return do(s)
}

// turns calls do for each row in each system, beginning with the first system or with the last.
func (s *stage) turns(backwards bool, do func(r row, in *instance) error) error {
	for _, r := range s.o.rows {
		for i := range s.instances {
			in := s.instances[i]
			if backwards {
				in = s.instances[len(s.instances)-1-i]
			}
			if !r.fits(in.kind) {
				continue
			}
			if err := do(r, in); err != nil {
				return fmt.Errorf("%s: %s: %w", r.name(), in.kind.name, err)
			}
		}
	}
	return nil
}

// prepare finds how many connections suit each system best, and counts syncs,
// which slows the systems down: nothing here counts as speed.
func (f *findings) prepare(ctx context.Context, s *stage) error {
	return s.turns(false, func(r row, in *instance) (err error) {
		at := cell{r, in.kind.name}
		if _, err := f.suited(ctx, s.o, in, r); err != nil {
			return err
		}
		if f.syncs[at], err = in.measure(ctx, s.o, r, f.connections[at], true); err != nil {
			return err
		}
		s.o.notice("prepare  %-22s %-20s %3d connections, %.4f syncs per write", r.name(), in.kind.name,
			f.connections[at], f.syncs[at]["fsyncs_per_write"])
		return nil
	})
}

// suited returns the number of connections that was found for a row, or finds it: that with which
// the row is fastest.
func (f *findings) suited(ctx context.Context, o *options, in *instance, r row) (int, error) {
	at := cell{r, in.kind.name}
	if known, ok := f.connections[at]; ok {
		return known, nil
	}
	candidates := in.kind.connections(r.writers, r.pipelined)
	short := *o
	short.duration, short.warmup = o.duration/4, o.warmup/2
	best, fastest := candidates[0], -1.0
	for _, n := range candidates {
		if len(candidates) == 1 {
			break
		}
		v, err := in.measure(ctx, &short, r, n, false)
		if err != nil {
			return 0, err
		}
		if v["throughput_per_s"] > fastest {
			best, fastest = n, v["throughput_per_s"]
		}
	}
	f.connections[at] = best
	return best, nil
}

// round measures every row once in every system.
func (f *findings) round(ctx context.Context, s *stage, round int) error {
	return s.turns(round%2 == 0, func(r row, in *instance) error {
		at := cell{r, in.kind.name}
		v, err := in.measure(ctx, s.o, r, f.connections[at], false)
		if err != nil {
			return err
		}
		f.samples[at] = append(f.samples[at], v)
		s.o.notice("round %d  %-22s %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", round, r.name(), in.kind.name,
			v["throughput_per_s"], v["p50_ms"], v["p99_ms"])
		return nil
	})
}

// openLoops measures latency at fixed rates, since the moment at which each write was due.
func (f *findings) openLoops(ctx context.Context, s *stage) error {
	r := row{"fresh", openWriters, false, smallPayload}
	for _, in := range s.instances {
		if !r.fits(in.kind) {
			continue
		}
		connections, err := f.suited(ctx, s.o, in, r)
		if err != nil {
			return err
		}
		for _, rate := range s.o.rates {
			err := in.connected(ctx, place(r, connections), func(to conn) error {
				do, err := operation(ctx, r, in.callers[:r.writers], to)
				if err != nil {
					return err
				}
				result, err := load.Run(ctx, load.Load{
					Workers: r.writers, Warmup: s.o.warmup, Duration: s.o.duration, Rate: float64(rate),
				}, do)
				if err != nil {
					return err
				}
				line := harness.Line{
					"system": in.kind.name, "rate_per_s": rate, "writers": r.writers,
					"served_per_s": result.PerSecond(),
					"unserved":     result.Unserved, "p50_ms": result.Latency.Milliseconds(50),
					"p99_ms": result.Latency.Milliseconds(99), "p999_ms": result.Latency.Milliseconds(99.9),
				}
				f.open = append(f.open, line)
				s.o.notice("open     %8d/s wanted       %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", rate, in.kind.name,
					line["served_per_s"], line["p50_ms"], line["p99_ms"])
				return nil
			})
			if err != nil {
				return fmt.Errorf("%d a second: %s: %w", rate, in.kind.name, err)
			}
		}
	}
	return nil
}

// place returns how the callers of a row reach a system.
func place(r row, connections int) placement {
	return placement{callers: r.writers, connections: connections, pipelined: r.pipelined}
}

// connected has something done over new connections.
func (in *instance) connected(ctx context.Context, at placement, do func(to conn) error) error {
	to, err := in.system.connect(ctx, at)
	if err != nil {
		return err
	}
	return errors.Join(do(to), to.close())
}

// measure measures a row in one system, and counts syncs if asked.
func (in *instance) measure(
	ctx context.Context, o *options, r row, connections int, count bool,
) (v harness.Values, err error) {
	err = in.connected(ctx, place(r, connections), func(to conn) error {
		do, err := operation(ctx, r, in.callers[:r.writers], to)
		if err != nil {
			return err
		}
		v, err = in.observe(ctx, load.Load{Workers: r.writers, Warmup: o.warmup, Duration: o.duration}, count, do)
		return err
	})
	return v, err
}

// observe runs a load and looks at what it costs.
func (in *instance) observe(
	ctx context.Context, l load.Load, count bool, do load.Operation,
) (v harness.Values, err error) {
	runtime.GC() // what came before is not this system's to pay for
	var pids []int
	var counter *syncCounter
	began := false
	l.Meter = func() (used map[string]float64, err error) {
		if began = !began; began {
			pids = in.system.processes()
			if count {
				counter, err = countSyncs(pids, filepath.Dir(in.dir))
				if err != nil && !errors.Is(err, errNoCounter) {
					return nil, err
				}
			}
		}
		if used, err = harness.Usage(in.dir, pids...)(); err != nil {
			return nil, err
		}
		if counter != nil && !began {
			var syncs int64
			syncs, err = counter.count()
			used["fsyncs_per_write"], counter = float64(syncs), nil
		}
		return used, err
	}
	result, err := load.RunSome(ctx, l, do)
	if counter != nil { // the load failed before it could be read
		err = errors.Join(err, counter.process.Stop())
	}
	if err != nil {
		return nil, err
	}
	v = result.Values()
	v["resident_bytes"] = float64(harness.Resident(pids...))
	return v, nil
}

// payload returns bytes that nothing can compress, the same in every run.
func payload(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // it never fails
	return b
}

// caller is one client: it has one call under way at most.
type caller struct {
	job        job // the last write
	reply      string
	operations int
}

// fresh makes the next write.
func (c *caller) fresh(ctx context.Context, to conn) error {
	c.job.sequence++
	a, err := to.do(ctx, &c.job, false)
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
	a, err := to.do(ctx, &c.job, true)
	if err != nil {
		return fmt.Errorf("retry %d of %s: %w", c.job.sequence, c.job.client(), err)
	}
	if !a.replayed || a.reply != c.reply {
		return fmt.Errorf("retry %d of %s was answered with %+v, want the stored reply %q",
			c.job.sequence, c.job.client(), a, c.reply)
	}
	return nil
}

// pair does a keyed pair with a fresh key, and wants the result of its own work, which is to make it.
func (c *caller) pair(ctx context.Context, to conn) error {
	c.job.sequence++
	key := c.job.key()
	result, err := to.(keyedConn).once(ctx, hex.EncodeToString(key[:]), func() []byte {
		return append(key[:], c.job.payload[len(key):]...)
	})
	if err == nil && (len(result) != len(c.job.payload) || !bytes.HasPrefix(result, key[:])) {
		err = fmt.Errorf("the result is %x", result)
	}
	if err != nil {
		return fmt.Errorf("pair %d of %s: %w", c.job.sequence, c.job.client(), err)
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
	next := (*caller).fresh
	if r.workload == keyedPairs {
		next = (*caller).pair
	}
	// Everybody connects, and has something to retry.
	group, groupCtx := errgroup.WithContext(ctx)
	for _, c := range callers {
		group.Go(func() error { return next(c, groupCtx, to) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	every := r.retryEvery()
	return func(ctx context.Context, worker int) error {
		c := callers[worker]
		c.operations++
		if every > 0 && c.operations%every == 0 {
			return c.again(ctx, to)
		}
		return next(c, ctx, to)
	}, nil
}
