package host

import (
	"errors"
	"time"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// appendLoop writes what the node wants in the log, with one sync for all that waits.
func (h *Host) appendLoop() {
	for {
		batch := take(h, &h.appends, h.appendWake)
		if batch == nil {
			return
		}
		if err := h.write(batch); err != nil {
			h.Fail(err)
			return
		}
		number := batch[len(batch)-1].Number
		if h.event(func() error { return h.node.Appended(number) }) != nil {
			return // stopped; the failure is known
		}
	}
}

// take waits until a queue has something and takes all of it; nil means that the host has stopped.
func take[T any](h *Host, queue *[]T, wake <-chan struct{}) []T {
	for {
		h.mu.Lock()
		if h.stoppedLocked() != nil {
			h.mu.Unlock()
			return nil
		}
		batch := *queue
		*queue = nil
		h.mu.Unlock()
		if len(batch) > 0 {
			return batch
		}
		select {
		case <-wake:
		case <-h.stop:
			return nil
		}
	}
}

var errSnapshot = errors.New(
	"host: this node is too far behind to follow the log: start it from a backup of another node")

func (h *Host) write(batch []core.Append) error {
	began, size, entries := time.Now(), 0, 0
	h.writing.Store(max(1, int64(began.Sub(h.started))))
	defer h.writing.Store(0)
	for i := range batch {
		a := &batch[i]
		if a.Snapshot != nil {
			return errSnapshot
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
		batch := take(h, &h.applies, h.applyWake)
		if batch == nil {
			return
		}
		for i := range batch {
			if !h.apply(&batch[i]) {
				return
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
