package core

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var (
	// ErrNotLeader means that a proposal was never in the log, because this node is not the leader.
	ErrNotLeader = errors.New("core: not the leader")
	// ErrNotProposed means that a proposal was never in the log, because too many bytes are uncommitted or the
	// leadership is being transferred.
	ErrNotProposed = errors.New("core: not proposed")
	// ErrTooManyReads means that MaxReads reads are already waiting.
	ErrTooManyReads = errors.New("core: too many reads are waiting")
)

// Bounds of one node.
const (
	// MaxUncommittedBytes bounds the entries that a leader has proposed and that are not committed yet.
	MaxUncommittedBytes = 64 << 20
	// MaxApplyBytes is roughly how many bytes are handed out to be applied at once; a single entry may be larger.
	MaxApplyBytes = 8 << 20
	// MaxMessageBytes is roughly the size of the entries of one message; a single entry may be larger.
	MaxMessageBytes = 1 << 20
	// MaxInflightMessages and MaxInflightBytes bound what is in flight to one follower.
	MaxInflightMessages = 256
	MaxInflightBytes    = 32 << 20
	// MaxReads bounds the number of waiting reads.
	MaxReads = 1 << 16
	// recentBytes bounds the durable entries that are cached in memory for followers and the applier.
	recentBytes = 8 << 20
)

// Kinds of entries; see segment.Entry.
const (
	KindCommand = 1 // a proposal; empty data: a leader's first entry of its term
	KindChange  = segment.KindChange
)

// Log is the part of the durable log that a node reads; *segment.Log implements it.
type Log interface {
	First() uint64
	Last() segment.Position
	Term(index uint64) (uint64, error)
	Entries(lo, hi uint64, maxBytes int) ([]segment.Entry, error)
}

// DefaultElectionTicks is the default of Options.ElectionTicks.
const DefaultElectionTicks = 10

// Options configures New. ID, Members, Log and Nonce are required.
type Options struct {
	ID      uint64           // of this node; never 0, and never reused for another node
	Applied segment.Position // durable position of the state store
	Members Members          // as of Applied
	Log     Log
	State   segment.State // the last durable state
	// Nonce differs for each run of each node, so that the answer to a read of an earlier run is not mistaken for one
	// of this run.
	Nonce uint64
	// ElectionTicks is the number of ticks without a leader after which an election may begin; 0 means
	// DefaultElectionTicks. A leader sends heartbeats at each tick.
	ElectionTicks int
	// ApplyBytes is roughly how many bytes may be handed out before some of them are applied; 0 means MaxApplyBytes.
	ApplyBytes uint64
	// Snapshot returns the durable position of the state store, for a follower that needs dropped entries. It must not
	// be before atLeast, the index of the last membership change, because a node ignores the snapshot of a cluster of
	// which it is not a member. An error means to try again later. If Snapshot is nil, there are no snapshots.
	Snapshot func(atLeast uint64) (Snapshot, error)
	// Alone says that there are no messages of other nodes. A node that is the only voter then decides without the
	// library, and takes no change of the members while it runs; see alone.
	Alone bool
}

// Snapshot is a position, its members, and the data with which the host brings the state there.
type Snapshot struct {
	segment.Position
	Members Members
	Data    []byte
}

// Append is a write to the log's disk, in this order: the state of a snapshot, the reset of the log to start after it,
// the state of Raft, the entries. The host calls Node.Appended when all of it is durable.
type Append struct {
	Number   uint64 // 1, 2, 3, …: appends are written in this order
	Snapshot *Snapshot
	State    *segment.State // nil: unchanged
	Entries  []segment.Entry
}

// Committed is a committed entry to apply.
type Committed struct {
	segment.Position
	Kind     uint8
	Data     []byte
	Proposal uint64 // the number given to Propose on this node, or 0
}

// Role says which node leads, as far as this node knows.
type Role struct {
	Leads  bool   // this node is the leader
	Leader uint64 // 0: unknown
	Term   uint64
}

// Effects is what the host must do after an event. Each list is in order.
type Effects struct {
	Send   []*pb.Message // to send at once; each may be lost
	Append []Append
	Apply  []Committed // already durable in the log; Node.Done reports them applied
	Lost   []uint64    // proposals that may or may not be committed
	Reads  []uint64    // reads that may read the current state
	Role   *Role       // set if it changed
}

