package host

import (
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// appendLoop writes the node's appends to the log.
func (h *Host) appendLoop() {
	for {
		select {
		case <-h.appendWake:
		case <-h.stop:
			return
		}
		h.appending.Lock()
		more := h.appendQueued(func() bool { return true })
		h.appending.Unlock()
		if !more {
			return
		}
	}
}

// appendQueued writes the queued appends, with one sync for all that are waiting, and reports whether the host is still
// running. The caller must hold appending, so that they are written in order. See appended for idle.
func (h *Host) appendQueued(idle func() bool) bool {
	for {
		h.mu.Lock()
		if h.stoppedLocked() != nil {
			h.mu.Unlock()
			return false
		}
		batch := h.appends
		h.appends = nil
		h.mu.Unlock()
		if len(batch) == 0 {
			return true
		}
		if err := h.write(batch); err != nil {
			h.Fail(err)
			return false
		}
		if h.appended(batch[len(batch)-1].Number, idle) != nil {
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
func (h *Host) appended(number uint64, idle func() bool) error {
	h.mu.Lock()
	if err := h.stoppedLocked(); err != nil {
		h.mu.Unlock()
		return err
	}
	err := h.node.Appended(number)
	appends, applies := h.passOn()
	broken := h.node.Err()
	// TryLock rather than Lock, because applying is locked before mu, and mu is held.
	here := applies && broken == nil && h.o.Send == nil && len(h.appends) == 0 && isLittle(h.applies) &&
		idle() && h.applying.TryLock()
	h.mu.Unlock()
	if here {
		h.applyQueued()
		h.applying.Unlock()
	}
	h.wake(appends, applies && !here)
	if broken != nil {
		h.Fail(broken)
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

// BehindError is the failure of a node that lacks log entries which the others have dropped. Its state
// and log are intact, only old.
type BehindError struct {
	At segment.Position // the position of the state that the leader offers; a later state works too
}

// Error says what the operator can do if nothing handles the error automatically.
func (e *BehindError) Error() string {
	return fmt.Sprintf("host: this node is too far behind to follow the log: it needs the state of another node "+
		"at index %d or later", e.At.Index)
}

func (h *Host) write(batch []core.Append) error {
	began, size, entries := time.Now(), 0, 0
	h.writing.Begin()
	defer h.writing.End()
	for i := range batch {
		a := &batch[i]
		if a.Snapshot != nil {
			return &BehindError{a.Snapshot.Position}
		}
		if err := h.o.Log.Append(a.State, a.Entries); err != nil {
			return err
		}
		h.writing.Advance()
		entries += len(a.Entries)
		for k := range a.Entries {
			size += len(a.Entries[k].Data)
		}
	}
	if err := h.o.Log.Sync(); err != nil {
		return err
	}
	if entries > 0 {
		h.o.Stored(size, time.Since(began))
	}
	return nil
}

// applyLoop passes committed entries to the state machine and answers their proposals.
func (h *Host) applyLoop() {
	for {
		select {
		case <-h.applyWake:
		case <-h.stop:
			return
		}
		h.applying.Lock()
		more := h.applyQueued()
		h.applying.Unlock()
		if !more {
			return
		}
	}
}

// abandonProposals answers the proposals whose entries are committed and cannot be applied here for now.
func (h *Host) abandonProposals(s Stall) {
	for number := range h.proposals {
		h.takeProposal(number).answer(nil, unknown(fmt.Errorf("%s has not advanced for %v", s.Job, s.For)))
	}
}

// applyQueued applies the queued entries, and reports whether the host is still running. The caller must hold applying
// since before the queue is read, so that entries are applied in order.
func (h *Host) applyQueued() bool {
	for {
		h.mu.Lock()
		if h.stoppedLocked() != nil {
			h.mu.Unlock()
			return false
		}
		batch := h.applies
		h.applies = nil
		h.mu.Unlock()
		if len(batch) == 0 {
			return true
		}
		for i := range batch {
			if !h.apply(&batch[i]) {
				return false
			}
			batch[i].Data = nil // so that the rest of a large batch does not retain applied entries
		}
	}
}

// apply applies one entry, unless the host has stopped. It reports whether the host is still running.
func (h *Host) apply(c *core.Committed) bool {
	var result any
	isCommand := c.Kind == core.KindCommand && len(c.Data) > 0
	if isCommand {
		// After a failure the state machine must not receive another command, because it may have lost the previous
		// one.
		if h.Err() != nil {
			return false
		}
		h.applier.Begin()
		result = h.o.Apply(c.Position, c.Data)
		h.applier.End()
		if h.Err() != nil {
			return false // Fail answers the proposal
		}
	}
	var p *Proposal
	err := h.event(func() error {
		if isCommand {
			h.covered = c.Position
		}
		p = h.takeProposal(c.Proposal)
		return h.node.Done(c.Index)
	})
	if p != nil {
		if failure := h.Err(); failure != nil {
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

// tickLoop is the node's clock. It tells the node whether any work of this host is stalled. A tick is watched, too: it
// waits while the consensus reads old entries from the disk for a lagging node.
func (h *Host) tickLoop() {
	ticker := time.NewTicker(h.o.Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-h.stop:
			return
		}
		h.ticking.Begin()
		err := h.event(func() error {
			stall := h.Stalled()
			h.node.SetStalled(stall.Job != "")
			h.others = h.node.Progress() // before the tick, which may begin to count anew who is active
			err := h.node.Tick()
			if stall.Job != "" && !h.node.Role().Leads {
				h.abandonProposals(stall)
			}
			return err
		})
		h.ticking.End()
		if err != nil {
			return
		}
	}
}
