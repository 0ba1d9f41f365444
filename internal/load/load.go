// Package load puts a load on something and measures how long the answers take: closed, where the next operation of a
// worker begins when its last one is answered, or open, at a fixed rate.
package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ErrDone is what an operation returns when its worker has nothing left to do.
// The operation is not counted and the worker ends; the others go on.
var ErrDone = errors.New("the worker has nothing left to do")

// Latencies are recorded in nanoseconds between these, to a hundredth, because more digits would make
// the histograms of many workers evict the measured system from the processor's caches.
const (
	digits     = 2
	minLatency = 100
	maxLatency = int64(10 * time.Minute)
)

// Latencies is a histogram of nanoseconds. It is not safe for concurrent use.
type Latencies struct{ *hdrhistogram.Histogram }

// NewLatencies returns an empty histogram.
func NewLatencies() Latencies { return Latencies{hdrhistogram.New(minLatency, maxLatency, digits)} }

// Record adds a latency.
func (l Latencies) Record(d time.Duration) {
	_ = l.RecordValue(min(max(int64(d), minLatency), maxLatency)) // never out of range
}

// Milliseconds returns a quantile, from 0 to 100.
func (l Latencies) Milliseconds(quantile float64) float64 {
	return float64(l.ValueAtQuantile(quantile)) / 1e6
}

// Load says how to load. Workers and Duration are required.
type Load struct {
	Workers  int
	Warmup   time.Duration // not measured
	Duration time.Duration // measured
	// Rate is how many operations begin in a second, over all workers, whether or not the
	// earlier ones are answered; 0 is a closed loop. A latency then counts from the time at
	// which the operation was due: a stall counts for every operation that had to wait. A
	// worker has at most one outstanding operation.
	Rate float64
	// Meter is read when the measurement begins and when it ends. It may be nil.
	Meter Meter
	// Group is the number of operations in each call; 0 is 1. It is for operations so short
	// that a reading of the clock for each would distort the result, and must not be used
	// otherwise, because the latencies are those of groups.
	Group int64
}

// Meter reads counters of what has been used up so far.
type Meter func() (map[string]float64, error)

// Result is what was measured.
type Result struct {
	Operations int64
	// Unserved counts the operations of an open loop that were due and had not begun at the end. Latency includes
	// their waiting times, because leaving them out would hide the worst.
	Unserved int64
	Elapsed  time.Duration
	Latency  Latencies
	Used     map[string]float64 // what the meter has counted meanwhile
}

// PerSecond returns the operations answered in a second.
func (r *Result) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Operations) / r.Elapsed.Seconds()
}

// Values returns the rate, the quantiles, and what was used for each operation.
func (r *Result) Values() map[string]float64 {
	v := map[string]float64{"throughput_per_s": r.PerSecond(), "p50_ms": r.Latency.Milliseconds(50),
		"p99_ms": r.Latency.Milliseconds(99), "p999_ms": r.Latency.Milliseconds(99.9)}
	for name, used := range r.Used {
		v[name] = used / float64(r.Operations)
	}
	return v
}

// Operation does one operation of a worker and returns when it is answered.
type Operation func(ctx context.Context, worker int) error

// run is one load under way.
type run struct {
	Load

	ctx       context.Context //nolint:containedctx // It is the life of the load, made and ended by Run.
	cancel    context.CancelCauseFunc
	operation Operation
	latencies []Latencies // one for each worker
	measuring atomic.Bool // a closed loop is measured
	stopped   atomic.Bool // a closed loop is over
	unserved  atomic.Int64
	started   time.Time
	ended     chan struct{} // closed when every worker has ended
}

