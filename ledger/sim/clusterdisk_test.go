package sim

import (
	"errors"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// fillDisk leaves no space for another file of the node's log, for a while.
func (n *member) fillDisk() {
	n.disk.SetFree(0)
	n.w.after(n.w.upTo(3*second), func() { n.disk.SetFree(-1) })
}

// rotRead damages the next read of a running node. It spares reads at a start, when damage to the last record would
// look like an interrupted write.
func (c *cluster) rotRead() {
	if n := c.any(); n.up {
		n.disk.RotRead(c.w.rng)
	}
}

// damageLog flips a bit in the log of a node that is down. It spares the two newest segments, because damage to their
// last record looks like an interrupted write.
func (n *member) damageLog() {
	if !n.c.plan.badDisks || n.w.calm || !n.w.chance(4) {
		return
	}
	names, err := n.disk.List()
	n.w.must(err, "listing a log")
	if len(names) < 3 {
		return
	}
	b := n.disk.Bytes(names[n.w.rng.IntN(len(names)-2)])
	place, mask := n.w.rng.IntN(len(b)), byte(1)<<n.w.rng.IntN(8)
	b[place] ^= mask
	n.mended = func() { b[place] ^= mask }
}

// badDisk reports whether a node does not start because of its disk. The node tries again once the disk is mended.
func (n *member) badDisk(err error) bool {
	damage, damaged := errors.AsType[*segment.DamageError](err)
	switch {
	case n.mended != nil && damaged:
		n.c.met("damaged logs refused")
		n.w.mark(15, n.id, uint64(damage.Offset))
	case errors.Is(err, syscall.ENOSPC):
		n.c.met("starts on a full disk")
	default:
		n.mended = nil // the flipped bit is not in use
		return false
	}
	n.up = false
	n.safely(n.w.upTo(second), func() {
		if n.mended != nil {
			n.mended()
		}
		n.mended = nil
		n.start()
	})
	return true
}

// damagedRead reports whether an error is caused by a damaged read.
func (n *member) damagedRead(err error) bool {
	if !n.disk.Rotted() || !strings.Contains(err.Error(), "segment: damaged log") {
		return false // the consensus reports what stopped it as text only
	}
	n.c.met("damaged reads met")
	return true
}
