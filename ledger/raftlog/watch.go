package raftlog

import (
	"sync"
	"sync/atomic"
	"time"
)

// Watch tells whether the work that a node must do to serve advances. Everything that can wait for a disk is a [Job] of
// one Watch, whichever package does it, so that one rule holds for all of it: a node with a job that has stopped
// advancing does not lead. See core.Node.SetStalled.
type Watch struct {
	began time.Time
	mu    sync.Mutex
	jobs  []*Job
}

// NewWatch returns a Watch without jobs.
func NewWatch() *Watch { return &Watch{began: time.Now()} }

// Job is work that is watched while it is under way. One goroutine begins and ends it.
type Job struct {
	watch    *Watch
	name     string
	patience time.Duration
	counts   func() bool  // nil: always; see OnlyWhile
	at       atomic.Int64 // when it began or last advanced, in ns since Watch.began; 0: it is not under way
}

// Stall is work that has stopped advancing.
type Stall struct {
	Job string        // what the node does, such as "write to the log"; empty: nothing is stalled
	For time.Duration // since it last advanced
}

// Job adds a job, which counts as stalled once it has not advanced for as long as patience.
func (w *Watch) Job(name string, patience time.Duration) *Job {
	j := &Job{watch: w, name: name, patience: patience}
	w.mu.Lock()
	w.jobs = append(w.jobs, j)
	w.mu.Unlock()
	return j
}

// Stalled returns the job that has been stalled for longest. It waits for no disk.
func (w *Watch) Stalled() (s Stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if took := j.Took(); took > j.patience && took > s.For && (j.counts == nil || j.counts()) {
			s = Stall{j.name, took}
		}
	}
	return s
}

// now is at least 1, because 0 means that a job is not under way.
func (w *Watch) now() int64 { return max(1, int64(time.Since(w.began))) }

// OnlyWhile makes the job count as stalled only while counts reports true: what nothing waits for may take its time.
// The time before counts all the same once something waits. counts must not wait. OnlyWhile is called before the job
// begins for the first time.
func (j *Job) OnlyWhile(counts func() bool) { j.counts = counts }

// Begin starts the work.
func (j *Job) Begin() { j.at.Store(j.watch.now()) }

// End ends it.
func (j *Job) End() { j.at.Store(0) }

// Advance notes that the work advances, if it is under way: it is slow, and not stalled. Any goroutine may call it.
func (j *Job) Advance() {
	if at := j.at.Load(); at != 0 {
		j.at.CompareAndSwap(at, j.watch.now()) // unless it has ended meanwhile
	}
}

// Took returns for how long the work has not advanced, or 0 if it is not under way.
func (j *Job) Took() time.Duration {
	at := j.at.Load()
	if at == 0 {
		return 0
	}
	return time.Duration(j.watch.now() - at)
}
