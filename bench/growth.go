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
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// growthOptions are the flags of bench growth.
type growthOptions struct {
	streams  []int
	marks    []time.Duration // of load, ascending
	rate     int             // of the load, in writes a second
	duration time.Duration   // of one measurement of writes, and of one of retries
	dir, out string
}

// costs are what the operations of one ledger cost: medians of several rounds.
type costs struct {
	WriteMicros float64 `json:"write_us"` // throughput of 256 writers over all streams, as time for one write
	WriteP99    float64 `json:"write_p99_ms"`
	// WriteCPU is the processor time of the whole process for one write, with its part of the checkpoints.
	WriteCPU     float64 `json:"write_cpu_us"`
	ReplayMicros float64 `json:"replay_us"` // of a random stream's last write
	ReplayP99    float64 `json:"replay_p99_ms"`
	ReplayCPU    float64 `json:"replay_cpu_us"`
	ReplayCached float64 `json:"replay_cached"` // the part of the replays that the response cache answered
	OpenSeconds  float64 `json:"open_s"`        // after an orderly end
	CloseSeconds float64 `json:"checkpoint_s"`  // an orderly end, whose work is a checkpoint of 1,000 changed streams
	EvictMicros  float64 `json:"evict_us"`      // one stream, measured by letting all of them expire
}

// streamsPoint is what things cost with so many streams.
type streamsPoint struct {
	Streams int `json:"streams"`
	costs
	DiskBytes    int64   `json:"disk_bytes"`
	MemoryBytes  int64   `json:"memory_bytes"`      // the heap, with what waits for a checkpoint
	OpenMemory   int64   `json:"memory_open_bytes"` // the same of a ledger that was just opened
	BytesAStream float64 `json:"bytes_per_stream"`  // of the disk
}

// minutePoint is what a minute of steady load has shown.
type minutePoint struct {
	Minutes     float64 `json:"minutes"` // of load so far
	Writes      uint64  `json:"writes"`  // so far
	PerSecond   float64 `json:"writes_per_s"`
	P50         float64 `json:"p50_ms"`
	P99         float64 `json:"p99_ms"`
	Unserved    int64   `json:"unserved"` // due and not begun in that minute
	StateBytes  int64   `json:"state_bytes"`
	LogBytes    int64   `json:"log_bytes"`    // the files of the log
	MemoryBytes int64   `json:"memory_bytes"` // the heap
	Written     uint64  `json:"log_written"`  // to the log, so far
}

// markPoint is what things cost after some time of load.
type markPoint struct {
	Minutes float64 `json:"minutes"`
	Writes  uint64  `json:"writes"`
	costs
	StateBytes int64  `json:"state_bytes"` // after an orderly end
	LogBytes   int64  `json:"log_bytes"`   // the files of the log, then
	Written    uint64 `json:"log_written"`
}

// day is a day at the rate of the load, extrapolated from the time between the
// last two marks.
type day struct {
	Rate         int     `json:"writes_per_s"`
	StateBytes   float64 `json:"state_bytes"`
	LogBytes     int64   `json:"log_bytes"` // the most that the files of the log took: it is truncated
	WrittenBytes float64 `json:"log_bytes_written"`
	MemoryBytes  int64   `json:"memory_bytes"` // the most that was seen
}

// growthReport is growth.json.
type growthReport struct {
	Machine string         `json:"machine"`
	Date    string         `json:"date"`
	Streams []streamsPoint `json:"streams"`
	Load    []minutePoint  `json:"load"`
	Marks   []markPoint    `json:"marks"`
	Day     day            `json:"day"`
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
	report.Machine, report.Date = processor(), time.Now().UTC().Format(time.RFC3339)
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
		report.Streams = slices.DeleteFunc(report.Streams, func(old streamsPoint) bool { return old.Streams == n })
		report.Streams = append(report.Streams, p)
		slices.SortFunc(report.Streams, func(a, b streamsPoint) int { return cmp.Compare(a.Streams, b.Streams) })
		_, err = fmt.Fprintf(stdout, "%9d streams: %s; disk %d B a stream, memory %d MiB, %d MiB just opened\n",
			n, p.costs, int(p.BytesAStream), p.MemoryBytes>>20, p.OpenMemory>>20)
		if err := errors.Join(err, publishGrowth(o, report)); err != nil {
			return err
		}
	}
	return nil
}

// String says the costs in one line.
func (c costs) String() string {
	return fmt.Sprintf(
		"write %.1f µs (p99 %.1f ms, processor %.1f µs), retry %.1f µs (processor %.1f µs, %.0f %% cached), open %.3f s,"+
			" checkpoint %.3f s, eviction %.1f µs",
		c.WriteMicros, c.WriteP99, c.WriteCPU, c.ReplayMicros, c.ReplayCPU, 100*c.ReplayCached,
		c.OpenSeconds, c.CloseSeconds, c.EvictMicros)
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
	flags.StringVar(&o.dir, "dir", "", "write below this directory (default: the system's temporary directory)")
	flags.StringVar(&o.out, "out", "",
		"write growth.json and pictures into this directory; what a run leaves out stays as it is there")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	for _, field := range fields(*streams) {
		n, err := strconv.Atoi(field)
		if err != nil || n < growthWriters {
			return nil, fmt.Errorf("-streams: %q is not a number of at least %d", field, growthWriters)
		}
		o.streams = append(o.streams, n)
	}
	var last time.Duration
	for _, field := range fields(*marks) {
		mark, err := time.ParseDuration(field)
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
	if o.rate <= 0 || o.duration <= 0 || flags.NArg() > 0 {
		return nil, errors.New("growth takes flags alone, and -rate and -duration must be more than 0; see -help")
	}
	return &o, nil
}

// fields splits at commas; nothing has no fields.
func fields(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// growthWriters write at once.
const growthWriters = 256

// quietLedger opens a ledger without a log.
func quietLedger(ctx context.Context, dir string, config machine.Config,
	clock func() time.Time) (*ledger.Ledger, error) {
	return ledger.Open(ctx, ledger.Options{Dir: dir, Config: config, Clock: clock,
		Logger: slog.New(slog.DiscardHandler)})
}

// heldBytes returns the bytes of all files below a directory, or of one file, as
// the disk holds them.
func heldBytes(path string) (bytes int64, err error) {
	err = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the log drops its old files meanwhile
		}
		if err != nil || entry.IsDir() {
			return err
		}
		held, err := blocksOf(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		bytes += held
		return err
	})
	return bytes, err
}

// priorGrowth returns what an earlier run has left in the directory.
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

// publishGrowth writes the files.
func publishGrowth(o *growthOptions, report *growthReport) error {
	if o.out == "" {
		return nil
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(o.out, "growth.json"), append(b, '\n'), 0o644)
	for name, picture := range report.pictures() {
		err = errors.Join(err, os.WriteFile(filepath.Join(o.out, name), []byte(picture.SVG()), 0o644))
	}
	return err
}
