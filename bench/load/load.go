package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ErrDone is what an operation returns when its worker has nothing left to do.
// The operation is not counted and the worker ends; the others go on.
var ErrDone = errors.New("load: the worker has nothing left to do")

// Latencies are recorded in nanoseconds between these, to a hundredth: more digits would make
// the histograms of many workers evict the measured system from the processor's caches.
const (
	digits     = 2
	minLatency = 100
	maxLatency = int64(10 * time.Minute)
)

// Options say how to load. Workers and Duration are required.
type Options struct {
	Workers  int
	Warmup   time.Duration // not measured
	Duration time.Duration // measured
	// Rate is how many operations begin in a second, over all workers. For
	// Open alone.
	Rate float64
	// Begin and End are called when the measurement begins and ends, for
	// counters of one's own. They may be nil.
	Begin, End func() error
}

// Result is what was measured.
type Result struct {
	Operations int64
	// Unserved counts the operations of an open loop that were due and had not
	// even begun when the time was over. Latency has each with the time that it
	// had waited until then, which is less than it would have taken.
	Unserved int64
	Elapsed  time.Duration
	Latency  *hdrhistogram.Histogram // nanoseconds
}

// PerSecond returns the operations answered in a second.
func (r *Result) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Operations) / r.Elapsed.Seconds()
}

// Milliseconds returns a quantile, from 0 to 100, of the latencies.
func (r *Result) Milliseconds(quantile float64) float64 {
	return float64(r.Latency.ValueAtQuantile(quantile)) / 1e6
}

// Operation does one operation of a worker and returns when it is answered.
type Operation func(ctx context.Context, worker int) error

// Closed runs one closed loop for each worker. It ends after Warmup and
// Duration, or when every worker is done. The first error ends everything.
func Closed(ctx context.Context, o Options, operation Operation) (Result, error) {
	r := newRun(ctx, o)
	defer r.cancel(nil)
	var measuring atomic.Bool
	stop := make(chan struct{})
	loop := func(ctx context.Context, worker int) error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			began := time.Now()
			if err := operation(ctx, worker); err != nil {
				return err
			}
			if measuring.Load() {
				r.record(worker, time.Since(began))
			}
		}
	}
	// Without a warm-up everything counts, including operations before Begin returns.
	if o.Warmup > 0 {
		r.start(loop)
		r.wait(o.Warmup)
	}
	errBegin := call(o.Begin)
	began := time.Now()
	measuring.Store(true)
	if o.Warmup <= 0 {
		r.start(loop)
	}
	r.wait(o.Duration)
	measuring.Store(false)
	elapsed := time.Since(began)
	errEnd := call(o.End)
	close(stop)
	<-r.ended
	return r.result(elapsed, errBegin, errEnd)
}

// Open begins Rate operations a second. A worker has at most one outstanding operation:
// operations that are due while all workers are busy wait, and the wait counts.
func Open(ctx context.Context, o Options, operation Operation) (Result, error) {
	if o.Rate <= 0 {
		return Result{}, fmt.Errorf("load: the rate is %v, and must be more than 0", o.Rate)
	}
	r := newRun(ctx, o)
	defer r.cancel(nil)
	started := time.Now()
	measureFrom := started.Add(o.Warmup)
	end := measureFrom.Add(o.Duration)
	r.start(func(ctx context.Context, worker int) error {
		clock := time.NewTimer(0)
		defer clock.Stop()
		for k := worker; ; k += o.Workers {
			due := started.Add(time.Duration(float64(k) / o.Rate * float64(time.Second)))
			if !due.Before(end) {
				return nil
			}
			measured := !due.Before(measureFrom)
			if now := time.Now(); now.After(end) {
				if measured {
					r.unserved.Add(1)
					r.record(worker, now.Sub(due))
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
				continue
			}
			if err := until(ctx, clock, due); err != nil {
				return err
			}
			if err := operation(ctx, worker); err != nil {
				return err
			}
			if measured {
				r.record(worker, time.Since(due))
			}
		}
	})
	r.wait(o.Warmup)
	errBegin := call(o.Begin)
	<-r.ended
	elapsed := time.Since(measureFrom)
	errEnd := call(o.End)
	return r.result(elapsed, errBegin, errEnd)
}

// run is one load under way.
type run struct {
	ctx        context.Context //nolint:containedctx // It is the life of the load, made and ended by Closed and Open.
	cancel     context.CancelCauseFunc
	histograms []*hdrhistogram.Histogram // one for each worker
	unserved   atomic.Int64
	ended      chan struct{} // closed when every worker has ended
}

func newRun(ctx context.Context, o Options) *run {
	r := &run{histograms: make([]*hdrhistogram.Histogram, o.Workers), ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	for i := range r.histograms {
		r.histograms[i] = hdrhistogram.New(minLatency, maxLatency, digits)
	}
	return r
}

// start begins the workers.
func (r *run) start(loop func(ctx context.Context, worker int) error) {
	var running sync.WaitGroup
	for i := range r.histograms {
		// Each ends with its loop, which the caller's stop or r.cancel ends;
		// joined through r.ended.
		running.Go(func() {
			if err := loop(r.ctx, i); err != nil && !errors.Is(err, ErrDone) {
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

func (r *run) record(worker int, latency time.Duration) {
	_ = r.histograms[worker].RecordValue(min(max(int64(latency), minLatency), maxLatency)) // never out of range
}

// wait returns after a time, or when there is nothing left to wait for.
func (r *run) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
	case <-r.ended:
	}
}

func (r *run) result(elapsed time.Duration, errs ...error) (Result, error) {
	if err := errors.Join(append(errs, context.Cause(r.ctx))...); err != nil {
		return Result{}, err
	}
	result := Result{Elapsed: elapsed, Unserved: r.unserved.Load(),
		Latency: hdrhistogram.New(minLatency, maxLatency, digits)}
	for _, h := range r.histograms {
		result.Latency.Merge(h)
	}
	result.Operations = result.Latency.TotalCount() - result.Unserved
	return result, nil
}

func until(ctx context.Context, clock *time.Timer, due time.Time) error {
	wait := time.Until(due)
	if wait <= 0 {
		return ctx.Err()
	}
	clock.Reset(wait)
	select {
	case <-clock.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func call(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}
