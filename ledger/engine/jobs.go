package engine

// JobKind is a kind of work beside the way of writes.
type JobKind uint8

// The kinds of jobs.
const (
	NoJob      JobKind = iota
	Flush              // write a checkpoint: everything that is applied becomes durable in the state file
	SyncBlocks         // make blocks durable between two checkpoints
	Truncate           // drop the log up to the entry Job.UpTo
	Carry              // carry some of the values that are alive in blocks up to the ledger index Job.UpTo
	Drop               // record that the block files begin after the ledger index Job.UpTo, and remove those before
	Sweep              // remove some carried values that no entity leads to any more
)

// Job is work beside the way of writes. The host runs a single job, and reports it with JobDone before the next.
type Job struct {
	Kind JobKind
	UpTo uint64
	From []byte // where Carry and Sweep go on; nil: at the beginning

	of removal // the step that it belongs to
}

// JobResult is what became of a job.
type JobResult struct {
	Gathered Gathered
	Covered  uint64 // by Flush: the last log entry of those that were applied when it began
	// Of a Flush: how many bytes of changes it wrote, and how many bytes of pages; 0 if there was nothing to write.
	Changed, Pages int64
	Next           []byte // of Carry and Sweep: where to go on; nil: all is done
	Refused        bool   // by Drop: the files are in use
}

// Gathered is what has gathered since the last checkpoint.
type Gathered struct {
	Changes    int64 // bytes of them, in memory
	Tombstones int64 // deletions of the expiry index: an eviction pass may have to step over them
	Blocks     int64 // bytes of blocks that may not be on the disk yet
	LongLog    bool  // the log has become so long that it is to be truncated
}

// removal is how far the removal of block files before the horizon is. A crash before the drop leaves everything as it
// was, except that some values are stored twice; one after it leaves files that the next start removes.
type removal uint8

const (
	noRemoval removal = iota
	carrying          // values that are alive in the files go to the state file
	covering          // a checkpoint makes them durable, and the horizon: a replay reads what comes after it
	dropping          // the state file records where the block files begin, and then the files before it are removed
	sweeping
)

// jobs decides which work is due beside the way of writes.
type jobs struct {
	gathered        Gathered
	checkpointBytes int64 // how many bytes of changes make a checkpoint due
	fixed           bool  // they are configured

	running   bool
	covered   uint64 // the log entry that a finished checkpoint covers; only JobDone sets it
	truncated uint64
	coverLog  bool // the log has become long since the last checkpoint

	removal removal
	upTo    uint64 // the ledger index of the last block to remove
	from    []byte
	turn    bool // a step of the removal is next, although something else is due
}

const (
	// maxTombstones is how many deletions of the expiry index gather before a checkpoint.
	maxTombstones = 1 << 16
	// maxUnsyncedBlocks is how many bytes of blocks gather before they are synced, so that a checkpoint, and the log's
	// syncs beside it, do not have to wait for many.
	maxUnsyncedBlocks = 8 << 20
)

// The bounds between which the size of a checkpoint is found, in bytes of changes.
const (
	minCheckpointBytes = 32 << 20
	maxCheckpointBytes = 128 << 20
)

// SetCheckpointBytes sets how many bytes of changes gather before a checkpoint. 0 lets the engine adapt the number,
// starting from the size of the state file in bytes: in a large one records mostly change at random, and the first
// checkpoints would each write a page for every record; if they do not, the next checkpoint is half as large.
func (e *Engine) SetCheckpointBytes(n, state int64) {
	const share = 16
	if e.jobs.fixed = n > 0; !e.jobs.fixed {
		n = min(max(state/share, minCheckpointBytes), maxCheckpointBytes)
	}
	e.jobs.checkpointBytes = n
}

// CheckpointBytes returns how many bytes of changes make a checkpoint due.
func (e *Engine) CheckpointBytes() int64 { return e.jobs.checkpointBytes }

// LacksRoom reports whether proposals wait for a checkpoint because too many changes have gathered.
func (e *Engine) LacksRoom() bool { return e.jobs.gathered.Changes > e.jobs.maxChanges() && !e.failed }

// maxChanges is how many bytes of changes may wait for a checkpoint.
func (j *jobs) maxChanges() int64 {
	due := j.checkpointBytes
	return max(2*due, min(4*due, 4*minCheckpointBytes))
}

