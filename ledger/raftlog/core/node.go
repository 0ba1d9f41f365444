package core

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var (
	// ErrNotLeader means that a proposal was never in the log, because this node does not lead.
	ErrNotLeader = errors.New("core: not the leader")
	// ErrNotProposed means that a proposal was never in the log: too much is uncommitted, or the
	// leadership is being handed over.
	ErrNotProposed = errors.New("core: not proposed")
	// ErrTooManyReads refuses a read over MaxReads.
	ErrTooManyReads = errors.New("core: too many reads are waiting")
)

// Bounds of one node.
const (
	// MaxUncommittedBytes bounds the entries that a leader has proposed and that are not committed.
	MaxUncommittedBytes = 64 << 20
	// MaxApplyBytes is about what is handed out to be applied at once; a single entry may have more.
	MaxApplyBytes = 8 << 20
	// MaxMessageBytes is about what the entries of one message take; a single entry may have more.
	MaxMessageBytes = 1 << 20
	// MaxInflightMessages and MaxInflightBytes bound what is on its way to one follower.
	MaxInflightMessages = 256
	MaxInflightBytes    = 32 << 20
	// MaxReads bounds the reads that wait.
	MaxReads = 1 << 16
	// recentBytes bounds the durable entries that are kept in memory for followers and the applier.
	recentBytes = 8 << 20
)

// Kinds of entries, as segment.Entry has them.
const (
	KindCommand = 1 // a proposal; empty data: the entry with which a leader begins its term
	KindChange  = 2 // a change of the members
)

// Log is the durable log as far as a node reads it; *segment.Log is one.
type Log interface {
	First() uint64
	Last() segment.Position
	Term(index uint64) (uint64, error)
	Entries(lo, hi uint64, maxBytes int) ([]segment.Entry, error)
}

// Options configures New. ID, Members, Log and Nonce are required.
type Options struct {
	ID      uint64           // of this node; never 0, and never used again for another one
	Applied segment.Position // what the state store holds durably
	Members Members          // as of Applied
	Log     Log
	State   segment.State // the last one that is durable
	// Nonce differs in each life of each node, so that an answer to a read of an earlier life
	// is not taken for one of this life.
	Nonce uint64
	// ElectionTicks is after how many ticks without a leader an election may begin; 0 means 10.
	// A leader sends heartbeats at each tick.
	ElectionTicks int
	// ApplyBytes is about how much is handed out to be applied before some of it is applied; 0 means MaxApplyBytes.
	ApplyBytes uint64
	// Snapshot returns where the state store is durable, for a follower that is too far behind.
	// It must not be before atLeast, where the members changed last: a node ignores the snapshot
	// of a cluster that it is no member of. An error means later. Nil: never.
	Snapshot func(atLeast uint64) (Snapshot, error)
}

// Snapshot is a position, its members, and what the host needs to bring the state there.
type Snapshot struct {
	segment.Position
	Members Members
	Data    []byte
}

// Append is a write to the log's disk: the state of a snapshot first, then the log empty behind
// it, then the state of Raft, then the entries. Node.Appended is called when all is durable.
type Append struct {
	Number   uint64 // 1, 2, 3, …: appends are written in this order
	Snapshot *Snapshot
	State    *segment.State // nil: unchanged
	Entries  []segment.Entry
}

// Committed is an entry to apply.
type Committed struct {
	segment.Position
	Kind     uint8
	Data     []byte
	Proposal uint64 // the number given to Propose on this node, or 0
}

// Role is who leads, as far as this node knows.
type Role struct {
	Leads  bool   // this node leads
	Leader uint64 // 0: not known
	Term   uint64
}

// Effects is what the host does after an event. Each list is in order.
type Effects struct {
	Send   []*pb.Message // at once; each may be lost
	Append []Append
	Apply  []Committed // all of it is in the log durably; Node.Applied is called when it is done
	Lost   []uint64    // proposals of which it is not known whether they will be committed
	Reads  []uint64    // reads that may look at the state as it is now
	Role   *Role       // it changed
}

