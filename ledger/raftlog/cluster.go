package raftlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Role says which node leads, as far as this node knows.
type Role = core.Role

// Members are the nodes of a cluster.
type Members = core.Members

// DecodeMembers decodes members written by Members.Encode and returns the bytes after them.
func DecodeMembers(b []byte) (Members, []byte, error) { return core.DecodeMembers(b) }

// Progress is a node's position in the log and, on a leader, what it knows of the other nodes.
type Progress = host.Progress

// Role returns the current role.
func (l *Log) Role() Role { return l.host.Role() }

// Changed returns a channel that is closed at the next change of the role, the members or the result of IsReady. Call
// Changed before reading them, so that no change is missed.
func (l *Log) Changed() <-chan struct{} { return l.host.Changed() }

// Stopped returns a channel that is closed once the log has failed or is closed.
func (l *Log) Stopped() <-chan struct{} { return l.host.Stopped() }

// Members returns the members as of the last applied entry.
func (l *Log) Members() Members { return l.host.Members() }

// MembersAt returns the members as of an index that was applied and not truncated.
func (l *Log) MembersAt(index uint64) Members { return l.host.MembersAt(index) }

// MembersChanged returns the index of the last membership change.
func (l *Log) MembersChanged() uint64 { return l.host.MembersChanged() }

// Progress returns this node's progress and, on a leader, the progress of the other nodes.
func (l *Log) Progress() Progress { return l.host.Progress() }

// IsReady reports whether this node leads and has applied everything committed in earlier terms, and in which term.
func (l *Log) IsReady() (term uint64, ready bool) { return l.host.IsReady() }

// ProposeIn appends an entry to the log in one term of this node's leadership, because the data that it is based on, in
// particular its time, is out of date in another one; there the proposal ends with ErrNotLeader. It does not wait for
// the disk. Entries appear in the log in the order of the calls. entry must not be empty, has at most MaxEntryBytes,
// and must not be changed afterwards.
func (l *Log) ProposeIn(term uint64, entry []byte) *Proposal { return l.host.ProposeIn(term, entry) }

// ProposeHere is ProposeIn which may also write and apply the entry in the caller's goroutine; see host.ProposeHere.
func (l *Log) ProposeHere(term uint64, entry []byte, idle func() bool) *Proposal {
	return l.host.ProposeHere(term, entry, idle)
}

// ChangeIn proposes a membership change, in one term of this node's leadership, and waits until this node has applied
// it. Its errors are those of Proposal.Wait.
func (l *Log) ChangeIn(ctx context.Context, term uint64, change *pb.ConfChangeV2) error {
	p := l.host.ChangeIn(term, change)
	select {
	case <-p.Done():
		_, err := p.Wait()
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err())
	}
}

// Transfer starts a transfer of the leadership to another voter.
func (l *Log) Transfer(to uint64) error { return l.host.Transfer(to) }

// Hesitate sets whether this node lets another node stand for election before it does, because it should lead only if
// no other node can. It fails once the log has stopped.
func (l *Log) Hesitate(on bool) error { return l.host.Hesitate(on) }

// ElectionTimeout is the shortest time without a heartbeat after which an election begins.
func (l *Log) ElectionTimeout() time.Duration { return l.host.ElectionTimeout() }

// Receive takes messages from other nodes. It fails once the log has stopped.
func (l *Log) Receive(messages []*pb.Message) error { return l.host.Receive(messages...) }

// Unreachable reports that messages to a node were lost.
func (l *Log) Unreachable(id uint64) error { return l.host.Unreachable(id) }

// AwaitApplied waits until this node has applied the log up to index.
func (l *Log) AwaitApplied(ctx context.Context, index uint64) error {
	return l.host.AwaitApplied(ctx, index)
}

// Last returns the last index in this node's log.
func (l *Log) Last() uint64 { return l.files.Last().Index }

// Covered returns the position of the last applied command.
func (l *Log) Covered() Position { return Position(l.host.Covered()) }

// Truncated returns the index up to which the log has been dropped.
func (l *Log) Truncated() uint64 { return l.files.Checkpoint().Index }

// CreateAt makes the log of a node that starts from another node's state. The log holds no entries up to at; members
// are the members as of at. state holds the Term and Vote of the node's previous log, if it had one; they must not be
// lost.
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

// State is the Raft state that a log stores in addition to its entries.
type State = segment.State
