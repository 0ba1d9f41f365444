package core

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// store is the log as Raft sees it: the entries that the node knows to be durable. The disk may be further ahead. Raft
// still holds the entries that are about to replace others in memory, and asks the store for the entries before them.
type store struct {
	log      Log
	initial  *pb.HardState
	members  *pb.ConfState
	snapshot func() (Snapshot, error)
	first    uint64
	last     uint64
	recent   []*pb.Entry // the newest durable entries, without a gap
	bytes    int         // of recent
}

func newStore(log Log, s segment.State, commit uint64, m Members, snapshot func() (Snapshot, error)) *store {
	return &store{
		log: log, members: m.toRaft(), snapshot: snapshot, first: log.First(), last: log.Last().Index,
		initial: &pb.HardState{Term: &s.Term, Vote: &s.Vote, Commit: &commit},
	}
}

// append adds entries that are durable.
func (s *store) append(entries []*pb.Entry) {
	if len(entries) == 0 {
		return
	}
	from := entries[0].GetIndex()
	for k := len(s.recent); k > 0 && s.recent[k-1].GetIndex() >= from; k = len(s.recent) {
		s.bytes -= len(s.recent[k-1].GetData())
		s.recent = s.recent[:k-1]
	}
	s.recent = append(s.recent, entries...)
	for _, e := range entries {
		s.bytes += len(e.GetData())
	}
	s.last = entries[len(entries)-1].GetIndex()
	for s.bytes > recentBytes && len(s.recent) > 1 {
		s.bytes -= len(s.recent[0].GetData())
		s.recent[0] = nil // so that the array does not retain it
		s.recent = s.recent[1:]
	}
}

// reset makes the log start after a snapshot.
func (s *store) reset(at segment.Position) {
	s.first, s.last, s.recent, s.bytes = at.Index+1, at.Index, nil, 0
}

// InitialState implements raft.Storage.
func (s *store) InitialState() (*pb.HardState, *pb.ConfState, error) {
	return s.initial, s.members, nil
}

// FirstIndex implements raft.Storage.
func (s *store) FirstIndex() (uint64, error) { return s.first, nil }

// LastIndex implements raft.Storage.
func (s *store) LastIndex() (uint64, error) { return s.last, nil }

// Term implements raft.Storage.
func (s *store) Term(index uint64) (uint64, error) {
	if len(s.recent) > 0 && index >= s.recent[0].GetIndex() {
		return s.recent[index-s.recent[0].GetIndex()].GetTerm(), nil
	}
	term, err := s.log.Term(index)
	return term, raftError(err)
}

// Entries implements raft.Storage.
func (s *store) Entries(lo, hi, maxBytes uint64) ([]*pb.Entry, error) {
	switch {
	case hi > s.last+1:
		return nil, raft.ErrUnavailable
	case len(s.recent) > 0 && lo >= s.recent[0].GetIndex():
		from := lo - s.recent[0].GetIndex()
		return limit(s.recent[from:from+hi-lo], maxBytes), nil
	}
	read, err := s.log.Entries(lo, hi, int(min(maxBytes, MaxApplyBytes)))
	if err != nil {
		return nil, raftError(err)
	}
	entries := make([]*pb.Entry, len(read))
	for i := range read {
		entries[i] = fromEntry(&read[i])
	}
	return limit(entries, maxBytes), nil
}

// entryOverhead is an upper bound of what Raft counts for an entry in addition to its data.
const entryOverhead = 32

// limit returns the first entries that fit into maxBytes, at least one.
func limit(entries []*pb.Entry, maxBytes uint64) []*pb.Entry {
	size := uint64(0)
	for i, e := range entries {
		if size += uint64(len(e.GetData())) + entryOverhead; size > maxBytes && i > 0 {
			entries = entries[:i]
			break
		}
	}
	return append(make([]*pb.Entry, 0, len(entries)), entries...) // the caller may append to the result
}

// Snapshot implements raft.Storage.
func (s *store) Snapshot() (*pb.Snapshot, error) {
	found, err := s.snapshot()
	if err != nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return found.toRaft(), nil
}

// raftError maps the log's errors to Raft's. Raft panics on any other error, which makes the node fail.
func raftError(err error) error {
	switch {
	case errors.Is(err, segment.ErrTruncated):
		return raft.ErrCompacted
	case errors.Is(err, segment.ErrMissing):
		return raft.ErrUnavailable
	}
	return err
}

func toEntry(e *pb.Entry) segment.Entry {
	kind := uint8(KindCommand)
	if e.GetType() != pb.EntryNormal {
		kind = KindChange
	}
	return segment.Entry{Index: e.GetIndex(), Term: e.GetTerm(), Kind: kind, Data: e.GetData()}
}

func fromEntry(e *segment.Entry) *pb.Entry {
	r := &pb.Entry{Index: &e.Index, Term: &e.Term, Data: e.Data}
	if e.Kind == KindChange {
		r.Type = pb.EntryConfChangeV2.Enum()
	}
	return r
}

func (s *Snapshot) toRaft() *pb.Snapshot {
	return &pb.Snapshot{
		Data: append(s.Members.Encode(), s.Data...),
		Metadata: &pb.SnapshotMetadata{
			Index: &s.Index, Term: &s.Term, ConfState: s.Members.toRaft(),
		},
	}
}

// fromSnapshot panics on a snapshot that no node of this program sends.
func fromSnapshot(r *pb.Snapshot) *Snapshot {
	m, rest, err := DecodeMembers(r.GetData())
	if err != nil {
		panic(fmt.Sprintf("a snapshot at %d: %v", r.GetMetadata().GetIndex(), err))
	}
	at := segment.Position{Index: r.GetMetadata().GetIndex(), Term: r.GetMetadata().GetTerm()}
	return &Snapshot{Position: at, Members: m, Data: rest}
}
