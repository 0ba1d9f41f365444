package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// awaitSole waits until it is known whether this node is the only voter. The log after the state may contain
// membership changes; if it names no other voters, this node becomes the leader.
func (l *Ledger) awaitSole(ctx context.Context) (bool, error) {
	for {
		// Taken before the members are read, so that no change in between is missed.
		changed := l.log.Changed()
		members := l.log.Members()
		if !slices.Equal(members.Voters, []uint64{l.directory.Node()}) || len(members.Outgoing) > 0 {
			if l.options.Cluster == nil {
				return false, fmt.Errorf("%w: this is node %d, and the log names the voters %d",
					raftlog.ErrNeedsCluster, l.directory.Node(), members.Voters)
			}
			return false, nil
		}
		if _, ready := l.log.IsReady(); ready {
			return true, nil
		}
		select {
		case <-changed:
		case <-l.log.Stopped():
			return true, nil // awaitReplay returns the reason
		case <-ctx.Done():
			return false, fmt.Errorf("replay of the log: %w", ctx.Err())
		}
	}
}

// awaitReplay waits until this node, which decides alone, leads and everything in the log has been
// applied, and begins its term.
func (l *Ledger) awaitReplay(ctx context.Context) error {
	if err := l.log.Ready(ctx); err != nil {
		return fmt.Errorf("replay of the log: %w", err)
	}
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.endReplay(); err != nil {
		return err
	}
	err := l.store.View(func(r machine.Reader) error {
		_, err := l.keyedCounters.records.step(l.machine.View(r), countStep) // all of them in a small ledger
		return err
	})
	if err != nil {
		return err
	}
	term, _ := l.log.IsReady()
	if err := l.cluster.Lead(term); err != nil {
		return err
	}
	l.recovered()
	return nil
}

// recovered takes note of how long the replay took. Entries are applied from the moment that the log is open.
func (l *Ledger) recovered() {
	took := time.Since(l.logOpened)
	l.counters.recovered(took)
	l.options.Logger.Info("log replayed", "entries", l.counters.entries.Load(), "took", took)
}

// endReplay is called once everything that was in the log at the start has been applied.
func (l *Ledger) endReplay() error {
	if err := l.store.EndReplay(); err != nil {
		// Nothing is written any more: what the disk has helps to find the cause.
		l.fail(err)
		return l.Err()
	}
	l.store.Presort(machine.TableKeyed)
	return l.store.View(func(r machine.Reader) error {
		view := l.machine.View(r)
		l.setHead(view)
		if view.Created() { // nothing has been applied that would have told the configuration
			l.mu.Lock()
			l.engine.SetMostCommands(engine.EntryCommands(view.Config()))
			l.mu.Unlock()
		}
		return nil
	})
}

// beginTerm is called when a term begins in which this node leads and has applied everything of the terms before.
func (l *Ledger) beginTerm() { l.lastProposed.Store(l.clock.now()) }

// setTime moves ledger time forward to a wall clock that is right as far as the node can tell.
func (l *Ledger) setTime(wall time.Time, accept bool) error {
	step, err := l.clock.set(wall, l.Head().pause, accept)
	if err != nil {
		return err
	}
	if step > maxQuietJump {
		l.counters.timeJumps.Add(1)
		l.options.Logger.Warn("ledger time jumps forward: a restart after a pause, or a wrong clock; "+
			"streams and entities may expire at once", "by", step)
	}
	return nil
}

// catchUp ends the replay of a node that has others, once everything that was in the log at the start has been applied
// again. It does not wait: the other nodes know which of it was committed.
func (l *Ledger) catchUp() {
	if l.replayed.Load() {
		return
	}
	l.loops.Go(func() { // ends with stopping or a failure; joined by release
		if err := l.awaitOthers(); err != nil && l.stopping.Err() == nil {
			l.fail(err)
		}
	})
}

func (l *Ledger) awaitOthers() error {
	if err := l.log.AwaitApplied(l.stopping, l.log.Last()); err != nil {
		return err
	}
	if err := l.endReplay(); err != nil {
		return err
	}
	l.replayed.Store(true)
	l.gather() // the log may be long enough to be truncated
	l.recovered()
	return nil
}