// Node is one node's part of the consensus. It is not safe for concurrent use: the host
// serializes the calls and takes the effects after each.
type Node struct {
	o       Options
	raft    consensus
	alone   *alone // raft, where the library is not used
	store   *store
	out     Effects
	failure error
	role    Role
	state   segment.State // the last state handed out to be stored
	commit  uint64

	number   uint64     // of the last append handed out
	appended uint64     // of the last durable append
	appends  []inFlight // handed out and not yet durable
	queued   []batch    // committed, and waiting for an append
	applying []batch    // handed out
	applied  segment.Position
	ready    uint64 // the term in which this node leads and has applied everything from earlier terms

	stalled bool          // see SetStalled
	votes   []*pb.Message // for this node, received while it is stalled

	proposing bool
	placed    *segment.Entry // the entry of the current proposal
	proposals []proposal     // made here, and not yet handed out to be applied

	members    []membership // newest last; at least one
	restored   uint64       // index of the newest snapshot that Raft has adopted, durable or not
	lastChange uint64       // index of the newest change proposed here
	changes    changes
	reads      reads

	hesitates  bool // see Hesitate
	leaderless int  // ticks since this node last knew a leader
}

// inFlight is an append that is not durable yet, with the messages that wait for it.
type inFlight struct {
	number    uint64
	entries   []*pb.Entry
	snapshot  *Snapshot
	responses []*pb.Message
}

// batch is a set of entries that Raft hands out to be applied together.
type batch struct {
	after     uint64 // the append that must be durable first
	entries   []*pb.Entry
	responses []*pb.Message
}

type proposal struct {
	segment.Position
	number uint64
}

