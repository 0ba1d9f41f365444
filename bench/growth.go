package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger/machine"
)

// growthOptions are the flags of bench growth.
type growthOptions struct {
	streams  []int
	marks    []time.Duration // of load, ascending
	rate     int             // of the load, in writes a second
	duration time.Duration   // of one measurement of writes, and of one of retries
	retain   time.Duration   // of the ledger's configuration, retain_blocks; 0 for ever
	dir, out string
}

// growthReport is growth.json. The names of its values say their units.
type growthReport struct {
	Machine string           `json:"machine"`
	Date    string           `json:"date"`
	Streams []harness.Values `json:"streams"` // costs, by number of streams
	Load    []harness.Values `json:"load"`    // one for each minute of steady load
	Marks   []harness.Values `json:"marks"`   // costs after so much load
	// Day is a day at the rate of the load. It is extrapolated from the time between the last two marks; of bounded
	// sizes it has the largest values.
	Day harness.Values `json:"day"`
	// Retained and RetainedMarks are Load and Marks of a ledger that drops its history.
	Retained      []harness.Values `json:"retained,omitempty"`
	RetainedMarks []harness.Values `json:"retained_marks,omitempty"`
}

// costs is the text of the values of measure.
const costs = "write %.1f µs (p99 %.1f ms, processor %.1f µs), retry %.1f µs (processor %.1f µs, %.0f %% cached), " +
	"open %.3f s, checkpoint %.3f s, eviction %.1f µs"

func sayCosts(v harness.Values) string {
	return fmt.Sprintf(costs, v["write_us"], v["write_p99_ms"], v["write_cpu_us"], v["replay_us"], v["replay_cpu_us"],
		100*v["replay_cached"], v["open_s"], v["checkpoint_s"], v["evict_us"])
}

// growth measures how costs grow with time and with the number of streams.
func growth(ctx context.Context, arguments []string, stdout io.Writer) error {
	o, err := growthFlags(arguments)
	if err != nil {
		return err
	}
	report, err := priorGrowth(o.out)
	if err != nil {
		return err
	}
	report.Machine, report.Date = harness.Machine(), time.Now().UTC().Format(time.RFC3339)
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
		report.Streams = slices.DeleteFunc(report.Streams,
			func(old harness.Values) bool { return old["streams"] == p["streams"] })
		report.Streams = append(report.Streams, p)
		slices.SortFunc(report.Streams, func(a,
			b harness.Values) int {
			return cmp.Compare(a["streams"], b["streams"])
		})
		_, err = fmt.Fprintf(stdout, "%9d streams: %s; disk %.0f B a stream, memory %.0f MiB, %.0f MiB just opened\n",
			n, sayCosts(p), p["bytes_per_stream"], p["memory_bytes"]/(1<<20), p["memory_open_bytes"]/(1<<20))
		if err := errors.Join(err, report.publish(o.out)); err != nil {
			return err
		}
	}
	return nil
}

// growthFlags reads the flags.
func growthFlags(arguments []string) (*growthOptions, error) {
	var o growthOptions
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	streams := flags.String("streams", "10000,100000,1000000",
		"numbers of streams, separated by commas; empty leaves this part out")
	marks := flags.String("marks", "1m,10m,60m",
		"measure the costs after so much steady load, separated by commas; empty leaves this part out")
	flags.IntVar(&o.rate, "rate", 1000, "writes a second of the steady load")
	flags.DurationVar(&o.duration, "duration", 3*time.Second,
		"how long each of the three rounds of writes and of retries lasts")
	flags.DurationVar(&o.retain, "retain", 0,
		"drop blocks that are older than this during the steady load; what it shows is kept beside that of a load "+
			"without it (0: keep all)")
	flags.StringVar(&o.dir, "dir", "", "write below this directory (default: the system's temporary directory)")
	flags.StringVar(&o.out, "out", "",
		"write growth.json and pictures into this directory; what a run leaves out stays as it is there")
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
	if len(o.marks) == 1 {
		return nil, errors.New("-marks: the day is extrapolated from the last two marks: give at least two")
	}
	if len(o.streams)+len(o.marks) == 0 {
		return nil, errors.New("-streams and -marks are both empty, nothing is left to measure")
	}
	if o.retain != 0 && (o.retain < time.Second || len(o.marks) == 0) {
		return nil, errors.New("-retain is of the steady load, and at least 1s")
	}
	if o.rate <= 0 || o.duration <= 0 || flags.NArg() > 0 {
		return nil, errors.New("growth takes flags alone, and -rate and -duration must be more than 0; see -help")
	}
	return &o, nil
}

