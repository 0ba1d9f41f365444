package core_test

import (
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// emptyLog is a log that begins behind entry 1.
type emptyLog struct{}

func (emptyLog) First() uint64                                        { return 2 }
func (emptyLog) Last() segment.Position                               { return segment.Position{Index: 1, Term: 1} }
func (emptyLog) Term(uint64) (uint64, error)                          { return 1, nil }
func (emptyLog) Entries(uint64, uint64, int) ([]segment.Entry, error) { return nil, segment.ErrMissing }

// A write that a crash cuts off leaves no entry behind a membership change without the commit index of the change, even
// if nothing of it was acknowledged. Otherwise the members from before the change could elect the node, because of
// those entries.
func TestCommitOfAChangeIsWrittenBeforeWhatFollows(t *testing.T) {
	n, err := core.New(core.Options{
		ID: 2, Applied: segment.Position{Index: 1, Term: 1}, Log: emptyLog{}, Nonce: 1,
		Members: core.Members{Voters: []uint64{1, 2, 3}, Highest: 3}, State: segment.State{Term: 1, Commit: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	const commit = 6
	changes := map[uint64]bool{3: true, 5: true, 7: true} // the last one is not known to be committed
	message := &pb.Message{
		Type: pb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(1)), Index: new(uint64(1)),
		LogTerm: new(uint64(1)), Commit: new(uint64(commit)),
	}
	for index := uint64(2); index <= 8; index++ {
		kind := pb.EntryNormal
		if changes[index] {
			kind = pb.EntryConfChangeV2
		}
		message.Entries = append(message.Entries, &pb.Entry{
			Type: kind.Enum(), Term: new(uint64(1)), Index: new(index), Data: []byte("x"),
		})
	}
	if err := n.Receive(message); err != nil {
		t.Fatal(err)
	}
	stored, change, next := uint64(1), uint64(0), uint64(2)
	for _, a := range n.Effects().Append {
		for _, e := range a.Entries {
			if e.Index != next || change > stored {
				t.Errorf("entry %d, want %d, is written with the commit index %d, behind the change %d",
					e.Index, next, stored, change)
			}
			if next++; changes[e.Index] && e.Index <= commit {
				change = e.Index
			}
		}
		if a.State != nil {
			if stored = a.State.Commit; stored >= next {
				t.Errorf("the commit index %d is written before entry %d", stored, next)
			}
		}
	}
	if next != 9 || stored != commit {
		t.Errorf("entries up to %d, and the commit index %d", next-1, stored)
	}
}
