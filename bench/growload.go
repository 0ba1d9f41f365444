package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/seqledger/seqledger/bench/chart"
	"github.com/seqledger/seqledger/bench/load"
)

// steadyStreams is over how many streams the steady load writes.
const steadyStreams = 10_000

// steady is a load under way.
type steady struct {
	options *growthOptions
	report  *growthReport
	crowd   *crowd
	stdout  io.Writer
	loaded  time.Duration // time of load so far
	writes  uint64
	written uint64 // bytes of the log up to the last opening
	opened  uint64 // what the ledger counted when it was opened: it replays
}

// growLoad writes at a steady rate, measures what things cost at the marks, and
// extrapolates a day.
func growLoad(ctx context.Context, o *growthOptions, report *growthReport, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-growth-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := openCrowd(ctx, dir, steadyStreams)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	report.Load, report.Marks = nil, nil
	s := &steady{options: o, report: report, crowd: c, stdout: stdout, writes: steadyStreams}
	for _, mark := range o.marks {
		for s.loaded < mark {
			if err := s.minute(ctx, min(time.Minute, mark-s.loaded)); err != nil {
				return err
			}
		}
		if err := s.mark(ctx); err != nil {
			return fmt.Errorf("after %v of load: %w", mark, err)
		}
	}
	report.Day = extrapolate(o.rate, report.Marks, report.Load)
	d := &report.Day
	_, err = fmt.Fprintf(stdout,
		"a day at %d writes a second: a state file of %.1f GiB, a log of %d MiB at most, %.1f GiB written to it, %d MiB "+
			"of memory at most\n",
		d.Rate, d.StateBytes/(1<<30), d.LogBytes>>20, d.WrittenBytes/(1<<30), d.MemoryBytes>>20)
	return errors.Join(err, publishGrowth(o, report))
}

