package raftlog

import (
	"context"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Log is an open log. Its methods may be called from any goroutine.
type Log struct {
	options   Options
	host      *host.Host
	files     *segment.Log
	closeOnce sync.Once
	closeErr  error
}

// Watch tells whether the work that a node must do to serve advances.
type Watch = host.Watch

// Job is work that is watched while it is under way.
type Job = host.Job

// Stall is work that has stopped advancing.
type Stall = host.Stall

// NewWatch returns a Watch without jobs.
func NewWatch() *Watch { return host.NewWatch() }

// Proposal is a proposed entry whose outcome is not yet known.
type Proposal = host.Proposal

// Ready waits until this node is the leader and has applied everything that was ever committed. It returns the failure
// of a failed log, ErrClosed, or the context's error.
func (l *Log) Ready(ctx context.Context) error { return l.host.Ready(ctx) }

// ReadsAlone reports whether ReadBarrier returns at once, because no other node can lead.
func (l *Log) ReadsAlone() bool { return l.host.ReadsAlone() }

// ReadBarrier returns once the machine's state reflects every write acknowledged before the call. For a sole voter that
// has been Ready it costs an atomic load. It fails with ErrClosed, the log's failure, or the context's error.
func (l *Log) ReadBarrier(ctx context.Context) error { return l.host.ReadBarrier(ctx) }

// Truncate records that the machine has everything up to an index in its own store, durably, and drops the files that
// have nothing after it, except the newest. The index is at most that of Covered. Commits continue meanwhile.
func (l *Log) Truncate(upTo uint64) error {
	at := segment.Position{Index: upTo}
	if upTo > l.files.Checkpoint().Index {
		var err error
		if at.Term, err = l.files.Term(upTo); err != nil {
			return err
		}
	}
	return l.host.Truncate(at)
}

// BytesSinceTruncate returns roughly how many bytes of entries were stored since the last truncation, including those
// stored before Open.
func (l *Log) BytesSinceTruncate() int64 { return l.files.Bytes() }

// Writing returns how long the current disk write has taken, or 0 if there is none.
func (l *Log) Writing() time.Duration { return l.host.Writing() }

// Err returns the failure that stopped the log, or nil.
func (l *Log) Err() error { return l.host.Err() }

// Advance notes that the entry being applied advances, so that a slow machine is not taken for one that hangs.
func (l *Log) Advance() { l.host.Advance() }

// Stalled returns the work of this node, if any, that has stopped advancing. A node with such work does not lead.
func (l *Log) Stalled() Stall { return l.host.Stalled() }

// Fail stops the log for good because of an error elsewhere, as if the log's own disk had failed. Only the first
// failure counts. Fail does not wait.
func (l *Log) Fail(err error) { l.host.Fail(err) }

// Close waits until every proposal has its result, stops the consensus and closes the files. A proposal made meanwhile
// ends with ErrClosed. Close writes nothing more to a failed log and returns its failure.
func (l *Log) Close() error {
	l.closeOnce.Do(func() {
		if l.closeErr = l.host.Close(); l.closeErr != nil {
			_ = l.files.Abandon() // the failure says more than its consequences
			return
		}
		l.closeErr = l.files.Close()
	})
	return l.closeErr
}