// Run loads for Warmup and Duration, or until every worker is done. The first error ends
// everything.
func Run(ctx context.Context, l Load, operation Operation) (Result, error) {
	r := &run{Load: l, operation: operation, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	for range l.Workers {
		r.latencies = append(r.latencies, NewLatencies())
	}
	loop := r.closed
	if l.Rate > 0 {
		loop = r.open
	}
	// Without a warm-up everything counts, so that not even the operations before the
	// meter is read are lost.
	r.started = time.Now()
	if l.Warmup > 0 {
		r.start(loop)
		r.wait(l.Warmup)
	}
	before, errBefore := l.Meter.read()
	began := time.Now()
	r.measuring.Store(true)
	if l.Warmup <= 0 {
		r.started = began
		r.start(loop)
	}
	if l.Rate > 0 {
		began = r.started.Add(l.Warmup)
		<-r.ended
	} else {
		r.wait(l.Duration)
	}
	r.measuring.Store(false)
	elapsed := time.Since(began)
	after, errAfter := l.Meter.read()
	r.stopped.Store(true)
	<-r.ended
	if err := errors.Join(errBefore, errAfter, context.Cause(r.ctx)); err != nil {
		return Result{}, err
	}
	result := Result{Elapsed: elapsed, Unserved: r.unserved.Load(), Latency: NewLatencies(), Used: map[string]float64{}}
	for _, h := range r.latencies {
		result.Latency.Merge(h.Histogram)
	}
	result.Operations = (result.Latency.TotalCount() - result.Unserved) * max(1, l.Group)
	for name := range maps.Keys(after) {
		result.Used[name] = after[name] - before[name]
	}
	return result, nil
}

// RunSome repeats Run with doubled durations until at least one operation is measured, because a sync on a busy disk
// may take longer than a short measurement.
func RunSome(ctx context.Context, l Load, operation Operation) (Result, error) {
	const longest = 20 * time.Second // what one operation may take
	for duration := l.Duration; ; l.Duration *= 2 {
		r, err := Run(ctx, l, operation)
		if err == nil && r.Operations == 0 && l.Duration > longest+duration {
			err = fmt.Errorf("nothing was done in %s", l.Duration)
		}
		if err != nil || r.Operations > 0 {
			return r, err
		}
	}
}

func (m Meter) read() (map[string]float64, error) {
	if m == nil {
		return nil, nil
	}
	return m()
}

// start begins the workers.
func (r *run) start(loop func(worker int) error) {
	var running sync.WaitGroup
	for i := range r.Workers {
		// Each ends with its loop, which Run's end or r.cancel ends; joined through r.ended.
		running.Go(func() {
			if err := loop(i); err != nil && !errors.Is(err, ErrDone) {
				r.cancel(fmt.Errorf("worker %d: %w", i, err))
			}
		})
	}
	// Ends with the workers, which r.ended reports.
	go func() {
		running.Wait()
		close(r.ended)
	}()
}

// closed begins the next operation when the last one is answered.
func (r *run) closed(worker int) error {
	for !r.stopped.Load() {
		began := time.Now()
		if err := r.operation(r.ctx, worker); err != nil {
			return err
		}
		if r.measuring.Load() {
			r.latencies[worker].Record(time.Since(began))
		}
	}
	return nil
}

// open begins operations when they are due, or as soon after that as the worker is free.
func (r *run) open(worker int) error {
	measureFrom := r.started.Add(r.Warmup)
	end := measureFrom.Add(r.Duration)
	for k := worker; ; k += r.Workers {
		due := r.started.Add(time.Duration(float64(k) / r.Rate * float64(time.Second)))
		if !due.Before(end) {
			return nil
		}
		now := time.Now()
		if now.After(end) {
			if !due.Before(measureFrom) {
				r.unserved.Add(1)
				r.latencies[worker].Record(now.Sub(due))
			}
			if r.ctx.Err() != nil {
				return r.ctx.Err()
			}
			continue
		}
		Pause(r.ctx, due.Sub(now))
		if r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		if err := r.operation(r.ctx, worker); err != nil {
			return err
		}
		if !due.Before(measureFrom) {
			r.latencies[worker].Record(time.Since(due))
		}
	}
}

// wait returns after a time, or when there is nothing left to wait for.
func (r *run) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
	case <-r.ended:
	}
}

// Pause waits for a time, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
