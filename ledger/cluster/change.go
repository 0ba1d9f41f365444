package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog"
)

const (
	// caughtUp is how many entries a learner may lag behind when it is promoted.
	caughtUp = 100
	// changePatience bounds a membership change that the leader makes on its own.
	changePatience = 5 * time.Second
)

// change makes a membership change.
func (n *Node) change(ctx context.Context, change *pb.ConfChangeV2) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	err := n.log.Change(ctx, change)
	switch {
	case errors.Is(err, raftlog.ErrNotLeader) && n.mustLead() != nil:
		return n.notLeading()
	case errors.Is(err, raftlog.ErrOutcomeUnknown):
		return fmt.Errorf("it is not known whether the members have changed: %w", err)
	case errors.Is(err, raftlog.ErrNotLeader):
		return fmt.Errorf("%w: %w", ErrNoChange, err)
	case err != nil:
		return fmt.Errorf("change of the members: %w", err)
	}
	n.offerState(ctx)
	return nil
}

// offerState commits a command after a membership change. A node that is too far behind is offered the state as of the
// last command, and that state must include the current members. Without this command the node would have to wait for
// the next write.
func (n *Node) offerState(ctx context.Context) {
	if err := n.host.Tick(ctx); err != nil {
		n.host.Logger.Warn("no command came behind a change of the members", "error", err)
	}
}

// mustLead returns an error unless this node leads a cluster.
func (n *Node) mustLead() error {
	if n.host.Options == nil {
		return ErrAlone
	}
	if leader, _ := n.Leader(); !leader.Self {
		return n.notLeading()
	}
	return nil
}

func single(kind pb.ConfChangeType, id uint64) *pb.ConfChangeV2 {
	return &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &id}}}
}

// Promote makes a learner a voter. It returns once the change is applied on this node. If this node does not lead,
// the error is a *NotLeaderError. It does nothing if the node is already a voter.
func (n *Node) Promote(ctx context.Context, id uint64) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	m, err := n.member(id)
	if err != nil || m.Voter {
		return err
	}
	return n.change(ctx, single(pb.ConfChangeAddNode, id))
}

// member returns a member as the leader knows it.
func (n *Node) member(id uint64) (Member, error) {
	if err := n.mustLead(); err != nil {
		return Member{}, err
	}
	for _, m := range n.Status().Members {
		if m.ID == id {
			return m, nil
		}
	}
	return Member{}, fmt.Errorf("%w: node %d is no member of this cluster", ErrNoSuchNode, id)
}

// Remove removes a node from the cluster; see Promote. The node's id is never reused. The leader cannot be
// removed; transfer the leadership first. Remove does nothing if the node was already removed.
func (n *Node) Remove(ctx context.Context, id uint64) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if err := n.mustLead(); err != nil {
		return err
	}
	if id == n.id() {
		return fmt.Errorf("%w: node %d leads; transfer the leadership first", ErrNoChange, id)
	}
	members := n.log.Members()
	if !members.Has(id) && id != 0 && id <= members.Highest {
		return nil // the request is repeated, because the first response was lost
	}
	if _, err := n.member(id); err != nil {
		return err
	}
	return n.change(ctx, single(pb.ConfChangeRemoveNode, id))
}

// TransferLeadership transfers the leadership to a voter, or, if to is 0, to the voter with the longest log. It returns
// once another node leads, or at once if this node is the voter to take over.
func (n *Node) TransferLeadership(ctx context.Context, to uint64) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	if to == n.id() {
		return nil // a repeated request has reached the new leader, because the first response was lost
	}
	to, err := n.successor(to)
	if err != nil {
		return err
	}
	for {
		leader, changed := n.Leader()
		if leader.ID != 0 && leader.ID != n.id() {
			return nil
		}
		if leader.ID == n.id() {
			if err := n.log.Transfer(to); err != nil {
				return err
			}
		}
		retry := time.NewTimer(leadInterval)
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return fmt.Errorf("transfer of the leadership to node %d: %w", to, ctx.Err())
		}
		retry.Stop()
	}
}

// successor returns the voter that takes over: another node, which says at this moment that none of its work is stalled.
// If to is 0, it is the one with the longest log.
func (n *Node) successor(to uint64) (uint64, error) {
	began := time.Now()
	n.askPulses(pulsePatience, func() bool {
		_, answered := n.pulses.last(to, began)
		return answered
	})
	best, unfit := Member{}, fmt.Errorf("%w: node %d is no other voter of this cluster", ErrNoSuchNode, to)
	if to == 0 {
		unfit = fmt.Errorf("%w: no other voter is alive", ErrNoSuchNode)
	}
	for _, m := range n.Status().Members {
		if m.ID == n.id() || !m.Voter || to != 0 && m.ID != to {
			continue
		}
		switch p, answered := n.pulses.last(m.ID, began); {
		case answered && p.Stalled == "":
			if best.ID == 0 || m.Matched > best.Matched {
				best = m
			}
		case answered:
			unfit = fmt.Errorf("%w: on node %d, %s has stopped advancing", ErrUnfit, m.ID, p.Stalled)
		case to != 0:
			unfit = fmt.Errorf("%w: node %d does not answer", ErrUnfit, m.ID)
		}
	}
	if best.ID == 0 {
		return 0, unfit
	}
	return best.ID, nil
}

// HandOver transfers the leadership to another node, if there is one, so that a shutdown needs no election.
func (d *Driver) HandOver() {
	if leader, _ := d.Leader(); d.host.Options == nil || !leader.Self {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverPatience)
	defer cancel()
	if err := d.TransferLeadership(ctx, 0); err != nil && !errors.Is(err, ErrNoSuchNode) {
		d.host.Logger.Warn("the leadership was not handed over; the others will elect a leader", "error", err)
	}
}

const handOverPatience = 2 * time.Second
