package ledger

import (
	"time"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// jobLoop does what the engine says is due beside the way of writes: checkpoints, the truncation of the log, and the
// removal of block files. Neither the log nor the applier waits for it.
func (l *Ledger) jobLoop() {
	for {
		select {
		case <-l.jobDue:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		if err := l.work(); err != nil && l.stopping.Err() == nil {
			l.fail(err)
			return
		}
	}
}

// work does the jobs that are due.
func (l *Ledger) work() error {
	for l.stopping.Err() == nil {
		if worked, err := l.workOnce(); !worked || err != nil {
			return err
		}
	}
	return nil
}

func (l *Ledger) workOnce() (worked bool, err error) {
	l.jobs.Lock()
	defer l.jobs.Unlock()
	l.mu.Lock()
	job := l.engine.NextJob()
	l.mu.Unlock()
	if job.Kind == engine.NoJob {
		return false, nil
	}
	return true, l.do(job)
}

// flush writes a checkpoint with everything that is applied.
func (l *Ledger) flush() error {
	l.jobs.Lock()
	defer l.jobs.Unlock()
	return l.do(engine.Job{Kind: engine.Flush})
}

// lastCheckpoint makes the next start short, because nothing is left to replay.
func (l *Ledger) lastCheckpoint() error {
	l.jobs.Lock()
	defer l.jobs.Unlock()
	covered := l.log.Covered().Index
	if err := l.do(engine.Job{Kind: engine.Flush}); err != nil {
		return err
	}
	return l.do(engine.Job{Kind: engine.Truncate, UpTo: covered})
}

// do does a job; jobs is held.
func (l *Ledger) do(job engine.Job) (err error) {
	l.working.Begin()
	defer l.working.End()
	l.step(job.Kind)
	var result engine.JobResult
	switch job.Kind {
	case engine.Flush:
		err = l.doFlush(&result)
	case engine.SyncBlocks:
		err = l.doSyncBlocks()
	case engine.Truncate:
		l.counters.truncates.Add(1)
		err = l.log.Truncate(l.keepLog(job.UpTo))
	case engine.Carry:
		err = l.carry(job, &result)
	case engine.Drop:
		err = l.drop(job.UpTo, &result)
	case engine.Sweep:
		err = l.sweep(job, &result)
	}
	if err != nil {
		return err // nothing is done after it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	result.Gathered = l.gathered()
	l.engine.JobDone(job, result)
	l.changed()
	if job.Kind == engine.Sweep && result.Next == nil {
		signal(l.historyDue) // the horizon may have moved past further files meanwhile
	}
	return nil
}

// gathered returns what has gathered since the last checkpoint. mu is held, so that no later reading is replaced by an
// earlier one; it waits for nothing. The log is not truncated while it is replayed, because it is being read then.
func (l *Ledger) gathered() engine.Gathered {
	log := l.opened.Load()
	return engine.Gathered{
		Changes: l.store.PendingBytes(), Tombstones: l.store.Tombstones(), Blocks: l.store.UnsyncedBlocks(),
		LongLog: log != nil && l.replayed.Load() && l.logIsDue(log),
	}
}

// gather tells the engine what has gathered where nothing was applied that would have.
func (l *Ledger) gather() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.engine.Gather(l.gathered())
	l.changed()
}

func (l *Ledger) doFlush(r *engine.JobResult) error {
	began, pending, before := time.Now(), l.store.PendingBytes(), l.store.Checkpoint()
	covered := before
	if log := l.opened.Load(); log != nil {
		covered = boltstore.Position(log.Covered())
	}
	if err := l.store.Flush(); err != nil {
		return err
	}
	r.Covered = covered.Index
	if l.store.Checkpoint() != before { // else there was nothing to write
		l.counters.checkpointed(began, pending)
		last := l.store.LastFlush()
		r.Changed, r.Pages = last.Changed, last.Pages
	}
	return nil
}

func (l *Ledger) doSyncBlocks() error {
	began := time.Now()
	written, err := l.store.SyncBlocks()
	if written > 0 {
		l.counters.syncedBlocks(began, written)
	}
	return err
}

// checkpointPatience is how long a job may go without advancing before this node counts as stalled, while proposals
// wait for a checkpoint. It is long, because a checkpoint syncs far more at once than the log does.
const checkpointPatience = 10 * time.Second

// longestYield bounds how long a checkpoint pauses at once.
const longestYield = 5 * time.Millisecond

// yield lets a checkpoint go about its work slowly while others wait for the processor that it takes: two thirds of the
// time are theirs. It does not at a start, or at the end.
func (l *Ledger) yield(worked time.Duration) {
	l.working.Advance()
	if !l.replayed.Load() || !l.mayPause() {
		return
	}
	timer := time.NewTimer(min(2*worked, longestYield))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.failed:
	case <-l.stopping.Done():
	}
}

func (l *Ledger) mayPause() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.engine.MayPause()
}