// MayPause reports whether a checkpoint should let the way of writes go first: writes are waiting, and the
// next checkpoint is not nearly due.
func (e *Engine) MayPause() bool {
	due := e.jobs.checkpointBytes
	return e.Bytes() > 0 && e.jobs.gathered.Changes <= due+due/2
}

// Gather notes what has gathered.
func (e *Engine) Gather(g Gathered) {
	j := &e.jobs
	// Where no finished checkpoint covers more than was truncated, the log has become as long again meanwhile.
	j.coverLog = j.coverLog || g.LongLog && (!j.gathered.LongLog || j.covered <= j.truncated)
	j.gathered = g
}

// Remove begins to remove the block files up to a ledger index, which must lie before the horizon of what is applied.
// It does nothing while files are being removed.
func (e *Engine) Remove(upTo uint64) {
	if e.jobs.removal == noRemoval {
		e.jobs.removal, e.jobs.upTo, e.jobs.from = carrying, upTo, nil
	}
}

// HasJob reports whether NextJob would return one.
func (e *Engine) HasJob() bool {
	return !e.jobs.running && !e.failed && e.jobs.next().Kind != NoJob
}

// NextJob returns the job to do now; NoJob if nothing is due, or one is being done.
func (e *Engine) NextJob() Job {
	if !e.HasJob() {
		return Job{}
	}
	job := e.jobs.next()
	e.jobs.running = true
	e.jobs.turn = job.of == noRemoval
	return job
}

func (j *jobs) next() Job {
	step := j.step()
	switch {
	case step.Kind != NoJob && j.turn:
		return step // otherwise it would starve under a constant load of writes
	case j.coverLog, j.gathered.Changes >= j.checkpointBytes, j.gathered.Tombstones >= maxTombstones:
		if step.Kind == Flush {
			return step
		}
		return Job{Kind: Flush}
	case j.gathered.LongLog && j.covered > j.truncated:
		return Job{Kind: Truncate, UpTo: j.covered}
	// At least 1, otherwise blocks would be due with none written where a checkpoint has less than 4 bytes.
	case j.gathered.Blocks >= max(1, min(maxUnsyncedBlocks, j.checkpointBytes/4)):
		return Job{Kind: SyncBlocks}
	}
	return step
}

// step returns the next step of a removal.
func (j *jobs) step() Job {
	kind := [...]JobKind{noRemoval: NoJob, carrying: Carry, covering: Flush, dropping: Drop, sweeping: Sweep}[j.removal]
	return Job{Kind: kind, UpTo: j.upTo, From: j.from, of: j.removal}
}

// JobDone notes what became of a job, also of a Flush that NextJob has not returned.
func (e *Engine) JobDone(job Job, r JobResult) {
	j := &e.jobs
	j.running = false
	e.Gather(r.Gathered)
	switch job.Kind {
	case Flush:
		j.coverLog = false
		j.covered = max(j.covered, r.Covered)
		if !j.fixed {
			j.checkpointBytes = nextCheckpointBytes(j.checkpointBytes, r.Changed, r.Pages)
		}
	case Truncate:
		j.truncated = job.UpTo
	}
	if job.of == noRemoval || job.of != j.removal {
		return
	}
	switch j.from = r.Next; {
	case r.Next != nil: // the same step continues
	case r.Refused: // the values are carried when it begins again
		j.removal = noRemoval
	case j.removal == sweeping:
		j.removal = noRemoval
	default:
		j.removal++
	}
}

// nextCheckpointBytes says how many bytes of changes should gather before the next checkpoint, from the bytes
// of changes and of pages that the last one wrote. It writes every page that has a changed record. Where records change
// at random all over a large state, that is a page for every record, and twice the changes touch hardly more pages, so
// gathering more is cheaper. Where what changes lies together, gathering more only takes memory. What a small record
// takes in memory is about twice its bytes, so that half as many bytes of pages as of changes is next to nothing.
func nextCheckpointBytes(now, changed, pages int64) int64 {
	switch {
	case changed < now/2: // by a truncation or a clean stop: it tells nothing
		return now
	case pages > changed/2:
		return min(2*now, maxCheckpointBytes)
	case pages < changed/4:
		return max(now/2, minCheckpointBytes)
	default:
		return now
	}
}
