package core_test

import (
	"testing"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// A host may truncate the log in the middle of the entries that it was handed to apply. A candidate reads the entries
// that the library considers unapplied, and the library panics if the log no longer has them.
func TestLogIsDroppedWithinWhatIsApplied(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, two := g.elect(1), g.hosts[2]
	g.cutOff(2)
	for i := range uint64(40) {
		g.must(l.Propose(i+1, make([]byte, 10_000)))
		g.settle()
	}
	g.mend()
	two.heldBack = true
	for range 20 {
		g.tick(l, 1)
		g.settle()
	}
	if len(two.applies) < 40 {
		t.Fatalf("node 2 is to apply %d entries at once", len(two.applies))
	}
	at := two.applies[29].Position
	g.must(two.Done(at.Index))
	g.must(two.log.Truncate(segment.Checkpoint{Position: at}))
	if two.log.First() <= two.applies[0].Index {
		t.Fatalf("the log has everything from entry %d on", two.log.First())
	}
	g.must(two.Truncated(two.log.First()))
	g.must(two.Campaign())
	two.heldBack, two.applies = false, two.applies[30:]
	g.cutOff(1)
	for i := 0; i < 100 && !two.Ready(); i++ {
		g.tick(two, 1)
		g.tick(g.hosts[3], 1)
		g.settle()
	}
	if !two.Ready() {
		t.Fatalf("node 2 does not lead: %+v", two.Role())
	}
}
