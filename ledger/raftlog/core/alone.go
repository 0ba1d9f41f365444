package core

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// consensus decides which entries are committed: *raft.RawNode, or alone.
type consensus interface {
	Campaign() error
	Propose(data []byte) error
	ProposeConfChange(change pb.ConfChangeI) error
	ApplyConfChange(change pb.ConfChangeI) *pb.ConfState
	Step(m *pb.Message) error
	Tick()
	ReadIndex(context []byte)
	TransferLeader(to uint64)
	ReportUnreachable(id uint64)
	ReportSnapshot(id uint64, status raft.SnapshotStatus)
	WithProgress(visit func(id uint64, kind raft.ProgressType, p tracker.Progress))
	BasicStatus() raft.BasicStatus
	HasReady() bool
	Ready() raft.Ready
}

// alone is the consensus of the only voter, which stays the only one while it runs: it numbers the entries itself, and
// what is durable is committed. The library would need a seventh of the processor time of a lone write for that. The
// log is the same, and the next run of the node may use either.
type alone struct {
	n *Node
	// last is the index of the last entry that was handed out to be appended, or was in the log.
	last uint64
	// queue has the entries that are not handed out to be applied yet, and bytes their size.
	queue []appending
	bytes int
	// handed is the index of the last entry that was handed out to be applied. Those in unapplied were; from done on
	// they are not applied yet.
	handed    uint64
	unapplied []segment.Position
	done      int
}

// appending is an entry with the number of its append.
type appending struct {
	segment.Entry
	number uint64
}

// staysSole reports whether a node is the only voter and the log does not change the members any more.
func (o *Options) staysSole() (bool, error) {
	if !o.Alone || !o.Members.IsSole(o.ID) {
		return false, nil
	}
	last := o.Log.Last().Index
	for from := o.Applied.Index + 1; from <= last; {
		entries, err := o.Log.Entries(from, last+1, int(o.ApplyBytes))
		if err != nil {
			return false, fmt.Errorf("core: the log after entry %d: %w", from-1, err)
		}
		for i := range entries {
			if entries[i].Kind == KindChange {
				return false, nil
			}
		}
		from += uint64(len(entries))
	}
	return true, nil
}

func newAlone(n *Node) *alone {
	return &alone{n: n, last: n.o.Log.Last().Index, handed: n.o.Applied.Index}
}

// Campaign begins a term. The node leads at once, and is ready once the term's first entry, and so the log before it,
// is durable and applied.
func (a *alone) Campaign() error {
	n := a.n
	role := Role{Leads: true, Leader: n.o.ID, Term: n.state.Term + 1}
	n.role, n.out.Role = role, &role
	state := segment.State{Term: role.Term, Vote: n.o.ID, Commit: n.commit}
	n.state = state
	a.append(&state, nil)
	return nil
}

// Propose appends an entry.
func (a *alone) Propose(data []byte) error {
	if a.bytes > 0 && a.bytes+len(data) > MaxUncommittedBytes {
		return raft.ErrProposalDropped
	}
	a.append(nil, data)
	return nil
}

func (a *alone) append(state *segment.State, data []byte) {
	a.last++
	e := segment.Entry{Index: a.last, Term: a.n.role.Term, Kind: KindCommand, Data: data}
	entries := []segment.Entry{e}
	a.n.handOut(Append{State: state, Entries: entries}, inFlight{})
	a.n.placed = &entries[0]
	a.queue = append(a.queue, appending{e, a.n.number})
	a.bytes += len(data)
}

// stored commits what is durable since the appends up to a number are.
func (a *alone) stored(number uint64) {
	for i := range a.queue {
		if a.queue[i].number > number {
			break
		}
		a.n.store.last, a.n.commit = a.queue[i].Index, a.queue[i].Index
	}
	a.release()
}

// release hands out committed entries to be applied: those that the log had at the start, in parts, and then those that
// are made here.
func (a *alone) release() {
	n := a.n
	taken := 0
	for ; taken < len(a.queue) && a.queue[taken].Index == a.handed+1 && a.handed < n.commit; taken++ {
		a.bytes -= len(a.queue[taken].Data)
		a.apply(&a.queue[taken].Entry)
	}
	copy(a.queue, a.queue[taken:])
	clear(a.queue[len(a.queue)-taken:]) // so that the array does not retain them
	a.queue = a.queue[:len(a.queue)-taken]
	if taken > 0 || a.handed >= n.commit || len(a.unapplied) > a.done {
		return
	}
	upTo := n.commit
	if len(a.queue) > 0 {
		upTo = min(upTo, a.queue[0].Index-1)
	}
	entries, err := n.o.Log.Entries(a.handed+1, upTo+1, int(n.o.ApplyBytes))
	if err != nil {
		n.stop(err)
		return
	}
	for i := range entries {
		a.apply(&entries[i])
	}
}

func (a *alone) apply(e *segment.Entry) {
	at := segment.Position{Index: e.Index, Term: e.Term}
	a.handed, a.unapplied = e.Index, append(a.unapplied, at)
	a.n.out.Apply = append(a.n.out.Apply, Committed{at, e.Kind, e.Data, a.n.takeProposal(at)})
}

// applied notes that the entries up to an index are applied.
func (a *alone) applied(index uint64) {
	n := a.n
	for ; a.done < len(a.unapplied) && a.unapplied[a.done].Index <= index; a.done++ {
		n.applied = a.unapplied[a.done]
		if n.role.Leads && n.applied.Term == n.role.Term {
			n.ready = n.role.Term
		}
	}
	if a.done > len(a.unapplied)/2 { // seldom, because a start hands out thousands, which are applied one by one
		a.unapplied, a.done = append(a.unapplied[:0], a.unapplied[a.done:]...), 0
	}
	a.release()
}

// ReadIndex confirms a read at once, because no other node can lead.
func (a *alone) ReadIndex(context []byte) {
	a.n.confirmRead(raft.ReadState{Index: a.n.commit, RequestCtx: context})
}

// WithProgress visits this node.
func (a *alone) WithProgress(visit func(uint64, raft.ProgressType, tracker.Progress)) {
	visit(a.n.o.ID, raft.ProgressTypePeer, tracker.Progress{Match: a.n.store.last, RecentActive: true})
}

// errAlone means that something needs other nodes.
var errAlone = errors.New("core: this node has no others")

// Step refuses a message, because there is no other node.
func (a *alone) Step(*pb.Message) error { return errAlone }

// ProposeConfChange refuses to add a node, because this one decides alone while it runs.
func (a *alone) ProposeConfChange(pb.ConfChangeI) error { return raft.ErrProposalDropped }

// What follows is about other nodes, or for a library that has a Ready.

func (a *alone) ApplyConfChange(pb.ConfChangeI) *pb.ConfState { return nil }
func (a *alone) Tick()                                        {}
func (a *alone) TransferLeader(uint64)                        {}
func (a *alone) ReportUnreachable(uint64)                     {}
func (a *alone) ReportSnapshot(uint64, raft.SnapshotStatus)   {}
func (a *alone) BasicStatus() raft.BasicStatus                { return raft.BasicStatus{} }
func (a *alone) HasReady() bool                               { return false }
func (a *alone) Ready() raft.Ready                            { return raft.Ready{} }
