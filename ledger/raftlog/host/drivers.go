package host

import (
	"fmt"
	"time"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// appendLoop writes what the node wants in the log, with one sync for all that waits.
func (h *Host) appendLoop() {
	for {
		batch := h.takeAppends()
		if batch == nil {
			return
		}
		if err := h.write(batch); err != nil {
			h.Fail(err)
			return
		}
		number := batch[len(batch)-1].Number
		if h.appended(number) != nil {
			return // stopped; the failure is known
		}
	}
}

// What appended applies itself, at most: entries, and their bytes together.
const (
	fewEntries = 2
	fewBytes   = 2 << 10
)

// appended tells the node that an append is durable. Of a node that decides alone, the little that is committed
// thereby is applied at once when nothing waits to be written, because waking applyLoop for it would take as
// long as applying it.
func (h *Host) appended(number uint64) error {
	h.mu.Lock()
	if err := h.stoppedLocked(); err != nil {
		h.mu.Unlock()
		return err
	}
	err := h.node.Appended(number)
	appends, applies := h.passOn()
	broken := h.node.Err()
	here := applies && broken == nil && h.o.Send == nil && len(h.appends) == 0 && isLittle(h.applies) &&
		h.applying.TryLock()
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

// takeAppends waits until something is to be appended and takes all of it; nil means that the host has stopped.
func (h *Host) takeAppends() []core.Append {
	for {
		h.mu.Lock()
		if h.stoppedLocked() != nil {
			h.mu.Unlock()
			return nil
		}
		batch := h.appends
		h.appends = nil
		h.mu.Unlock()
		if len(batch) > 0 {
			return batch
		}
		select {
		case <-h.appendWake:
		case <-h.stop:
			return nil
		}
	}
}

// BehindError is the failure of a node that is so far behind that the others have dropped what it
// would need of the log. Its state and its log are whole, and of before.
type BehindError struct {
	At segment.Position // the state that the leader offers; a later one will do
}

// Error says what an operator does when nothing else does it.
func (e *BehindError) Error() string {
	return fmt.Sprintf("host: this node is too far behind to follow the log: it needs the state of another node "+
		"at index %d or later", e.At.Index)
}

func (h *Host) write(batch []core.Append) error {
	began, size, entries := time.Now(), 0, 0
	h.writing.Store(max(1, int64(began.Sub(h.started))))
	defer h.writing.Store(0)
	for i := range batch {
		a := &batch[i]
		if a.Snapshot != nil {
			return &BehindError{a.Snapshot.Position}
		}
		if err := h.o.Log.Append(a.State, a.Entries); err != nil {
			return err
		}
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

// applyLoop hands committed entries to the state machine and answers their proposals.
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

// applyQueued applies what is queued, and reports whether the host goes on. The caller holds applying, from
// before the queue is read, so that entries are applied in their order.
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
			batch[i].Data = nil // the rest of a large batch keeps no memory of what is done
		}
	}
}

// apply applies one entry, unless the host has stopped.
func (h *Host) apply(c *core.Committed) bool {
	var result any
	isCommand := c.Kind == core.KindCommand && len(c.Data) > 0
	if isCommand {
		// After a failure the state machine must not see another command: it may have
		// lost the one before.
		if h.Err() != nil {
			return false
		}
		result = h.o.Apply(c.Position, c.Data)
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

// stuckTicks is how long a write may take before a leader gives up: an election timeout, so that
// another node leads before three have gone by.
const stuckTicks = 10

// tickLoop is the node's clock. It stands still while a write is stuck: a leader whose disk hangs sends
// nothing then, so that the others elect one of themselves, and no node stands for election that could
// not store its vote.
func (h *Host) tickLoop() {
	ticker := time.NewTicker(h.o.Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-h.stop:
			return
		}
		stuck := h.Writing() > stuckTicks*h.o.Tick
		if h.stuck.Store(stuck); stuck {
			continue
		}
		if h.event(h.node.Tick) != nil {
			return
		}
	}
}
