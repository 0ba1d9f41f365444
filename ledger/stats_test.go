package ledger_test

import (
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
)

// TestStatsOfWrites: each part of the way of a write is counted, and nothing
// is left in the queue when all is answered.
func TestStatsOfWrites(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{CacheBytes: 1 << 20})
	before := l.Stats()
	mustWrite(t, l, appendWrite("a", 1, []byte("x")), machine.Committed)
	// The first retry may meet the applier and go through the log; one that
	// does not leaves its receipt in the cache.
	for l.Stats().CacheEntries == 0 {
		mustWrite(t, l, appendWrite("a", 1, []byte("x")), machine.Replayed)
	}
	mustWrite(t, l, appendWrite("a", 3, []byte("x")), machine.SequenceGap)
	s := l.Stats()
	if s.Decisions[machine.Committed] != before.Decisions[machine.Committed]+1 ||
		s.Decisions[machine.SequenceGap] != 1 {
		t.Errorf("decisions are %v", s.Decisions)
	}
	for name, d := range map[string]stats.Distribution{
		"batches": s.BatchCommands, "stored": s.StoreSeconds, "applied": s.ApplySeconds,
	} {
		if d.Count == 0 || d.Sum <= 0 {
			t.Errorf("%s: nothing was counted: %+v", name, d)
		}
	}
	if s.BatchCommands.Count != s.Entries || uint64(s.BatchCommands.Sum) != s.Commands {
		t.Errorf("batches are %+v, want %d entries with %d commands", s.BatchCommands, s.Entries, s.Commands)
	}
	// A caller may have its answer a moment before its entry has left.
	for s.InFlight != 0 || s.QueuedBytes != 0 {
		if t.Context().Err() != nil {
			return // the test has taken too long, and the package says so
		}
		runtime.Gosched()
		s = l.Stats()
	}
	check.Equal(t, s.QueuedItems, 0, "all is answered, and %d submissions wait")
	if s.CacheBytes == 0 || s.CacheLimitBytes != 1<<20 || s.QueueLimitBytes == 0 {
		t.Errorf("the cache has %d of %d bytes, the queue %d", s.CacheBytes, s.CacheLimitBytes, s.QueueLimitBytes)
	}
}

// TestStatsOfCheckpoints: a checkpoint is counted once it wrote something, and
// TestObserveApply: each applied entry is observed from its beginning to its end.
func TestObserveApply(t *testing.T) {
	t.Parallel()
	var begun, ended atomic.Uint64
	l := open(t, ledger.Options{ObserveApply: func() func() {
		begun.Add(1)
		return func() { ended.Add(1) }
	}})
	mustWrite(t, l, appendWrite("a", 1, []byte("x")), machine.Committed)
	mustWrite(t, l, appendWrite("a", 3, []byte("x")), machine.SequenceGap)
	if entries := l.Stats().Entries; begun.Load() != entries || ended.Load() != entries {
		t.Errorf("%d applies begun, %d ended, want %d", begun.Load(), ended.Load(), entries)
	}
}

// the age of the last one begins anew.
func TestStatsOfCheckpoints(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	opened := l.Stats()
	if opened.CheckpointSeconds.Count != 0 || opened.LastCheckpoint.Before(opened.Opened) {
		t.Errorf("before the first checkpoint: %+v", opened)
	}
	mustWrite(t, l, appendWrite("a", 1, []byte("x")), machine.Committed)
	closeLedger(t, l) // writes one
	s := l.Stats()
	if s.CheckpointSeconds.Count != 1 || s.CheckpointBytes == 0 || !s.LastCheckpoint.After(opened.LastCheckpoint) {
		t.Errorf("after a checkpoint: %+v", s)
	}
}

// TestStatsOfRecovery opens a copy of a directory whose ledger has not closed
// it, as after a crash.
func TestStatsOfRecovery(t *testing.T) {
	t.Parallel()
	dir, crashed := t.TempDir(), t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	for i := range uint64(10) {
		mustWrite(t, l, appendWrite("a", i+1, []byte("x")), machine.Committed)
	}
	must.Do(t, os.CopyFS(filepath.Join(crashed, "copy"), os.DirFS(dir)))
	s := open(t, ledger.Options{Dir: filepath.Join(crashed, "copy")}).Stats()
	if s.RecoveredCommands < 10 || s.RecoveredEntries < 10 || s.RecoveryTook <= 0 {
		t.Errorf("recovered %d commands of %d entries in %s, want at least 10", s.RecoveredCommands, s.RecoveredEntries,
			s.RecoveryTook)
	}
	if applied := s.ApplySeconds.Sum; s.RecoveryTook.Seconds() < applied {
		t.Errorf("the recovery took %s, and applying its entries %f s", s.RecoveryTook, applied)
	}
}

// TestStatsOfEviction: rounds, what they removed, and that they had more to do.
func TestStatsOfEviction(t *testing.T) {
	t.Parallel()
	dir, wall := t.TempDir(), time.Now()
	clock := func() time.Time { return wall }
	config := machine.Config{EvictionInterval: 1, EvictionLimit: 3, ClientTTL: int64(time.Hour)}
	l := open(t, ledger.Options{Dir: dir, Clock: clock, Config: config})
	for _, client := range []string{"a", "b", "c", "d"} {
		mustWrite(t, l, appendWrite(client, 1, []byte("x")), machine.Committed)
	}
	if e := l.Stats().Evictions; e.Rounds == 0 || e.Streams != 0 || e.Full != 0 {
		t.Errorf("nothing is due yet: %+v", e)
	}
	closeLedger(t, l)
	wall = wall.Add(2 * time.Hour)
	l = open(t, ledger.Options{Dir: dir, Clock: clock})
	mustWrite(t, l, appendWrite("z", 1, []byte("x")), machine.Committed)
	if e := l.Stats().Evictions; e.Streams != 3 || e.Full != 1 {
		t.Errorf("a round of three: %+v", e)
	}
	mustWrite(t, l, appendWrite("z", 2, []byte("x")), machine.Committed)
	if e := l.Stats().Evictions; e.Streams != 4 || e.Full != 1 {
		t.Errorf("the last one: %+v", e)
	}
}

// TestStatsOfTheClock: a wall clock that is moved while the ledger runs shows.
func TestStatsOfTheClock(t *testing.T) {
	t.Parallel()
	ahead := time.Duration(0)
	l := open(t, ledger.Options{Clock: func() time.Time { return time.Now().Add(ahead) }})
	ahead = -24 * time.Hour
	if got := l.Stats().ClockAhead; got < 23*time.Hour || got > 25*time.Hour {
		t.Errorf("the ledger's clock is %s ahead of one that was set back by a day", got)
	}
}

func TestDiskUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	u, err := l.DiskUsage()
	if err != nil || u.State == 0 || u.Size > 0 && (u.Free == 0 || u.Free > u.Size) {
		t.Errorf("%+v, %v", u, err)
	}
	closeLedger(t, l)
	must.Do(t, os.RemoveAll(dir))
	if _, err := l.DiskUsage(); err == nil {
		t.Error("a directory that is gone has no usage")
	}
}
