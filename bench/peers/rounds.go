package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/bench/load"
)

// cell is a row in a system.
type cell struct {
	row    row
	system string
}

// findings are all measurements of a run.
type findings struct {
	connections map[cell]int      // that suited best
	syncs       map[cell]*float64 // per operation
	samples     map[cell][]sample // one for each round
	open        []openPoint
	preloaded   []preloadPoint
}

// measureAll measures in rounds. In each the systems start with nothing, and
// take turns for every row, forwards in one round and backwards in the next.
func measureAll(ctx context.Context, o *options) (*findings, error) {
	f := &findings{connections: map[cell]int{}, syncs: map[cell]*float64{}, samples: map[cell][]sample{}}
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

// onStage starts the systems, has something done and ends them.
func onStage(ctx context.Context, o *options, do func(s *stage) error) error {
	s, err := openStage(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(do(s), s.close())
}

// prepare finds how many connections suit each system best, and counts syncs,
// which slows the systems down: nothing here counts as speed.
func (f *findings) prepare(ctx context.Context, s *stage) error {
	for _, r := range s.o.rows {
		for _, in := range s.instances {
			if !r.fits(in.kind) {
				continue
			}
			best, err := in.suit(ctx, s.o, r)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", r.name(), in.kind.name, err)
			}
			counted, err := in.measure(ctx, s.o, r, best, true)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", r.name(), in.kind.name, err)
			}
			at := cell{r, in.kind.name}
			f.connections[at], f.syncs[at] = best, counted.syncs
			s.o.notice("prepare  %-22s %-20s %3d connections, %s syncs per write", r.name(),
				in.kind.name, best, optional(counted.syncs))
		}
	}
	return nil
}

// suit returns the number of connections with which a row is fastest.
func (in *instance) suit(ctx context.Context, o *options, r row) (int, error) {
	if r.workload == "retry-cold" {
		r.workload = "retry-hot" // it can be measured more than once
	}
	candidates := in.kind.connections(r.writers, r.pipelined)
	if len(candidates) == 1 {
		return candidates[0], nil
	}
	short := *o
	short.duration, short.warmup = o.duration/4, o.warmup/2
	best, fastest := 0, 0.0
	for _, n := range candidates {
		s, err := in.measure(ctx, &short, r, n, false)
		if err != nil && !errors.Is(err, errEmpty) {
			return 0, err
		}
		if best == 0 || s.perSecond > fastest {
			best, fastest = n, s.perSecond
		}
	}
	return best, nil
}

// round measures every row once in every system.
func (f *findings) round(ctx context.Context, s *stage, round int) error {
	order := slices.Clone(s.instances)
	if round%2 == 0 {
		slices.Reverse(order)
	}
	for _, r := range s.o.rows {
		for _, in := range order {
			if !r.fits(in.kind) {
				continue
			}
			at := cell{r, in.kind.name}
			measured, err := in.measure(ctx, s.o, r, f.connections[at], false)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", r.name(), in.kind.name, err)
			}
			f.samples[at] = append(f.samples[at], measured)
			s.o.notice("round %d  %-22s %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms", round, r.name(), in.kind.name,
				measured.perSecond, measured.p50, measured.p99)
		}
	}
	return nil
}

// openPoint is what callers saw at a fixed rate.
type openPoint struct {
	System   string  `json:"system"`
	Rate     float64 `json:"rate_per_s"`
	Writers  int     `json:"writers"`
	Served   float64 `json:"served_per_s"`
	Unserved int64   `json:"unserved"` // due, and not begun when the time was over
	P50      float64 `json:"p50_ms"`   // since the moment at which the write was due
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
}

// openWriters is how many callers share a fixed rate.
const openWriters = 256

// openLoops measures latency at fixed rates.
func (f *findings) openLoops(ctx context.Context, s *stage) error {
	r := row{"fresh", openWriters, false, smallPayload}
	for _, in := range s.instances {
		connections, err := f.suited(ctx, s.o, in, r)
		if err != nil {
			return err
		}
		for _, rate := range s.o.rates {
			p, err := in.openLoop(ctx, s.o, r, connections, float64(rate))
			if err != nil {
				return fmt.Errorf("%d a second: %s: %w", rate, in.kind.name, err)
			}
			f.open = append(f.open, p)
			s.o.notice("open     %8d/s wanted       %-20s %9.0f/s  p50 %8.3f ms  p99 %8.3f ms",
				rate, in.kind.name, p.Served, p.P50, p.P99)
		}
	}
	return nil
}

// suited returns the number of connections that was found for a row, or finds it.
func (f *findings) suited(ctx context.Context, o *options, in *instance, r row) (int, error) {
	at := cell{r, in.kind.name}
	if known, ok := f.connections[at]; ok {
		return known, nil
	}
	best, err := in.suit(ctx, o, r)
	f.connections[at] = best
	return best, err
}

func (in *instance) openLoop(ctx context.Context, o *options, r row, connections int,
	rate float64) (p openPoint, err error) {
	to, err := in.system.connect(ctx, place(r, connections))
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	do, err := operation(ctx, r, in.callers[:r.writers], to)
	if err != nil {
		return p, err
	}
	result, err := load.Open(ctx, load.Options{Workers: r.writers, Warmup: o.warmup, Duration: o.duration, Rate: rate},
		do)
	if err != nil {
		return p, err
	}
	return openPoint{
		System: in.kind.name, Rate: rate, Writers: r.writers, Served: result.PerSecond(), Unserved: result.Unserved,
		P50: result.Milliseconds(50), P99: result.Milliseconds(99), P999: result.Milliseconds(99.9),
	}, nil
}

// preloadPoint is the speed with so many idle streams there.
type preloadPoint struct {
	System     string  `json:"system"`
	Streams    int     `json:"streams"`
	Writers    int     `json:"writers"`
	Throughput float64 `json:"throughput_per_s"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Resident   int64   `json:"resident_bytes"`
	Restart    float64 `json:"restart_s"` // from stopping to the first answer
}