// priorGrowth returns the report of an earlier run in the directory, so that a run of
// hours can be continued.
func priorGrowth(out string) (*growthReport, error) {
	report := &growthReport{}
	if out == "" {
		return report, nil
	}
	file := filepath.Join(out, "growth.json")
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	if err == nil {
		err = json.Unmarshal(b, report)
	}
	if err != nil {
		err = fmt.Errorf("%s cannot be continued, move it away: %w", file, err)
	}
	return report, err
}

// publish writes the files.
func (r *growthReport) publish(out string) error {
	if out == "" {
		return nil
	}
	return errors.Join(os.MkdirAll(out, 0o755), harness.WriteJSON(filepath.Join(out, "growth.json"), r),
		harness.WritePictures(out, r.pictures()))
}

// curve is one line of a picture: a value of each point, in the picture's unit.
type curve struct {
	name, value string
	factor      float64
}

// pictures returns the charts by the names of their files.
func (r *growthReport) pictures() map[string]*harness.Chart {
	draw := func(c harness.Chart, points []harness.Values, x string, curves ...curve) *harness.Chart {
		for _, p := range points {
			for _, line := range curves {
				if v, there := p[line.value]; there { // an older report lacks some
					c.Add(line.name, p[x], v*line.factor)
				}
			}
		}
		return &c
	}
	const mebibyte = 1.0 / (1 << 20)
	micros := []curve{{"write", "write_us", 1}, {"retry", "replay_us", 1}, {"eviction", "evict_us", 1}}
	held := []curve{{"state file", "state_bytes", mebibyte}, {"block files", "block_bytes", mebibyte},
		{"log", "log_bytes", mebibyte}, {"memory", "memory_bytes", mebibyte}}
	life := []curve{{"open", "open_s", 1}, {"checkpoint", "checkpoint_s", 1}}
	// Over the minutes both kinds share a picture, in one unit.
	both := append(slices.Clone(micros), curve{"open", "open_s", 1e6}, curve{"checkpoint", "checkpoint_s", 1e6})
	pictures := map[string]*harness.Chart{
		"growth-costs.svg": draw(harness.Chart{Title: "Cost against streams", X: "streams", Y: "µs", LogX: true,
			LogY: true}, r.Streams, "streams", micros...),
		"growth-life.svg": draw(harness.Chart{Title: "Opening and checkpoint against streams", X: "streams",
			Y:    "seconds",
			LogX: true, LogY: true}, r.Streams, "streams", life...),
		"growth-minutes.svg": draw(harness.Chart{Title: "Cost against minutes of load", X: "minutes", Y: "µs",
			LogX: true,
			LogY: true}, r.Marks, "minutes", both...),
		"growth-size.svg": draw(harness.Chart{Title: "Size against minutes of load", X: "minutes", Y: "MiB"}, r.Load,
			"minutes", held...),
		"growth-latency.svg": draw(harness.Chart{Title: "Latency against minutes of load", X: "minutes", Y: "ms",
			LogY: true}, r.Load, "minutes", curve{"p50", "p50_ms", 1}, curve{"p99", "p99_ms", 1}),
	}
	if len(r.Retained) > 0 {
		pictures["growth-retained.svg"] = draw(harness.Chart{Title: "Size against minutes of load, blocks dropped",
			X: "minutes", Y: "MiB"}, r.Retained, "minutes", held...)
	}
	return pictures
}

const (
	// growthWriters is how many writers write at once.
	growthWriters = 256
	// steadyStreams is how many streams the steady load writes to.
	steadyStreams = 10_000
	// costRounds is how often a cost is measured. The median is used, because the machine may be
	// shared.
	costRounds = 3
)

