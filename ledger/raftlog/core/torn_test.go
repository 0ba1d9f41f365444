package core_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// A node has an entry that no other node has. It receives the committed entry for that index, together with the new
// commit index and a membership change after the entry, and loses power during the write. Whatever part of the write
// survives, the node's own entry does not count as committed.
func TestTornAppendCommitsNothing(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	old := g.elect(1)
	g.cutOff(1)
	g.must(old.Propose(1, []byte("node 1 alone")))
	g.settle()
	two := g.hosts[2]
	for range 100 {
		if two.Role().Leads {
			break
		}
		g.tick(two, 1)
		g.tick(g.hosts[3], 1)
		g.settle()
	}
	if !two.Role().Leads {
		g.elect(2)
	}
	g.must(two.Change(1, change(pb.ConfChangeAddLearnerNode, 4)))
	g.settle()
	g.must(two.Propose(2, []byte("behind the change")))
	g.settle()
	g.tick(old, 30) // it has stepped down
	g.settle()

	g.mend()
	g.must(two.Unreachable(1))
	torn := 0
	old.inspect = func(a core.Append) {
		if a.State != nil && len(a.Entries) > 0 && a.Entries[0].Index <= old.log.Last().Index {
			torn++
			g.tear(old, a, two.log)
		}
	}
	for range 40 {
		g.tick(two, 1)
		g.settle()
	}
	if torn == 0 {
		t.Fatal("no write had to replace the entry and told that what it brings is committed")
	}
}

// tear starts a node with each part of a write that a crash may leave.
func (g *group) tear(h *host, a core.Append, want *segment.Log) {
	g.t.Helper()
	whole := h.disk.Clone()
	g.must(g.open(h.id, whole).Append(a.State, a.Entries))
	names, err := whole.List()
	g.must(err)
	name := names[len(names)-1]
	before, after := h.disk.Bytes(name), whole.Bytes(name)
	const step = 8 // records are padded to a multiple of this many bytes
	for cut := 0; cut < len(after) && !bytes.Equal(before[cut:], after[cut:]); cut += step {
		if bytes.Equal(before[:cut+8], after[:cut+8]) {
			continue
		}
		d := h.disk.Clone()
		d.SetBytes(name, slices.Concat(after[:cut], before[cut:]))
		o := h.options
		left := g.open(h.id, d)
		o.Log, o.State = left, left.State()
		n, err := core.New(o)
		g.must(err)
		for i := left.First(); i <= n.Committed(); i++ {
			term, err := left.Term(i)
			right, err2 := want.Term(i)
			if g.must(errors.Join(err, err2)); term != right {
				g.t.Fatalf("cut at %d: entry %d of term %d counts as committed; that of term %d is",
					cut, i, term, right)
			}
		}
	}
}
