package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/verify"
)

// faultyTarget has a fault in each Put of a second part, or in each List of states.
type faultyTarget struct {
	archive.Target

	fault, lists atomic.Pointer[func() error] // of a Put, and of a List
}

// List implements archive.Target.
func (t *faultyTarget) List(ctx context.Context, folder string) ([]archive.Object, error) {
	if fault := t.lists.Load(); fault != nil && strings.HasSuffix(folder, "/state/") {
		if err := (*fault)(); err != nil {
			return nil, err
		}
	}
	return t.Target.List(ctx, folder)
}

// Put implements archive.Target.
func (t *faultyTarget) Put(ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if fault := t.fault.Load(); fault != nil && strings.Contains(name, "/state/") && strings.HasSuffix(name, "2") {
		if err := (*fault)(); err != nil {
			return err
		}
	}
	return t.Target.Put(ctx, name, r, size, sum)
}

// openWithStates opens a ledger that copies a state to an archive in a directory whenever it is asked to.
func openWithStates(t *testing.T, dir, to string, patience time.Duration) (*retainingLedger, *faultyTarget) {
	t.Helper()
	target := &faultyTarget{Target: archive.Directory(to)}
	l := openRetaining(t, dir, func(o *Options) {
		o.Archive, o.ArchiveInterval, o.statePart = target, time.Nanosecond, 10_000
		o.archivePatience, o.ArchiveRate = patience, -1
	})
	return l, target
}

// TestLogForASlowTarget: a target that takes the log more slowly than it is written does not fill the disk either.
func TestLogForASlowTarget(t *testing.T) {
	t.Parallel()
	l, target := openWithStates(t, t.TempDir(), t.TempDir(), 0)
	behind := &Ledger{options: Options{Archive: target}, log: l.log}
	for i := range uint64(10 * logHold) {
		behind.archiver.log.shipped.Store(10 + i)
		if upTo := 100 * (i + 1); upTo-behind.keepLog(upTo) > 100*logHold {
			t.Fatalf("truncation %d keeps the log from %d to %d", i+1, behind.keepLog(upTo), upTo)
		}
	}
}

// copyStateNow tries to copy a state, and returns why that failed.
func (l *retainingLedger) copyStateNow() string {
	l.Helper()
	l.archiver.copying <- struct{}{}
	l.archiver.states.due = time.Now() // also if the last try has failed
	<-l.archiver.copying
	l.archiveFiles(l.Context())
	return l.Stats().Archive.Problem
}

// mustHaveState expects the newest state of the archive to be of the ledger's index, if it may lag of an earlier one.
func (l *retainingLedger) mustHaveState(to string, lags bool) {
	l.Helper()
	l.archiver.copying <- struct{}{} // so that the ledger's own goroutine copies nothing
	defer func() { <-l.archiver.copying }()
	target := archive.Directory(to)
	states := must.Get(archive.States(l.Context(), target, l.Head().Ledger))(l)
	if len(states) == 0 || (states[len(states)-1].Index == l.Head().Index) == lags {
		l.Errorf("the archive has the states %+v, and the ledger is at %d", states, l.Head().Index)
	}
	report := must.Get(archive.Verify(l.Context(), target, l.Head().Ledger, nil))(l)
	if len(report.Problems)+len(report.Unlisted) > 0 {
		l.Errorf("the archive: %+v", report)
	}
}

// A state is copied when one is due and something was written, also where block files were dropped.
func TestStateIsArchived(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	l, _ := openWithStates(t, t.TempDir(), to, 0)
	l.fill(3 << 20)
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	l.mustHaveState(to, false)
	before := l.Stats().Archive.StateIndex
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	states := must.Get(archive.States(t.Context(), archive.Directory(to), l.Head().Ledger))(t)
	check.Equal(t, states[len(states)-1].Index, before, "nothing was written, and there is a state of %d, want %d")
	l.awaitDrop()
	l.fill(1 << 20)
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	l.mustHaveState(to, false)
	l.closeAndAudit()
}

// lateStates refuses states until a hook is called, before it puts log.
type lateStates struct {
	archive.Target

	hook    atomic.Pointer[func()]
	settled atomic.Bool
}

// Put implements archive.Target.
func (l *lateStates) Put(ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if hook := l.hook.Load(); hook != nil && strings.Contains(name, "/log/") {
		(*hook)()
	}
	if !l.settled.Load() && strings.Contains(name, "/state/") {
		return syscall.ENOSPC
	}
	return l.Target.Put(ctx, name, r, size, sum)
}

// TestPointBeforeTheFirstState: the moment that is told can be restored, also where the first state became ready after
// the call and has more.
func TestPointBeforeTheFirstState(t *testing.T) {
	t.Parallel()
	target := &lateStates{Target: archive.Directory(t.TempDir())}
	l := openRetaining(t, t.TempDir(), func(o *Options) { o.Archive, o.ArchiveInterval = target, time.Nanosecond })
	must.Await(t, func() bool { return l.Stats().Archive.LogIndex > 0 }, "log in the archive")
	l.fill(1)
	hook := func() {
		target.hook.Store(nil)
		target.settled.Store(true)
		l.fill(1)
		check.Equal(t, l.copyStateNow(), "", "problem: %q")
	}
	target.hook.Store(&hook)
	index, _, err := l.ArchivePoint(t.Context())
	must.Do(t, err)
	must.Get(verify.FromArchive(t.Context(), target, l.Head().Ledger, verify.Until{Index: index}))(t)
	l.closeAndAudit()
}

