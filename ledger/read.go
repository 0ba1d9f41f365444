package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// View calls read with a consistent view of the state that is as fresh as
// every write acknowledged before the call. Applying waits while read runs, so
// it must be short: page what is long.
func (l *Ledger) View(ctx context.Context, read func(v machine.View) error) error {
	if err := l.fresh(ctx); err != nil {
		return err
	}
	err := l.store.View(func(r machine.Reader) error { return read(l.machine.View(r)) })
	return l.readFailed(err)
}

// readFailed stops the ledger when a read found damage: going on could answer
// from what was never written.
func (l *Ledger) readFailed(err error) error {
	if errors.Is(err, boltstore.ErrClosed) {
		return ErrClosed
	}
	if err != nil && (errors.Is(err, machine.ErrCorrupt) || l.store.Err() != nil) {
		l.fail(err)
	}
	return err
}

// fresh returns once a read of the local state sees every acknowledged write.
func (l *Ledger) fresh(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	err := l.log.ReadBarrier(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrNotLeader):
		_, leader, _ := l.log.Leader()
		return &NotLeaderError{Leader: leader}
	case errors.Is(err, raftlog.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("read: %w", err)
}

// headView is the head of the state by itself.
type headView struct {
	Created bool
	Config  machine.Config
}

func (l *Ledger) head() (h headView, err error) {
	err = l.store.View(func(r machine.Reader) error {
		v := l.machine.View(r)
		h = headView{v.Created(), v.Config()}
		return nil
	})
	return h, err
}

// Stats are counters and gauges since Open.
type Stats struct {
	Decisions       map[machine.Code]uint64 // by outcome, replayed entries of the log included
	Entries         uint64                  // log entries applied
	Commands        uint64                  // commands applied
	LogBytes        uint64                  // bytes of the log entries applied
	Flushes         uint64                  // checkpoints of the state
	Truncations     uint64                  // of the log
	Slowed          uint64                  // times that proposals waited for a checkpoint
	QueueFull       uint64                  // writes refused
	TimeJumps       uint64                  // starts that moved ledger time by more than an hour
	CacheHits       uint64
	CacheMisses     uint64
	PendingBytes    int64 // changes that wait for the state file
	LogPendingBytes int64 // log since it was truncated
	QueuedItems     int   // submissions that wait to be proposed
}

// Stats returns the counters.
func (l *Ledger) Stats() Stats {
	c := &l.counters
	s := Stats{
		Decisions: map[machine.Code]uint64{},
		Entries:   c.entries.Load(), Commands: c.commands.Load(), LogBytes: c.logBytes.Load(),
		Flushes: c.flushes.Load(), Truncations: c.truncates.Load(), Slowed: c.slowed.Load(),
		QueueFull: c.queueFull.Load(), TimeJumps: c.timeJumps.Load(),
		CacheHits: l.cache.hits.Load(), CacheMisses: l.cache.misses.Load(),
		PendingBytes: l.store.PendingBytes(), LogPendingBytes: l.log.BytesSinceTruncate(),
	}
	for code := range c.decisions {
		if n := c.decisions[code].Load(); n != 0 {
			s.Decisions[machine.Code(code)] = n
		}
	}
	l.queue.mu.Lock()
	s.QueuedItems = len(l.queue.items)
	l.queue.mu.Unlock()
	return s
}
