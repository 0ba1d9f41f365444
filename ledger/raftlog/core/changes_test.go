package core_test

import (
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// forgetful is a cluster in which node 2 acknowledges a membership change that follows another one, dies before it has
// applied either, and restarts. The voters 1, 2 and 3 become five, one at a time.
type forgetful struct {
	*group

	leader, two *host
	base        segment.Position
	old         core.Members
}

func newForgetful(t *testing.T) *forgetful {
	t.Helper()
	g := newGroup(t, 1, 2, 3)
	f := &forgetful{group: g, base: segment.Position{Index: 1, Term: 1}}
	f.old = core.Members{Voters: []uint64{1, 2, 3}, Highest: 3}
	for id := uint64(4); id <= 5; id++ {
		g.start(id, f.base, f.old) // as after installing another node's state
	}
	f.leader, f.two = g.elect(1), g.hosts[2]
	return f
}

func (f *forgetful) beat(times int) { f.group.beat(f.leader, times) }

func (f *forgetful) propose(number uint64, kind pb.ConfChangeType, id uint64) {
	f.must(f.leader.Change(number, change(kind, id)))
	f.settle()
	f.beat(4)
}

// Once a node has acknowledged an entry after a membership change, it must not forget that the change is committed.
// Otherwise a majority of the old members can elect it, and another entry is committed at the index of an acknowledged
// one.
func TestCommitOfAChangeIsNotForgotten(t *testing.T) {
	for name, kill := range map[string]func(f *forgetful){
		// Its applier is busy with a checkpoint or a replay and has not reached the change.
		"a slow applier": func(f *forgetful) { f.two.heldBack = true },
		// It dies between the acknowledgement and its next write.
		"a crash behind the acknowledgement": func(f *forgetful) { f.two.diesAtCommit = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := newForgetful(t)
			f.cutOff(2)
			for i := range uint64(12) { // more than the applier gets at once
				f.must(f.leader.Propose(100+i, make([]byte, core.MaxMessageBytes)))
				f.settle()
			}
			f.propose(1, pb.ConfChangeAddLearnerNode, 4)
			f.propose(2, pb.ConfChangeAddNode, 4) // committed by 1 and 3
			f.propose(3, pb.ConfChangeAddLearnerNode, 5)
			f.cutOff(3) // and node 2 is back, and gets all entries
			f.must(f.leader.Unreachable(2))
			kill(f)
			f.propose(4, pb.ConfChangeAddNode, 5) // committed by 1, 2 and 4
			f.beat(20)
			must.Equal(t, len(f.leader.Members().Voters), 5, "the leader has the members %+v")
			delete(f.hosts, 2) // killed; its disk keeps what it wrote
			f.splitAndCompare()
		})
	}
}

// splitAndCompare separates 2 and 3 from the others, restarts node 2, and fails if both sides commit.
func (f *forgetful) splitAndCompare() {
	f.t.Helper()
	side := map[uint64]int{2: 1, 3: 1}
	f.drop = func(m *pb.Message) bool { return side[m.GetFrom()] != side[m.GetTo()] }
	f.leader.applied = nil
	f.must(f.leader.Propose(77, []byte("acknowledged")))
	f.settle()
	f.beat(4)
	if n := len(f.leader.applied); n == 0 || f.leader.applied[n-1].Proposal != 77 {
		f.t.Fatalf("the write is not acknowledged: %+v", f.leader.applied)
	}
	written := f.leader.applied[len(f.leader.applied)-1]

	f.two.heldBack, f.two.diesAtCommit, f.two.applied = false, false, nil
	f.hosts[2] = f.two
	f.restart(f.two, f.base, f.old)
	for i := 0; i < 300 && !f.two.Role().Leads; i++ {
		f.tick(f.two, 1)
		f.tick(f.hosts[3], 1)
		f.settle()
		if i%2 == 0 {
			f.beat(1)
		}
	}
	if f.two.Role().Leads {
		f.t.Errorf("node 2 leads, elected by %v", f.old.Voters)
	}
	for _, c := range f.two.applied {
		if c.Index == written.Index && c.Term != written.Term {
			f.t.Errorf("entry %d: node 1 has acknowledged %q of term %d, node 2 has committed %q of term %d",
				c.Index, written.Data, written.Term, c.Data, c.Term)
		}
	}
}
