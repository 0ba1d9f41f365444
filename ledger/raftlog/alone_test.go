package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// clusterLog writes the log of node 2 of three, including a membership change, in the state in which a kill leaves it.
func clusterLog(t *testing.T, dir string) (base Position, want []string) {
	t.Helper()
	members := core.Members{Voters: []uint64{1, 2, 3}, Highest: 3, Addresses: []core.Address{
		{ID: 1, Peer: "127.0.0.1:7451"}, {ID: 2, Nonce: [16]byte{7}, Peer: "127.0.0.1:7461"},
	}}
	base = Position{Index: 10, Term: 3}
	o := options(dir, new(recorder))
	must.Do(t, CreateAt(o, base, members.Encode(), State{Term: 4, Vote: 1}))
	id := uint64(4)
	joins := &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{
		{Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: &id},
	}}
	_, change, err := pb.MarshalConfChange(joins)
	must.Do(t, err)
	entries := []segment.Entry{
		{Index: 11, Term: 3, Kind: core.KindCommand, Data: []byte("a")},
		{Index: 12, Term: 4, Kind: core.KindCommand}, // the leader's first entry of the term
		{Index: 13, Term: 4, Kind: core.KindChange, Data: change},
	}
	want = []string{"a"}
	for i := range 20 { // more than one batch
		text := fmt.Sprintf("%d %0*d", i, 60<<10, 0)
		want = append(want, text)
		entries = append(entries, segment.Entry{
			Index: uint64(14 + i), Term: 5, Kind: core.KindCommand, Data: []byte(text),
		})
	}
	files, err := segment.Open(openOptions(o))
	if err == nil {
		err = files.Append(&State{Term: 6, Vote: 3, Commit: 12}, entries)
	}
	if err == nil {
		err = errors.Join(files.Sync(), files.Abandon())
	}
	must.Do(t, err)
	return base, want
}

// wantAlone opens a log after Alone has given it to node 2, and wants every entry in it, then and after a restart.
func wantAlone(t *testing.T, o Options, base Position, want []string) {
	t.Helper()
	for round := range 2 {
		m := &recorder{durable: base}
		o.Machine, o.disk, o.step = m, nil, nil
		l := open(t, o)
		if fmt.Sprint(m.texts()) != fmt.Sprint(want) {
			t.Fatalf("round %d: it has %d entries, want %d", round, len(m.entries), len(want))
		}
		if at := m.applied[len(want)-1]; round == 0 && at != (Position{Index: 33, Term: 5}) {
			t.Errorf("its last entry of before is at %s", at)
		}
		if role := l.Role(); !role.Leads || role.Term <= 6 {
			t.Errorf("its role is %+v", role)
		}
		members := l.Members()
		if !reflect.DeepEqual(members.Voters, []uint64{2}) || len(members.Learners) != 0 || members.Highest != 4 ||
			len(members.Addresses) != 1 || members.Addresses[0].Nonce != [16]byte{7} {
			t.Errorf("its members are %+v", members)
		}
		more := fmt.Sprint("more ", round)
		write(t, l, more)
		want = append(want, more)
		closeLog(t, l)
	}
	for _, name := range []string{beforeDir, newSegmentsDir} {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestAloneSurvivesKills interrupts Alone at each of its steps, and interrupts the retry as well. The result also
// contains the entries that no majority confirmed, and membership changes have no effect in it.
func TestAloneSurvivesKills(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "log")
	base, want := clusterLog(t, source)
	steps, old, made, stride := 0, 0, 0, 1
	if testing.Short() {
		stride = 6
	}
	for done := false; !done; steps += stride {
		dir := copyOf(t, source)
		f := &fuse{left: steps}
		o := options(dir, &recorder{durable: base})
		o.Node, o.SegmentBytes = 2, 1<<20
		o.disk = func(path string) segment.Disk { return fusedDisk{segment.OpenDirectory(path), f} }
		o.step = f.burn
		err := Alone(o)
		if done = err == nil; !done && !errors.Is(err, errKilled) {
			t.Fatalf("step %d: %v", steps, err)
		}
		if _, err := os.Stat(filepath.Join(dir, segmentsDir)); err == nil {
			out, err := ReadOutline(dir, o.Identity)
			must.Do(t, err, "step %d left", steps)
			if len(out.Members.Voters) == 3 {
				old++
			} else {
				made++
			}
		}
		f.left = steps / 2 // and again at another step
		if err := Alone(o); err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("again after step %d: %v", steps, err)
		}
		f.left = 1 << 30
		must.Do(t, Alone(o), "after step %d", steps)
		wantAlone(t, o, base, want)
	}
	if old < 1 || made < 1 {
		t.Errorf("of %d steps %d left the old log and %d the new one", steps, old, made)
	}
}

// TestAloneRefuses: Alone leaves a log without other members as it is, refuses the log of another node, and reports
// damage.
func TestAloneRefuses(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "single")
	m := new(recorder)
	l := created(t, dir, m)
	write(t, l, "a", "b")
	closeLog(t, l)
	name := filepath.Join(dir, segmentsDir, "0000000000000001.log")
	before := must.Get(os.ReadFile(name))(t)
	must.Do(t, Alone(options(dir, new(recorder))))
	check.Equal(t, string(must.Get(os.ReadFile(name))(t)), string(before), "the log of one node was changed: got %v")
	dir = filepath.Join(t.TempDir(), "cluster")
	base, _ := clusterLog(t, dir)
	o := options(dir, &recorder{durable: base})
	if o.Node = 9; Alone(o) == nil {
		t.Error("node 9 is no member, and got the log")
	}
	if o.Node = 4; Alone(options(filepath.Join(t.TempDir(), "none"), new(recorder))) == nil {
		t.Error("there was no log")
	}
	o.Checkpoint = Position{Index: 99, Term: 6}
	if err := Alone(o); !IsDamage(err) {
		t.Errorf("the state is further than the log: %v", err)
	}
}