// growLoad writes at a steady rate, measures the costs at the marks, and extrapolates a
// day.
func growLoad(ctx context.Context, o *growthOptions, report *growthReport, stdout io.Writer) error {
	return withCrowd(ctx, o, steadyStreams, func(ctx context.Context, c *crowd) error {
		loads, marks := &report.Load, &report.Marks
		if o.retain > 0 {
			loads, marks = &report.Retained, &report.RetainedMarks
		}
		*loads, *marks = nil, nil
		loaded := time.Duration(0)
		written := 0.0 // bytes of the log up to the last opening
		opened := c.ledger.Stats().LogBytes
		writes := float64(steadyStreams)
		point := func() harness.Values {
			return harness.Values{"minutes": loaded.Minutes(), "writes": writes,
				"log_written": written + float64(c.ledger.Stats().LogBytes-opened)}
		}
		for _, mark := range o.marks {
			for loaded < mark {
				length := min(time.Minute, mark-loaded)
				measured, err := load.Run(ctx, load.Load{Workers: growthWriters, Duration: length,
					Rate: float64(o.rate)},
					func(ctx context.Context, worker int) error { return c.write(ctx, c.pick(worker)) })
				if err != nil {
					return err
				}
				loaded += length
				writes += float64(measured.Operations)
				p := point()
				p["writes_per_s"], p["unserved"] = measured.PerSecond(), float64(measured.Unserved)
				p["p50_ms"], p["p99_ms"] = measured.Latency.Milliseconds(50), measured.Latency.Milliseconds(99)
				p["memory_bytes"] = c.memory()
				if err := c.sizes(p); err != nil {
					return err
				}
				*loads = append(*loads, p)
				_, err = fmt.Fprintf(stdout, "%6.2f min: %9.0f writes, %5.0f/s, p50 %.2f ms, p99 %.2f ms, %.0f "+
					"not begun, "+
					"state %.0f MiB, blocks %.0f MiB, log %.0f MiB, memory %.0f MiB\n", p["minutes"], p["writes"],
					p["writes_per_s"], p["p50_ms"], p["p99_ms"], p["unserved"], p["state_bytes"]/(1<<20),
					p["block_bytes"]/(1<<20), p["log_bytes"]/(1<<20), p["memory_bytes"]/(1<<20))
				if err != nil {
					return err
				}
			}
			p := point()
			if err := c.mark(ctx, o, p); err != nil {
				return fmt.Errorf("after %v of load: %w", mark, err)
			}
			*marks = append(*marks, p)
			written, opened = p["log_written"], c.ledger.Stats().LogBytes
			if _, err := fmt.Fprintf(stdout, "%6.2f min: %s; state %.0f MiB\n", p["minutes"], sayCosts(p),
				p["state_bytes"]/(1<<20)); err != nil {
				return err
			}
			if err := report.publish(o.out); err != nil {
				return err
			}
		}
		if o.retain > 0 {
			return nil
		}
		report.Day = extrapolate(o.rate, report.Marks, report.Load)
		d := report.Day
		_, err := fmt.Fprintf(stdout, "a day at %d writes a second: %.0f MiB of state file at most, %.1f GiB of block "+
			"files, a log of %.0f MiB at most, %.1f GiB written to it, %.0f MiB of memory at most\n", o.rate,
			d["state_bytes"]/(1<<20), d["block_bytes"]/(1<<30), d["log_bytes"]/(1<<20), d["log_bytes_written"]/(1<<30),
			d["memory_bytes"]/(1<<20))
		return errors.Join(err, report.publish(o.out))
	})
}

// mark measures the costs while the load pauses. It uses a copy, because measuring writes
// more than minutes of load, and evicts.
func (c *crowd) mark(ctx context.Context, o *growthOptions, p harness.Values) error {
	if err := errors.Join(c.close(), c.sizes(p)); err != nil {
		return err
	}
	err := c.copied(func(copied *crowd) error {
		if err := copied.open(ctx, nil); err != nil {
			return err
		}
		return copied.measure(ctx, o, p)
	})
	return errors.Join(err, c.open(ctx, nil))
}

// extrapolate takes the growth for each write from the time between the last two marks: at
// both the state file was complete, and only the load wrote between them.
func extrapolate(rate int, marks, minutes []harness.Values) harness.Values {
	first, last := marks[len(marks)-2], marks[len(marks)-1]
	d := harness.Values{"writes_per_s": float64(rate), "state_bytes": 0, "block_bytes": 0, "log_bytes_written": 0,
		"log_bytes": 0, "memory_bytes": 0}
	writes := last["writes"] - first["writes"]
	if writes <= 0 {
		return d
	}
	const seconds = 24 * 60 * 60
	times := seconds * float64(rate) / writes
	d["block_bytes"] = (last["block_bytes"] - first["block_bytes"]) * times
	d["log_bytes_written"] = (last["log_written"] - first["log_written"]) * times
	// Not extrapolated: the state file has only live records, and the log, the changes that wait for a checkpoint
	// and the cache of answers are bounded and vary.
	d["state_bytes"] = last["state_bytes"]
	for _, p := range minutes {
		if p["minutes"] > first["minutes"] {
			d["state_bytes"] = max(d["state_bytes"], p["state_bytes"])
			d["memory_bytes"] = max(d["memory_bytes"], p["memory_bytes"])
			d["log_bytes"] = max(d["log_bytes"], p["log_bytes"])
		}
	}
	return d
}

