package ledger

import (
	"errors"
	"time"

	"github.com/seqledger/seqledger/ledger/boltstore"
)

// checkpointLoop syncs the blocks, writes what has gathered in memory to the state
// file and truncates the log, whenever enough has come together. It works beside the
// commit path: neither the log nor the applier waits for it.
func (l *Ledger) checkpointLoop() {
	defer l.loops.Done()
	for {
		select {
		case <-l.checkpointDue:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
		if err := l.checkpoint(); err != nil {
			l.fail(err)
			return
		}
	}
}

func (l *Ledger) checkpoint() error {
	// Not while the log is replayed, because it is being read then. Truncate comes first, because it flushes as well.
	if l.replayed.Load() && l.logIsDue(l.log) {
		l.counters.truncates.Add(1)
		return l.log.Truncate() // calls applier.Checkpoint
	}
	if l.flushIsDue() {
		return l.flush()
	}
	if l.blocksAreDue() {
		return l.syncBlocks()
	}
	return nil
}

// maxTombstones is how many deletions of the expiry index gather before a
// checkpoint. Before it, an eviction pass may have to step over them.
const maxTombstones = 1 << 16

func (l *Ledger) flushIsDue() bool {
	return l.store.PendingBytes() >= l.checkpointBytes.Load() || l.store.Tombstones() >= maxTombstones
}

// maxUnsyncedBlocks is how many bytes of blocks gather before they are synced, so
// that a checkpoint, and the log's syncs beside it, do not have to wait for many.
const maxUnsyncedBlocks = 8 << 20

// blocksAreDue reports whether enough blocks have gathered to be written, which is less
// with small checkpoints.
func (l *Ledger) blocksAreDue() bool {
	// At least 1, otherwise blocks would be due with none written where CheckpointBytes is below 4.
	return l.store.UnsyncedBlocks() >= max(1, min(maxUnsyncedBlocks, l.checkpointBytes.Load()/4))
}

// syncBlocks makes blocks durable between two checkpoints.
func (l *Ledger) syncBlocks() error {
	l.flushing.Lock() // as a job, it is one with a flush
	defer l.flushing.Unlock()
	l.checkpointed.Begin()
	defer l.checkpointed.End()
	began := time.Now()
	written, err := l.store.SyncBlocks()
	if written > 0 {
		l.counters.syncedBlocks(began, written)
	}
	return err
}

// lastCheckpoint makes the next start short, because nothing is left to replay.
func (l *Ledger) lastCheckpoint() error {
	return errors.Join(l.flush(), l.log.Truncate())
}

func (l *Ledger) flush() error {
	l.flushing.Lock()
	defer l.flushing.Unlock()
	l.checkpointed.Begin()
	defer l.checkpointed.End()
	began, pending, before := time.Now(), l.store.PendingBytes(), l.store.Checkpoint()
	err := l.store.Flush()
	if l.store.Checkpoint() != before { // else there was nothing to write, or it failed
		l.counters.checkpointed(began, pending)
		if l.options.CheckpointBytes == 0 {
			l.checkpointBytes.Store(nextCheckpointBytes(l.checkpointBytes.Load(), l.store.LastFlush()))
		}
	}
	l.roomAwaited.Advance()
	signal(l.flushed)
	return err
}

// checkpointPatience is how long a checkpoint, or the wait of proposals for one, may go without advancing before this
// node counts as stalled. A checkpoint counts only while so much has gathered that proposals must wait. It is long,
// because a checkpoint syncs far more at once than the log does.
const checkpointPatience = 10 * time.Second

// longestYield bounds how long a checkpoint pauses at once.
const longestYield = 5 * time.Millisecond

// yield lets a checkpoint go about its work slowly while others wait for the
// processor that it takes: two thirds of the time are theirs. It does not when
// no call waits, at a start, at the end, or when so much has gathered meanwhile
// that the next checkpoint would be due soon.
func (l *Ledger) yield(worked time.Duration) {
	l.checkpointed.Advance()
	l.roomAwaited.Advance()
	due := l.checkpointBytes.Load()
	if !l.replayed.Load() || l.counters.queuedBytes.Load() == 0 || l.store.PendingBytes() > due+due/2 {
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

// The bounds between which the size of a checkpoint is found, in bytes of
// changes.
const (
	minCheckpointBytes = 32 << 20
	maxCheckpointBytes = 128 << 20
)

// firstCheckpointBytes says how much change should gather before the first checkpoint, from the bytes of the state
// file. In a large one records mostly change at random, and the first checkpoints would each write a page for every
// record; if they do not, the next checkpoint is half as large.
func firstCheckpointBytes(state int64) int64 {
	const share = 16
	return min(max(state/share, minCheckpointBytes), maxCheckpointBytes)
}

// lacksRoom reports whether so many changes wait for the state file that nothing is proposed; see awaitRoom.
func (l *Ledger) lacksRoom() bool { return l.store.PendingBytes() > l.maxPending() }

// maxPending is how much change may wait for the state file, in bytes.
func (l *Ledger) maxPending() int64 {
	due := l.checkpointBytes.Load()
	return max(2*due, min(4*due, 4*minCheckpointBytes))
}

// nextCheckpointBytes says how much change should gather before the next
// checkpoint, from what the last one cost. A checkpoint writes every page that
// has a changed record. Where records change at random all over a large state,
// that is a page for every record, and many times as many bytes as changed;
// twice the changes then touch hardly more pages, so gathering more is cheaper.
// Where what changes lies together, gathering more only takes memory. What a
// small record takes in memory is about twice its bytes, so that half as many
// bytes of pages as of changes is next to nothing.
func nextCheckpointBytes(now int64, last boltstore.FlushSize) int64 {
	switch {
	case last.Changed < now/2: // by a truncation or a clean stop: it tells nothing
		return now
	case last.Pages > last.Changed/2:
		return min(2*now, maxCheckpointBytes)
	case last.Pages < last.Changed/4:
		return max(now/2, minCheckpointBytes)
	default:
		return now
	}
}
