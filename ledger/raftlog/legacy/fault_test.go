package legacy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

var errDisk = errors.New("the disk is on fire")

// fault decides which call of the disk fails, and counts what comes after.
type fault struct {
	countdown atomic.Int64 // fails the call that takes it to zero; negative: off
	failed    atomic.Bool
	late      atomic.Int64 // calls after the failing one that would change the disk
	failures  atomic.Int64 // calls of OnFailure
}

func newFault() *fault {
	f := &fault{}
	f.countdown.Store(-1)
	return f
}

func (f *fault) hit() error {
	if f.failed.Load() {
		f.late.Add(1)
		return nil
	}
	if f.countdown.Load() > 0 && f.countdown.Add(-1) == 0 {
		f.failed.Store(true)
		return errDisk
	}
	return nil
}

// faultyStore fails one kind of call above raft-wal.
type faultyStore struct {
	diskStore
	*fault
	op      string
	written bool // the failing StoreLogs has written all the same, as a failed fsync may
}

func (s faultyStore) call(op string, do func() error) error {
	if op != s.op && !s.failed.Load() {
		return do()
	}
	if err := s.hit(); err != nil {
		if s.written {
			err = errors.Join(err, do())
		}
		return err
	}
	return do()
}

func (s faultyStore) StoreLogs(e []*raft.Log) error {
	return s.call("StoreLogs", func() error { return s.diskStore.StoreLogs(e) })
}

func (s faultyStore) DeleteRange(lowest, highest uint64) error {
	return s.call("DeleteRange", func() error { return s.diskStore.DeleteRange(lowest, highest) })
}

func (s faultyStore) Set(k, v []byte) error {
	return s.call("Set", func() error { return s.diskStore.Set(k, v) })
}

func (s faultyStore) SetUint64(k []byte, v uint64) error {
	return s.call("SetUint64", func() error { return s.diskStore.SetUint64(k, v) })
}

func (s faultyStore) GetLog(i uint64, e *raft.Log) error {
	if s.op == "GetLog" {
		if err := s.hit(); err != nil {
			return err
		}
	}
	return s.diskStore.GetLog(i, e)
}

func withFault(o Options, f *fault, op string, written bool) Options {
	o.wrap = func(d diskStore) diskStore { return faultyStore{d, f, op, written} }
	o.OnFailure = func(error) { f.failures.Add(1) }
	return o
}

// wantStopped checks that a log whose disk has failed does nothing any more.
func wantStopped(t *testing.T, l *Log, f *fault) {
	t.Helper()
	for name, err := range map[string]error{
		"Ready": l.Ready(t.Context()), "ReadBarrier": l.ReadBarrier(t.Context()), "Truncate": l.Truncate(),
	} {
		if !errors.Is(err, errDisk) {
			t.Errorf("%s of a failed log: %v, want the failure", name, err)
		}
	}
	if _, err := l.Propose([]byte("late")).Wait(); !errors.Is(err, ErrNotLeader) || !errors.Is(err, errDisk) {
		t.Errorf("proposal to a failed log: %v, want ErrNotLeader with the failure", err)
	}
	if err := l.Close(); !errors.Is(err, errDisk) {
		t.Errorf("Close of a failed log: %v, want the failure", err)
	}
	if n := f.failures.Load(); n != 1 {
		t.Errorf("OnFailure was called %d times, want once", n)
	}
	if n := f.late.Load(); n != 0 {
		t.Errorf("the disk was written %d times after it had failed", n)
	}
}

// A failed write under pipelined proposals stops the node: hashicorp/raft alone
// would be leader again in 33 ms and write on.
func TestFailedWriteStopsTheLog(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written=%t", written), func(t *testing.T) {
			t.Parallel()
			dir, m, f := t.TempDir(), &recorder{}, newFault()
			o := withFault(options(dir, m), f, "StoreLogs", written)
			o.Create = true
			l := open(t, o)
			write(t, l, "first")
			f.countdown.Store(1)
			var proposals []*Proposal
			for range 200 {
				proposals = append(proposals, l.Propose([]byte("doomed")))
			}
			for i, p := range proposals {
				_, err := p.Wait()
				if !errors.Is(err, errDisk) || errors.Is(err, ErrOutcomeUnknown) == errors.Is(err, ErrNotLeader) {
					t.Fatalf("proposal %d: %v, want one of ErrOutcomeUnknown and ErrNotLeader, with the failure",
						i, err)
				}
				if i == 0 && !errors.Is(err, ErrOutcomeUnknown) {
					t.Fatalf("the proposal whose write failed: %v, want ErrOutcomeUnknown", err)
				}
			}
			wantStopped(t, l, f)
			if got := m.texts(); !slices.Equal(got, []string{"first"}) {
				t.Errorf("applied %q, want nothing after the failure", got)
			}
		})
	}
}

