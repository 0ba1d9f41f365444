package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// result is what was measured for a row.
type result struct {
	operations  int64
	elapsed     time.Duration
	latency     *hdrhistogram.Histogram // nanoseconds
	diskBytes   int64                   // written to the disk, by whomever
	allocations int64                   // of client and server together
	// own and server are the processor time of the client, or of the ledger in this process, and
	// of a server in a process of its own. Other load on the machine disturbs them less than it
	// does the rate.
	own, server time.Duration
}

// Latencies are recorded in nanoseconds between these, to a hundredth: more
// digits would make the histograms of many workers push the ledger out of the
// processor's caches.
const (
	digits     = 2
	minLatency = 100
	maxLatency = int64(60 * time.Second)
)

// counters are what a process has used up so far.
type counters struct {
	diskBytes, allocations int64
	own, server            time.Duration
}

// drive runs one closed loop for each worker: operation returns when its write
// is acknowledged. Begin is called between warm-up and measurement, and end
// after it.
func drive(
	ctx context.Context, o *options, workers int, operation func(ctx context.Context, worker int) error,
	sample func() (counters, error),
) (result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var measuring atomic.Bool
	histograms := make([]*hdrhistogram.Histogram, workers)
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i := range workers {
		histograms[i] = hdrhistogram.New(minLatency, maxLatency, digits)
		// Ended by stop; joined by running.Wait.
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				if err := operation(ctx, i); err != nil {
					cancel(fmt.Errorf("worker %d: %w", i, err))
					return
				}
				if measuring.Load() {
					_ = histograms[i].RecordValue(int64(time.Since(began))) // out of range: more than a minute
				}
			}
		})
	}
	pause(ctx, o.warmup)
	before, errBefore := sample()
	began := time.Now()
	measuring.Store(true)
	pause(ctx, o.duration)
	measuring.Store(false)
	elapsed := time.Since(began)
	after, errAfter := sample()
	close(stop)
	running.Wait()
	if err := errors.Join(context.Cause(ctx), errBefore, errAfter); err != nil {
		return result{}, err
	}
	r := result{
		elapsed: elapsed, latency: hdrhistogram.New(minLatency, maxLatency, digits),
		diskBytes: after.diskBytes - before.diskBytes, allocations: after.allocations - before.allocations,
		own: after.own - before.own, server: after.server - before.server,
	}
	for _, h := range histograms {
		r.latency.Merge(h)
	}
	r.operations = r.latency.TotalCount()
	return r, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// sampler returns a function that samples this process and the disk that a
// directory is on.
func sampler(dir string) func() (counters, error) {
	return func() (counters, error) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		written, err := diskBytes(dir)
		if err != nil {
			return counters{}, err
		}
		own, err := processorTime()
		return counters{diskBytes: written, allocations: int64(m.Mallocs), own: own}, err
	}
}

// diskBytes returns how many bytes have been written to the block device that a directory is
// on, by any process. The kernel's count for a process is not suitable: it counts a whole
// large page for every few bytes that make it dirty.
func diskBytes(dir string) (int64, error) {
	var info syscall.Stat_t
	if err := syscall.Stat(dir, &info); err != nil {
		return 0, err
	}
	major, minor := info.Dev>>8&0xfff, info.Dev&0xff|info.Dev>>12&0xfff00
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, nil // not a block device of its own: the column says 0
	}
	fields := strings.Fields(string(b))
	const sectorsWritten = 6
	if len(fields) <= sectorsWritten {
		return 0, fmt.Errorf("statistics of the disk: %q", b)
	}
	sectors, err := strconv.ParseInt(fields[sectorsWritten], 10, 64)
	return sectors * 512, err
}

func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
			}
		}
	}
	return runtime.GOARCH
}

var (
	columns = []string{"row", "per second", "must reach", "", "p50 ms", "p99 ms", "p99.9 ms", "disk B/op", "allocs/op",
		"own µs/op", "server µs/op"}
	plainRow  = "%-13s %12s %12s %-7s %8s %8s %9s %10s %10s %10s %13s\n"
	markdownR = "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n"
)

func printHeader(o *options) {
	format := plainRow
	if o.markdown {
		format = markdownR
	}
	fmt.Printf(format, toAny(columns)...)
	if o.markdown {
		fmt.Println("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|")
	}
}

func printRow(o *options, r *row, m *result) {
	format := plainRow
	if o.markdown {
		format = markdownR
	}
	rate := float64(m.operations) / m.elapsed.Seconds()
	verdict := "reached"
	if rate < r.mustReach {
		verdict = "MISSED"
	}
	ms := func(q float64) string { return fmt.Sprintf("%.3f", float64(m.latency.ValueAtQuantile(q))/1e6) }
	per := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/float64(max(m.operations, 1))) }
	fmt.Printf(format, r.name, thousands(rate), thousands(r.mustReach), verdict, ms(50), ms(99), ms(99.9),
		per(m.diskBytes), per(m.allocations), per(m.own.Microseconds()), per(m.server.Microseconds()))
}

func toAny(s []string) []any {
	out := make([]any, len(s))
	for i := range s {
		out[i] = s[i]
	}
	return out
}

// thousands writes a number with commas.
func thousands(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
