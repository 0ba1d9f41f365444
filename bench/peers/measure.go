package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/seqledger/seqledger/bench/load"
)

// sample is one measurement.
type sample struct {
	perSecond            float64
	p50, p99, p999       float64 // milliseconds
	serverCPU, clientCPU float64 // microseconds per operation
	written, disk        float64 // bytes per operation
	log                  float64 // bytes of log entries per operation, where we know
	resident             int64   // bytes
	syncs                *float64
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
	dir       string
	instances []*instance
}

const maxWriters = 1024

// longest is how long one operation may take.
const longest = 20 * time.Second

// openStage starts every system with nothing in it.
func openStage(ctx context.Context, o *options) (s *stage, err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-peers-*")
	if err != nil {
		return nil, err
	}
	s = &stage{o: o, dir: dir}
	for i := range o.kinds {
		k := &o.kinds[i]
		in := &instance{kind: k, system: k.make(), dir: filepath.Join(dir, k.name)}
		for id := range maxWriters {
			in.callers = append(in.callers, &caller{id: id, job: job{stream: id}})
		}
		s.instances = append(s.instances, in)
		if err := os.Mkdir(in.dir, 0o755); err != nil {
			return nil, errors.Join(err, s.close())
		}
		if err := in.system.start(ctx, in.dir); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", k.name, err), context.Cause(ctx), s.close())
		}
	}
	return s, nil
}

// close ends every system and removes what they have written.
func (s *stage) close() error {
	var err error
	for _, in := range s.instances {
		if stopErr := in.system.stop(); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", in.kind.name, stopErr))
		}
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// place returns how the callers of a row reach a system.
func place(r row, connections int) placement {
	return placement{callers: r.writers, connections: connections, pipelined: r.pipelined}
}

// measure measures a row in one system.
func (in *instance) measure(ctx context.Context, o *options, r row, connections int, count bool) (s sample, err error) {
	if r.workload == "retry-cold" {
		return in.measureCold(ctx, o, r, connections, count)
	}
	to, err := in.system.connect(ctx, place(r, connections))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	do, err := operation(ctx, r, in.callers[:r.writers], to)
	if err != nil {
		return s, err
	}
	return in.observe(ctx, o, r.writers, o.warmup, count, do)
}

// measureCold restarts the system between the writes and their retries.
func (in *instance) measureCold(ctx context.Context, o *options, r row, connections int, count bool) (sample, error) {
	at := place(r, connections)
	at.numbered = true
	cold := &store{first: maxWriters, replies: make([]string, max(o.coldStreams, r.writers)),
		payload: payload(r.payload)}
	if in.ended {
		return sample{}, errors.New("a round has one cold row at most")
	}
	in.ended = true
	to, err := in.system.connect(ctx, at)
	if err != nil {
		return sample{}, err
	}
	if err := errors.Join(cold.fill(ctx, to, r.writers), to.close()); err != nil {
		return sample{}, err
	}
	if err := in.system.restart(ctx); err != nil {
		return sample{}, err
	}
	if to, err = in.system.connect(ctx, at); err != nil {
		return sample{}, err
	}
	s, err := in.observe(ctx, o, r.writers, 0, count, cold.cold(r.writers, to))
	return s, errors.Join(err, to.close())
}

// observe runs a closed loop and looks at what it costs.
func (in *instance) observe(
	ctx context.Context, o *options, workers int, warmup time.Duration, count bool, do load.Operation,
) (s sample, err error) {
	runtime.GC() // what came before is not this system's to pay for
	var result load.Result
	var w watch
	// A disk that others keep busy may take longer for one sync than a quick
	// run measures.
	for duration := o.duration; result.Operations == 0; duration *= 2 {
		if duration > longest+o.duration {
			return s, errEmpty
		}
		w = watch{in: in, scratch: filepath.Dir(in.dir), count: count}
		result, err = load.Closed(ctx, load.Options{
			Workers: workers, Warmup: warmup, Duration: duration, Begin: w.begin, End: w.end,
		}, do)
		if err != nil {
			return s, errors.Join(err, w.abandon())
		}
	}
	s = w.sample(float64(result.Operations))
	s.perSecond = result.PerSecond()
	s.p50, s.p99, s.p999 = result.Milliseconds(50), result.Milliseconds(99), result.Milliseconds(99.9)
	return s, nil
}

// watch looks at a system before and after a measurement.
type watch struct {
	in      *instance
	scratch string
	count   bool
	pids    []int

	before, after             usage
	clientBefore, clientAfter usage
	diskBefore, diskAfter     int64
	logBefore, logAfter       uint64
	counter                   *syncCounter
	syncs                     int64
}

func (w *watch) begin() (err error) {
	w.pids = w.in.system.processes()
	if w.count {
		w.counter, err = countSyncs(w.pids, w.in.dir, w.scratch)
		if err != nil && !errors.Is(err, errNoCounter) {
			return err
		}
	}
	return w.look(&w.before, &w.clientBefore, &w.diskBefore, &w.logBefore)
}

func (w *watch) end() error {
	err := w.look(&w.after, &w.clientAfter, &w.diskAfter, &w.logAfter)
	if w.counter != nil {
		var countErr error
		w.syncs, countErr = w.counter.count()
		err = errors.Join(err, countErr)
	}
	return err
}

// abandon ends the counter when nothing else has.
func (w *watch) abandon() error {
	if w.counter == nil {
		return nil
	}
	return w.counter.process.stop()
}

func (w *watch) look(server, client *usage, disk *int64, log *uint64) (err error) {
	if ours, ok := w.in.system.(*inProcess); ok {
		*log = ours.logBytes()
	}
	if *server, err = usageOf(w.pids); err != nil {
		return err
	}
	if !slices.Contains(w.pids, os.Getpid()) {
		if *client, err = usageOf([]int{os.Getpid()}); err != nil {
			return err
		}
	}
	*disk, err = diskBytes(w.in.dir)
	return err
}

func (w *watch) sample(operations float64) sample {
	s := sample{
		serverCPU: float64((w.after.cpu - w.before.cpu).Microseconds()) / operations,
		clientCPU: float64((w.clientAfter.cpu - w.clientBefore.cpu).Microseconds()) / operations,
		written:   float64(w.after.written-w.before.written) / operations,
		disk:      float64(w.diskAfter-w.diskBefore) / operations,
		log:       float64(w.logAfter-w.logBefore) / operations,
		resident:  w.after.resident,
	}
	if w.counter != nil {
		per := float64(w.syncs) / operations
		s.syncs = &per
	}
	return s
}

// payload returns bytes that nothing can compress, the same in every run.
func payload(size int) []byte {
	source := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(source.Uint32())
	}
	return b
}