// Node is one node's part of the consensus. It is no goroutine's friend: the host calls one
// method at a time, and takes the effects after each.
type Node struct {
	o       Options
	raft    *raft.RawNode
	store   *store
	out     Effects
	failure error
	role    Role
	state   segment.State // the last one handed out to be stored
	commit  uint64

	number   uint64     // of the last append that was handed out
	appended uint64     // of the last append that is durable
	appends  []inFlight // handed out and not durable
	queued   []batch    // committed, and waiting for an append
	applying []batch    // handed out
	applied  segment.Position
	ready    uint64 // the term in which this node led and applied all of the terms before

	proposing bool
	placed    *segment.Entry // the entry of the proposal that is being made
	proposals []proposal     // made here, and not handed out to be applied

	members    []membership // newest last; at least one
	restored   uint64       // index of the newest snapshot that Raft goes by, durable or not
	lastChange uint64       // index of the newest change that was proposed here
	changes    changes
	reads      reads
}

// inFlight is an append that is not durable yet, and the messages that wait for it.
type inFlight struct {
	number    uint64
	entries   []*pb.Entry
	snapshot  *Snapshot
	responses []*pb.Message
}

// batch is what Raft wants applied at once.
type batch struct {
	after     uint64 // the append that must be durable first
	entries   []*pb.Entry
	responses []*pb.Message
}

type proposal struct {
	segment.Position
	number uint64
}

// New returns a node that continues behind what is durable.
func New(o Options) (n *Node, err error) {
	if o.ElectionTicks == 0 {
		o.ElectionTicks = 10
	}
	if o.ApplyBytes == 0 {
		o.ApplyBytes = MaxApplyBytes
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	// What the state store holds was committed. The rest of the log is found out to be.
	commit := min(max(o.Applied.Index, o.State.Commit), o.Log.Last().Index)
	n = &Node{
		o: o, state: o.State, commit: commit, applied: o.Applied,
		members: []membership{{o.Applied.Index, o.Members}}, role: Role{Term: o.State.Term},
		changes: changes{unknown: o.Log.Last().Index},
	}
	n.store = newStore(o.Log, o.State, commit, o.Members, n.snapshot)
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
		// The three belong together: a leader without a majority steps down, a node that
		// comes back does not depose one, and no read relies on a clock.
		CheckQuorum: true, PreVote: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, // the leader stamps the time
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

// do runs one event. A panic of the library, of which it has many, is the node's failure and stays.
func (n *Node) do(event func() error) (err error) {
	if n.failure != nil {
		return n.failure
	}
	defer func() {
		if p := recover(); p != nil {
			n.failure = fmt.Errorf("core: the consensus stopped: %v", p)
			// What was collected rests on a state that makes no sense.
			n.out = Effects{Lost: n.out.Lost}
			n.loseProposals()
			err = n.failure
		}
	}()
	err = event()
	n.collect()
	return err
}

// Err returns the failure that stopped the node, or nil.
func (n *Node) Err() error { return n.failure }

// Role returns who leads.
func (n *Node) Role() Role { return n.role }

// Ready tells whether this node leads and has applied all that was committed in the terms before.
func (n *Node) Ready() bool { return n.role.Leads && n.ready == n.role.Term }

// Applied returns the position up to which the host has applied.
func (n *Node) Applied() segment.Position { return n.applied }

// Effects returns what has come together since the last call.
func (n *Node) Effects() Effects {
	out := n.out
	n.out = Effects{}
	return out
}

// Tick is one step of the node's clock.
func (n *Node) Tick() error {
	return n.do(func() error {
		n.raft.Tick()
		n.tickReads()
		return nil
	})
}

// Campaign begins an election. A sole voter need not wait for one.
func (n *Node) Campaign() error { return n.do(n.raft.Campaign) }

// Receive takes a message of another node.
func (n *Node) Receive(m *pb.Message) error {
	return n.do(func() error {
		if m.GetType() == pb.MsgReadIndex && n.role.Leads && n.ready != n.role.Term {
			return nil // the library would answer at once if this is the only voter; the reader asks again
		}
		// An error means that the message comes from no member, or at a wrong time.
		_ = n.raft.Step(m)
		return nil
	})
}

// Propose appends data, which is not empty and must not change any more. Either the number comes
// back in Effects.Apply or in Effects.Lost, or Propose fails and data is never in the log.
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

// Appended says that the appends up to a number are durable.
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
		n.release()
		return nil
	})
}

