package cluster

import (
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/machine"
)

// TestJudge: a node that differs from a majority stops, and a node that belongs to one continues. If there is no
// majority, the leader's state is taken as right.
func TestJudge(t *testing.T) {
	t.Parallel()
	ids := func(n int) []uint64 { return make([]uint64, n) }
	for _, test := range []struct {
		what   string
		o      opinion
		waited bool
		want   verdict
	}{
		{"all agree", opinion{voters: 3, same: ids(3)}, false, verdictSettled},
		{"a majority agrees, one is away", opinion{voters: 3, same: ids(2), silent: 1}, false, verdictSettled},
		{"a majority agrees, the leader differs",
			opinion{voters: 3, same: ids(2), other: ids(1), leaderDiffers: true}, true, verdictSettled},
		{"both others differ", opinion{voters: 3, same: ids(1), other: ids(2)}, false, verdictStop},
		{"three of five differ, the leader does not", opinion{voters: 5, same: ids(2), other: ids(3)}, false,
			verdictStop},
		{"two of five differ and one is away", opinion{voters: 5, same: ids(2), other: ids(2), silent: 1}, false,
			verdictAskAgain},
		{"the leader differs and the third is away",
			opinion{voters: 3, same: ids(1), other: ids(1), silent: 1, leaderDiffers: true}, false, verdictAskAgain},
		{"the leader differs and the third is away for long",
			opinion{voters: 3, same: ids(1), other: ids(1), silent: 1, leaderDiffers: true}, true, verdictStop},
		{"a follower differs and the third is away for long",
			opinion{voters: 3, same: ids(1), other: ids(1), silent: 1}, true, verdictAskAgain},
		{"the leader of two differs", opinion{voters: 2, same: ids(1), other: ids(1), leaderDiffers: true}, false,
			verdictStop},
		{"the follower of two differs", opinion{voters: 2, same: ids(1), other: ids(1)}, true, verdictSettled},
		{"half of four with the leader differ",
			opinion{voters: 4, same: ids(2), other: ids(2), leaderDiffers: true}, false, verdictStop},
		{"a learner differs from all", opinion{voters: 3, other: ids(3), leaderDiffers: true}, false, verdictStop},
		{"nobody answers", opinion{voters: 3, same: ids(1), silent: 2}, true, verdictAskAgain},
		{"the others have forgotten", opinion{voters: 3, same: ids(1), passed: 2}, true, verdictSettled},
	} {
		check.Equal(t, test.o.judge(test.waited), test.want, "%s: %d", test.what)
	}
}

// TestDigestsAreForgotten: the digests of the most recent entries can be found by entry, and no others.
func TestDigestsAreForgotten(t *testing.T) {
	t.Parallel()
	d := &digests{wake: make(chan struct{}, 1)}
	if _, found := d.last(); found {
		t.Error("a stand before the first")
	}
	if _, found := d.find(1); found {
		t.Error("an entry before the first")
	}
	const entries = digestsKept + 100
	for i := uint64(1); i <= entries; i++ {
		d.add(2*i, machine.Check{Index: i, Digest: 7 * i}) // every second entry has no command
	}
	if s, found := d.last(); !found || s.at != 2*entries {
		t.Errorf("the last is %+v", s)
	}
	for at, want := range map[uint64]bool{
		2 * entries: true, 2*entries - 1: false, 2*entries + 2: false, 2 * 101: true, 2 * 100: false, 0: false,
	} {
		if s, found := d.find(at); found != want || found && (s.at != at || s.check.Index != at/2) {
			t.Errorf("after entry %d: %+v, %v", at, s, found)
		}
	}
}
