package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/seqledger/seqledger/bench/chart"
	"github.com/seqledger/seqledger/bench/load"
)

// dayRate is what a day is extrapolated for.
const dayRate = 1000

// growLoad writes for minutes as fast as it can over 10,000 streams, and
// extrapolates a day.
func growLoad(ctx context.Context, o *growthOptions, report *growthReport, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-growth-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const streams = 10_000
	c, err := openCrowd(ctx, dir, streams)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.ledger.Close()) }()
	var sum minutePoint
	began := time.Now()
	for range o.minutes {
		measured, err := something(ctx, load.Options{Workers: growthWriters, Duration: o.duration},
			func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
		if err != nil {
			return err
		}
		stats := c.ledger.Stats()
		sum.Seconds, sum.Writes, sum.LogBytes = time.Since(began).Seconds(), stats.Commands, stats.LogBytes
		sum.PerSecond, sum.P99 = measured.PerSecond(), measured.Milliseconds(99)
		if sum.DiskBytes, sum.MemoryBytes, err = footprint(dir); err != nil {
			return err
		}
		report.Load = append(report.Load, sum)
		if _, err := fmt.Fprintf(stdout, "%6.0f s: %11d writes, %7.0f/s, p99 %.2f ms, disk %d MiB, memory %d MiB\n",
			sum.Seconds, sum.Writes, sum.PerSecond, sum.P99, sum.DiskBytes>>20, sum.MemoryBytes>>20); err != nil {
			return err
		}
	}
	report.Day = extrapolate(report.Load)
	_, err = fmt.Fprintf(stdout, "a day at %d writes a second: %.1f GiB on disk, %.1f GiB written to the log, %d MiB of memory at most\n",
		report.Day.Rate, report.Day.DiskBytes/(1<<30), report.Day.WrittenBytes/(1<<30), report.Day.MemoryBytes>>20)
	return err
}

// extrapolate takes the growth for each write from the last half of the load: in
// the first, the log fills up to the length at which it is truncated.
func extrapolate(points []minutePoint) day {
	first, last := points[len(points)/2-1], points[len(points)-1]
	writes := float64(last.Writes - first.Writes)
	d := day{Rate: dayRate}
	if writes <= 0 {
		return d
	}
	const seconds = 24 * 60 * 60
	times := seconds * dayRate / writes
	d.DiskBytes = float64(last.DiskBytes-first.DiskBytes) * times
	d.WrittenBytes = float64(last.LogBytes-first.LogBytes) * times
	// Not extrapolated: what waits for a checkpoint and the cache of answers are
	// bounded, and go up and down. What grows is the number of streams.
	for _, p := range points[len(points)/2-1:] {
		d.MemoryBytes = max(d.MemoryBytes, p.MemoryBytes)
	}
	return d
}

// pictures returns the charts by the names of their files.
func (r *growthReport) pictures() map[string]*chart.Chart {
	costs := &chart.Chart{Title: "Cost against streams", X: "streams", Y: "µs", LogX: true, LogY: true, Lines: []chart.Line{
		{Name: "write"}, {Name: "replay"}, {Name: "eviction"},
	}}
	life := &chart.Chart{Title: "Start and end against streams", X: "streams", Y: "seconds", LogX: true, LogY: true, Lines: []chart.Line{
		{Name: "open"}, {Name: "close, checkpoint"},
	}}
	put := func(c *chart.Chart, line, streams int, y float64) {
		c.Lines[line].Points = append(c.Lines[line].Points, chart.Point{X: float64(streams), Y: y})
	}
	for _, p := range r.Streams {
		put(costs, 0, p.Streams, p.WriteMicros)
		put(costs, 1, p.Streams, p.ReplayMicros)
		put(costs, 2, p.Streams, p.EvictMicros)
		put(life, 0, p.Streams, p.OpenSeconds)
		put(life, 1, p.Streams, p.CloseSeconds)
	}
	speed := &chart.Chart{Title: "Speed against time, 256 writers over 10,000 streams", X: "seconds", Y: "writes per second", Lines: []chart.Line{{Name: "write"}}}
	size := &chart.Chart{Title: "Size against writes", X: "writes", Y: "MiB", Lines: []chart.Line{{Name: "disk"}, {Name: "memory"}}}
	for _, p := range r.Load {
		speed.Lines[0].Points = append(speed.Lines[0].Points, chart.Point{X: p.Seconds, Y: p.PerSecond})
		size.Lines[0].Points = append(size.Lines[0].Points, chart.Point{X: float64(p.Writes), Y: float64(p.DiskBytes) / (1 << 20)})
		size.Lines[1].Points = append(size.Lines[1].Points, chart.Point{X: float64(p.Writes), Y: float64(p.MemoryBytes) / (1 << 20)})
	}
	return map[string]*chart.Chart{
		"growth-costs.svg": costs, "growth-life.svg": life, "growth-speed.svg": speed, "growth-size.svg": size,
	}
}
