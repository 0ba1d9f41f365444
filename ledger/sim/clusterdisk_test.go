package sim

import (
	"errors"
	"slices"
	"strings"
	"syscall"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
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

// fillState leaves no space for the state file of a node and the block files beside it, for a while.
func (n *member) fillState() {
	n.state.setFull(true)
	n.w.after(n.w.upTo(3*second), func() { n.state.setFull(false) })
}

// badState reports whether an error is one of the state file. Without space the node ends, and comes back; with rot it
// ends for good, because its state cannot be mended: it is removed from the cluster, and another one takes its place.
func (n *member) badState(err error) bool {
	switch {
	case errors.Is(err, errRotten):
		n.c.met("rotten states met")
		n.broken = true
	case n.state.full && errors.Is(err, syscall.ENOSPC):
		n.c.met("full state files met")
	default:
		return false
	}
	n.crash()
	return true
}

// broken returns how many nodes have ended for good, and brokenMember one of them that still is a member.
func (c *cluster) broken() (count int) {
	for _, n := range c.nodes {
		if n.broken {
			count++
		}
	}
	return count
}

func (c *cluster) brokenMember(m core.Members) *member {
	for _, n := range c.nodes {
		if n.broken && m.Has(n.id) {
			return n
		}
	}
	return nil
}

// rotState flips a bit in the state file of a node, running or not. It spares a cluster that could not lose a voter, or
// has a rotten file that was not found yet: the others must be able to go on.
func (c *cluster) rotState() {
	leader, n := c.leader(), c.any()
	if leader == nil || c.drill.on || n.broken || len(leader.core.Members().Voters) < 4 ||
		c.brokenMember(leader.core.Members()) != nil ||
		slices.ContainsFunc(c.nodes, func(n *member) bool { return n.state.rot != nil && !n.broken }) {
		return
	}
	var rows []stateKey
	for _, table := range []machine.Table{
		machine.TableStreams, machine.TableEntities, machine.TableKeyed, machine.TableMeta,
	} {
		c.w.must(n.state.durable.Ascend(table, nil, func(k, v []byte) bool {
			if len(v) > 0 {
				rows = append(rows, stateKey{table, string(k)})
			}
			return true
		}), "looking for a place")
	}
	if len(rows) > 0 {
		c.met("states rotted")
		n.state.flip(pick(c.w, rows...), c.w.rng.IntN(1<<16))
	}
}

// scrub reads every page of a node's state file, and ends the node if one has rotted.
func (n *member) scrub() {
	if n.up && n.state.rot != nil && !n.state.blind {
		n.c.met("rot found by a scrub")
		n.must(errRotten, "scrubbing")
	}
}

// tendBroken removes nodes that have ended for good, as an operator does, also when all other faults are over.
func (c *cluster) tendBroken() {
	c.w.after(300*millisecond, func() {
		c.removeBroken()
		if c.w.calm {
			for _, n := range c.nodes {
				n.scrub()
			}
		}
		c.tendBroken()
	})
}

func (c *cluster) removeBroken() {
	leader := c.leader()
	if leader == nil {
		return
	}
	n := c.brokenMember(leader.core.Members())
	if n == nil {
		return
	}
	change := &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{
		{Type: pb.ConfChangeRemoveNode.Enum(), NodeId: &n.id},
	}}
	if leader.core.Change(c.number(), change) == nil { // a refusal is a valid outcome
		c.met("broken nodes removed")
	}
	leader.effects()
}