// minute loads for a minute, or less.
func (s *steady) minute(ctx context.Context, length time.Duration) error {
	c := s.crowd
	measured, err := load.Open(ctx, load.Options{Workers: growthWriters, Duration: length,
		Rate: float64(s.options.rate)},
		func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
	if err != nil {
		return err
	}
	s.loaded += length
	s.writes += uint64(measured.Operations)
	p := minutePoint{
		Minutes: s.loaded.Minutes(), Writes: s.writes, Written: s.logWritten(), PerSecond: measured.PerSecond(),
		P50: measured.Milliseconds(50), P99: measured.Milliseconds(99), Unserved: measured.Unserved,
		MemoryBytes: c.memory(),
	}
	if p.StateBytes, p.LogBytes, err = c.sizes(); err != nil {
		return err
	}
	s.report.Load = append(s.report.Load, p)
	_, err = fmt.Fprintf(s.stdout,
		"%6.2f min: %9d writes, %5.0f/s, p50 %.2f ms, p99 %.2f ms, %d not begun, state %d MiB, log %d MiB, memory %d MiB\n",
		p.Minutes, p.Writes, p.PerSecond, p.P50, p.P99, p.Unserved, p.StateBytes>>20, p.LogBytes>>20, p.MemoryBytes>>20)
	return err
}

// mark measures the costs while the load pauses: on a copy, because measuring
// writes more than minutes of load do, and evicts.
func (s *steady) mark(ctx context.Context) error {
	p := markPoint{Minutes: s.loaded.Minutes(), Writes: s.writes, Written: s.logWritten()}
	s.written = p.Written
	err := s.crowd.close()
	if err != nil {
		return err
	}
	if p.StateBytes, p.LogBytes, err = s.crowd.sizes(); err != nil {
		return err
	}
	err = s.crowd.copied(func(copied *crowd) (err error) {
		if err := copied.open(ctx, nil); err != nil {
			return err
		}
		p.costs, err = copied.measure(ctx, s.options)
		return err
	})
	if err != nil {
		return err
	}
	s.report.Marks = append(s.report.Marks, p)
	_, err = fmt.Fprintf(s.stdout, "%6.2f min: %s; state %d MiB\n", p.Minutes, p.costs, p.StateBytes>>20)
	if err := errors.Join(err, publishGrowth(s.options, s.report), s.crowd.open(ctx, nil)); err != nil {
		return err
	}
	s.opened = s.crowd.ledger.Stats().LogBytes
	return nil
}

// logWritten returns the bytes of all log entries so far.
func (s *steady) logWritten() uint64 {
	return s.written + s.crowd.ledger.Stats().LogBytes - s.opened
}

// sizes returns the bytes of the disk that the state file and the log take.
func (c *crowd) sizes() (state, log int64, err error) {
	state, errState := heldBytes(filepath.Join(c.dir, "state.db"))
	log, errLog := heldBytes(filepath.Join(c.dir, "log"))
	return state, log, errors.Join(errState, errLog)
}

// extrapolate takes the growth for each write from the time between the last two
// marks. At both the state file was complete; between them nothing but the load
// has written.
func extrapolate(rate int, marks []markPoint, minutes []minutePoint) day {
	first, last := marks[len(marks)-2], marks[len(marks)-1]
	d := day{Rate: rate}
	writes := float64(last.Writes - first.Writes)
	if writes <= 0 {
		return d
	}
	const seconds = 24 * 60 * 60
	times := seconds * float64(rate) / writes
	d.StateBytes = float64(last.StateBytes-first.StateBytes) * times
	d.WrittenBytes = float64(last.Written-first.Written) * times
	// Not extrapolated: the log, what waits for a checkpoint and the cache of
	// answers are bounded, and go up and down.
	for _, p := range minutes {
		if p.Minutes > first.Minutes {
			d.MemoryBytes, d.LogBytes = max(d.MemoryBytes, p.MemoryBytes), max(d.LogBytes, p.LogBytes)
		}
	}
	return d
}

// pictures returns the charts by the names of their files.
func (r *growthReport) pictures() map[string]*chart.Chart {
	micros := &chart.Chart{Title: "Cost against streams", X: "streams", Y: "µs", LogX: true, LogY: true}
	life := &chart.Chart{Title: "Opening and checkpoint against streams",
		X: "streams", Y: "seconds", LogX: true, LogY: true}
	for _, p := range r.Streams {
		p.draw(micros, life, float64(p.Streams))
	}
	minutes := &chart.Chart{Title: "Cost against minutes of load", X: "minutes", Y: "µs", LogX: true, LogY: true}
	// Both kinds share this picture, in one unit.
	lifeOfMinutes := &chart.Chart{}
	for _, p := range r.Marks {
		p.draw(minutes, lifeOfMinutes, p.Minutes)
	}
	for _, line := range lifeOfMinutes.Lines {
		for _, p := range line.Points {
			add(minutes, line.Name, p.X, 1e6*p.Y)
		}
	}
	const mebibyte = 1 << 20
	size := &chart.Chart{Title: "Size against minutes of load", X: "minutes", Y: "MiB"}
	latency := &chart.Chart{Title: "Latency against minutes of load", X: "minutes", Y: "ms", LogY: true}
	for _, p := range r.Load {
		add(size, "state file", p.Minutes, float64(p.StateBytes)/mebibyte)
		add(size, "log", p.Minutes, float64(p.LogBytes)/mebibyte)
		add(size, "memory", p.Minutes, float64(p.MemoryBytes)/mebibyte)
		add(latency, "p50", p.Minutes, p.P50)
		add(latency, "p99", p.Minutes, p.P99)
	}
	return map[string]*chart.Chart{
		"growth-costs.svg": micros, "growth-life.svg": life, "growth-minutes.svg": minutes,
		"growth-size.svg": size, "growth-latency.svg": latency,
	}
}

// draw adds the costs at x to two pictures, one in microseconds and one in
// seconds.
func (c *costs) draw(micros, seconds *chart.Chart, x float64) {
	add(micros, "write", x, c.WriteMicros)
	add(micros, "retry", x, c.ReplayMicros)
	add(micros, "eviction", x, c.EvictMicros)
	add(seconds, "open", x, c.OpenSeconds)
	add(seconds, "checkpoint", x, c.CloseSeconds)
}

// add puts a point at the end of the line of that name.
func add(c *chart.Chart, name string, x, y float64) {
	for i := range c.Lines {
		if c.Lines[i].Name == name {
			c.Lines[i].Points = append(c.Lines[i].Points, chart.Point{X: x, Y: y})
			return
		}
	}
	c.Lines = append(c.Lines, chart.Line{Name: name, Points: []chart.Point{{X: x, Y: y}}})
}
