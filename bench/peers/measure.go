package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
)

// row is something that every system is asked to do.
type row struct {
	workload  string // fresh, retry-hot, retry-cold, mixed-1, mixed-10
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
	// preloadCallers write the streams that have to be there.
	preloadCallers = 512
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
	// Last, because it restarts the systems.
	{"retry-cold", 64, false, smallPayload},
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
	return (!r.pipelined || k.pipelines) && (r.workload == "fresh" || k.retries)
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
	preloaded   []harness.Line            // the speed with so many idle streams there
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
	for _, streams := range o.preload {
		if err := onStage(ctx, o, func(s *stage) error { return f.preload(ctx, s, streams) }); err != nil {
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
	ended   bool
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
	if r.workload == "retry-cold" {
		r.workload = "retry-hot" // it can be measured more than once
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

// preload fills every system with streams of one write each, restarts it, and
// measures 64 writers beside them.
func (f *findings) preload(ctx context.Context, s *stage, streams int) error {
	r := row{"fresh", 64, false, smallPayload}
	for _, in := range s.instances {
		if !in.kind.retries {
			continue // keeps no streams
		}
		connections, err := f.suited(ctx, s.o, in, r)
		if err != nil {
			return err
		}
		at := placement{
			callers: preloadCallers, connections: min(connections, 8), pipelined: in.kind.pipelines, numbered: true,
		}
		restart, err := in.refill(ctx, at, newStore(streams, r.payload))
		if err != nil {
			return fmt.Errorf("%d streams: %s: %w", streams, in.kind.name, err)
		}
		v, err := in.measure(ctx, s.o, r, connections, false)
		if err != nil {
			return fmt.Errorf("%d streams: %s: %w", streams, in.kind.name, err)
		}
		line := harness.Line{"system": in.kind.name, "streams": streams, "writers": r.writers,
			"restart_s": restart.Seconds()}
		f.preloaded = append(f.preloaded, line.With(v))
		s.o.notice("streams  %8d there        %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", streams,
			in.kind.name, v["throughput_per_s"], v["p50_ms"], v["p99_ms"])
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

// refill commits a store and restarts the system. It returns how long that took.
func (in *instance) refill(ctx context.Context, at placement, s *store) (took time.Duration, err error) {
	if err := in.connected(ctx, at, func(to conn) error { return s.fill(ctx, to, at.callers) }); err != nil {
		return 0, err
	}
	began := time.Now()
	err = in.system.restart(ctx)
	return time.Since(began), err
}

// measure measures a row in one system, and counts syncs if asked.
func (in *instance) measure(
	ctx context.Context, o *options, r row, connections int, count bool,
) (v harness.Values, err error) {
	at, warmup := place(r, connections), o.warmup
	begin := func(to conn) (load.Operation, error) { return operation(ctx, r, in.callers[:r.writers], to) }
	if r.workload == "retry-cold" {
		if in.ended {
			return nil, errors.New("a round has one cold row at most")
		}
		// The system is restarted between the writes and their retries.
		in.ended, at.numbered, warmup = true, true, 0
		cold := newStore(max(o.coldStreams, r.writers), r.payload)
		if _, err := in.refill(ctx, at, cold); err != nil {
			return nil, err
		}
		begin = func(to conn) (load.Operation, error) { return cold.cold(r.writers, to), nil }
	}
	err = in.connected(ctx, at, func(to conn) error {
		do, err := begin(to)
		if err != nil {
			return err
		}
		v, err = in.observe(ctx, load.Load{Workers: r.writers, Warmup: warmup, Duration: o.duration}, count, do)
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
				counter, err = countSyncs(pids, in.dir, filepath.Dir(in.dir))
				if err != nil && !errors.Is(err, errNoCounter) {
					return nil, err
				}
			}
		}
		if used, err = harness.Usage(in.dir, pids...)(); err != nil {
			return nil, err
		}
		if ours, ok := in.system.(*inProcess); ok {
			used["log_bytes_per_write"] = ours.logBytes()
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
		if every > 0 && c.operations%every == 0 {
			return c.again(ctx, to)
		}
		return c.fresh(ctx, to)
	}, nil
}

// store is a set of streams with one write each, to be asked for again.
type store struct {
	replies []string
	payload []byte
}

func newStore(streams, bytes int) *store {
	return &store{replies: make([]string, streams), payload: payload(bytes)}
}

// caller returns the caller of the only write of a stream; those of the rows come before.
func (s *store) caller(i int) *caller {
	return &caller{reply: s.replies[i], job: job{stream: maxWriters + i, payload: s.payload}}
}

// fill commits the one write of each stream.
func (s *store) fill(ctx context.Context, to conn, callers int) error {
	group, ctx := errgroup.WithContext(ctx)
	for worker := range callers {
		group.Go(func() error {
			for i := worker; i < len(s.replies); i += callers {
				c := s.caller(i)
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
	// A prime, so that all are visited unless it divides the share; then the next one is.
	stride := 7919
	if share%stride == 0 {
		stride = 7927
	}
	return func(ctx context.Context, worker int) error {
		if next[worker] >= share {
			return load.ErrDone
		}
		c := s.caller(worker*share + next[worker]*stride%share)
		next[worker]++
		c.job.sequence = 1
		return c.again(ctx, to)
	}
}
