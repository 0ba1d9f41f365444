package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog"
)

// lockChanges waits until no other change of the members is being made, or until ctx ends. The caller calls unlock when
// its own change is done.
func (n *Node) lockChanges(ctx context.Context) (unlock func(), err error) {
	unlock = func() { <-n.changing }
	select {
	case n.changing <- struct{}{}:
		return unlock, nil
	default:
	}
	select {
	case n.changing <- struct{}{}:
		return unlock, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: another change of the members is being made: %w", ErrNoChange, context.Cause(ctx))
	}
}

// changePatience bounds a membership change that the leader makes on its own, and the command that follows any change.
const changePatience = 5 * time.Second

// change makes a membership change, which must leave a healthy majority unless it is forced.
func (n *Node) change(ctx context.Context, change *pb.ConfChangeV2, force bool) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	term := n.log.Role().Term // in another one, the members may be others, too
	if s := n.Status(); !force && s.changesVoters(change) {
		// Nothing that a node says tells that its log can be written: on an idle cluster, a disk that hangs is not
		// noticed. So each that counts stores a command first.
		last := n.log.Progress().Last
		asked, stop := context.WithCancel(ctx)
		defer stop()
		go func() { _ = n.host.Tick(asked) }() // ends with the change; what matters is who stores it
		err := n.judge(ctx, func(s *Status) error {
			for i := range s.Members {
				m := &s.Members[i]
				m.Active = m.Active && m.Matched > last
			}
			return s.mayChange(change)
		})
		if err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil { // the caller has gone, and may have been told that nothing has changed
		return fmt.Errorf("%w: %w", ErrNoChange, err)
	}
	err := n.log.ChangeIn(ctx, term, change)
	switch {
	case errors.Is(err, raftlog.ErrNotLeader) && n.mustLead() != nil:
		return n.notLeading()
	case errors.Is(err, raftlog.ErrOutcomeUnknown):
		return fmt.Errorf("%w: %w", ErrUnknownChange, err)
	case errors.Is(err, raftlog.ErrNotLeader):
		return fmt.Errorf("%w: %w", ErrNoChange, err)
	case err != nil:
		return fmt.Errorf("change of the members: %w", err)
	}
	offered, cancel := context.WithTimeout(ctx, changePatience)
	defer cancel()
	if err := n.offerState(offered); err != nil {
		n.host.Logger.Warn("no command followed a change of the members", "error", err)
	}
	return nil
}

// offerState commits a command if none followed the last membership change. A lagging node is offered
// the state as of the last command, and that state must include the current members. Without this command the node
// would have to wait for the next write.
func (n *Node) offerState(ctx context.Context) error {
	if n.log.Covered().Index >= n.log.MembersChanged() {
		return nil
	}
	return n.host.Tick(ctx)
}

// judge returns the result of a check of the other nodes. Only a node that has just answered a question, and was heard
// of since the call, counts as alive: a node that has just died must not be relied on, and its last messages may still
// be on their way. A check that fails is repeated for a while: a node is heard of at every heartbeat, and a leader that
// was elected just now does not know yet how far the others are.
func (n *Node) judge(ctx context.Context, check func(*Status) error) error {
	began := time.Now()
	ticker, ended := time.NewTicker(judgeInterval), time.NewTimer(judgeTimeouts*n.log.ElectionTimeout())
	defer ticker.Stop()
	defer ended.Stop()
	for {
		asked := time.Now()
		n.askPulses(n.log.ElectionTimeout(), func() bool { return false })
		s := n.Status()
		for i := range s.Members {
			m := &s.Members[i]
			_, answered := n.pulses.last(m.ID, asked)
			m.Active = answered && m.Heard.After(began)
		}
		err := check(&s)
		switch {
		case err == nil || errors.Is(err, ErrNoSuchNode):
			return err
		case !n.log.Role().Leads: // only a leader knows the others
			return n.notLeading()
		}
		select {
		case <-ticker.C:
		case <-ended.C:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

const (
	judgeInterval = 10 * time.Millisecond
	// judgeTimeouts is how many election timeouts a node has to be heard of.
	judgeTimeouts = 2
)

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
//
// Unless it is forced, a change is refused with ErrNoChange if it would leave no majority of voters that are alive and
// caught up, or if the new voter is not. Without that majority the cluster takes no writes and no other change.
func (n *Node) Promote(ctx context.Context, id uint64, force bool) error {
	unlock, err := n.lockChanges(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := n.member(id)
	if err != nil || m.Voter {
		return err
	}
	return n.change(ctx, single(pb.ConfChangeAddNode, id), force)
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
func (n *Node) Remove(ctx context.Context, id uint64, force bool) error {
	unlock, err := n.lockChanges(ctx)
	if err != nil {
		return err
	}
	defer unlock()
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
	return n.change(ctx, single(pb.ConfChangeRemoveNode, id), force)
}

// TransferLeadership transfers the leadership to a voter, or, if to is 0, to the voter with the longest log. It returns
// once another node leads, or at once if this node is the voter to take over. The error is ErrNoSuchNode if the node
// has no vote, and ErrNoSuccessor if it is not alive and caught up, has no room on its disk, or did not take over.
func (n *Node) TransferLeadership(ctx context.Context, to uint64) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	if to == n.id() {
		return nil // a repeated request has reached the new leader, because the first response was lost
	}
	chosen := to
	err := n.judge(ctx, func(s *Status) (err error) {
		chosen, err = s.successor(to)
		return err
	})
	if err == nil {
		err = ctx.Err() // as in change
	}
	if err == nil {
		err = n.transfer(ctx, chosen)
	}
	if leader, _ := n.Leader(); err == nil && to != 0 && leader.ID != to {
		return fmt.Errorf("%w to node %d: node %d leads", ErrNoSuccessor, to, leader.ID)
	}
	return err
}

// transferTimeouts is how many election timeouts a transfer may take. No write is proposed meanwhile.
const transferTimeouts = 3

// transfer transfers the leadership to a voter that can lead. One that dies meanwhile is not waited for.
func (n *Node) transfer(ctx context.Context, to uint64) error {
	ended := time.NewTimer(transferTimeouts * n.log.ElectionTimeout())
	defer ended.Stop()
	for {
		leader, changed := n.Leader()
		if leader.ID != 0 && leader.ID != n.id() {
			return nil
		}
		s := n.Status()
		// Asked after the status, because a node that no longer leads does not know the others.
		if leader.ID == n.id() && n.log.Role().Leads {
			if m := s.find(to); m == nil || s.fault(m) != "" {
				return fmt.Errorf("%w: node %d is gone", ErrNoSuccessor, to)
			}
			if err := n.log.Transfer(to); err != nil {
				return err
			}
		}
		retry := time.NewTimer(leadInterval)
		select {
		case <-changed:
		case <-retry.C:
		case <-ended.C:
			retry.Stop()
			return fmt.Errorf("%w: node %d did not take it in time", ErrNoSuccessor, to)
		case <-ctx.Done():
			retry.Stop()
			return fmt.Errorf("transfer of the leadership to node %d: %w", to, ctx.Err())
		}
		retry.Stop()
	}
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
