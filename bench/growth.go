package main

import (
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
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// growthOptions are the flags of bench growth.
type growthOptions struct {
	streams  []int
	minutes  int
	duration time.Duration // of a measurement, and of a minute
	dir, out string
}

// streamsPoint is what things cost with so many streams.
type streamsPoint struct {
	Streams       int     `json:"streams"`
	WriteMicros   float64 `json:"write_us"` // throughput of 256 writers over all streams, as time for one write
	WriteP99      float64 `json:"write_p99_ms"`
	ReplayMicros  float64 `json:"replay_us"` // of a random stream's last write
	ReplayP99     float64 `json:"replay_p99_ms"`
	OpenSeconds   float64 `json:"open_s"`       // after an orderly end
	CloseSeconds  float64 `json:"checkpoint_s"` // an orderly end, whose work is a checkpoint of 1,000 changed streams
	EvictMicros   float64 `json:"evict_us"`     // one stream, measured by letting all of them expire
	DiskBytes     int64   `json:"disk_bytes"`
	MemoryBytes   int64   `json:"memory_bytes"` // the heap after a collection
	BytesAStream  float64 `json:"bytes_per_stream"`
	MemoryAStream float64 `json:"memory_per_stream"`
}

// minutePoint is what things cost after some time of load.
type minutePoint struct {
	Seconds     float64 `json:"seconds"`
	Writes      uint64  `json:"writes"` // so far
	PerSecond   float64 `json:"writes_per_s"`
	P99         float64 `json:"p99_ms"`
	DiskBytes   int64   `json:"disk_bytes"`
	MemoryBytes int64   `json:"memory_bytes"`
	LogBytes    uint64  `json:"log_bytes"` // written so far
}

// day is a day at a steady rate, extrapolated from the last half of the load; the
// memory is what was seen there.
type day struct {
	Rate         int     `json:"writes_per_s"`
	DiskBytes    float64 `json:"disk_bytes"`
	WrittenBytes float64 `json:"log_bytes_written"`
	MemoryBytes  int64   `json:"memory_bytes"` // the most that was seen
}

// growthReport is growth.json.
type growthReport struct {
	Machine string         `json:"machine"`
	Date    string         `json:"date"`
	Streams []streamsPoint `json:"streams"`
	Load    []minutePoint  `json:"load"`
	Day     day            `json:"day"`
}

// growth measures how costs grow with the number of streams and with time.
func growth(ctx context.Context, arguments []string, stdout io.Writer) error {
	var o growthOptions
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	streams := flags.String("streams", "10000,100000,1000000", "numbers of streams, separated by commas")
	flags.IntVar(&o.minutes, "minutes", 5, "how many times -duration of steady load")
	flags.DurationVar(&o.duration, "duration", time.Minute, "how long a step of the steady load lasts; what is measured against streams takes a tenth")
	flags.StringVar(&o.dir, "dir", "", "write below this directory (default: the system's temporary directory)")
	flags.StringVar(&o.out, "out", "", "write growth.json and pictures into this directory")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	for field := range strings.SplitSeq(*streams, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < growthWriters {
			return fmt.Errorf("-streams: %q is not a number of at least %d", field, growthWriters)
		}
		o.streams = append(o.streams, n)
	}
	if o.minutes < 2 || o.duration <= 0 || flags.NArg() > 0 {
		return errors.New("growth takes flags alone, and -minutes must be at least 2; see -help")
	}
	report := growthReport{Machine: processor(), Date: time.Now().UTC().Format(time.RFC3339)}
	for _, n := range o.streams {
		p, err := growStreams(ctx, &o, n)
		if err != nil {
			return fmt.Errorf("%d streams: %w", n, errors.Join(err, context.Cause(ctx)))
		}
		report.Streams = append(report.Streams, p)
		if _, err := fmt.Fprintf(stdout, "%9d streams: write %.1f µs, replay %.1f µs, open %.2f s, checkpoint %.2f s, eviction %.1f µs each, disk %d B and memory %d B a stream\n",
			n, p.WriteMicros, p.ReplayMicros, p.OpenSeconds, p.CloseSeconds, p.EvictMicros, int(p.BytesAStream), int(p.MemoryAStream)); err != nil {
			return err
		}
	}
	if err := growLoad(ctx, &o, &report, stdout); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return publishGrowth(&o, &report)
}

// growthWriters write at once.
const growthWriters = 256

// quietLedger opens a ledger without a log.
func quietLedger(ctx context.Context, dir string, config machine.Config, clock func() time.Time) (*ledger.Ledger, error) {
	return ledger.Open(ctx, ledger.Options{Dir: dir, Config: config, Clock: clock, Logger: slog.New(slog.DiscardHandler)})
}

// footprint returns the bytes of all files below a directory, as the disk holds
// them, and of the heap.
func footprint(dir string) (disk, memory int64, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		held, err := blocksOf(path)
		disk += held
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the log drops its old files meanwhile
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return disk, int64(m.HeapAlloc), err
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