// New returns a node that continues from the durable state and log.
func New(o Options) (n *Node, err error) {
	if o.ElectionTicks == 0 {
		o.ElectionTicks = DefaultElectionTicks
	}
	if o.ApplyBytes == 0 {
		o.ApplyBytes = MaxApplyBytes
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	// Everything in the state store is committed. The commit index of the rest of the log is learned later.
	// It must not be beyond the log, at which the library would panic.
	commit := min(max(o.Applied.Index, o.State.Commit), o.Log.Last().Index)
	n = &Node{
		o: o, state: o.State, commit: commit, applied: o.Applied,
		members: []membership{{o.Applied.Index, o.Members}}, role: Role{Term: o.State.Term},
		changes: changes{unknown: o.Log.Last().Index},
	}
	n.store = newStore(o.Log, o.State, commit, o.Members, n.snapshot)
	if sole, err := o.staysSole(); err != nil {
		return nil, err
	} else if sole {
		n.alone = newAlone(n)
		n.raft = n.alone
		return n, nil
	}
	defer func() {
		if p := recover(); p != nil {
			n, err = nil, fmt.Errorf("core: %v", p)
		}
	}()
	n.raft, err = raft.NewRawNode(config(&o, n.store))
	return n, err
}

func config(o *Options, s raft.Storage) *raft.Config {
	return &raft.Config{
		ID: o.ID, Storage: s, Applied: o.Applied.Index,
		ElectionTick: o.ElectionTicks, HeartbeatTick: 1,
		AsyncStorageWrites:        true, // otherwise ticks would wait for the disk
		MaxSizePerMsg:             MaxMessageBytes,
		MaxCommittedSizePerReady:  o.ApplyBytes,
		MaxUncommittedEntriesSize: MaxUncommittedBytes,
		MaxInflightMsgs:           MaxInflightMessages,
		MaxInflightBytes:          MaxInflightBytes,
		// The three belong together: a leader without a majority steps down, a returning node does not depose the
		// leader, and no read relies on a clock.
		CheckQuorum: true, PreVote: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, // because the leader sets the timestamps
		StepDownOnRemoval:         true,
		Logger:                    logger{},
	}
}

func (o *Options) validate() error {
	last := o.Log.Last()
	switch {
	case o.ID == 0 || raft.IsLocalMsgTarget(o.ID):
		return fmt.Errorf("core: Options.ID is %d", o.ID)
	case o.ElectionTicks < 2:
		return fmt.Errorf("core: Options.ElectionTicks is %d, want at least 2", o.ElectionTicks)
	case o.Log.First() > o.Applied.Index+1 || last.Index < o.Applied.Index:
		return fmt.Errorf("core: the log has entries %d to %d, and the state is at %d",
			o.Log.First(), last.Index, o.Applied.Index)
	case o.State.Term < last.Term:
		return fmt.Errorf("core: the state is of term %d, and entry %d of term %d", o.State.Term, last.Index, last.Term)
	}
	term, err := o.Log.Term(o.Applied.Index)
	if err != nil {
		return fmt.Errorf("core: term of entry %d: %w", o.Applied.Index, err)
	}
	if term != o.Applied.Term {
		return fmt.Errorf("core: entry %d is of term %d in the log, and of %d in the state",
			o.Applied.Index, term, o.Applied.Term)
	}
	return o.Members.validate()
}

// do runs one event. The library panics in many places; a panic becomes the node's failure, which is permanent.
func (n *Node) do(event func() error) (err error) {
	if n.failure != nil {
		return n.failure
	}
	defer func() {
		if p := recover(); p != nil {
			n.stop(fmt.Errorf("core: the consensus stopped: %v", p))
			err = n.failure
		}
	}()
	if err = event(); n.failure == nil {
		n.collect()
	}
	return err
}

// stop makes a failure permanent. It drops the collected effects, because they are based on an inconsistent state.
func (n *Node) stop(failure error) {
	n.failure = failure
	n.out = Effects{Lost: n.out.Lost}
	n.loseProposals()
}

// Err returns the failure that stopped the node, or nil.
func (n *Node) Err() error { return n.failure }

// Role returns the current role.
func (n *Node) Role() Role { return n.role }

// Ready reports whether this node leads and has applied everything committed in earlier terms.
func (n *Node) Ready() bool { return n.role.Leads && n.ready == n.role.Term }

// Applied returns the position up to which the host has applied.
func (n *Node) Applied() segment.Position { return n.applied }

// Effects returns the effects collected since the last call.
func (n *Node) Effects() Effects {
	out := n.out
	n.out = Effects{}
	return out
}

// SetStalled tells the node whether some of the host's work, such as a write to the disk, has stopped advancing. A
// stalled node could not serve, so it must not lead: a leader sends nothing, so that the others elect another one, and
// steps down because it hears from no majority any more; any other node asks for no votes, and takes no
// leadership that is transferred to it. It still votes and acknowledges entries if its log is durable, because the
// others may have no majority without it. For that its clock must advance while it knows a leader: a node whose clock
// stands still takes the last leader for alive, and refuses its vote. Without a leader the clock stands still, and the
// votes that the node asked for before count once it is not stalled any more: what stalls may be the write of its own
// vote, and no voter repeats its vote.
func (n *Node) SetStalled(stalled bool) { n.stalled = stalled }

// Tick advances the node's clock by one step.
func (n *Node) Tick() error {
	return n.do(func() error {
		if n.leaderless++; n.role.Leader != 0 {
			n.leaderless = 0
		}
		if !n.stalled {
			for _, m := range n.votes {
				n.step(m)
			}
			n.votes = nil
		}
		if !n.stalled || n.role.Leader != 0 {
			n.raft.Tick()
		}
		n.tickReads()
		return nil
	})
}

// Hesitate sets whether this node lets another node stand for election before it does, because it should lead only if
// no other node can. It votes as before.
func (n *Node) Hesitate(on bool) { n.hesitates = on }

// holdsBack reports whether a request for a vote is not sent. A hesitating node asks for votes only after it has known
// no leader for an election timeout. Until then each other node has stood for election, or cannot. Its own clock does
// not change, because a node that believes in the old leader for longer refuses its vote to the others.
func (n *Node) holdsBack(m *pb.Message) bool {
	return n.hesitates && m.GetType() == pb.MsgPreVote && n.leaderless < n.o.ElectionTicks
}

// Campaign starts an election. A sole voter need not wait for an election timeout.
func (n *Node) Campaign() error { return n.do(n.raft.Campaign) }

// ForgottenError is the failure of a node whose log has lost entries that the node once acknowledged. A node
// acknowledges what is durable, and no node drops what is committed, so the log is not the one that the node had.
type ForgottenError struct {
	Leader       uint64 // the node that the entries were acknowledged to
	Acknowledged uint64 // index up to which the log is committed and was acknowledged
	Last         uint64 // index at which the log ends now
}

// Error says what was found.
func (e *ForgottenError) Error() string {
	return fmt.Sprintf("core: the data directory is an old copy: this node acknowledged the log up to index %d to "+
		"node %d, and its log ends at index %d", e.Acknowledged, e.Leader, e.Last)
}

// Receive takes a message from another node.
func (n *Node) Receive(m *pb.Message) error {
	return n.do(func() error {
		switch m.GetType() {
		case pb.MsgHeartbeat:
			// A leader names no index beyond what is committed and what this node has acknowledged to it.
			if m.GetCommit() > n.store.last {
				n.stop(&ForgottenError{Leader: m.GetFrom(), Acknowledged: m.GetCommit(), Last: n.store.last})
				return n.failure
			}
		case pb.MsgReadIndex:
			// A leader without a committed entry of its term would answer at once if it is the only voter. A node that
			// does not lead would pass the request on in the reader's name. In both cases the reader asks again.
			if !n.Ready() {
				return nil
			}
		}
		if n.stalled && elects(m) {
			return nil
		}
		n.step(m)
		return nil
	})
}

// step gives the library a message, or keeps it if it is a vote for a stalled node.
func (n *Node) step(m *pb.Message) {
	if n.stalled && m.GetType() == pb.MsgVoteResp {
		// The last one of each voter, so that their number is bounded.
		sameVoter := func(v *pb.Message) bool { return v.GetFrom() == m.GetFrom() }
		n.votes = append(slices.DeleteFunc(n.votes, sameVoter), m)
		return
	}
	// An error means that the sender is not a member or that the message is out of place. Neither must stop this node.
	_ = n.raft.Step(m)
}

// elects reports whether a message may make this node stand for election.
func elects(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgTimeoutNow, pb.MsgPreVoteResp:
		return true
	default:
		return false
	}
}

