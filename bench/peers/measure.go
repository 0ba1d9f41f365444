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
	"github.com/seqledger/seqledger/internal/testkit/process"
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
		return k.keyed
	}
	return !k.unnumbered && (!r.pipelined || k.pipelines)
}

// cell is a row in a system.
type cell struct {
	row    row
	system string
}

// findings are all measurements of a run.
type findings struct {
	connections map[cell]int              // that suited best
	syncs       map[cell]float64          // per write, where they could be counted
	samples     map[cell][]harness.Values // one for each round
	open        []harness.Line            // what callers saw at a fixed rate
}

// measureAll measures in rounds. In each the systems start with nothing, and take turns for every row, forwards in one
// round and backwards in the next.
func measureAll(ctx context.Context, o *options) (*findings, error) {
	f := &findings{connections: map[cell]int{}, syncs: map[cell]float64{}, samples: map[cell][]harness.Values{}}
	for round := range o.rounds + 1 {
		err := onStage(ctx, o, func(instances []*instance) error {
			return f.round(ctx, o, instances, round)
		})
		if err != nil {
			return nil, err
		}
	}
	if len(o.rates) == 0 {
		return f, nil
	}
	return f, onStage(ctx, o, func(instances []*instance) error { return f.openLoops(ctx, o, instances) })
}

// instance is a system that runs, for one round.
type instance struct {
	system

	kind      *kind
	dir       string
	callers   []*caller
	processes []*process.Process
}

func newInstance(k *kind, dir string) *instance {
	in := &instance{system: k.make(), kind: k, dir: dir}
	for id := range maxWriters {
		in.callers = append(in.callers, &caller{job: job{stream: id}})
	}
	return in
}

// start starts the system with what it has.
func (in *instance) start(ctx context.Context) (err error) {
	if in.processes, err = in.launch(ctx, in.dir); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", in.kind.name, err), context.Cause(ctx))
	}
	return nil
}

// stop ends all processes at once: the last ones of a cluster would wait for the others.
func (in *instance) stop() error {
	var g errgroup.Group
	for _, p := range in.processes {
		g.Go(p.Stop)
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("%s: %w", in.kind.name, err)
	}
	return nil
}

// pids are the processes that do the server's work.
func (in *instance) pids() (all []int) {
	for _, p := range in.processes {
		all = append(all, p.Tree()...)
	}
	return all
}

