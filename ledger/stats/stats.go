// Package stats is what a ledger counts. It knows no system of monitoring: a
// Distribution has the shape of a histogram, and the server gives it a name.
package stats

import (
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Stats are counters and gauges since the ledger was opened.
type Stats struct {
	Decisions map[machine.Code]uint64 // by outcome, replayed entries of the log included
	Entries   uint64                  // log entries applied
	Commands  uint64                  // commands applied
	LogBytes  uint64                  // bytes of the log entries applied
	TimeJumps uint64                  // starts that moved ledger time by more than an hour

	QueuedItems     int   // submissions that wait to be proposed
	QueuedBytes     int64 // of submissions that wait or are in flight, with overhead
	QueueLimitBytes int64 // of the same, all but the part kept for single commands
	InFlight        int   // log entries proposed and not yet answered
	QueueFull       uint64
	ReadChecks      uint64 // reads, and retries that were found, for which a node of a cluster asked the others
	Slowed          uint64 // times that proposals waited for a checkpoint

	BatchCommands Distribution // commands of a log entry, replayed ones included
	StoreSeconds  Distribution // a write to the log, fsync included
	ApplySeconds  Distribution // an entry's decisions, replayed ones included
	SlowestApply  time.Duration

	PendingBytes      int64        // changes that wait for the state file
	CheckpointSeconds Distribution // a write of the state file, fsync included
	CheckpointBytes   uint64       // of changes, as they stood in memory
	LastCheckpoint    time.Time    // when the last one ended; before the first: when the ledger was opened
	BlockSyncSeconds  Distribution // an fsync of the block files between two checkpoints
	BlockSyncBytes    uint64       // of blocks that it made durable
	BlockBytes        int64        // of all block files
	DroppedFiles      uint64       // block files that retention has removed
	DroppedBytes      uint64       // of these
	CarriedValues     uint64       // values that were alive in them
	Archive           *Archive     // nil for none
	ReceiptsFailing   time.Time    // since when the tree of receipts, its checkpoint or a cosignature has failed
	Witnesses         *Witnesses   // nil where none are asked
	Truncations       uint64       // of the log
	LogPendingBytes   int64        // log since it was truncated

	// Stalled is for how long some work of this node, such as a write to a file, has stopped advancing; 0: none has.
	Stalled    time.Duration
	LogWriting time.Duration // how long the write to the log that is under way has taken; 0: none is

	// ScrubbedPages of the state file and ScrubbedBlockBytes of the block files were compared
	// with their checksums, in ScrubRounds whole rounds; the present one is at byte ScrubPosition
	// of ScrubBytes, and reads at most ScrubRate bytes a second, 0 being never. LastScrub is when the last one
	// ended; zero before the first.
	ScrubbedPages, ScrubbedBlockBytes      uint64
	ScrubRounds, ScrubPosition, ScrubBytes uint64
	ScrubRate                              uint64
	LastScrub                              time.Time

	CacheHits       uint64
	CacheMisses     uint64
	CacheEvictions  uint64 // receipts pushed out by others
	CacheEntries    int
	CacheBytes      uint64
	CacheLimitBytes int64 // 0: the cache is off

	Evictions machine.Evictions

	KeyWaiters int // calls of Reserve that wait for another owner
	Keyed      Keyed

	Opened           time.Time     // when Open began
	RecoveryTook     time.Duration // from the start of the log to its end
	RecoveredEntries uint64        // log entries applied meanwhile
	// RecoveredCommands are those of RecoveredEntries.
	RecoveredCommands uint64
	// ClockAhead is how far ledger time is ahead of the wall clock. It says
	// whether the wall clock was moved since the start, and decides nothing.
	ClockAhead time.Duration
}

// Witnesses is what a leader knows of the witnesses of its receipts.
type Witnesses struct {
	Cosigned      int       // have cosigned the last checkpoint
	QuorumMissing time.Time // since when the quorum is missing; zero if it is not
}

// Archive is what a node knows of its archive.
type Archive struct {
	Target                     string // where it is; empty if the ledger has one and this start does not name it
	Files, Bytes               uint64 // that the archive has confirmed
	Last                       uint64 // ledger index of the last record in them
	WaitingFiles, WaitingBytes uint64 // sealed, and not confirmed
	// StateIndex is the ledger index of the newest state in the archive that this node knows of, and StateTime the
	// ledger time there; 0 for none.
	StateIndex uint64
	StateTime  time.Time
	// LogIndex is the ledger index up to which this node, as the leader, has copied the log, and LogTime the ledger
	// time there. Everything that was acknowledged before LogSafe can be restored. They are zero where none is copied.
	LogIndex         uint64
	LogTime, LogSafe time.Time
	Failures         uint64 // tries that failed since the start
	Problem          string // of the last try; empty if it succeeded
	FailingSince     time.Time
}

// Keyed counts what becomes of keyed records and of the calls on them.
type Keyed struct {
	// Calls are the calls that have ended, by kind and outcome, those that the state alone has
	// answered included; a keyed write is a call of kind 0. Replayed entries of the log are not
	// counted.
	Calls map[KeyedCall]uint64
	// Waited are the calls of Reserve that have waited for another owner.
	Waited uint64
	// Takeovers are reservations that went to another owner, Indeterminate those whose lease ended
	// without a result, and Expired the finished records that were removed. Replayed entries of the
	// log are included.
	Takeovers, Indeterminate, Expired uint64
	// Oldest is when the oldest reservation was made, in ledger time; zero if none is known. See
	// package ledger for which are known.
	Oldest time.Time
	// Records are the records by state, those that have expired and are not yet removed included.
	// It is nil for a while after a start, until they are counted.
	Records map[keyed.State]uint64
}

// KeyedCall is a kind of call on a keyed record, and what became of it.
type KeyedCall struct {
	Kind keyed.Kind
	Code machine.Code
}

// Distribution says how often something was how large, since Open. It has the
// shape that a Histogram of Prometheus has, without the ledger knowing it.
type Distribution struct {
	Count uint64
	Sum   float64
	// Buckets has, for each upper bound, how many were at most that large.
	Buckets map[float64]uint64
}

// maxBuckets bounds the memory of a Histogram.
const maxBuckets = 20

// Histogram counts into buckets whose bounds double. Counting takes some
// comparisons and three atomic additions, and is done for a log entry or a
// checkpoint, never for a write.
type Histogram struct {
	Scale   Scale
	buckets [maxBuckets]atomic.Uint64
	count   atomic.Uint64
	sum     atomic.Int64
	largest atomic.Int64
}

// Scale is where a Histogram begins, and the unit that it is given out in.
type Scale struct {
	first int64
	unit  float64
}

var (
	// Durations begin at 50 µs, which is less than any disk needs, and end at
	// 26 s.
	Durations = Scale{first: int64(50 * time.Microsecond), unit: 1e-9}
	// Sizes begin at 1 and end at half a million.
	Sizes = Scale{first: 1, unit: 1}
)

// Observe counts a value.
func (h *Histogram) Observe(value int64) {
	h.count.Add(1)
	h.sum.Add(value)
	for {
		largest := h.largest.Load()
		if value <= largest || h.largest.CompareAndSwap(largest, value) {
			break
		}
	}
	for i, bound := 0, h.Scale.first; i < maxBuckets; i, bound = i+1, 2*bound {
		if value <= bound {
			h.buckets[i].Add(1)
			return
		}
	}
}

// Since counts the time since a moment.
func (h *Histogram) Since(began time.Time) { h.Observe(int64(time.Since(began))) }

// Largest returns the largest value of all.
func (h *Histogram) Largest() int64 { return h.largest.Load() }

// Distribution returns what was counted.
func (h *Histogram) Distribution() Distribution {
	d := Distribution{Buckets: make(map[float64]uint64, maxBuckets)}
	upTo := uint64(0)
	for i := range h.buckets {
		upTo += h.buckets[i].Load()
		d.Buckets[float64(h.Scale.first<<i)*h.Scale.unit] = upTo
	}
	// Read last: what is counted meanwhile must not make a bucket larger than
	// the whole.
	d.Sum, d.Count = float64(h.sum.Load())*h.Scale.unit, h.count.Load()
	return d
}