// Propose appends data, which must not be empty and must not change afterwards. Either the number comes back in
// Effects.Apply or Effects.Lost, or Propose fails and data is never in the log.
func (n *Node) Propose(number uint64, data []byte) error {
	if len(data) == 0 || number == 0 {
		return fmt.Errorf("%w: number %d, %d bytes", ErrNotProposed, number, len(data))
	}
	return n.propose(number, KindCommand, func() error { return n.raft.Propose(data) })
}

func (n *Node) propose(number uint64, kind uint8, propose func() error) error {
	err := n.do(func() error {
		if !n.role.Leads {
			return ErrNotLeader
		}
		n.proposing, n.placed = true, nil
		return propose()
	})
	n.proposing = false
	switch placed := n.placed; {
	case n.failure != nil:
		return fmt.Errorf("%w: %w", ErrNotProposed, n.failure)
	case errors.Is(err, raft.ErrProposalDropped):
		return fmt.Errorf("%w: %w", ErrNotProposed, err)
	case err != nil:
		return err
	case placed == nil || placed.Kind != kind:
		return fmt.Errorf("%w: the library replaced it", ErrNotProposed)
	default:
		n.proposals = append(n.proposals, proposal{segment.Position{Index: placed.Index, Term: placed.Term}, number})
		return nil
	}
}

// Appended reports that the appends up to a number are durable.
func (n *Node) Appended(number uint64) error {
	return n.do(func() error {
		n.appended = number
		for len(n.appends) > 0 && n.appends[0].number <= number {
			a := n.appends[0]
			n.appends = n.appends[1:]
			if a.snapshot != nil {
				n.installed(a.snapshot)
			}
			n.store.append(a.entries)
			n.respond(a.responses)
		}
		if n.release(); n.alone != nil {
			n.alone.stored(number)
		}
		return nil
	})
}

// snapshot returns the snapshot for a follower that needs entries which the log has dropped.
func (n *Node) snapshot() (Snapshot, error) {
	if n.o.Snapshot == nil {
		return Snapshot{}, errors.New("core: no snapshots")
	}
	changed := n.members[len(n.members)-1].index
	s, err := n.o.Snapshot(changed)
	if err == nil && s.Index < changed {
		err = fmt.Errorf("core: a snapshot at %d, and the members changed at %d", s.Index, changed)
	}
	return s, err
}

// installed adopts a snapshot whose state is durable.
func (n *Node) installed(s *Snapshot) {
	n.store.reset(s.Position)
	n.applied = s.Position
	n.members = []membership{{s.Index, s.Members}}
}

// respond delivers messages that waited for the disk.
func (n *Node) respond(messages []*pb.Message) {
	for _, m := range messages {
		if m.GetTo() == n.o.ID {
			n.step(m)
		} else {
			n.send(m)
		}
	}
}