// The state's horizon says what is gone (see machine.Horizon). Each node removes the files on its own schedule.

// dropShare keeps the search for values that are alive, which goes through all entities, from costing more
// than what is dropped: files are dropped once they have this share of all bytes of blocks.
const dropShare = 16

// removal is the removal of block files that is under way; guarded by jobs.
type removal struct {
	began   time.Time
	carried int
}

// historyLoop copies sealed files to the archive, and looks for files before the horizon that may be removed.
func (l *Ledger) historyLoop() {
	timer := time.NewTicker(l.options.retainInterval)
	defer timer.Stop()
	for {
		if l.options.Archive != nil {
			l.archiveFiles(l.stopping)
		}
		l.remove()
		select {
		case <-timer.C:
		case <-l.historyDue:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
	}
}

// setHorizon notes where the history begins, for readers of blocks.
func (l *Ledger) setHorizon(h machine.Horizon) {
	if now := l.source.Horizon.Load(); now == nil || !now.Equal(h) {
		changed := h // a copy, so that only a change allocates
		l.source.Horizon.Store(&changed)
		signal(l.historyDue)
	}
}

// removable returns the block files before the horizon that the archive has, once they are worth it.
func (l *Ledger) removable() []blockfile.SealedFile {
	files := l.receipts.inTree(l.store.Droppable(l.source.Horizon.Load().Index()), l.options.Receipts != nil)
	if !l.worthIt(files) { // asking the archive may take long
		return nil
	}
	if files = files[:l.confirmed(files)]; !l.worthIt(files) {
		return nil
	}
	return files
}

func (l *Ledger) worthIt(files []blockfile.SealedFile) bool {
	var bytes int64
	for _, f := range files {
		bytes += f.Size
	}
	return bytes*dropShare >= l.store.BlockBytes() && len(l.backups) == 0 // a backup reads the files
}

// remove has the removable files removed.
func (l *Ledger) remove() {
	if files := l.removable(); len(files) > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.engine.Remove(files[len(files)-1].Last)
		l.changed()
	}
}

// step tells a test which job is next.
func (l *Ledger) step(next engine.JobKind) {
	if l.jobHook != nil {
		l.jobHook(next)
	}
}

// carry carries some of the values that are alive in blocks up to a ledger index.
func (l *Ledger) carry(job engine.Job, r *engine.JobResult) error {
	if job.From == nil {
		l.removal = removal{began: time.Now()}
	}
	var live []machine.LiveValue
	l.store.Presort(machine.TableEntities)
	err := l.StoredView(l.stopping, func(v machine.View) (err error) {
		live, r.Next, err = v.FindLive(job.From, job.UpTo)
		return err
	})
	if err != nil || len(live) == 0 {
		return err
	}
	l.removal.carried += len(live)
	return l.store.Amend(func(tx machine.Tx) error { return machine.Carry(tx, live) })
}

// drop removes the block files up to a ledger index.
func (l *Ledger) drop(upTo uint64, r *engine.JobResult) error {
	select {
	case l.blockFiles <- struct{}{}:
	default:
		r.Refused = true // a backup has begun
		return nil
	}
	files := len(l.store.Droppable(upTo + 1))
	dropped, err := l.store.DropBlocks(upTo + 1)
	<-l.blockFiles
	if err != nil {
		return err
	}
	l.counters.droppedFiles.Add(uint64(files))
	l.counters.droppedBytes.Add(uint64(dropped))
	l.counters.carried.Add(uint64(l.removal.carried))
	l.options.Logger.Info("history before the horizon is dropped", "up to ledger index", upTo, "files", files,
		"bytes", dropped, "values carried", l.removal.carried, "took", time.Since(l.removal.began))
	return nil
}

// sweep removes some carried values that no entity leads to any more.
func (l *Ledger) sweep(job engine.Job, r *engine.JobResult) error {
	var unused [][]byte
	l.store.Presort(machine.TableCarried)
	err := l.StoredView(l.stopping, func(v machine.View) (err error) {
		unused, r.Next, err = v.FindUnused(job.From)
		return err
	})
	if err != nil || len(unused) == 0 {
		return err
	}
	return l.store.Amend(func(tx machine.Tx) error { return machine.DropCarried(tx, unused) })
}