// Proposals that Raft never took from its queue have an answer, too; Raft alone
// would leave their waiters hanging.
func TestQueuedProposalsAreAnswered(t *testing.T) {
	t.Parallel()
	reached, release := make(chan struct{}), make(chan struct{})
	m := &recorder{onApply: func(Position, []byte) any {
		close(reached)
		<-release
		return "done"
	}}
	l := created(t, t.TempDir(), m)
	first := l.Propose([]byte("stuck in Apply"))
	<-reached
	var queued []*Proposal
	for range 50 {
		queued = append(queued, l.Propose([]byte("behind it")))
	}
	l.Fail(errDisk)
	for i, p := range append(queued, first) {
		if _, err := p.Wait(); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, errDisk) {
			t.Fatalf("proposal %d: %v, want ErrOutcomeUnknown with the failure", i, err)
		}
	}
	close(release)
	if err := l.Close(); !errors.Is(err, errDisk) {
		t.Fatalf("Close: %v, want the failure", err)
	}
}

// A machine that fails gets no further command, and its proposer learns that
// the outcome is unknown rather than what a broken machine returned.
func TestMachineFailureStopsApply(t *testing.T) {
	t.Parallel()
	var l *Log
	m := &recorder{}
	m.onApply = func(_ Position, entry []byte) any {
		if string(entry) == "poison" {
			l.Fail(errDisk)
			return "never seen"
		}
		return nil
	}
	l = created(t, t.TempDir(), m)
	write(t, l, "good")
	poison, after := l.Propose([]byte("poison")), l.Propose([]byte("after"))
	for _, p := range []*Proposal{poison, after} {
		if result, err := p.Wait(); result != nil || !errors.Is(err, errDisk) {
			t.Errorf("got %v, %v, want no result and the failure", result, err)
		}
	}
	if got := m.texts(); !slices.Equal(got, []string{"good"}) {
		t.Errorf("applied %q, want only what came before the failure", got)
	}
}

// Raft panics when it cannot store a term, and tries again for ever when it
// cannot store a vote. Neither may happen: the log fails and closes in order.
func TestFailedVoteStopsTheLog(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		op string
		at int64
	}{{"SetUint64", 1}, {"SetUint64", 2}, {"SetUint64", 3}, {"Set", 1}, {"GetLog", 3}, {"GetLog", 6}} {
		t.Run(fmt.Sprintf("%s=%d", tt.op, tt.at), func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			closeLogAfter(t, dir, m, "one", "two", "three")
			f := newFault()
			f.countdown.Store(tt.at)
			m = m.restarted()
			l, err := Open(withFault(options(dir, m), f, tt.op, false))
			if err != nil {
				// The failing call was Open's own.
				if !errors.Is(err, errDisk) {
					t.Fatalf("Open: %v, want the failure", err)
				}
			} else {
				if err := l.Ready(t.Context()); !errors.Is(err, errDisk) {
					t.Fatalf("Ready: %v, want the failure", err)
				}
				wantStopped(t, l, f)
			}
			again := m.restarted()
			open(t, options(dir, again))
			if got, want := again.texts(), []string{"one", "two", "three"}; !slices.Equal(got, want) {
				t.Errorf("after the disk came back: %q, want %q", got, want)
			}
		})
	}
}

// A truncation that fails half way stops the log, and loses nothing.
func TestFailedTruncationStopsTheLog(t *testing.T) {
	t.Parallel()
	dir, m, f := t.TempDir(), &recorder{}, newFault()
	o := withFault(options(dir, m), f, "DeleteRange", false)
	o.Create = true
	l := open(t, o)
	texts := numbered(300)
	write(t, l, texts...)
	f.countdown.Store(1)
	if err := l.Truncate(); !errors.Is(err, errDisk) {
		t.Fatalf("Truncate: %v, want the failure", err)
	}
	wantStopped(t, l, f)
	again := m.restarted()
	open(t, options(dir, again))
	if got := again.texts(); !slices.Equal(got, texts) {
		t.Fatalf("found %d entries, want %d", len(got), len(texts))
	}
}

