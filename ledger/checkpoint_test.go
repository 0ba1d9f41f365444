package ledger

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

func TestCheckpointsGrowWhereTheyCostMuch(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, test := range map[string]struct {
		now, changed, pages, want int64
	}{
		"pages of random records":   {32 * mib, 32 * mib, 300 * mib, 64 * mib},
		"half of it is tolerated":   {64 * mib, 64 * mib, 32 * mib, 64 * mib},
		"just above a half":         {64 * mib, 64 * mib, 32*mib + 1, 128 * mib},
		"never above the bound":     {128 * mib, 128 * mib, 900 * mib, 128 * mib},
		"records that lie together": {128 * mib, 132 * mib, 33*mib - 1, 64 * mib},
		"a quarter is tolerated":    {128 * mib, 132 * mib, 33 * mib, 128 * mib},
		"never below the bound":     {32 * mib, 32 * mib, 2 * mib, 32 * mib},
		"a small one tells nothing": {64 * mib, 10 * mib, 90 * mib, 64 * mib},
		"nothing written yet":       {32 * mib, 0, 0, 32 * mib},
	} {
		got := nextCheckpointBytes(test.now, boltstore.FlushSize{Changed: test.changed, Pages: test.pages})
		check.Equal(t, got, test.want, "%s: got %d", name)
	}
}

func TestTheFirstCheckpointGoesByTheState(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for state, want := range map[int64]int64{
		0: 32 * mib, 512 * mib: 32 * mib, 512*mib + 16: 32*mib + 1, 1024 * mib: 64 * mib, 2048 * mib: 128 * mib,
		1 << 50: 128 * mib,
	} {
		check.Equal(t, firstCheckpointBytes(state), want, "with a state of %d bytes: %d", state)
	}
}

func TestProposalsWaitAboveTheCheckpoint(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for due, want := range map[int64]int64{16 << 10: 64 << 10, 32 * mib: 128 * mib, 64 * mib: 128 * mib,
		256 * mib: 512 * mib} {
		l := new(Ledger)
		l.checkpointBytes.Store(due)
		check.Equal(t, l.maxPending(), want, "a checkpoint of %d bytes: proposals wait at %d", due)
	}
}

// The bound of an entry comes from the ledger's own configuration, also when
// nothing is replayed at the start.
func TestEntryBoundAfterRestart(t *testing.T) {
	t.Parallel()
	o := Options{
		Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Config: machine.Config{EvictionInterval: 7, EvictionLimit: 20_000},
	}
	for range 2 {
		l := must.Get(Open(t.Context(), o))(t)
		check.Equal(t, l.mostCommands(), 7, "an entry takes %d commands")
		must.Do(t, l.Close())
		o.Config = machine.Config{} // the ledger keeps its own
	}
}

