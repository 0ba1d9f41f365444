package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// applyCost is the cost of one apply to the thread that ran it. On a machine with other work
// the clock says little, because the thread may have waited for a processor most of the time.
type applyCost struct {
	Took      time.Duration `json:"took_ns"`      // by the clock
	Processor time.Duration `json:"processor_ns"` // of the thread, the collector's share included
	// Queued is how long the thread was ready while other threads had the processors.
	Queued time.Duration `json:"queued_ns"`
	// Faults are page faults. For DiskFaults the page was read from the disk: a part of the state
	// file that was not in memory.
	Faults     int64 `json:"faults"`
	DiskFaults int64 `json:"disk_faults"`
	// Allocated is how many bytes the process allocated meanwhile, an upper bound for the apply. The
	// size of the heap would depend on when the collector runs.
	Allocated int64 `json:"allocated_bytes"`
}

// Asleep is how long the thread slept: in a lock, for the disk, or because the Go scheduler let another
// goroutine run.
func (c *applyCost) Asleep() time.Duration { return max(0, c.Took-c.Processor-c.Queued) }

func (c *applyCost) less(before *applyCost) applyCost {
	return applyCost{
		Processor: c.Processor - before.Processor, Queued: c.Queued - before.Queued,
		Faults: c.Faults - before.Faults, DiskFaults: c.DiskFaults - before.DiskFaults,
		Allocated: c.Allocated - before.Allocated,
	}
}

// threadCost returns the cost of this thread so far. The goroutine must be locked to it.
func threadCost() (c applyCost, err error) {
	const rusageThread = 1
	var usage syscall.Rusage
	if err := syscall.Getrusage(rusageThread, &usage); err != nil {
		return c, fmt.Errorf("getrusage of a thread: %w", err)
	}
	c.Faults, c.DiskFaults = usage.Minflt+usage.Majflt, usage.Majflt
	// The first number of this file is the time on a processor, too, but up to the last tick.
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return c, err
	}
	var untilTick int64
	if _, err := fmt.Sscan(string(text), &untilTick, (*int64)(&c.Queued)); err != nil {
		return c, fmt.Errorf("schedstat of a thread: %w", err)
	}
	c.Allocated = readMetrics("/gc/heap/allocs:bytes")
	var spec unix.Timespec
	err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spec)
	c.Processor = time.Duration(spec.Nano())
	return c, err
}

// applyMeter measures the applies of a ledger; see ledger.Options.ObserveApply.
type applyMeter struct {
	mu  sync.Mutex
	err error
	// See applyResult.
	slowest, dearest, largest applyCost
}

// observe measures one apply. Its goroutine is locked to one thread meanwhile,
// because the kernel's counters are of threads.
func (m *applyMeter) observe() (end func()) {
	runtime.LockOSThread()
	before, err := threadCost()
	began := time.Now()
	return func() {
		took := time.Since(began)
		after, errAfter := threadCost()
		runtime.UnlockOSThread()
		c := after.less(&before)
		c.Took = took
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, err := range []error{err, errAfter} {
			if m.err == nil {
				m.err = err
			}
		}
		if c.Took > m.slowest.Took {
			m.slowest = c
		}
		if c.Processor > m.dearest.Processor {
			m.dearest = c
		}
		if c.Allocated > m.largest.Allocated {
			m.largest = c
		}
	}
}

// reset drops the applies so far.
func (m *applyMeter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slowest, m.dearest, m.largest = applyCost{}, applyCost{}, applyCost{}
}

// worst copies the worst applies into a result.
func (m *applyMeter) worst(r *applyResult) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Slowest, r.Dearest, r.Largest = m.slowest, m.dearest, m.largest
	return m.err
}

// heapInUse returns the bytes of the heap's spans that are in use. It avoids runtime.ReadMemStats,
// which stops the goroutines and would add to the applies that are measured.
func heapInUse() int64 {
	return readMetrics("/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes")
}

// readMetrics returns the sum of metrics.
func readMetrics(names ...string) (sum int64) {
	sample := make([]metrics.Sample, len(names))
	for i, name := range names {
		sample[i].Name = name
	}
	metrics.Read(sample)
	for i := range sample {
		sum += int64(sample[i].Value.Uint64())
	}
	return sum
}
