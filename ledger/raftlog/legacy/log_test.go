package legacy

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

// What was acknowledged is there after a restart, in the order of the proposals.
func TestReopenFindsEverything(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	l := created(t, dir, m)
	texts := numbered(500)
	write(t, l, texts...)
	closeLog(t, l)

	again := m.restarted()
	open(t, options(dir, again))
	if got := again.texts(); !slices.Equal(got, texts) {
		t.Fatalf("found %d entries in another order or number, want %d", len(got), len(texts))
	}
}

// The result of Apply is the proposer's, each its own, from many callers.
func TestResultsReachTheirProposers(t *testing.T) {
	t.Parallel()
	m := &recorder{}
	m.onApply = func(_ Position, entry []byte) any { return "result of " + string(entry) }
	l := created(t, t.TempDir(), m)
	var callers sync.WaitGroup
	for _, text := range numbered(300) {
		// Ended by its one answer, waited for below.
		callers.Go(func() {
			got, err := l.Propose([]byte(text)).Wait()
			if err != nil || got != "result of "+text {
				t.Errorf("got %v, %v, want the result of %s", got, err, text)
			}
		})
	}
	callers.Wait()
}

// Truncation keeps what the machine does not hold durably, bounds the disk, and
// never leaves the log empty.
func TestTruncate(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	l := created(t, dir, m)
	big := strings.Repeat("x", 4000)
	var texts []string
	for round := range 6 {
		for _, text := range numbered(100) {
			texts = append(texts, text+big)
		}
		write(t, l, texts[round*100:]...)
		if got := l.BytesSinceTruncate(); got < 400_000 {
			t.Fatalf("%d bytes since the last truncation, want over 400,000", got)
		}
		must(t, l.Truncate())
		if got := l.BytesSinceTruncate(); got != 0 {
			t.Fatalf("%d bytes right after a truncation, want 0", got)
		}
		if m.durable != m.applied[len(m.applied)-1] {
			t.Fatalf("truncated with the machine durable at %s, applied to %s", m.durable, m.applied[len(m.applied)-1])
		}
	}
	var onDisk int64
	for _, name := range segments(t, dir) {
		info, err := os.Stat(name)
		must(t, err)
		onDisk += info.Size()
	}
	if onDisk > 800_000 { // 64 trailing entries and the segments they share
		t.Errorf("the log takes %d bytes after the last truncation", onDisk)
	}
	write(t, l, "last")
	closeLog(t, l)

	again := m.restarted()
	l = open(t, options(dir, again))
	if got := again.texts(); !slices.Equal(got, append(texts, "last")) {
		t.Fatalf("found %d entries, want %d", len(got), len(texts)+1)
	}
	if got := l.BytesSinceTruncate(); got < 64*4000 {
		t.Errorf("%d bytes after opening, want what the log holds", got)
	}
	must(t, l.Truncate()) // a barrier has been applied since, and no command before "last"
	must(t, l.Truncate()) // and nothing at all
	snapshots, err := os.ReadDir(filepath.Join(dir, snapshotDir))
	must(t, err)
	if len(snapshots) > keptSnapshots {
		t.Errorf("%d snapshots are kept, want at most %d", len(snapshots), keptSnapshots)
	}
}

// The log is not truncated while the machine has not made its state durable,
// and commits go on meanwhile.
func TestTruncateWaitsForCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	entered, release := make(chan Position), make(chan error)
	m := &recorder{onCheckpoint: func(at Position) error { entered <- at; return <-release }}
	l := created(t, dir, m)
	texts := numbered(200)
	write(t, l, texts...)
	for _, refusal := range []error{errors.New("the store is slow"), nil} {
		done := make(chan error, 1)
		var truncation sync.WaitGroup
		// Ended by release, waited for below.
		truncation.Go(func() { done <- l.Truncate() })
		at := <-entered
		if first, err := l.store.FirstIndex(); err != nil || first != 1 {
			t.Fatalf("first index %d, %v while the checkpoint at %s is under way, want 1", first, err, at)
		}
		write(t, l, "meanwhile")
		release <- refusal
		truncation.Wait()
		if err := <-done; (err == nil) != (refusal == nil) {
			t.Fatalf("Truncate: %v, with a checkpoint that ended with %v", err, refusal)
		}
	}
	if first, err := l.store.FirstIndex(); err != nil || first == 1 {
		t.Fatalf("first index %d, %v after the truncation", first, err)
	}
}

