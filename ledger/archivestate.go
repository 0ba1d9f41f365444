package ledger

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
)

// The leader copies a state to the archive from time to time: a backup whose sealed block files are in the archive
// already. As for a backup, no page that it needs is reused until all of it is read, so a target that does not take it
// must not keep it open: see patientTarget.

// stateRetry is how long after a state could not be copied the next one is tried. A try may write much to a target that
// is full or slow.
const stateRetry = 10 * time.Minute

// stateShipper knows when the next state is due. It belongs to the goroutine that uses the archive.
type stateShipper struct {
	due    time.Time // on the monotonic clock; zero: whenever the archive was looked at
	failed error     // of the last try
}

// copyState copies a state to the archive if one is due, and returns why the last try failed.
func (l *Ledger) copyState(ctx context.Context, a *archive.Archive) error {
	s := &l.archiver.states
	if l.options.ArchiveInterval < 0 || l.cluster.Term() == 0 {
		*s = stateShipper{} // another node copies, or none
		return nil
	}
	if l.archiver.log.gap.Load() != 0 && s.failed == nil {
		s.due = time.Time{} // the state closes it
	}
	if time.Now().Before(s.due) {
		return s.failed
	}
	wait, err := l.tryState(ctx, a)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case err == nil:
		s.failed = nil
	case !errors.Is(err, errYields):
		s.failed = fmt.Errorf("copy a state: %w", err)
	}
	s.due = time.Now().Add(wait)
	return s.failed
}

var errYields = errors.New("a backup, or another node that needs a state, comes first")

// yieldState makes a state that is being copied to the archive give its place up, and reports whether there is one.
func (l *Ledger) yieldState() bool {
	give := l.archiver.yield.Load()
	if give != nil {
		(*give)(errYields)
	}
	return give != nil
}

// tryState copies a state if the newest one in the archive is old enough, and returns how long the next one has time.
func (l *Ledger) tryState(ctx context.Context, a *archive.Archive) (wait time.Duration, err error) {
	s, every, id := &l.archiver.states, l.options.ArchiveInterval, a.Mark().Ledger
	found, err := archive.States(ctx, l.options.Archive, id)
	l.archiver.answers.Add(1)
	if err != nil {
		return stateRetry, err
	}
	if len(found) > 0 {
		newest := found[len(found)-1]
		l.noteState(newest)
		// A clock that was set back gives a negative age: the state may be as old as the clock is wrong.
		age := max(time.Since(newest.Time), 0)
		if s.due.IsZero() && age < every && l.archiver.log.gap.Load() == 0 {
			return every - age, nil
		}
		if l.Head().Index == newest.Index && l.archiver.log.gap.Load() == 0 {
			return every, nil // nothing was written since
		}
	}
	select { // not before the target has answered
	case l.backups <- struct{}{}:
	default: // a backup is being made: the next pass
		return 0, errYields
	}
	target := &patientTarget{
		Target: l.options.Archive, answers: &l.archiver.answers, patience: l.options.archiveSilence(),
	}
	var w *archive.StateWriter
	var in backupfile.Info
	out := writerFunc(func(b []byte) (int, error) {
		l.archiver.answers.Add(1) // the pace may be slow
		return w.Write(b)
	})
	reading, give := context.WithCancelCause(ctx)
	defer give(nil)
	l.archiver.yield.Store(&give)
	_, err = l.backup(reading, out, BackupOptions{
		RateBytes: l.options.ArchiveRate, sealedApart: true, mayLag: true,
		Begin: func(info backupfile.Info) (err error) {
			in = info
			w, err = archive.NewState(reading, target, &info, int(l.options.statePart), rand.Reader)
			return err
		},
	})
	l.archiver.yield.Store(nil)
	<-l.backups
	if err == nil {
		err = l.finishState(ctx, a, w, &in)
	}
	target.calls.Wait() // the archive is still in use where a call hangs
	if err != nil {
		if w != nil && ctx.Err() == nil {
			err = errors.Join(err, w.Abort(ctx)) // a full target needs its bytes
		}
		return stateRetry, err
	}
	l.noteState(w.State)
	return every, archive.RemoveStates(ctx, target, id, l.options.ArchiveWindow)
}

// finishState makes a state of its parts once the archive has its block files.
func (l *Ledger) finishState(
	ctx context.Context, a *archive.Archive, w *archive.StateWriter, info *backupfile.Info,
) error {
	err := w.Flush()
	if err == nil {
		err = l.copySealed(ctx, a, l.store.SealedBlocks())
	}
	if err == nil {
		err = a.HasBlocks(ctx, info)
	}
	if err == nil && l.cluster.Term() == 0 { // the next leader may have removed parts that are a day old
		err = errors.New("this node leads no longer")
	}
	if err == nil {
		err = w.Finish()
	}
	return err
}

// noteState notes what is the newest state in the archive.
func (l *Ledger) noteState(newest archive.State) {
	l.archiver.mu.Lock()
	defer l.archiver.mu.Unlock()
	l.archiver.stats.StateIndex, l.archiver.stats.StateTime = newest.Index, newest.Time
	l.archiver.log.noteState(newest.Log)
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// patientTarget counts answers, and gives up a Put of which the target has taken nothing for long. The call itself may
// never return.
type patientTarget struct {
	archive.Target

	answers  *atomic.Uint64 // see archiver
	patience time.Duration
	calls    sync.WaitGroup // of Put
}

// Delete implements archive.Target.
func (t *patientTarget) Delete(ctx context.Context, name string) error {
	defer t.answers.Add(1)
	return t.Target.Delete(ctx, name)
}

// Put implements archive.Target.
func (t *patientTarget) Put(
	ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte,
) error {
	ctx, cancel := context.WithCancel(ctx) // a target that heeds it does not hang on
	defer cancel()
	done := make(chan error, 1)
	t.calls.Go(func() {
		done <- t.Target.Put(ctx, name, readerAtFunc(func(b []byte, at int64) (int, error) {
			t.answers.Add(1)
			return r.ReadAt(b, at)
		}), size, sum)
	})
	silence := time.NewTicker(t.patience)
	defer silence.Stop()
	for before := t.answers.Load(); ; before = t.answers.Load() {
		select {
		case err := <-done:
			t.answers.Add(1)
			return err
		case <-silence.C:
			if t.answers.Load() == before {
				return errArchiveHangs
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type readerAtFunc func(b []byte, at int64) (int, error)

// ReadAt implements io.ReaderAt.
func (f readerAtFunc) ReadAt(b []byte, at int64) (int, error) { return f(b, at) }
