package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

// This file decides, on the leader, which nodes can be relied on: for a majority after a change of the members, and for
// the leadership. Every change and every transfer asks here, also those that the leader makes on its own.

// ErrNoSuccessor refuses a transfer to a node that cannot lead, or that did not take the leadership.
var ErrNoSuccessor = errors.New("the leadership is not transferred")

// howToForce ends the errors of changes that can be forced.
const howToForce = "check the numbers with seqledger cluster status; --force makes the change all the same"

// caughtUp is how many entries a node may lack when the cluster relies on it.
const caughtUp = 100

// fault returns why a node can neither acknowledge a write nor take the leadership now, or "". Only a leader knows.
func (s *Status) fault(m *Member) string {
	behind := s.Committed - min(s.Committed, m.Matched)
	switch {
	case m.ID == s.Self:
		return ""
	case m.Stalled != "":
		return fmt.Sprintf("on %s, %s has stopped advancing", m.name(), m.Stalled)
	case !m.Active && m.Heard.IsZero():
		return m.name() + " has not been heard of"
	case !m.Active:
		return fmt.Sprintf("%s was last heard of %s ago", m.name(), time.Since(m.Heard).Round(100*time.Millisecond))
	case m.State == Differs:
		return m.name() + " has a state that differs, and will stop"
	case m.Matched == 0 || behind > caughtUp:
		return fmt.Sprintf("%s is %d log entries behind", m.name(), behind)
	}
	return ""
}

// name returns a node's number, and its address if there is one, because numbers are easily confused.
func (m *Member) name() string {
	if address := cmp.Or(m.Client, m.Peer); address != "" {
		return fmt.Sprintf("node %d (%s)", m.ID, address)
	}
	return fmt.Sprintf("node %d", m.ID)
}

// find returns a member, or nil.
func (s *Status) find(id uint64) *Member {
	for i := range s.Members {
		if s.Members[i].ID == id {
			return &s.Members[i]
		}
	}
	return nil
}

// changesVoters reports whether other nodes vote after a change. If not, as after the removal of a learner, it is
// always possible.
func (s *Status) changesVoters(change *pb.ConfChangeV2) bool {
	return slices.ContainsFunc(change.GetChanges(), func(c *pb.ConfChangeSingle) bool {
		m := s.find(c.GetNodeId())
		return m != nil && c.GetType() != pb.ConfChangeUpdateNode && m.Voter != (c.GetType() == pb.ConfChangeAddNode)
	})
}

// mayChange returns nil if a majority of the voters after a change is alive and caught up, as is each new voter.
func (s *Status) mayChange(change *pb.ConfChangeV2) error {
	if !s.changesVoters(change) {
		return nil
	}
	voters := map[uint64]*Member{}
	for i := range s.Members {
		if m := &s.Members[i]; m.Voter {
			voters[m.ID] = m
		}
	}
	var late, lost []string
	for _, c := range change.GetChanges() {
		m := s.find(c.GetNodeId())
		switch c.GetType() {
		case pb.ConfChangeAddNode:
			if m == nil || m.Voter {
				continue
			}
			if voters[m.ID] = m; s.fault(m) != "" {
				late = append(late, s.fault(m))
			}
		case pb.ConfChangeRemoveNode, pb.ConfChangeAddLearnerNode:
			if m == nil || !m.Voter {
				continue
			}
			if s.fault(m) == "" {
				lost = append(lost, m.name()+", which would go, is alive")
			}
			delete(voters, m.ID)
		}
	}
	faults := s.faults(voters)
	healthy, needed := len(voters)-len(faults), len(voters)/2+1
	switch {
	case healthy < needed:
		return fmt.Errorf("%w: of %d voters %d would be alive and caught up, and %d are needed: %s; %s", ErrNoChange,
			len(voters), healthy, needed, strings.Join(append(faults, lost...), "; "), howToForce)
	case len(late) > 0:
		return fmt.Errorf("%w: %s; %s", ErrNoChange, strings.Join(late, "; "), howToForce)
	}
	return nil
}

// faults returns the faults of nodes in the order of their ids.
func (s *Status) faults(nodes map[uint64]*Member) (list []string) {
	for i := range s.Members {
		if m := nodes[s.Members[i].ID]; m != nil && s.fault(m) != "" {
			list = append(list, s.fault(m))
		}
	}
	return list
}

// successor returns the voter that is to take over: the one that is named, or, if to is 0, the one with the longest log
// of those whose disk has room.
func (s *Status) successor(to uint64) (uint64, error) {
	if m := s.find(to); to != 0 {
		switch {
		case m == nil || m.ID == s.Self:
			return 0, fmt.Errorf("%w: node %d is no other node of this cluster", ErrNoSuchNode, to)
		case !m.Voter:
			return 0, fmt.Errorf("%w: %s is a learner, which becomes a voter once it has caught up", ErrNoSuchNode,
				m.name())
		}
	}
	var fit []Member
	var faults []string
	for _, m := range s.Members {
		if m.ID == s.Self || !m.Voter || to != 0 && m.ID != to {
			continue
		}
		switch fault := s.fault(&m); {
		case fault != "":
			faults = append(faults, fault)
		case to != 0 && m.Room.Low() && !s.room().Low():
			faults = append(faults, m.name()+" has less room on its disk than its reserve")
		default:
			fit = append(fit, m)
		}
	}
	switch {
	case len(fit) > 0:
		return best(fit), nil
	case len(faults) > 0:
		return 0, fmt.Errorf("%w: %s", ErrNoSuccessor, strings.Join(faults, "; "))
	}
	return 0, fmt.Errorf("%w: there is no other voter", ErrNoSuchNode)
}

// best returns the node with the longest log, of those whose disk has room if there are any, or 0.
func best(nodes []Member) uint64 {
	if len(nodes) == 0 {
		return 0
	}
	return slices.MaxFunc(nodes, func(a, b Member) int {
		if (a.Room.Low() || b.Room.Low()) && a.Room != b.Room {
			return cmp.Compare(b.Room, a.Room)
		}
		return cmp.Compare(a.Matched, b.Matched)
	}).ID
}

// roomier returns the voter that should lead because the disk of this node, which leads, has no room for more writes,
// or 0. Its disk must be known to have room. A node whose disk was low leads again only once that disk is ample, so
// that nodes whose disks fill up together do not pass the leadership around.
func (s *Status) roomier() uint64 {
	if s.room() != RoomNone {
		return 0
	}
	return best(slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool {
		return m.ID == s.Self || !m.Voter || m.Room != RoomEnough || s.fault(&m) != ""
	}))
}

// room returns the room on this node's own disk.
func (s *Status) room() Room {
	if own := s.find(s.Self); own != nil {
		return own.Room
	}
	return RoomUnknown
}
