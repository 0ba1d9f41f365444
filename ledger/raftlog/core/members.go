package core

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/confchange"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// MaxMembers bounds the number of nodes in a cluster, including learners.
const MaxMembers = 32

// Members are the nodes of the cluster by id. During joint consensus Outgoing holds the voters of the old
// configuration.
type Members struct {
	Voters, Outgoing       []uint64
	Learners, LearnersNext []uint64
	AutoLeave              bool
	// Highest is the highest id that any node ever had. No id is used twice: a node that came back empty under its old
	// id would have forgotten what it acknowledged.
	Highest uint64
	// Addresses holds the addresses of nodes, sorted by id. A member need not have one.
	Addresses []Address
}

// membership is the members as of an index.
type membership struct {
	index   uint64
	members Members
}

func (m *Members) lists() []*[]uint64 {
	return []*[]uint64{&m.Voters, &m.Outgoing, &m.Learners, &m.LearnersNext}
}

// Has reports whether a node is a member, as voter or learner.
func (m *Members) Has(id uint64) bool {
	return slices.ContainsFunc(m.lists(), func(l *[]uint64) bool { return slices.Contains(*l, id) })
}

// IsSole reports whether a node is the only voter, so that it decides alone.
func (m *Members) IsSole(id uint64) bool {
	return slices.Equal(m.Voters, []uint64{id}) && len(m.Outgoing) == 0
}

// count returns the number of nodes.
func (m *Members) count() int {
	all := map[uint64]bool{}
	for _, list := range m.lists() {
		for _, id := range *list {
			all[id] = true
		}
	}
	return len(all)
}

func (m *Members) validate() error {
	if len(m.Voters) == 0 && m.Highest > 0 { // Highest is 0 for a new node, which gets a snapshot
		return errors.New("core: a cluster without voters")
	}
	for _, list := range m.lists() {
		if len(*list) > MaxMembers {
			return fmt.Errorf("core: %d members, at most %d", len(*list), MaxMembers)
		}
		for _, id := range *list {
			if id == 0 || id > m.Highest {
				return fmt.Errorf("core: member %d, and the highest is %d", id, m.Highest)
			}
		}
	}
	return m.validateAddresses()
}

// Versions of encoded members. The first has no addresses; nodes that never had a cluster use it.
const (
	membersAlone     = 1
	membersAddressed = 2
)

// Encode returns the members for a checkpoint of the log: a version, the highest id, whether AutoLeave is set, four
// length-prefixed lists, and the addresses if there are any.
func (m *Members) Encode() []byte {
	version := byte(membersAlone)
	if len(m.Addresses) > 0 {
		version = membersAddressed
	}
	b := binary.BigEndian.AppendUint64([]byte{version}, m.Highest)
	leave := byte(0)
	if m.AutoLeave {
		leave = 1
	}
	b = append(b, leave)
	for _, list := range m.lists() {
		b = append(b, byte(len(*list)))
		for _, id := range *list {
			b = binary.BigEndian.AppendUint64(b, id)
		}
	}
	if version == membersAddressed {
		b = append(b, byte(len(m.Addresses)))
		for i := range m.Addresses {
			b = m.Addresses[i].append(b)
		}
	}
	return b
}

// DecodeMembers decodes members and returns the bytes after them.
func DecodeMembers(b []byte) (m Members, rest []byte, err error) {
	const head = 10
	if len(b) > 0 && b[0] > membersAddressed {
		return m, nil, fmt.Errorf("core: the list of members: %w", format.Check(b[0], membersAddressed))
	}
	if len(b) < head || b[0] == 0 || b[9] > 1 {
		return m, nil, fmt.Errorf("core: no members in %d bytes", len(b))
	}
	addressed := b[0] == membersAddressed
	m.Highest, m.AutoLeave = binary.BigEndian.Uint64(b[1:]), b[9] == 1
	b = b[head:]
	for _, list := range m.lists() {
		if len(b) == 0 || len(b) < 1+8*int(b[0]) {
			return m, nil, errors.New("core: the list of members is cut off")
		}
		count := int(b[0])
		for b = b[1:]; count > 0; count-- {
			*list = append(*list, binary.BigEndian.Uint64(b))
			b = b[8:]
		}
	}
	if addressed {
		if m.Addresses, b, err = decodeAddresses(b); err != nil {
			return m, nil, err
		}
	}
	return m, b, m.validate()
}

func (m *Members) toRaft() *pb.ConfState {
	return &pb.ConfState{
		Voters: m.Voters, VotersOutgoing: m.Outgoing, Learners: m.Learners, LearnersNext: m.LearnersNext,
		AutoLeave: &m.AutoLeave,
	}
}