// A caller that only waited for another's flush does not count it again.
func TestFlushIsCountedOnce(t *testing.T) {
	t.Parallel()
	l := must.Get(Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	before := l.Stats().CheckpointSeconds.Count
	must.Get(l.Write(t.Context(), &machine.Write{
		Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "system:test", Sequence: 1,
		Operations: []machine.Operation{{Kind: machine.OpAppend}},
	}))(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := l.flush(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	check.Equal(t, l.Stats().CheckpointSeconds.Count-before, 1, "one flush is counted %d times")
	must.Do(t, l.Close())
}

// What passes of eviction must step over does not gather without bound: so many
// deletions of the expiry index make a checkpoint due, however little memory they take.
func TestTombstonesMakeACheckpointDue(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{idleInterval: time.Hour})
	later := l.clock.now() + int64(time.Hour)
	const each = machine.MaxOperations / 2
	sequence, i := uint64(0), 0
	remove := func(n int) {
		t.Helper()
		for end := i + n; i < end; i += each {
			sequence++
			w := testWrite("c", sequence, 1)
			w.Operations = nil
			for j := range each {
				key := fmt.Appendf(nil, "%d", i+j)
				w.Operations = append(w.Operations,
					machine.Operation{Kind: machine.OpSetEntity, Key: key, ExpiresAt: later + int64(i+j)},
					machine.Operation{Kind: machine.OpDeleteEntity, Key: key})
			}
			must.Equal(t, must.Get(l.Write(t.Context(), w))(t).Code, machine.Committed)
		}
	}
	checkpoints := l.Stats().CheckpointSeconds.Count
	remove(maxTombstones - 2*each)
	if l.flushIsDue() || l.Stats().CheckpointSeconds.Count != checkpoints {
		t.Errorf("a checkpoint after %d of %d tombstones and %d bytes", l.store.Tombstones(), maxTombstones,
			l.store.PendingBytes())
	}
	before := l.store.Tombstones()
	if before < maxTombstones-3*each {
		t.Fatalf("%d tombstones are counted of %d", before, i)
	}
	remove(4 * each)
	for l.Stats().CheckpointSeconds.Count == checkpoints { // the loop of checkpoints makes it
		must.Do(t, l.Err())
		runtime.Gosched()
	}
}

// While a checkpoint takes its time, proposals wait as soon as too much has
// gathered, and go on after it.
func TestProposalsWaitForACheckpoint(t *testing.T) {
	t.Parallel()
	const due, each = 16 << 10, 20
	l := must.Get(Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		CheckpointBytes: due}))(t)
	l.flushing.Lock()
	var group sync.WaitGroup
	written := make(chan struct{})
	group.Go(func() {
		defer close(written)
		for sequence := uint64(1); sequence <= 100; sequence++ {
			w := testWrite("c", sequence, 1)
			for i := range each { // blocks alone would not gather
				w.Operations = append(w.Operations,
					machine.Operation{Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%d/%d", sequence, i)})
			}
			if _, err := l.Write(t.Context(), w); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for waiting := true; waiting && l.Stats().Slowed == 0; {
		select {
		case <-written:
			t.Error("no proposal waited")
			waiting = false
		default:
			runtime.Gosched()
		}
	}
	if n := l.Stats().PendingBytes; n > 4*due+4*each*500 {
		t.Errorf("%d bytes of changes wait for the state file", n)
	}
	l.flushing.Unlock()
	group.Wait()
	must.Do(t, l.Close())
}

// A checkpoint rests while others wait for the processor, and only then.
func TestCheckpointRests(t *testing.T) {
	t.Parallel()
	const worked, roomy = 2 * time.Millisecond, 1 << 20
	for name, test := range map[string]struct {
		replayed bool
		queued   int64
		due      int64 // some hundred bytes have gathered
		worked   time.Duration
		want     time.Duration
	}{
		"somebody waits":             {true, 1, roomy, worked, 2 * worked},
		"after long work":            {true, 1, roomy, time.Second, longestYield},
		"nobody waits":               {true, 0, roomy, worked, 0},
		"at a start":                 {false, 1, roomy, worked, 0},
		"the next one is nearly due": {true, 1, 10, worked, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := must.Get(boltstore.Open(filepath.Join(t.TempDir(), "state"),
					boltstore.Options{Create: true, Identity: []byte("x"), NoSync: true}))(t)
				defer func() { _ = store.Close() }() // it is thrown away
				must.Do(t, store.Update(boltstore.Position{Index: 1, Term: 1}, func(tx machine.Tx) error {
					return tx.Put(machine.TableMeta, []byte("k"), make([]byte, 100))
				}))
				watch := raftlog.NewWatch()
				l := &Ledger{
					store: store, stopping: t.Context(),
					checkpointed: watch.Job("a checkpoint", time.Second), roomAwaited: watch.Job("room", time.Second),
				}
				l.replayed.Store(test.replayed)
				l.counters.queuedBytes.Store(test.queued)
				l.checkpointBytes.Store(test.due)
				began := time.Now()
				l.yield(test.worked)
				check.Equal(t, time.Since(began), test.want, "it rested %s")
			})
		})
	}
}
