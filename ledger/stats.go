package ledger

import (
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Stats are counters and gauges since Open.
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
	Slowed          uint64 // times that proposals waited for a checkpoint

	BatchCommands Distribution // commands of a log entry, replayed ones included
	StoreSeconds  Distribution // a write to the log, fsync included
	ApplySeconds  Distribution // an entry's decisions, replayed ones included
	SlowestApply  time.Duration

	PendingBytes      int64        // changes that wait for the state file
	CheckpointSeconds Distribution // a write of the state file, fsync included
	CheckpointBytes   uint64       // of changes, as they stood in memory
	LastCheckpoint    time.Time    // when the last one ended; before the first: when the ledger was opened
	SpillSeconds      Distribution // a write of blocks ahead of a checkpoint, fsync included
	SpillBytes        uint64       // of blocks, as they stood in memory
	Truncations       uint64       // of the log
	LogPendingBytes   int64        // log since it was truncated

	CacheHits       uint64
	CacheMisses     uint64
	CacheEvictions  uint64 // receipts pushed out by others
	CacheEntries    int
	CacheBytes      uint64
	CacheLimitBytes int64 // 0: the cache is off

	Evictions machine.Evictions

	KeyWaiters int // calls of Reserve that wait for another owner

	Opened           time.Time     // when Open began
	RecoveryTook     time.Duration // from the start of the log to its end
	RecoveredEntries uint64        // log entries applied meanwhile
	// RecoveredCommands are those of RecoveredEntries.
	RecoveredCommands uint64
	// ClockAhead is how far ledger time is ahead of the wall clock. It says
	// whether the wall clock was moved since the start, and decides nothing.
	ClockAhead time.Duration
}

// Stats returns the counters.
func (l *Ledger) Stats() Stats {
	c := &l.counters
	s := Stats{
		Decisions: map[machine.Code]uint64{},
		Entries:   c.entries.Load(), Commands: c.commands.Load(), LogBytes: c.logBytes.Load(),
		TimeJumps: c.timeJumps.Load(),

		KeyWaiters:  l.keys.len(),
		QueuedBytes: c.queuedBytes.Load(), QueueLimitBytes: l.options.QueueBytes,
		InFlight: len(l.slots), QueueFull: c.queueFull.Load(), Slowed: c.slowed.Load(),

		BatchCommands: c.batches.distribution(), StoreSeconds: c.stored.distribution(),
		ApplySeconds: c.applied.distribution(), SlowestApply: time.Duration(c.applied.largest.Load()),

		PendingBytes: l.store.PendingBytes(), CheckpointSeconds: c.checkpoints.distribution(),
		CheckpointBytes: c.checkpointBytes.Load(), LastCheckpoint: time.Unix(0, c.lastCheckpoint.Load()),
		SpillSeconds: c.spills.distribution(), SpillBytes: c.spillBytes.Load(),
		Truncations: c.truncates.Load(), LogPendingBytes: l.log.BytesSinceTruncate(),

		CacheHits: l.cache.hits.Load(), CacheMisses: l.cache.misses.Load(), CacheEvictions: l.cache.evicted.Load(),
		CacheLimitBytes: max(l.options.CacheBytes, 0),

		Opened: c.opened, RecoveryTook: time.Duration(c.recoveryTook.Load()),
		RecoveredEntries: c.recoveredEntries.Load(), RecoveredCommands: c.recoveredCommands.Load(),
		ClockAhead: time.Duration(l.clock.now() - l.options.Clock().UnixNano()),
	}
	for code := range c.decisions {
		if n := c.decisions[code].Load(); n != 0 {
			s.Decisions[machine.Code(code)] = n
		}
	}
	s.CacheEntries, s.CacheBytes = l.cache.size()
	if e := c.evictions.Load(); e != nil {
		s.Evictions = *e
	}
	l.queue.mu.Lock()
	s.QueuedItems = len(l.queue.items)
	l.queue.mu.Unlock()
	return s
}

// counters are what Stats reports. Only what is counted for a log entry or
// seldomer costs more than an atomic addition.
type counters struct {
	decisions [machine.MaxCode + 1]atomic.Uint64 // by machine.Code
	entries   atomic.Uint64
	commands  atomic.Uint64
	logBytes  atomic.Uint64
	truncates atomic.Uint64
	slowed    atomic.Uint64
	queueFull atomic.Uint64
	timeJumps atomic.Uint64

	queuedBytes atomic.Int64
	batches     histogram
	stored      histogram
	applied     histogram
	evictions   atomic.Pointer[machine.Evictions]

	checkpoints     histogram
	checkpointBytes atomic.Uint64
	lastCheckpoint  atomic.Int64 // Unix nanoseconds
	spills          histogram
	spillBytes      atomic.Uint64

	opened            time.Time
	recoveryTook      atomic.Int64 // nanoseconds
	recoveredEntries  atomic.Uint64
	recoveredCommands atomic.Uint64
}

// begin is called before anything is counted.
func (c *counters) begin() {
	c.batches.scale = sizes
	c.stored.scale = durations
	c.applied.scale = durations
	c.checkpoints.scale = durations
	c.spills.scale = durations
	c.opened = time.Now()
	c.lastCheckpoint.Store(c.opened.UnixNano())
}

// recovered ends the recovery.
func (c *counters) recovered(took time.Duration) {
	c.recoveryTook.Store(int64(took))
	c.recoveredEntries.Store(c.entries.Load())
	c.recoveredCommands.Store(c.commands.Load())
}

func (c *counters) checkpointed(began time.Time, bytes int64) {
	c.checkpoints.since(began)
	c.checkpointBytes.Add(uint64(bytes))
	c.lastCheckpoint.Store(time.Now().UnixNano())
}

func (c *counters) spilled(began time.Time, bytes int64) {
	c.spills.since(began)
	c.spillBytes.Add(uint64(bytes))
}

// setEvictions keeps a copy that Stats may read beside the applier. Rounds are
// rare beside entries, so that it hardly ever allocates.
func (c *counters) setEvictions(now machine.Evictions) {
	if kept := c.evictions.Load(); kept == nil || *kept != now {
		c.evictions.Store(&now)
	}
}
