package ledger

import (
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
)

// DiskUsage asks the file system of the data directory. It reads nothing of
// the ledger, so that it answers after a failure, too.
func (l *Ledger) DiskUsage() (datadir.Usage, error) { return l.directory.Usage() }

// Stats returns the counters.
func (l *Ledger) Stats() stats.Stats {
	c := &l.counters
	s := stats.Stats{
		Decisions: map[machine.Code]uint64{},
		Entries:   c.entries.Load(), Commands: c.commands.Load(), LogBytes: c.logBytes.Load(),
		TimeJumps: c.timeJumps.Load(),

		ScrubbedPages: c.scrubbed.Load(), ScrubRounds: c.scrubRounds.Load(), ScrubPosition: c.scrubPosition.Load(),
		ScrubBytes:         l.store.ScrubPages()*uint64(l.store.PageSize()) + uint64(l.store.BlockBytes()),
		ScrubbedBlockBytes: c.scrubbedBlocks.Load(), ScrubRate: uint64(max(l.options.ScrubBytes, 0)),

		ReadChecks:  c.readChecks.Load(),
		KeyWaiters:  l.keys.len(),
		Keyed:       l.keyedCounters.stats(),
		QueuedBytes: c.queuedBytes.Load(), QueueLimitBytes: l.options.QueueBytes,
		QueueFull: c.queueFull.Load(), Slowed: c.slowed.Load(),

		BatchCommands: c.batches.Distribution(), StoreSeconds: c.stored.Distribution(),
		ApplySeconds: c.applied.Distribution(), SlowestApply: time.Duration(c.applied.Largest()),

		PendingBytes: l.store.PendingBytes(), CheckpointSeconds: c.checkpoints.Distribution(),
		CheckpointBytes: c.checkpointBytes.Load(), LastCheckpoint: time.Unix(0, c.lastCheckpoint.Load()),
		BlockSyncSeconds: c.blockSyncs.Distribution(), BlockSyncBytes: c.blockSyncBytes.Load(),
		BlockBytes:   l.store.BlockBytes(),
		DroppedFiles: c.droppedFiles.Load(), DroppedBytes: c.droppedBytes.Load(), CarriedValues: c.carried.Load(),
		Archive:     l.archiveStats(),
		Truncations: c.truncates.Load(), LogPendingBytes: l.log.BytesSinceTruncate(),
		LogWriting: l.log.Writing(), Stalled: l.Stalled().For,

		CacheHits: l.cache.hits.Load(), CacheMisses: l.cache.misses.Load(), CacheEvictions: l.cache.evicted.Load(),
		CacheLimitBytes: max(l.options.CacheBytes, 0),

		Opened: c.opened, RecoveryTook: time.Duration(c.recoveryTook.Load()),
		RecoveredEntries: c.recoveredEntries.Load(), RecoveredCommands: c.recoveredCommands.Load(),
	}
	s.ReceiptsFailing, s.Witnesses = l.receipts.stats()
	if l.cluster.Term() != 0 { // else ledger time is another node's
		s.ClockAhead = time.Duration(l.clock.now() - l.options.Clock().UnixNano())
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
	if at := c.lastScrub.Load(); at != 0 {
		s.LastScrub = time.Unix(0, at)
	}
	l.mu.Lock()
	s.QueuedItems, s.InFlight = l.engine.Submissions(), l.engine.InFlight()
	l.mu.Unlock()
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

	readChecks  atomic.Uint64
	queuedBytes atomic.Int64
	batches     stats.Histogram
	stored      stats.Histogram
	applied     stats.Histogram
	evictions   atomic.Pointer[machine.Evictions]

	checkpoints     stats.Histogram
	checkpointBytes atomic.Uint64
	lastCheckpoint  atomic.Int64 // Unix nanoseconds
	blockSyncs      stats.Histogram
	blockSyncBytes  atomic.Uint64

	droppedFiles, droppedBytes, carried atomic.Uint64

	scrubbed, scrubbedBlocks, scrubRounds, scrubPosition atomic.Uint64
	lastScrub                                            atomic.Int64 // Unix nanoseconds; 0 before the first

	opened            time.Time
	recoveryTook      atomic.Int64 // nanoseconds
	recoveredEntries  atomic.Uint64
	recoveredCommands atomic.Uint64
}

// begin is called before anything is counted.
func (c *counters) begin() {
	c.batches.Scale = stats.Sizes
	c.stored.Scale = stats.Durations
	c.applied.Scale = stats.Durations
	c.checkpoints.Scale = stats.Durations
	c.blockSyncs.Scale = stats.Durations
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
	c.checkpoints.Since(began)
	c.checkpointBytes.Add(uint64(bytes))
	c.lastCheckpoint.Store(time.Now().UnixNano())
}

func (c *counters) syncedBlocks(began time.Time, bytes int64) {
	c.blockSyncs.Since(began)
	c.blockSyncBytes.Add(uint64(bytes))
}

// setEvictions keeps a copy that Stats may read beside the applier. Rounds are
// rare beside entries, so that it hardly ever allocates.
func (c *counters) setEvictions(now machine.Evictions) {
	if kept := c.evictions.Load(); kept == nil || *kept != now {
		changed := now // a copy, so that only a change allocates
		c.evictions.Store(&changed)
	}
}