// onStage starts every system with nothing in it, has something done, ends them and removes what they have written.
func onStage(ctx context.Context, o *options, do func(instances []*instance) error) (err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-peers-*")
	if err != nil {
		return err
	}
	var instances []*instance
	defer func() {
		for _, in := range instances {
			err = errors.Join(err, in.stop())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	for i := range o.kinds {
		in := newInstance(&o.kinds[i], filepath.Join(dir, o.kinds[i].name))
		instances = append(instances, in)
		if err := os.Mkdir(in.dir, 0o755); err != nil {
			return err
		}
		if err := in.start(ctx); err != nil {
			return err
		}
	}
	return do(instances)
}

// round measures every row in every system. Round 0 finds how many connections suit each system best, and counts syncs,
// which slows the systems down: nothing in it counts as speed.
func (f *findings) round(ctx context.Context, o *options, instances []*instance, round int) error {
	for _, r := range o.rows {
		for i := range instances {
			in := instances[i]
			if round > 0 && round%2 == 0 {
				in = instances[len(instances)-1-i]
			}
			if !r.fits(in.kind) {
				continue
			}
			connections, err := f.suited(ctx, o, in, r)
			if err != nil {
				return err
			}
			v, err := in.measure(ctx, o, r, connections, round == 0)
			if err != nil {
				return err
			}
			at := cell{r, in.kind.name}
			if syncs, counted := v["fsyncs_per_write"]; counted {
				f.syncs[at] = syncs
			}
			if round > 0 {
				f.samples[at] = append(f.samples[at], v)
			}
			o.notice("round %d  %-22s %-20s %3d connections %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", round, r.name(),
				in.kind.name, connections, v["throughput_per_s"], v["p50_ms"], v["p99_ms"])
		}
	}
	return nil
}

// suited returns the number of connections that was found for a row, or finds it: that with which the row is fastest.
func (f *findings) suited(ctx context.Context, o *options, in *instance, r row) (int, error) {
	at := cell{r, in.kind.name}
	candidates := in.kind.connections(r.writers, r.pipelined)
	if f.connections[at] > 0 || len(candidates) == 1 {
		f.connections[at] = max(f.connections[at], candidates[0])
		return f.connections[at], nil
	}
	short := *o
	short.duration, short.warmup = o.duration/4, o.warmup/2
	fastest := -1.0
	for _, n := range candidates {
		v, err := in.measure(ctx, &short, r, n, false)
		if err != nil {
			return 0, err
		}
		if v["throughput_per_s"] > fastest {
			f.connections[at], fastest = n, v["throughput_per_s"]
		}
	}
	return f.connections[at], nil
}

// openLoops measures latency at fixed rates, since the moment at which each write was due.
func (f *findings) openLoops(ctx context.Context, o *options, instances []*instance) error {
	r := row{"fresh", openWriters, false, smallPayload}
	for _, in := range instances {
		if !r.fits(in.kind) {
			continue
		}
		connections, err := f.suited(ctx, o, in, r)
		if err != nil {
			return err
		}
		for _, rate := range o.rates {
			l := load.Load{Workers: r.writers, Warmup: o.warmup, Duration: o.duration, Rate: float64(rate)}
			result, err := in.load(ctx, r, connections, l, load.Run)
			if err != nil {
				return fmt.Errorf("%d a second: %w", rate, err)
			}
			line := harness.Line{
				"system": in.kind.name, "rate_per_s": l.Rate, "unserved": float64(result.Unserved),
			}.With(result.Values())
			f.open = append(f.open, line)
			o.notice("open     %8d/s wanted       %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", rate, in.kind.name,
				line["throughput_per_s"], line["p50_ms"], line["p99_ms"])
		}
	}
	return nil
}

// load runs the load of a row over new connections.
func (in *instance) load(
	ctx context.Context, r row, connections int, l load.Load,
	run func(context.Context, load.Load, load.Operation) (load.Result, error),
) (result load.Result, err error) {
	to, err := in.connect(ctx, placement{connections: connections, pipelined: r.pipelined})
	if err == nil {
		var do load.Operation
		if do, err = operation(ctx, r, in.callers[:r.writers], to); err == nil {
			runtime.GC() // what came before is not this system's to pay for
			result, err = run(ctx, l, do)
		}
		err = errors.Join(err, to.close())
	}
	if err != nil {
		return result, fmt.Errorf("%s: %s: %w", r.name(), in.kind.name, err)
	}
	return result, nil
}

// measure measures a row in one system and what it costs, and counts syncs if asked.
func (in *instance) measure(
	ctx context.Context, o *options, r row, connections int, count bool,
) (v harness.Values, err error) {
	var pids []int
	var counter *syncCounter
	began := false
	meter := func() (used map[string]float64, err error) {
		if began = !began; began {
			pids = in.pids()
			if count {
				if counter, err = countSyncs(pids, filepath.Dir(in.dir)); err != nil {
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
	l := load.Load{Workers: r.writers, Warmup: o.warmup, Duration: o.duration, Meter: meter}
	result, err := in.load(ctx, r, connections, l, load.RunSome)
	if counter != nil { // the load failed before it could be read
		err = errors.Join(err, counter.process.Stop())
	}
	if err != nil {
		return nil, err
	}
	v = result.Values()
	v["resident_bytes"] = float64(harness.Memory("VmRSS", pids...))
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
	if err == nil && (a.replayed || a.reply == "") {
		err = fmt.Errorf("answered as a repeat, or with nothing: %+v", a)
	}
	c.reply = a.reply
	return c.failed("write", err)
}

// again repeats the last write and wants the same answer.
func (c *caller) again(ctx context.Context, to conn) error {
	a, err := to.do(ctx, &c.job, true)
	if err == nil && (!a.replayed || a.reply != c.reply) {
		err = fmt.Errorf("answered with %+v, want the stored reply %q", a, c.reply)
	}
	return c.failed("retry", err)
}

// pair does a keyed pair with a fresh key, and wants the result that it has made.
func (c *caller) pair(ctx context.Context, to conn) error {
	c.job.sequence++
	key := c.job.key()
	result, err := to.(keyedConn).once(ctx, hex.EncodeToString(key[:]), func() []byte {
		return append(key[:], c.job.payload[len(key):]...)
	})
	if err == nil && (len(result) != len(c.job.payload) || !bytes.HasPrefix(result, key[:])) {
		err = fmt.Errorf("the result is %x", result)
	}
	return c.failed("pair", err)
}

// failed says what of a caller has failed, if it has.
func (c *caller) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %d of %s: %w", what, c.job.sequence, c.job.client(), err)
}

// operation returns what the callers of a row do, after what has to be there before.
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
	every := map[string]int{"mixed-1": 100, "mixed-10": 10, "retry-hot": 1}[r.workload] // how many have one retry
	return func(ctx context.Context, worker int) error {
		c := callers[worker]
		c.operations++
		if every > 0 && c.operations%every == 0 {
			return c.again(ctx, to)
		}
		return next(c, ctx, to)
	}, nil
}