// send hands out a message for another node. If this node is stalled, a leader stays silent, and any other node asks
// for no votes.
func (n *Node) send(m *pb.Message) {
	asks := m.GetType() == pb.MsgPreVote || m.GetType() == pb.MsgVote
	switch {
	case !n.stalled || !n.role.Leads && !asks:
		n.out.Send = append(n.out.Send, m)
	case m.GetType() == pb.MsgSnap:
		n.raft.ReportSnapshot(m.GetTo(), raft.SnapshotFailure) // otherwise the leader would wait for it
	}
}

// Done reports that the host has applied the entries up to an index, which need not be all that were handed out.
func (n *Node) Done(index uint64) error {
	return n.do(func() error {
		for len(n.applying) > 0 && n.applying[0].entries[0].GetIndex() <= index {
			if n.partApplied(&n.applying[0], index); len(n.applying[0].entries) > 0 {
				break
			}
			n.applying = n.applying[1:]
		}
		if n.alone != nil {
			n.alone.applied(index)
		}
		n.askReads()
		n.answerReads()
		return nil
	})
}

// partApplied removes the entries up to an index from a batch. It tells the library about each part, because a
// candidate reads the entries that the library considers unapplied, and the host may have dropped them from the log.
func (n *Node) partApplied(b *batch, index uint64) {
	k := 0
	for ; k < len(b.entries) && b.entries[k].GetIndex() <= index; k++ {
		n.entryApplied(b.entries[k])
	}
	for _, m := range b.responses {
		m.Entries = b.entries[:k]
	}
	b.entries = b.entries[k:]
	n.respond(b.responses)
}

func (n *Node) entryApplied(e *pb.Entry) {
	if e.GetType() != pb.EntryNormal {
		n.applyChange(e)
	}
	if e.GetIndex() > n.applied.Index { // a snapshot may have overtaken it
		n.applied = segment.Position{Index: e.GetIndex(), Term: e.GetTerm()}
	}
	if n.role.Leads && e.GetTerm() == n.role.Term {
		n.ready = n.role.Term
	}
}

// Truncated reports that the log now begins at an index.
func (n *Node) Truncated(first uint64) error {
	return n.do(func() error {
		n.store.first = max(n.store.first, first)
		for len(n.members) > 1 && n.members[1].index < first {
			n.members = n.members[1:]
		}
		return nil
	})
}

// Progress is another node's progress, as the leader knows it.
type Progress struct {
	Matched uint64 // its log matches the leader's up to here
	Active  bool   // the leader has heard from it within the last election timeout
}

// Progress returns the progress of each member, or nil if this node does not lead.
func (n *Node) Progress() map[uint64]Progress {
	if !n.role.Leads || n.failure != nil {
		return nil
	}
	found := map[uint64]Progress{}
	n.raft.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		found[id] = Progress{Matched: p.Match, Active: p.RecentActive || id == n.o.ID}
	})
	return found
}

// Committed returns the highest index that this node knows to be committed.
func (n *Node) Committed() uint64 { return n.commit }

// Last returns the index of the last entry that is durable in the log.
func (n *Node) Last() uint64 { return n.store.last }

// MembersChanged returns the index of the last applied membership change.
func (n *Node) MembersChanged() uint64 { return n.members[len(n.members)-1].index }

// Transfer transfers the leadership to another voter. Proposals fail during the transfer. A node that does not lead
// does nothing, because the library would pass the request on in the other voter's name. Nor does a stalled leader: it
// is silent, and the library would let it lead for another election timeout.
func (n *Node) Transfer(to uint64) error {
	return n.do(func() error {
		if n.role.Leads && !n.stalled {
			n.raft.TransferLeader(to)
		}
		return nil
	})
}

// Unreachable reports that messages to a node were lost. Without it the leader keeps sending messages that the follower
// cannot receive.
func (n *Node) Unreachable(id uint64) error {
	return n.do(func() error { n.raft.ReportUnreachable(id); return nil })
}

// SnapshotSent reports whether a snapshot has arrived. Until it is called, the leader sends the node nothing more.
func (n *Node) SnapshotSent(id uint64, arrived bool) error {
	return n.do(func() error {
		status := raft.SnapshotFinish
		if !arrived {
			status = raft.SnapshotFailure
		}
		n.raft.ReportSnapshot(id, status)
		return nil
	})
}