// closeLogAfter leaves a log in dir with the texts in it.
func closeLogAfter(t *testing.T, dir string, m *recorder, texts ...string) {
	t.Helper()
	l := created(t, dir, m)
	write(t, l, texts...)
	closeLog(t, l)
}

// faultyFiles fails the nth write, sync, creation or deletion of a log file.
type faultyFiles struct {
	*walfs.FS
	*fault
	torn *rand.Rand // decides how much of a failing write arrives; under mu
	mu   *sync.Mutex
}

type faultyFile struct {
	types.WritableFile
	files faultyFiles
}

func (f faultyFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.files.hit(); err != nil {
		f.files.mu.Lock()
		part := b[:f.files.torn.IntN(len(b)+1)]
		f.files.mu.Unlock()
		_, writeErr := f.WritableFile.WriteAt(part, at)
		return 0, errors.Join(err, writeErr)
	}
	return f.WritableFile.WriteAt(b, at)
}

func (f faultyFile) Sync() error {
	if err := f.files.hit(); err != nil {
		return err
	}
	return f.WritableFile.Sync()
}

func (f faultyFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if err := f.hit(); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(dir, name, size)
	return faultyFile{file, f}, err
}

func (f faultyFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	file, err := f.FS.OpenWriter(dir, name)
	if err != nil {
		return nil, err // raft-wal asks whether it is os.ErrNotExist
	}
	return faultyFile{file, f}, nil
}

func (f faultyFiles) Delete(dir, name string) error {
	if err := f.hit(); err != nil {
		return err
	}
	return f.FS.Delete(dir, name)
}

// Whatever call of the file system fails, with proposals in flight: what was
// acknowledged is found after a restart, in order, and nothing that was never
// proposed is.
func TestAnyFaultKeepsTheAcknowledged(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("RAFTLOG_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with: RAFTLOG_SEED=%d go test -run %s ./ledger/raftlog", seed, t.Name())
		}
	})
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 10 {
		faultRound(t, rng)
	}
}

func faultRound(t *testing.T, rng *rand.Rand) {
	t.Helper()
	dir, m := t.TempDir(), &recorder{}
	var proposed, acknowledged []string
	for life := range 3 {
		f := newFault()
		o := options(dir, m)
		o.Create, o.SegmentBytes = life == 0, 4<<10
		o.files = faultyFiles{walfs.New(), f, rand.New(rand.NewPCG(rng.Uint64(), 2)), &sync.Mutex{}}
		l := open(t, o)
		f.countdown.Store(1 + rng.Int64N(60))
		for burst := range 12 {
			var texts []string
			var inFlight []*Proposal
			for i := range 1 + rng.IntN(20) {
				text := fmt.Sprintf("%d.%d.%d.%s", life, burst, i, strings.Repeat("x", rng.IntN(300)))
				texts, inFlight = append(texts, text), append(inFlight, l.Propose([]byte(text)))
			}
			proposed = append(proposed, texts...)
			for i, p := range inFlight {
				if _, err := p.Wait(); err == nil {
					acknowledged = append(acknowledged, texts[i])
				}
			}
			if rng.IntN(4) == 0 {
				_ = l.Truncate() // fails once the disk has
			}
		}
		_ = l.Close()
		m = m.restarted()
	}
	open(t, options(dir, m))
	found := m.texts()
	if !isSubsequence(acknowledged, found) {
		t.Fatalf("%d acknowledged entries are not all among the %d found, in order", len(acknowledged), len(found))
	}
	if !isSubsequence(found, proposed) {
		t.Fatalf("the %d entries found are not among the %d proposed, in order", len(found), len(proposed))
	}
}

// isSubsequence tells whether part can be had from whole by leaving some out.
func isSubsequence(part, whole []string) bool {
	for _, s := range whole {
		if len(part) > 0 && part[0] == s {
			part = part[1:]
		}
	}
	return len(part) == 0
}