// snapshot is what a follower gets that is too far behind.
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

// installed takes over a snapshot whose state is durable.
func (n *Node) installed(s *Snapshot) {
	n.store.reset(s.Position)
	n.applied = s.Position
	n.members = []membership{{s.Index, s.Members}}
}

// respond delivers what waited for the disk.
func (n *Node) respond(messages []*pb.Message) {
	for _, m := range messages {
		if m.GetTo() == n.o.ID {
			_ = n.raft.Step(m)
		} else {
			n.out.Send = append(n.out.Send, m)
		}
	}
}

// Done says that the host has applied the entries up to an index, which need not be all that were
// handed out.
func (n *Node) Done(index uint64) error {
	return n.do(func() error {
		for len(n.applying) > 0 && n.applying[0].entries[0].GetIndex() <= index {
			if n.partApplied(&n.applying[0], index); len(n.applying[0].entries) > 0 {
				break
			}
			n.applying = n.applying[1:]
		}
		n.askReads()
		n.answerReads()
		return nil
	})
}

// partApplied takes the entries up to an index from a batch. The library is told of each part: it reads what it takes
// for not applied when this node stands for election, and the host may have dropped that from the log.
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

// Truncated says that the log begins at an index now.
func (n *Node) Truncated(first uint64) error {
	return n.do(func() error {
		n.store.truncate(first)
		for len(n.members) > 1 && n.members[1].index < first {
			n.members = n.members[1:]
		}
		return nil
	})
}

// Progress is how far another node is, as the leader knows.
type Progress struct {
	Matched uint64 // its log is the leader's up to here
	Active  bool   // it was heard of within the last election timeout
}

// Progress returns how far each member is; nil when this node does not lead.
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

// Committed returns up to where this node knows that the log is committed.
func (n *Node) Committed() uint64 { return max(n.commit, n.applied.Index) }

// MembersChanged returns the index at which the members changed last, as of what was applied.
func (n *Node) MembersChanged() uint64 { return n.members[len(n.members)-1].index }

// Transfer hands the leadership to another voter. Proposals fail meanwhile.
func (n *Node) Transfer(to uint64) error {
	return n.do(func() error { n.raft.TransferLeader(to); return nil })
}

// Unreachable says that messages to a node were lost. Without it a follower is sent what it
// cannot receive.
func (n *Node) Unreachable(id uint64) error {
	return n.do(func() error { n.raft.ReportUnreachable(id); return nil })
}

// SnapshotSent says whether a snapshot has arrived. Without it nothing more is sent to the node.
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

// collect turns what Raft wants into effects.
func (n *Node) collect() {
	for n.raft.HasReady() {
		rd := n.raft.Ready()
		if !raft.IsEmptyHardState(rd.HardState) {
			n.commit = rd.HardState.GetCommit()
		}
		if rd.SoftState != nil || rd.HardState.GetTerm() > n.role.Term {
			n.changeRole(rd.SoftState)
		}
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				n.queueAppend(m)
			case raft.LocalApplyThread:
				n.queueApply(m)
			default:
				n.out.Send = append(n.out.Send, m)
			}
		}
		for _, r := range rd.ReadStates {
			n.confirmRead(r)
		}
	}
}

// changeRole notes who leads. What a leader that was deposed has proposed may still be committed.
func (n *Node) changeRole(s *raft.SoftState) {
	before := n.role
	if s != nil {
		n.role.Leads, n.role.Leader = s.RaftState == raft.StateLeader, s.Lead
	}
	n.role.Term = n.raft.BasicStatus().HardState.GetTerm()
	if n.role == before {
		return
	}
	role := n.role
	n.out.Role = &role
	if before.Leads && (!role.Leads || role.Term != before.Term) {
		n.loseProposals()
	}
	n.repeatReads()
}

