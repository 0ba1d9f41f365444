package ledger

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

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
			check.Is(t, l.flush(), nil)
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
	const most = 1 << 16
	remove(most - 2*each)
	if l.Stats().CheckpointSeconds.Count != checkpoints {
		t.Errorf("a checkpoint after %d of %d tombstones and %d bytes", l.store.Tombstones(), most,
			l.store.PendingBytes())
	}
	before := l.store.Tombstones()
	if before < most-3*each {
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
	l.jobs.Lock()
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
	l.jobs.Unlock()
	group.Wait()
	must.Do(t, l.Close())
}

// A checkpoint rests while others wait for the processor, and only then.
func TestCheckpointRests(t *testing.T) {
	t.Parallel()
	const worked = 2 * time.Millisecond
	for name, test := range map[string]struct {
		replayed, queued bool
		changes          int64
		worked           time.Duration
		want             time.Duration
	}{
		"somebody waits":             {true, true, 15, worked, 2 * worked},
		"after long work":            {true, true, 15, time.Second, longestYield},
		"nobody waits":               {true, false, 15, worked, 0},
		"at a start":                 {false, true, 15, worked, 0},
		"the next one is nearly due": {true, true, 16, worked, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &Ledger{
					pipeline: pipeline{engine: engine.New(1<<20, 1)}, life: life{stopping: t.Context()},
					upkeep: upkeep{working: raftlog.NewWatch().Job("", time.Second)},
				}
				l.replayed.Store(test.replayed)
				l.engine.SetCheckpointBytes(10, 0)
				l.engine.Gather(engine.Gathered{Changes: test.changes})
				if test.queued {
					s := new(engine.Submission)
					s.Add(engine.Origin{}, []byte("x"), 1)
					l.engine.Submit(s, false)
				}
				began := time.Now()
				l.yield(test.worked)
				check.Equal(t, time.Since(began), test.want, "it rested %s")
			})
		})
	}
}
