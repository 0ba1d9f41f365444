package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
)

// growthOptions are the flags of bench growth.
type growthOptions struct {
	streams  []int
	marks    []time.Duration // of load, ascending
	rate     int             // of the load, in writes a second
	duration time.Duration   // of one measurement of writes, and of one of retries
	dir      string
	json     string
}

// growthReport is what -json writes. The names of its values have their units.
type growthReport struct {
	Machine string           `json:"machine"`
	Date    string           `json:"date"`
	Streams []harness.Values `json:"streams"` // costs, by number of streams
	Load    []harness.Values `json:"load"`    // one for each minute of steady load
	Marks   []harness.Values `json:"marks"`   // costs after so much load
}

// costs formats the values of measure.
const costs = "write %.1f µs (p99 %.1f ms, processor %.1f µs), retry %.1f µs (processor %.1f µs, %.0f %% cached), " +
	"open %.3f s, checkpoint %.3f s"

func sayCosts(v harness.Values) string {
	return fmt.Sprintf(costs, v["write_us"], v["write_p99_ms"], v["write_cpu_us"], v["replay_us"], v["replay_cpu_us"],
		100*v["replay_cached"], v["open_s"], v["checkpoint_s"])
}

// growth measures how costs grow with time and with the number of streams.
func growth(ctx context.Context, arguments []string, stdout io.Writer) error {
	o, err := growthFlags(arguments)
	if err != nil {
		return err
	}
	report := &growthReport{Machine: harness.Machine(), Date: time.Now().UTC().Format(time.RFC3339)}
	if len(o.marks) > 0 {
		if err := growLoad(ctx, o, report, stdout); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	for _, n := range o.streams {
		p, err := growStreams(ctx, o, n)
		if err != nil {
			return fmt.Errorf("%d streams: %w", n, errors.Join(err, context.Cause(ctx)))
		}
		report.Streams = append(report.Streams, p)
		_, err = fmt.Fprintf(stdout, "%9d streams: %s; disk %.0f B a stream, memory %.0f MiB, %.0f MiB just opened\n",
			n, sayCosts(p), p["bytes_per_stream"], p["memory_bytes"]/(1<<20), p["memory_open_bytes"]/(1<<20))
		if err != nil {
			return err
		}
	}
	if o.json == "" {
		return nil
	}
	return harness.WriteJSON(o.json, report)
}

func growthFlags(arguments []string) (*growthOptions, error) {
	var o growthOptions
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	streams := flags.String("streams", "10000,100000,1000000", "numbers of streams, separated by commas")
	marks := flags.String("marks", "1m,10m,60m", "measure the costs after this much load, separated by commas")
	flags.IntVar(&o.rate, "rate", 1000, "writes a second of the load")
	flags.DurationVar(&o.duration, "duration", 3*time.Second, "length of each round of writes and of retries")
	flags.StringVar(&o.dir, "dir", "", "write below this directory (default: the system's temporary directory)")
	flags.StringVar(&o.json, "json", "", "write the report to this file")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	var err error
	if o.streams, err = harness.Numbers("-streams", *streams, growthWriters); err != nil {
		return nil, err
	}
	var last time.Duration
	for field := range strings.SplitSeq(*marks, ",") {
		mark, err := time.ParseDuration(field)
		if field == "" {
			continue
		}
		if err != nil || mark <= last {
			return nil, fmt.Errorf("-marks: %q is not a duration, such as 10m, longer than the one before", field)
		}
		o.marks, last = append(o.marks, mark), mark
	}
	if len(o.streams)+len(o.marks) == 0 {
		return nil, errors.New("-streams and -marks are both empty: nothing to measure")
	}
	if o.rate <= 0 || o.duration <= 0 || flags.NArg() > 0 {
		return nil, errors.New("growth takes only flags, and -rate and -duration must be more than 0; see -help")
	}
	return &o, nil
}

const (
	growthWriters = 256    // write at once
	steadyStreams = 10_000 // of the steady load
	costRounds    = 3      // the median of which is a cost
)

// growLoad writes at a steady rate and measures the costs at the marks.
func growLoad(ctx context.Context, o *growthOptions, report *growthReport, stdout io.Writer) error {
	return withCrowd(ctx, o, steadyStreams, func(ctx context.Context, c *crowd) error {
		loaded, writes := time.Duration(0), float64(steadyStreams)
		for _, mark := range o.marks {
			for loaded < mark {
				length := min(time.Minute, mark-loaded)
				measured, err := load.Run(ctx, load.Load{
					Workers: growthWriters, Duration: length, Rate: float64(o.rate),
				}, func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
				if err != nil {
					return err
				}
				loaded += length
				writes += float64(measured.Operations)
				p := harness.Values{
					"minutes": loaded.Minutes(), "writes": writes, "writes_per_s": measured.PerSecond(),
					"unserved": float64(measured.Unserved), "p50_ms": measured.Latency.Milliseconds(50),
					"p99_ms": measured.Latency.Milliseconds(99), "memory_bytes": c.memory(),
				}
				if err := c.sizes(p); err != nil {
					return err
				}
				report.Load = append(report.Load, p)
				_, err = fmt.Fprintf(stdout, "%6.2f min: %9.0f writes, %5.0f/s, p50 %.2f ms, p99 %.2f ms, "+
					"%.0f not begun, state %.0f MiB, blocks %.0f MiB, log %.0f MiB, memory %.0f MiB\n",
					p["minutes"], p["writes"],
					p["writes_per_s"], p["p50_ms"], p["p99_ms"], p["unserved"], p["state_bytes"]/(1<<20),
					p["block_bytes"]/(1<<20), p["log_bytes"]/(1<<20), p["memory_bytes"]/(1<<20))
				if err != nil {
					return err
				}
			}
			p := harness.Values{"minutes": loaded.Minutes(), "writes": writes}
			if err := c.mark(ctx, o, p); err != nil {
				return fmt.Errorf("after %v of load: %w", mark, err)
			}
			report.Marks = append(report.Marks, p)
			if _, err := fmt.Fprintf(stdout, "%6.2f min: %s; state %.0f MiB, %.0f B of blocks a write\n", p["minutes"],
				sayCosts(p), p["state_bytes"]/(1<<20), p["block_bytes"]/writes); err != nil {
				return err
			}
		}
		return nil
	})
}

// mark measures the costs on a copy while the load pauses, because measuring writes more than minutes of load.
func (c *crowd) mark(ctx context.Context, o *growthOptions, p harness.Values) error {
	if err := errors.Join(c.close(), c.sizes(p)); err != nil {
		return err
	}
	err := c.copied(func(copied *crowd) error {
		if err := copied.open(ctx); err != nil {
			return err
		}
		return copied.measure(ctx, o, p)
	})
	return errors.Join(err, c.open(ctx))
}

// growStreams measures a ledger with a number of streams.
func growStreams(ctx context.Context, o *growthOptions, streams int) (p harness.Values, err error) {
	err = withCrowd(ctx, o, streams, func(ctx context.Context, c *crowd) (err error) {
		p = harness.Values{"streams": float64(streams), "memory_bytes": c.memory()}
		if p["disk_bytes"], err = heldBytes(c.dir); err != nil {
			return err
		}
		p["bytes_per_stream"] = p["disk_bytes"] / float64(streams)
		if err := errors.Join(c.close(), c.open(ctx)); err != nil {
			return err
		}
		p["memory_open_bytes"] = c.memory()
		return c.measure(ctx, o, p)
	})
	return p, err
}

// measure adds the costs of an open crowd, in medians, and leaves it closed.
func (c *crowd) measure(ctx context.Context, o *growthOptions, p harness.Values) error {
	rounds := make([]harness.Values, costRounds)
	for i := range rounds {
		rounds[i] = harness.Values{}
		if err := errors.Join(c.speeds(ctx, o, rounds[i]), c.reopen(ctx, rounds[i])); err != nil {
			return err
		}
	}
	for name, value := range harness.Medians(rounds) {
		p[name] = value
	}
	return c.close()
}

// speeds measures writes and replays of 256 writers over all streams: the time for one by throughput, and the
// processor time of the whole process, checkpoints included.
func (c *crowd) speeds(ctx context.Context, o *growthOptions, p harness.Values) error {
	measure := func(name string, do func(ctx context.Context, stream int) error) error {
		measured, err := load.RunSome(ctx, load.Load{
			Workers: growthWriters, Warmup: o.duration / 10, Duration: o.duration, Meter: harness.Usage(c.dir),
		}, func(ctx context.Context, worker int) error { return do(ctx, c.pick(worker)) })
		if err != nil {
			return err
		}
		v := measured.Values()
		p[name+"_us"], p[name+"_p99_ms"] = 1e6/measured.PerSecond(), v["p99_ms"]
		p[name+"_cpu_us"] = v["client_cpu_us_per_write"]
		return nil
	}
	if err := measure("write", c.write); err != nil {
		return err
	}
	before := c.ledger.Stats()
	err := measure("replay", c.replay)
	after := c.ledger.Stats()
	hits, misses := after.CacheHits-before.CacheHits, after.CacheMisses-before.CacheMisses
	p["replay_cached"] = float64(hits) / float64(max(1, hits+misses))
	return err
}

// reopen measures a clean stop after 1,000 changed streams and the next start.
func (c *crowd) reopen(ctx context.Context, p harness.Values) error {
	// Reopen first, so that pending changes of the load do not count.
	if err := errors.Join(c.close(), c.open(ctx)); err != nil {
		return err
	}
	const changed = 1000
	for i := range min(changed, len(c.sequences)) {
		if err := c.write(ctx, c.pick(i%growthWriters)); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := c.close(); err != nil {
		return err
	}
	p["checkpoint_s"] = time.Since(began).Seconds()
	began = time.Now()
	err := c.open(ctx)
	p["open_s"] = time.Since(began).Seconds()
	return err
}
