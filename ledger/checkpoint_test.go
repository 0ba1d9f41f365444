package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
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
		if got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestProposalsWaitAboveTheCheckpoint(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for due, want := range map[int64]int64{16 << 10: 64 << 10, 32 * mib: 128 * mib, 64 * mib: 128 * mib,
		256 * mib: 512 * mib} {
		l := new(Ledger)
		l.checkpointBytes.Store(due)
		if got := l.maxPending(); got != want {
			t.Errorf("a checkpoint of %d bytes: proposals wait at %d, want %d", due, got, want)
		}
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
		l, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.entryCommands.Load(); got != 7 {
			t.Errorf("an entry takes %d commands, want 7", got)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.Config = machine.Config{} // the ledger keeps its own
	}
}

// Whoever only waited for another's flush does not count it again.
func TestFlushIsCountedOnce(t *testing.T) {
	t.Parallel()
	l, err := Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	before := l.Stats().CheckpointSeconds.Count
	if _, err := l.Write(t.Context(), &machine.Write{
		Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "system:test", Sequence: 1,
		Operations: []machine.Operation{{Kind: machine.OpAppend}},
	}); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := l.flush(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := l.Stats().CheckpointSeconds.Count - before; got != 1 {
		t.Errorf("one flush is counted %d times", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Blocks are spilled at 8 MiB, earlier where checkpoints are small, and later where
// each spill would write a long list of free pages.
func TestSpillsAreSmallerThanCheckpoints(t *testing.T) {
	t.Parallel()
	const kib, mib = 1 << 10, 1 << 20
	for _, tt := range []struct{ checkpoint, freeList, want int64 }{
		{1, 0, 1},
		{16 * kib, 0, 4 * kib},
		{32 * mib, 4 * kib, 8 * mib},
		{128 * mib, 2 * mib, 8 * mib},
		{128 * mib, 3 * mib, 12 * mib},
		{32 * mib, 100 * mib, 400 * mib}, // never: the checkpoint is due before
	} {
		if got := spillDue(tt.checkpoint, tt.freeList); got != tt.want {
			t.Errorf("a checkpoint of %d bytes, a list of %d: a spill is due at %d, want %d", tt.checkpoint,
				tt.freeList, got, tt.want)
		}
	}
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
			if out, err := l.Write(t.Context(), w); err != nil || out.Code != machine.Committed {
				t.Fatal(out, err)
			}
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
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}

// A spill may come between the checkpoint of a backup and its snapshot. The
// backup stands for the checkpoint, and nothing of the spill is restored.
func TestBackupWithASpillInIt(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	write := func(sequence uint64) {
		t.Helper()
		if _, err := l.Write(t.Context(), testWrite("c", sequence, 10)); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	if err := l.flush(); err != nil {
		t.Fatal(err)
	}
	write(2)
	if written, err := l.store.Spill(); err != nil || written == 0 {
		t.Fatal(written, err)
	}
	var backup bytes.Buffer
	snapshot, err := l.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	info, err := describe(snapshot)
	if err != nil || info.Index != 2 { // the creation and one write
		t.Fatal(info, err)
	}
	out, err := backupfile.NewWriter(&backup, &info, func(int) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	err = snapshot.CopyTo(out)
	_, finished := out.Finish()
	if err := errors.Join(err, finished, snapshot.Close()); err != nil {
		t.Fatal(err)
	}
	report, err := verify.Backup(t.Context(), bytes.NewReader(backup.Bytes()), verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != 1 {
		t.Errorf("verify: %v %+v", err, report)
	}
	dir := t.TempDir()
	o := RestoreOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler)}
	if _, err := Restore(t.Context(), bytes.NewReader(backup.Bytes()), o); err != nil {
		t.Fatal(err)
	}
	report, err = verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != 1 {
		t.Errorf("verify of the restored directory: %v %+v", err, report)
	}
}

// While a checkpoint takes its time, proposals wait as soon as too much has
// gathered, and go on after it.
func TestProposalsWaitForACheckpoint(t *testing.T) {
	t.Parallel()
	const due, payload = 16 << 10, 4 << 10
	l, err := Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), CheckpointBytes: due})
	if err != nil {
		t.Fatal(err)
	}
	l.flushing.Lock()
	var group sync.WaitGroup
	written := make(chan struct{})
	group.Go(func() {
		defer close(written)
		for sequence := uint64(1); sequence <= 100; sequence++ {
			if _, err := l.Write(t.Context(), &machine.Write{
				Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "system:test", Sequence: sequence,
				Operations: []machine.Operation{{Kind: machine.OpAppend, Value: make([]byte, payload)}},
			}); err != nil {
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
	if n := l.Stats().PendingBytes; n > 4*due+4*payload {
		t.Errorf("%d bytes of changes wait for the state file", n)
	}
	l.flushing.Unlock()
	group.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
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
				store, err := boltstore.Open(filepath.Join(t.TempDir(), "state"),
					boltstore.Options{Create: true, Identity: []byte("x"), NoSync: true})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = store.Close() }() // it is thrown away
				err = store.Update(boltstore.Position{Index: 1, Term: 1}, func(tx machine.Tx) error {
					return tx.Put(machine.TableMeta, []byte("k"), make([]byte, 100))
				})
				if err != nil {
					t.Fatal(err)
				}
				l := &Ledger{store: store, stopping: t.Context()}
				l.replayed.Store(test.replayed)
				l.counters.queuedBytes.Store(test.queued)
				l.checkpointBytes.Store(test.due)
				began := time.Now()
				l.yield(test.worked)
				if rested := time.Since(began); rested != test.want {
					t.Errorf("it rested %s, want %s", rested, test.want)
				}
			})
		})
	}
}