// after returns the members after a change, or an error if the change is impossible.
func (m *Members) after(change *pb.ConfChangeV2) (next Members, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("core: %v", p)
		}
	}()
	next.Highest = m.Highest
	for _, c := range change.GetChanges() {
		if c.GetType() == pb.ConfChangeUpdateNode && !m.Has(c.GetNodeId()) {
			return next, fmt.Errorf("core: node %d is no member, and has no address to change", c.GetNodeId())
		}
		if c.GetType() != pb.ConfChangeRemoveNode && !m.Has(c.GetNodeId()) {
			if c.GetNodeId() <= m.Highest {
				return next, fmt.Errorf("core: id %d was used before; a new one must be above %d",
					c.GetNodeId(), m.Highest)
			}
			next.Highest = max(next.Highest, c.GetNodeId())
		}
	}
	progress := tracker.MakeProgressTracker(1, 0)
	progress.Config, progress.Progress, err = confchange.Restore(
		confchange.Changer{Tracker: progress, LastIndex: 1}, m.toRaft())
	if err != nil {
		return next, fmt.Errorf("core: %w", err)
	}
	changer := confchange.Changer{Tracker: progress, LastIndex: 1}
	autoLeave, joint := change.EnterJoint()
	switch {
	case change.LeaveJoint():
		progress.Config, progress.Progress, err = changer.LeaveJoint()
	case joint:
		progress.Config, progress.Progress, err = changer.EnterJoint(autoLeave, change.GetChanges()...)
	default:
		progress.Config, progress.Progress, err = changer.Simple(change.GetChanges()...)
	}
	if err != nil {
		return next, fmt.Errorf("core: %w", err)
	}
	s := progress.ConfState()
	next.Voters, next.Outgoing, next.AutoLeave = s.GetVoters(), s.GetVotersOutgoing(), s.GetAutoLeave()
	next.Learners, next.LearnersNext = s.GetLearners(), s.GetLearnersNext()
	if next.Addresses, err = m.addressesAfter(change, &next); err != nil {
		return next, err
	}
	return next, next.validate()
}

// Members returns the members as of the last applied entry.
func (n *Node) Members() Members { return n.members[len(n.members)-1].members }

// MembersAt returns the members as of an index that is applied and not before the last truncation.
func (n *Node) MembersAt(index uint64) Members {
	i := len(n.members) - 1
	for i > 0 && n.members[i].index > index {
		i--
	}
	return n.members[i].members
}

// Change proposes a membership change, which takes effect when it is applied. The number comes back like that of a
// proposal. Before the first change is applied, a second one is refused with ErrNotProposed. A leader does not remove
// itself: with two voters, the other one might never learn of it, and could not be elected without it.
func (n *Node) Change(number uint64, change *pb.ConfChangeV2) error {
	if n.lastChange > n.applied.Index {
		return fmt.Errorf("%w: the change of members at entry %d is not applied yet", ErrNotProposed, n.lastChange)
	}
	m := n.Members()
	next, err := m.after(change)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotProposed, err)
	}
	// A checkpoint of the log has all members, and has no room for more: every node would stop at its next one.
	if size := len(next.Encode()); size > segment.MaxCheckpointBytes {
		return fmt.Errorf("%w: the %d members with their addresses take %d bytes, at most %d: give the nodes shorter "+
			"addresses, or fewer nodes", ErrNotProposed, next.count(), size, segment.MaxCheckpointBytes)
	}
	if n.role.Leads && !slices.Contains(next.Voters, n.o.ID) {
		return fmt.Errorf("%w: node %d leads and would not be a voter any more: transfer the leadership first",
			ErrNotProposed, n.o.ID)
	}
	err = n.propose(number, KindChange, func() error { return n.raft.ProposeConfChange(change) })
	if err == nil {
		n.lastChange = n.proposals[len(n.proposals)-1].Index
	}
	return err
}

// After returns the members after an entry of the log, as every node has them once it has applied the entry.
func (m *Members) After(e *segment.Entry) Members {
	if e.Kind != KindChange {
		return *m
	}
	if _, next, err := m.afterChange(e.Data); err == nil {
		return next
	}
	return *m
}

// afterChange decodes a change and returns the members after it, or an error if the change is impossible.
func (m *Members) afterChange(data []byte) (*pb.ConfChangeV2, Members, error) {
	change := new(pb.ConfChangeV2)
	if err := proto.Unmarshal(data, change); err != nil {
		return nil, Members{}, fmt.Errorf("core: %w", err)
	}
	next, err := m.after(change)
	return change, next, err
}

// applyChange applies a committed membership change. Every node skips an impossible change, at which the library would
// panic.
func (n *Node) applyChange(e *pb.Entry) {
	current := n.members[len(n.members)-1]
	if e.GetIndex() <= current.index {
		return // a snapshot already covers it
	}
	change, next, err := current.members.afterChange(e.GetData())
	if err != nil {
		return
	}
	if e.GetIndex() > n.restored { // otherwise Raft already has the members of a later snapshot
		n.raft.ApplyConfChange(change)
	}
	n.members = append(n.members, membership{e.GetIndex(), next})
}
