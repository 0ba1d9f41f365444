package raftlog

import (
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// appendLoop writes the node's appends to the log.
func (l *Log) appendLoop() {
	for {
		select {
		case <-l.appendWake:
		case <-l.stopped:
			return
		}
		l.appending.Lock()
		more := l.appendQueued(func() bool { return true })
		l.appending.Unlock()
		if !more {
			return
		}
	}
}

// appendQueued writes the queued appends, with one sync for all that are waiting, and reports whether the log is still
// running. The caller must hold appending, so that they are written in order. See appended for idle.
func (l *Log) appendQueued(idle func() bool) bool {
	for {
		l.mu.Lock()
		if l.stoppedLocked() != nil {
			l.mu.Unlock()
			return false
		}
		batch := l.appends
		l.appends = nil
		l.mu.Unlock()
		if len(batch) == 0 {
			return true
		}
		if err := l.write(batch); err != nil {
			l.Fail(err)
			return false
		}
		if l.appended(batch[len(batch)-1].Number, idle) != nil {
			return false // stopped; the failure is already recorded
		}
	}
}

// Bounds on what appended applies itself: the number of entries, and their total bytes.
const (
	fewEntries = 2
	fewBytes   = 2 << 10
)

// appended tells the node that an append is durable. On a sole voter, it also applies the few entries that this commits
// if no append is waiting and the machine is idle, because waking applyLoop would take as long as applying them.
func (l *Log) appended(number uint64, idle func() bool) error {
	l.mu.Lock()
	if err := l.stoppedLocked(); err != nil {
		l.mu.Unlock()
		return err
	}
	err := l.node.Appended(number)
	appends, applies := l.passOn()
	broken := l.node.Err()
	// TryLock rather than Lock, because applying is locked before mu, and mu is held.
	here := applies && broken == nil && l.o.Cluster == nil && len(l.appends) == 0 && isLittle(l.applies) &&
		idle() && l.applying.TryLock()
	l.mu.Unlock()
	if here {
		l.applyQueued()
		l.applying.Unlock()
	}
	l.wake(appends, applies && !here)
	if broken != nil {
		l.Fail(broken)
	}
	return err
}

func isLittle(applies []core.Committed) bool {
	size := 0
	for i := range applies {
		size += len(applies[i].Data)
	}
	return len(applies) <= fewEntries && size <= fewBytes
}

func (l *Log) write(batch []core.Append) error {
	began, size, entries := time.Now(), 0, 0
	l.writing.Begin()
	defer l.writing.End()
	for i := range batch {
		a := &batch[i]
		if a.Snapshot != nil {
			return &BehindError{a.Snapshot.Position}
		}
		if err := l.files.Append(a.State, a.Entries); err != nil {
			return err
		}
		l.writing.Advance()
		entries += len(a.Entries)
		for k := range a.Entries {
			size += len(a.Entries[k].Data)
		}
	}
	if err := l.files.Sync(); err != nil {
		return err
	}
	if entries > 0 {
		l.o.Stored(size, time.Since(began))
	}
	return nil
}

// applyLoop passes committed entries to the state machine and answers their proposals.
func (l *Log) applyLoop() {
	for {
		select {
		case <-l.applyWake:
		case <-l.stopped:
			return
		}
		l.applying.Lock()
		more := l.applyQueued()
		l.applying.Unlock()
		if !more {
			return
		}
	}
}

// abandonProposals answers the proposals whose entries are committed and cannot be applied here for now.
func (l *Log) abandonProposals(s Stall) {
	for number := range l.proposals {
		l.takeProposal(number).answer(nil, unknown(fmt.Errorf("%s has not advanced for %v", s.Job, s.For)))
	}
}

// applyQueued applies the queued entries, and reports whether the log is still running. The caller must hold applying
// since before the queue is read, so that entries are applied in order.
func (l *Log) applyQueued() bool {
	for {
		l.mu.Lock()
		if l.stoppedLocked() != nil {
			l.mu.Unlock()
			return false
		}
		batch := l.applies
		l.applies = nil
		l.mu.Unlock()
		if len(batch) == 0 {
			return true
		}
		for i := range batch {
			if !l.apply(&batch[i]) {
				return false
			}
			batch[i].Data = nil // so that the rest of a large batch does not retain applied entries
		}
	}
}

// apply applies one entry, unless the log has stopped. It reports whether the log is still running.
func (l *Log) apply(c *core.Committed) bool {
	var result any
	isCommand := c.Kind == core.KindCommand && len(c.Data) > 0
	if isCommand {
		// After a failure the state machine must not receive another command, because it may have lost the previous
		// one.
		if l.Err() != nil {
			return false
		}
		l.applier.Begin()
		result = l.o.Machine.Apply(c.Position, c.Data)
		l.applier.End()
		if l.Err() != nil {
			return false // Fail answers the proposal
		}
	}
	var p *Proposal
	err := l.event(func() error {
		if isCommand {
			l.covered = c.Position
		}
		p = l.takeProposal(c.Proposal)
		return l.node.Done(c.Index)
	})
	if p != nil {
		if failure := l.Err(); failure != nil {
			p.answer(nil, unknown(failure))
		} else {
			p.answer(result, nil)
		}
	}
	return err == nil
}

// stalledTicks is how long a write, or an entry that is applied, may take without advancing before the node counts as
// stalled. It is one election timeout, so that another node leads before three timeouts have passed.
const stalledTicks = 10

// tickLoop is the node's clock. It tells the node whether any work of it is stalled. A tick is watched, too: it
// waits while the consensus reads old entries from the disk for a lagging node.
func (l *Log) tickLoop() {
	ticker := time.NewTicker(l.o.tick())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-l.stopped:
			return
		}
		l.ticking.Begin()
		err := l.event(func() error {
			stall := l.Stalled()
			l.node.SetStalled(stall.Job != "")
			l.others = l.node.Progress() // before the tick, which may begin to count anew who is active
			err := l.node.Tick()
			if stall.Job != "" && !l.node.Role().Leads {
				l.abandonProposals(stall)
			}
			return err
		})
		l.ticking.End()
		if err != nil {
			return
		}
	}
}
