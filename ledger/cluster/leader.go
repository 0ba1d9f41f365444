package cluster

import (
	"context"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

// Leader returns the current leader, and a channel that is closed when the leader changes.
func (n *Node) Leader() (Leader, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leader, n.changed
}

// noteLeader updates the current leader.
func (n *Node) noteLeader() {
	role, members := n.log.Role(), n.log.Members()
	now := Leader{ID: role.Leader, Term: role.Term}
	now.Self = role.Leads && n.term.Load() == role.Term
	// This node is not to be asked before it takes writes: a call waits for that as for an election.
	if a, found := members.Address(role.Leader); found && (now.Self || now.ID != n.id()) {
		now.Peer, now.Client = a.Peer, a.Client
	}
	now.Encrypted = n.host.Options != nil && n.host.Options.TLS != nil
	n.mu.Lock()
	defer n.mu.Unlock()
	if now != n.leader {
		n.leader = now
		close(n.changed)
		n.changed = make(chan struct{})
	}
}

// notLeading returns the error with which a node that does not lead refuses a request.
func (n *Node) notLeading() error {
	leader, _ := n.Leader()
	return &NotLeaderError{Leader: leader.Client}
}

// leadInterval is how often a leader checks whether learners have caught up, and how often a node checks whether the
// others know its address.
const leadInterval = 200 * time.Millisecond

// leadLoop follows changes of the leader and of the members, and begins this node's terms.
func (n *Node) leadLoop() {
	defer n.loops.Done()
	defer n.stopped()
	for {
		// Taken before follow reads the log, so that no change in between is missed.
		changed := n.log.Changed()
		if err := n.follow(); err != nil {
			n.host.Fail(err)
			return
		}
		select {
		case <-changed:
		case <-n.host.Failed:
			return
		case <-n.host.Stopping.Done():
			return
		}
	}
}

// follow reacts to the current leader and members.
func (n *Node) follow() error {
	if members := n.log.Members(); !members.Has(n.id()) && n.id() <= members.Highest {
		return ErrRemoved // otherwise it has not joined yet
	}
	term, ready := n.log.IsReady()
	lost := false
	switch {
	case !ready:
		lost = n.term.Swap(0) != 0
		n.pulses.endTerm()
		n.forgetForgotten()
	case n.term.Load() != term:
		lagging := n.moveTime()
		n.beginTerm(term)
		n.noteLag(term, lagging)
	}
	n.noteLeader()
	if lost { // after noteLeader, because the awakened calls name the leader
		n.host.EndTerm()
	}
	// One unusable address must not affect the other nodes.
	if err := n.connectMembers(); err != nil {
		n.complain.Do(func() {
			n.host.Logger.Error("the address of a node of the cluster cannot be used", "error", err)
		})
	}
	return nil
}

// tendLoop does the periodic work of a cluster.
func (n *Node) tendLoop() {
	defer n.loops.Done()
	ticker := time.NewTicker(leadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			n.announce()
			n.tend()
		case <-n.host.Failed:
			return
		case <-n.host.Stopping.Done():
			return
		}
	}
}

// tend promotes learners that have caught up, and hands over the leadership if the disk is full. It ignores errors,
// because it is called again.
func (n *Node) tend() {
	leader, _ := n.Leader()
	if !leader.Self {
		return
	}
	s := n.Status()
	n.yield(&s)
	for _, m := range s.Members {
		if m.Voter || s.mayChange(single(pb.ConfChangeAddNode, m.ID)) != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(n.host.Stopping, changePatience)
		err := n.Promote(ctx, m.ID, false)
		cancel()
		if err != nil {
			n.host.Logger.Warn("a node of the cluster has caught up and is no voter yet; it is tried again",
				"node", m.ID, "error", err)
			continue
		}
		n.host.Logger.Info("a node of the cluster has caught up and is a voter", "node", m.ID)
	}
}