func (n *Node) loseProposals() {
	for _, p := range n.proposals {
		n.out.Lost = append(n.out.Lost, p.number)
	}
	n.proposals = nil
}

// queueAppend hands out a write, or, when there is nothing to write, the messages that wait for
// what was written before.
func (n *Node) queueAppend(m *pb.Message) {
	var a Append
	for _, e := range m.GetEntries() {
		a.Entries = append(a.Entries, toEntry(e))
	}
	n.changes.append(a.Entries)
	s := n.state
	if m.Term != nil {
		s.Term, s.Vote = m.GetTerm(), m.GetVote()
	}
	// A commit index alone need not be stored, because it is found out again, unless it tells who the members are.
	if s != n.state || len(a.Entries) > 0 && n.changes.between(n.state.Commit, n.commit) {
		s.Commit = n.commit
		a.State, n.state = &s, s
	}
	if n.proposing && len(a.Entries) > 0 {
		n.placed = &a.Entries[len(a.Entries)-1]
	}
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		a.Snapshot = fromSnapshot(m.GetSnapshot())
		n.restored = a.Snapshot.Index
	}
	switch f := (inFlight{0, m.GetEntries(), a.Snapshot, m.GetResponses()}); {
	case a.State != nil || a.Entries != nil || a.Snapshot != nil:
		n.handOut(a, f)
	case len(n.appends) > 0:
		waiting := &n.appends[len(n.appends)-1]
		waiting.responses = append(waiting.responses, f.responses...)
	default:
		n.respond(f.responses)
	}
}

func (n *Node) handOut(a Append, f inFlight) {
	n.number++
	a.Number, f.number = n.number, n.number
	n.out.Append = append(n.out.Append, a)
	n.appends = append(n.appends, f)
}

// changes tells which entries of the log change the members.
//
// A node that acknowledges an entry behind such a change must not forget that the change is committed. The leader
// proposes one change after the other, and counts the acknowledgements of the second one among the members that the
// first one has made. A node that has acknowledged the second, restarts, and takes the members from before the
// first for its own can be elected by a majority of those, while the others form a majority of the new ones: two
// leaders would commit two entries at one index. So the commit index becomes durable with the entries behind
// a change, at the latest. A node that gets the second change learns in the same message that the first is committed.
type changes struct {
	indexes []uint64 // ascending
	unknown uint64   // the log had the entries up to here at the start, and any of them may be a change
}

// append notes the changes among entries that replace what the log has from the first of them on.
func (c *changes) append(entries []segment.Entry) {
	if len(entries) == 0 {
		return
	}
	first := entries[0].Index
	for len(c.indexes) > 0 && c.indexes[len(c.indexes)-1] >= first {
		c.indexes = c.indexes[:len(c.indexes)-1]
	}
	c.unknown = min(c.unknown, first-1)
	for _, e := range entries {
		if e.Kind == KindChange {
			c.indexes = append(c.indexes, e.Index)
		}
	}
}

// between reports whether there may be a change behind an index up to another one, and forgets those before it.
func (c *changes) between(stored, commit uint64) bool {
	for len(c.indexes) > 0 && c.indexes[0] <= stored {
		c.indexes = c.indexes[1:]
	}
	return stored < min(commit, c.unknown) || len(c.indexes) > 0 && c.indexes[0] <= commit
}

// queueApply hands out committed entries. Where they change the members, that they are committed
// is durable first: a node that restarts must not ask the voters of before for their votes.
func (n *Node) queueApply(m *pb.Message) {
	b := batch{entries: m.GetEntries(), responses: m.GetResponses()}
	for _, e := range b.entries {
		if e.GetType() != pb.EntryNormal {
			n.state.Commit = n.commit
			s := n.state
			n.handOut(Append{State: &s}, inFlight{})
			b.after = n.number
			break
		}
	}
	n.queued = append(n.queued, b)
	n.release()
}