// However often the log is truncated, closed and opened, with whatever the
// machine holds durably, it applies the same commands.
func TestRestartsAndTruncations(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 3))
	dir, m := t.TempDir(), &recorder{}
	l := created(t, dir, m)
	var want []string
	for round := range 12 {
		texts := numbered(1 + rng.IntN(150))
		write(t, l, texts...)
		want = append(want, texts...)
		if rng.IntN(2) == 0 {
			must(t, l.Truncate())
		}
		if rng.IntN(2) == 0 {
			// The machine may flush without a truncation.
			m.durable = m.applied[len(m.applied)-1-rng.IntN(min(10, len(m.applied)-m.durableCount()+1))]
		}
		closeLog(t, l)
		m = m.restarted()
		l = open(t, options(dir, m))
		if got := m.texts(); !slices.Equal(got, want) {
			t.Fatalf("round %d, seed %d: found %d entries, want %d", round, seed, len(got), len(want))
		}
	}
}

// durableCount returns how many commands are durable, at least 1.
func (r *recorder) durableCount() int {
	n := 0
	for _, at := range r.applied {
		if at.Index <= r.durable.Index {
			n++
		}
	}
	return max(n, 1)
}

// Raft takes no snapshot by itself, leaves some entries behind one, and does not
// stop on its own.
func TestRaftConfig(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir(), &recorder{})
	c := raftConfig(&o)
	must(t, raft.ValidateConfig(c))
	if c.TrailingLogs < 1 || c.TrailingLogs > 1000 || c.SnapshotThreshold < 1<<62 || c.SnapshotInterval < never ||
		!c.NoSnapshotRestoreOnStart || !c.BatchApplyCh || c.ShutdownOnRemove {
		t.Errorf("unfit configuration: %+v", c)
	}
	l := created(t, o.Dir, &recorder{})
	if got := l.raft.ReloadableConfig(); got.ElectionTimeout > soleTimeout || got.HeartbeatTimeout > soleTimeout {
		t.Errorf("a sole voter waits %v and %v for others", got.HeartbeatTimeout, got.ElectionTimeout)
	}
}

// A closed log refuses everything, and can be closed again.
func TestClosedLog(t *testing.T) {
	t.Parallel()
	l := created(t, t.TempDir(), &recorder{})
	p := l.Propose([]byte("before"))
	closeLog(t, l)
	closeLog(t, l)
	if _, err := p.Wait(); err != nil {
		t.Errorf("a proposal made before Close: %v, want its result", err)
	}
	_, err := l.Propose([]byte("after")).Wait()
	for name, err := range map[string]error{
		"Propose": err, "Ready": l.Ready(t.Context()), "ReadBarrier": l.ReadBarrier(t.Context()),
		"Truncate": l.Truncate(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
}

// Options that cannot work are refused before anything is on disk.
func TestOptions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"Dir":          func(o *Options) { o.Dir = "" },
		"NodeID":       func(o *Options) { o.NodeID = "" },
		"Identity":     func(o *Options) { o.Identity = nil },
		"Machine":      func(o *Options) { o.Machine = nil },
		"SegmentBytes": func(o *Options) { o.SegmentBytes = 100 },
		"create":       func(o *Options) { o.Checkpoint = Position{1, 1} },
	} {
		dir := filepath.Join(t.TempDir(), "data")
		o := options(dir, &recorder{})
		o.Create = true
		change(&o)
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names it", name, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: refused options left something on disk", name)
		}
	}
	l := created(t, t.TempDir(), &recorder{})
	if _, err := l.Propose(make([]byte, MaxEntryBytes+1)).Wait(); !errors.Is(err, ErrEntryTooLarge) {
		t.Errorf("an entry over the limit: %v", err)
	}
	write(t, l, string(make([]byte, MaxEntryBytes)), "")
}

// A context that ends gives up waiting, and nothing else.
func TestReadyGivesUp(t *testing.T) {
	t.Parallel()
	l := created(t, t.TempDir(), &recorder{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.currentAt.Store(0)
	if err := l.Ready(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Ready: %v", err)
	}
	must(t, l.Ready(t.Context()))
	must(t, l.ReadBarrier(t.Context()))
}
