package legacy

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Log is an open log. Its methods may be called from any goroutine.
type Log struct {
	options Options
	logger  *slog.Logger
	store   *guardedStore
	node    raft.ServerID

	// raft is set once, before Open returns. Inside the package it is read
	// under mu where Raft's own goroutines may run before that.
	raft *raft.Raft

	mu       sync.Mutex
	shutdown raft.Future // first result of raft.Shutdown: only the first one waits
	quiet    bool        // Raft is gone; late errors are of the closing and no news
	failure  atomic.Pointer[error]
	closed   atomic.Bool
	close    func() error // sync.OnceValue

	// stop ends waits for answers that Raft will not give any more: on failure
	// at once, on Close after Raft has answered what it could.
	stop     chan struct{}
	stopOnce sync.Once

	sole         atomic.Bool   // this node is the only voter of the latest membership
	currentAt    atomic.Uint64 // term of leadership in which all that was committed before is applied
	establishing chan struct{} // holds a token while a barrier for currentAt is under way
	truncating   sync.Mutex
	truncated    uint64 // Raft's applied index before the last truncation; under truncating
}

// Propose appends an entry to the log if this node is the leader, and returns
// without waiting for the disk; it waits only while 64 proposals are queued. The
// order of Propose calls is the order of the log. Entry must not be changed
// afterwards; it has at most MaxEntryBytes.
func (l *Log) Propose(entry []byte) *Proposal {
	switch err := l.failed(); {
	case err != nil:
		return refused(neverProposed(err))
	case l.closed.Load():
		return refused(ErrClosed)
	case len(entry) > MaxEntryBytes:
		return refused(errEntryTooLarge(len(entry)))
	}
	future := l.raft.ApplyLog(raft.Log{Data: entry, Extensions: sum(entry)}, 0)
	if !stopWith(future, l.stop) {
		// Raft had stopped before it took the entry.
		if err := l.failed(); err != nil {
			return refused(neverProposed(err))
		}
		return refused(ErrClosed)
	}
	return &Proposal{log: l, future: future}
}

// Truncate makes the machine's state durable, notes the position in a local
// snapshot and drops the log behind it, but for the last few entries and what
// shares a file with them. It blocks for as long as Machine.Checkpoint does;
// commits go on meanwhile. An error leaves the log as it was.
func (l *Log) Truncate() error {
	l.truncating.Lock()
	defer l.truncating.Unlock()
	if err := l.unusable(); err != nil {
		return err
	}
	applied := l.raft.AppliedIndex()
	if applied == l.truncated {
		return nil // a second snapshot of the same place might even get the same name
	}
	before := l.store.bytes.Load()
	err := l.raft.Snapshot().Error()
	if failure := l.failed(); failure != nil {
		return failure
	}
	switch {
	case errors.Is(err, raft.ErrNothingNewToSnapshot):
		return nil
	case errors.Is(err, raft.ErrRaftShutdown):
		return ErrClosed
	case err != nil:
		return err
	}
	l.store.bytes.Add(-before)
	l.truncated = applied
	return nil
}

// BytesSinceTruncate returns about how many bytes of entries were stored since
// the last truncation; after Open, how many the log holds.
func (l *Log) BytesSinceTruncate() int64 { return l.store.bytes.Load() }

// Fail stops the log for good because of an error elsewhere, as if the log's
// own disk had failed. Only the first failure counts. It does not wait.
func (l *Log) Fail(err error) { l.fail(err) }

// Close lets Raft finish what is queued, stops it, closes the transport and the
// files, and waits for all of it. A proposal that is made meanwhile ends with
// ErrClosed or ErrOutcomeUnknown. It returns the failure of a failed log.
func (l *Log) Close() error { return l.close() }

func (l *Log) doClose() error {
	l.closed.Store(true)
	if l.failed() == nil && l.raft.State() == raft.Leader {
		// A barrier is the last of the queue, so that whatever was proposed
		// before Close has its answer when it comes back. Whether it succeeds
		// does not matter: a leader that lost its majority steps down and
		// answers everything, too.
		if barrier := l.raft.Barrier(0); stopWith(barrier, l.stop) {
			_ = barrier.Error()
		}
	}
	l.mu.Lock()
	l.stopRaftLocked()
	l.mu.Unlock()
	joined := l.shutdown.Error()
	l.stopWaits()
	l.mu.Lock()
	l.quiet = true
	l.mu.Unlock()
	return errors.Join(l.failed(), joined, l.store.disk.Close())
}

// failed returns the first failure, or nil.
func (l *Log) failed() error {
	if p := l.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// unusable returns the failure, or ErrClosed, or nil.
func (l *Log) unusable() error {
	if err := l.failed(); err != nil {
		return err
	}
	if l.closed.Load() {
		return ErrClosed
	}
	return nil
}

// fail keeps the first error for good and stops Raft before it returns, so that
// the goroutine that met the error cannot go on with another election. It must not wait for
// Raft's goroutines, because it is called from them.
func (l *Log) fail(err error) {
	l.mu.Lock()
	if l.quiet || l.failure.Load() != nil {
		l.mu.Unlock()
		return
	}
	l.failure.Store(&err)
	if l.raft != nil {
		l.stopRaftLocked()
	}
	l.mu.Unlock()
	// Before the waits end, so that a caller that is woken finds the failure known.
	if l.options.OnFailure != nil {
		l.options.OnFailure(err)
	}
	l.stopWaits()
	l.logger.Error("the replicated log has failed; this node stops", "error", err)
}

func (l *Log) stopRaftLocked() {
	if l.shutdown == nil {
		l.shutdown = l.raft.Shutdown()
	}
}

func (l *Log) stopWaits() { l.stopOnce.Do(func() { close(l.stop) }) }