// release hands out what need not wait any more.
func (n *Node) release() {
	for len(n.queued) > 0 && n.queued[0].after <= n.appended {
		b := n.queued[0]
		n.queued = n.queued[1:]
		n.applying = append(n.applying, b)
		for _, e := range b.entries {
			c := toEntry(e)
			at := segment.Position{Index: c.Index, Term: c.Term}
			n.out.Apply = append(n.out.Apply, Committed{at, c.Kind, c.Data, n.takeProposal(at)})
		}
	}
}

// takeProposal returns the number of the proposal that became the entry at a position. Proposals
// whose place another entry has taken are lost.
func (n *Node) takeProposal(at segment.Position) uint64 {
	for len(n.proposals) > 0 && n.proposals[0].Index <= at.Index {
		p := n.proposals[0]
		n.proposals = n.proposals[1:]
		if p.Position == at {
			return p.number
		}
		n.out.Lost = append(n.out.Lost, p.number)
	}
	return 0
}

// reads are the reads that wait. One question to a majority serves all that came before it.
type reads struct {
	waiting   []uint64 // not asked for yet
	asked     []uint64
	context   []byte // of the question; used once
	counter   uint64
	ticks     int // since the question
	confirmed []confirmedRead
}

type confirmedRead struct {
	index uint64 // the state must have reached it
	read  uint64
}

// Read asks when a read may look at the state so that it sees every write acknowledged before, by
// any node. The number comes back in Effects.Reads, as soon as there is a leader.
func (n *Node) Read(number uint64) error {
	return n.do(func() error {
		if len(n.reads.waiting)+len(n.reads.asked)+len(n.reads.confirmed) >= MaxReads {
			return ErrTooManyReads
		}
		n.reads.waiting = append(n.reads.waiting, number)
		n.askReads()
		return nil
	})
}

// askReads asks for the reads that wait, unless a question is under way.
func (n *Node) askReads() {
	r := &n.reads
	if len(r.waiting) == 0 || r.context != nil || n.role.Leader == 0 || n.role.Leads && n.ready != n.role.Term {
		return
	}
	r.counter++
	r.context = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n.o.Nonce), r.counter)
	r.asked, r.waiting, r.ticks = r.waiting, nil, 0
	n.raft.ReadIndex(r.context)
}

// repeatReads asks anew: a question may be lost, and its answer must not count for the next one.
func (n *Node) repeatReads() {
	r := &n.reads
	r.waiting, r.asked, r.context = append(r.asked, r.waiting...), nil, nil
	n.askReads()
}

func (n *Node) tickReads() {
	if n.reads.ticks++; n.reads.context != nil && n.reads.ticks >= n.o.ElectionTicks {
		n.repeatReads()
	}
}

func (n *Node) confirmRead(s raft.ReadState) {
	r := &n.reads
	if r.context == nil || string(s.RequestCtx) != string(r.context) {
		return
	}
	for _, read := range r.asked {
		r.confirmed = append(r.confirmed, confirmedRead{s.Index, read})
	}
	r.asked, r.context = nil, nil
	n.answerReads()
	n.askReads()
}

func (n *Node) answerReads() {
	r := &n.reads
	for len(r.confirmed) > 0 && r.confirmed[0].index <= n.applied.Index {
		n.out.Reads = append(n.out.Reads, r.confirmed[0].read)
		r.confirmed = r.confirmed[1:]
	}
}

// logger drops what the library says, but for what it panics with.
type logger struct{}

func (logger) Debug(...any)            {}
func (logger) Debugf(string, ...any)   {}
func (logger) Info(...any)             {}
func (logger) Infof(string, ...any)    {}
func (logger) Warning(...any)          {}
func (logger) Warningf(string, ...any) {}
func (logger) Error(...any)            {}
func (logger) Errorf(string, ...any)   {}

func (logger) Fatal(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Fatalf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
func (logger) Panic(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Panicf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
