package raftlog

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Role is who leads, as far as a node knows.
type Role = core.Role

// Members are the nodes of a cluster.
type Members = core.Members

// DecodeMembers reads members that Members.Encode has written, and returns what follows them.
func DecodeMembers(b []byte) (Members, []byte, error) { return core.DecodeMembers(b) }

// Progress is a node's place in the log, and what a leader knows of the others.
type Progress = host.Progress

// Role returns who leads.
func (l *Log) Role() Role { return l.host.Role() }

// Changed returns a channel that is closed when the role, the members or Ready's answer change
// next. Take it before looking at them.
func (l *Log) Changed() <-chan struct{} { return l.host.Changed() }

// Stopped is closed when the log has failed or is closed.
func (l *Log) Stopped() <-chan struct{} { return l.host.Stopped() }

// Members returns the members as of what was applied.
func (l *Log) Members() Members { return l.host.Members() }

// MembersAt returns the members as of a position that was applied and not truncated.
func (l *Log) MembersAt(index uint64) Members { return l.host.MembersAt(index) }

// MembersChanged returns the index at which the members changed last.
func (l *Log) MembersChanged() uint64 { return l.host.MembersChanged() }

// Progress returns how far this node is and, if it leads, the others are.
func (l *Log) Progress() Progress { return l.host.Progress() }

// IsReady reports whether this node leads and has applied everything that was committed in the
// terms before, and in which term.
func (l *Log) IsReady() (term uint64, ready bool) { return l.host.IsReady() }

// ProposeIn is Propose in a term of this node's leadership: in any other nothing is proposed, and it
// ends with ErrNotLeader.
func (l *Log) ProposeIn(term uint64, entry []byte) *Proposal { return l.host.ProposeIn(term, entry) }

// Change proposes other members and waits until the change is applied here. The errors are those
// of Proposal.Wait.
func (l *Log) Change(ctx context.Context, change *pb.ConfChangeV2) error {
	p := l.host.Change(change)
	select {
	case <-p.Done():
		_, err := p.Wait()
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err())
	}
}

// Transfer begins to hand the leadership to another voter.
func (l *Log) Transfer(to uint64) error { return l.host.Transfer(to) }

// Receive takes messages of other nodes. It fails once the log has stopped.
func (l *Log) Receive(messages []*pb.Message) error { return l.host.Receive(messages...) }

// Unreachable says that messages to a node were lost.
func (l *Log) Unreachable(id uint64) error { return l.host.Unreachable(id) }

// AwaitApplied waits until this node has applied the log up to an index.
func (l *Log) AwaitApplied(ctx context.Context, index uint64) error {
	return l.host.AwaitApplied(ctx, index)
}

// Last returns the last index in this node's log.
func (l *Log) Last() uint64 { return l.files.Last().Index }

// Covered returns the position of the last command that was applied.
func (l *Log) Covered() Position { return Position(l.host.Covered()) }

// Truncated returns the index up to which the log was dropped.
func (l *Log) Truncated() uint64 { return l.files.Checkpoint().Index }

// CreateAt makes a log for a node that begins with the state of another one: it has nothing up to a
// position, as of which the members are given, and goes on behind it. Term and Vote are those of the node's log
// of before, if it had one, and must not be lost.
func CreateAt(o Options, at Position, members []byte, state segment.State) error {
	decoded, rest, err := core.DecodeMembers(members)
	if err != nil || len(rest) > 0 || decoded.Highest == 0 {
		return fmt.Errorf("raftlog: the members of the log to make cannot be read: %w", errors.Join(err,
			fmt.Errorf("%d bytes, %d left over", len(members), len(rest))))
	}
	if state.Term < at.Term {
		state = segment.State{Term: at.Term}
	}
	state.Commit = max(state.Commit, at.Index)
	o.setDefaults()
	return makeLog(&o, segment.Checkpoint{Position: segment.Position(at), Data: members}, state)
}

// State is what a log has of Raft beside its entries.
type State = segment.State