// growStreams measures a ledger with so many streams.
func growStreams(ctx context.Context, o *growthOptions, streams int) (p harness.Values, err error) {
	whole := *o
	whole.retain = 0 // it is for the steady load; these costs are compared with those of older runs
	err = withCrowd(ctx, &whole, streams, func(ctx context.Context, c *crowd) (err error) {
		p = harness.Values{"streams": float64(streams), "memory_bytes": c.memory()}
		if p["disk_bytes"], err = heldBytes(c.dir); err != nil {
			return err
		}
		p["bytes_per_stream"] = p["disk_bytes"] / float64(streams)
		if err := errors.Join(c.close(), c.open(ctx, nil)); err != nil {
			return err
		}
		p["memory_open_bytes"] = c.memory()
		return c.measure(ctx, o, p)
	})
	return p, err
}

// measure adds what the operations of an open crowd cost, in medians, and leaves it
// closed.
func (c *crowd) measure(ctx context.Context, o *growthOptions, p harness.Values) error {
	rounds := make([]harness.Values, costRounds)
	for i := range rounds {
		rounds[i] = harness.Values{}
		if err := errors.Join(c.speeds(ctx, o, rounds[i]), c.reopen(ctx, rounds[i])); err != nil {
			return err
		}
	}
	if err := c.close(); err != nil {
		return err
	}
	writeMicros := harness.Median(harness.Of(rounds, "write_us"))
	for i := range rounds {
		err := c.copied(func(copied *crowd) (err error) {
			rounds[i]["evict_us"], err = copied.evict(ctx, writeMicros)
			return err
		})
		if err != nil {
			return err
		}
	}
	for name, value := range harness.Medians(rounds) {
		p[name] = value
	}
	return nil
}

// speeds measures writes and replays: throughput of 256 writers over all streams, as time for one,
// and the processor time of the whole process, with its part of the checkpoints.
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
	c.replays.Store(0)
	c.gone.Store(0)
	before := c.ledger.Stats()
	err := measure("replay", c.replay)
	after := c.ledger.Stats()
	hits, misses := after.CacheHits-before.CacheHits, after.CacheMisses-before.CacheMisses
	p["replay_cached"] = float64(hits) / float64(max(1, hits+misses))
	// These answers go through the log, like a write; replay_us is the average of both kinds.
	p["replay_gone"] = float64(c.gone.Load()) / float64(max(1, c.replays.Load()))
	return err
}

// reopen measures an orderly end and the next start.
func (c *crowd) reopen(ctx context.Context, p harness.Values) error {
	// Reopened first, so that pending changes of the load do not count.
	if err := errors.Join(c.close(), c.open(ctx, nil)); err != nil {
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
	err := c.open(ctx, nil)
	p["open_s"] = time.Since(began).Seconds()
	return err
}

// evict opens a closed crowd at a time when all of its streams are due, and evicts them
// by writes of other streams. It returns the microseconds for each stream, without the
// time of these writes.
func (c *crowd) evict(ctx context.Context, writeMicros float64) (float64, error) {
	later := time.Now().Add(2 * time.Duration(c.config.ClientTTL))
	if err := c.open(ctx, func() time.Time { return later }); err != nil {
		return 0, err
	}
	began := time.Now()
	for round := uint64(1); ; round++ {
		err := each(ctx, growthWriters, growthWriters, func(ctx context.Context, worker int) error {
			out, err := c.ledger.Write(ctx, engineWrite("late-", worker, round))
			return decided(out, err, machine.Committed)
		})
		if err != nil {
			return 0, err
		}
		var left uint64
		if err := c.ledger.View(ctx, func(v machine.View) error {
			left = v.Streams()
			return nil
		}); err != nil {
			return 0, err
		}
		writes := float64(round * growthWriters)
		if left <= growthWriters {
			micros := float64(time.Since(began).Microseconds()) - writes*writeMicros
			return max(0, micros/float64(len(c.sequences))), nil
		}
		if writes > float64(10*len(c.sequences)+100_000) {
			return 0, fmt.Errorf("%d streams are still there after %.0f writes", left, writes)
		}
	}
}