// An archive without the files that no state needs takes more of them, confirms them, and has no problem.
func TestPrune(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	o := func(o *Options) {
		o.Archive, o.ArchiveInterval, o.ArchiveWindow = archive.Directory(to), time.Nanosecond, time.Nanosecond
	}
	l := openRetaining(t, dir, o)
	l.fill(3 << 20)
	l.awaitDrop()
	for range 3 {
		l.fill(1 << 20)
		check.Equal(t, l.copyStateNow(), "", "problem: %q")
	}
	files, _, first, err := archive.Prune(t.Context(), archive.Directory(to), l.Head().Ledger, math.MaxUint64)
	if err != nil || files == 0 || first == 0 {
		t.Fatalf("%d files are removed, and index %d is the first: %v", files, first, err)
	}
	l.closeAndAudit()
	l = openRetaining(t, dir, o)
	l.fill(3 << 20)
	l.awaitDrop()
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	l.mustHaveState(to, false)
	l.closeAndAudit()
	report := must.Get(verify.Archive(t.Context(), archive.Directory(to), l.Head().Ledger, verify.Options{}, nil))(t)
	must.Do(t, report.Problem("the archive"))
}

// A backup that is made while a state is copied comes first, wherever the target hangs. The state is copied later, and
// nothing is told of it.
func TestStateYieldsToABackup(t *testing.T) {
	t.Parallel()
	for _, lists := range []bool{false, true} {
		to := t.TempDir()
		l, target := openWithStates(t, t.TempDir(), to, 0)
		l.fill(1 << 20)
		check.Equal(t, l.copyStateNow(), "", "problem: %q")
		begun, release := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(begun) })
		hang := func() error { begin(); <-release; return nil }
		fault := &target.fault
		if lists {
			fault = &target.lists
		}
		fault.Store(&hang)
		l.fill(1 << 20)
		ended := make(chan string, 1)
		go func() { ended <- l.copyStateNow() }() // ends with release
		<-begun
		var b bytes.Buffer
		must.Get(l.Backup(t.Context(), &b, BackupOptions{RateBytes: -1}))(t)
		fault.Store(nil)
		close(release)
		check.Equal(t, <-ended, "", "problem: %q")
		check.Equal(t, l.copyStateNow(), "", "problem: %q")
		l.mustHaveState(to, false)
		l.closeAndAudit()
	}
}

// After a restart the age of the newest state in the archive counts, so that restarts copy no more states.
func TestStateIsDueByItsAge(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l, _ := openWithStates(t, dir, to, 0)
	l.fill(1 << 20)
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	before := l.Stats().Archive.StateIndex
	l.closeAndAudit()
	l = openRetaining(t, dir, func(o *Options) {
		o.Archive, o.ArchiveInterval = archive.Directory(to), time.Hour
	})
	l.fill(1 << 20)
	l.archiveAll()
	check.Equal(t, l.Stats().Archive.StateIndex, before, "there is a state of index %d, want %d")
	l.mustHaveState(to, true)
	l.closeAndAudit()
}

// A target that is full in the middle of a state loses no older one, keeps no part of it, and takes block files; writes
// go on, and the problem is told until a state was copied.
func TestStateForAFullTarget(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	l, target := openWithStates(t, t.TempDir(), to, 0)
	l.fill(1 << 20)
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	full := func() error { return syscall.ENOSPC }
	target.fault.Store(&full)
	l.fill(1 << 20)
	if problem := l.copyStateNow(); !strings.Contains(problem, syscall.ENOSPC.Error()) {
		t.Errorf("the target is full: %q", problem)
	}
	l.mustHaveState(to, true)
	l.fill(1 << 20)
	must.Do(t, l.flush())
	l.archiveFiles(t.Context()) // which tries no state again so soon
	s := l.Stats().Archive
	if s.WaitingFiles > 0 || !strings.Contains(s.Problem, syscall.ENOSPC.Error()) || s.FailingSince.IsZero() {
		t.Errorf("block files wait, or the problem is no longer told: %+v", s)
	}
	target.fault.Store(nil)
	check.Equal(t, l.copyStateNow(), "", "problem: %q")
	l.mustHaveState(to, false)
	l.closeAndAudit()
}

// A target that hangs in the middle of a state keeps the state's pages no longer than its patience, so that the state
// file does not grow with each write; a backup can be made, and the ledger be closed.
func TestStateForATargetThatHangs(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	l, target := openWithStates(t, t.TempDir(), to, time.Millisecond)
	l.fill(1 << 20)
	begun, release := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	hang := func() error { begin(); <-release; return errors.New("it has hung") }
	target.fault.Store(&hang)
	l.fill(1 << 20)
	ended := make(chan struct{})
	go func() { // ends with release
		defer close(ended)
		l.await("the target to hang", func() bool {
			l.copyStateNow()
			select {
			case <-begun:
				return true
			default:
				return false
			}
		})
	}()
	<-begun
	l.await("the state to be given up", func() bool { return len(l.backups) == 0 })
	l.await("it to be told", func() bool {
		return strings.Contains(l.Stats().Archive.Problem, errArchiveHangs.Error())
	})
	var b bytes.Buffer
	must.Get(l.Backup(t.Context(), &b, BackupOptions{RateBytes: -1}))(t)
	l.fill(1 << 20)
	must.Do(t, l.flush())
	target.fault.Store(nil)
	close(release)
	<-ended
	l.await("a state", func() bool { return l.copyStateNow() == "" }) // a slow test may look like one that hangs
	l.mustHaveState(to, false)
	l.closeAndAudit()
}
