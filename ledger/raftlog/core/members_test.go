package core

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// drawMembers draws members that a cluster may have.
func drawMembers(t *rapid.T) Members {
	m := Members{Highest: rapid.Uint64Range(1, 40).Draw(t, "highest"), AutoLeave: rapid.Bool().Draw(t, "leave")}
	ids := func(name string, least int) []uint64 {
		list := rapid.SliceOfNDistinct(rapid.Uint64Range(1, m.Highest), least, min(9, int(m.Highest)),
			rapid.ID[uint64]).Draw(t, name)
		slices.Sort(list)
		if len(list) == 0 {
			return nil
		}
		return list
	}
	m.Voters = ids("voters", 1)
	m.Outgoing, m.Learners, m.LearnersNext = ids("outgoing", 0), ids("learners", 0), ids("next", 0)
	text := rapid.StringMatching(`[a-z.é-]{0,60}:[0-9]{1,5}`)
	for id := uint64(1); id <= m.Highest; id++ {
		if m.Has(id) && rapid.Bool().Draw(t, "addressed") {
			m.Addresses = append(m.Addresses, Address{
				ID: id, Nonce: [16]byte{byte(id)}, Peer: text.Draw(t, "peer"), Client: text.Draw(t, "client"),
			})
		}
	}
	return m
}

// TestMembersReadBack: members are read as they were written, whatever follows them, and no shorter part of them is
// taken for members.
func TestMembersReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawMembers(t)
		b := m.Encode()
		behind := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "behind")
		got, rest, err := DecodeMembers(slices.Concat(b, behind))
		if err != nil || !reflect.DeepEqual(got, m) || !bytes.Equal(rest, behind) {
			t.Fatalf("%+v, %x, %v; want %+v", got, rest, err, m)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if got, _, err := DecodeMembers(b[:cut]); err == nil {
			t.Fatalf("%d of %d bytes are %+v", cut, len(b), got)
		}
	})
}

// TestMembersThatAreNone: what cannot be the members of a cluster is refused, so that no node starts with it.
func TestMembersThatAreNone(t *testing.T) {
	t.Parallel()
	a := func(id uint64) Address { return Address{ID: id, Peer: "a:1"} }
	many := make([]uint64, MaxMembers+1)
	for i := range many {
		many[i] = 1
	}
	for _, test := range []struct {
		what, says string
		m          Members
	}{
		{"no voter", "without voters", Members{Highest: 1}},
		{"no voter but a learner", "without voters", Members{Highest: 1, Learners: []uint64{1}}},
		{"node 0", "member 0", Members{Highest: 1, Voters: []uint64{0}}},
		{"a voter above the highest", "member 3, and the highest is 2", Members{Highest: 2, Voters: []uint64{1, 3}}},
		{"a learner above the highest", "member 3", Members{Highest: 2, Voters: []uint64{1}, Learners: []uint64{3}}},
		{"an outgoing voter above it", "member 3", Members{Highest: 2, Voters: []uint64{1}, Outgoing: []uint64{3}}},
		{"a later learner above it", "member 3", Members{Highest: 2, Voters: []uint64{1}, LearnersNext: []uint64{3}}},
		{"too many", fmt.Sprint("at most ", MaxMembers), Members{Highest: 1, Voters: many}},
		{"an address of no member", "is no member", Members{Highest: 2, Voters: []uint64{1},
			Addresses: []Address{a(2)}}},
		{"addresses out of order", "out of order", Members{Highest: 2, Voters: []uint64{1, 2},
			Addresses: []Address{a(2), a(1)}}},
		{"an address twice", "out of order", Members{Highest: 1, Voters: []uint64{1}, Addresses: []Address{a(1),
			a(1)}}},
		{"an address of node 0", "node 0", Members{Highest: 1, Voters: []uint64{1}, Addresses: []Address{a(0)}}},
		{"an address that is no text", "no text", Members{Highest: 1, Voters: []uint64{1},
			Addresses: []Address{{ID: 1, Peer: "\xff"}}}},
		{"a client address that is no text", "no text", Members{Highest: 1, Voters: []uint64{1},
			Addresses: []Address{{ID: 1, Client: "\xff"}}}},
	} {
		check.ErrorContains(t, test.m.validate(), test.says, "%s", test.what)
		if _, _, err := DecodeMembers(test.m.Encode()); err == nil {
			t.Errorf("%s: it was read", test.what)
		}
	}
	// A new node has none, and gets them with the state.
	if m, rest, err := DecodeMembers(new(Members).Encode()); err != nil || len(rest) > 0 || m.Highest != 0 {
		t.Errorf("no members: %+v, %v", m, err)
	}
	for _, text := range []string{"", "01", "00" + strings.Repeat("00", 13), "03" + strings.Repeat("00", 13),
		"01" + strings.Repeat("00", 8) + "02" + strings.Repeat("00", 4)} {
		b := must.Get(hex.DecodeString(text))(t)
		if m, _, err := DecodeMembers(b); err == nil {
			t.Errorf("%s is %+v", text, m)
		}
	}
}

// TestAddressBounds: the lengths are written in one byte.
func TestAddressBounds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxAddressBytes)
	for _, test := range []struct {
		a  Address
		ok bool
	}{
		{Address{ID: 1}, true},
		{Address{ID: 1, Peer: long, Client: long}, true},
		{Address{ID: 1, Peer: long + "x"}, false},
		{Address{ID: 1, Client: long + "x"}, false},
		{Address{Peer: "a:1"}, false},
	} {
		if err := test.a.Validate(); (err == nil) != test.ok {
			t.Errorf("%d and %d bytes of node %d: %v", len(test.a.Peer), len(test.a.Client), test.a.ID, err)
		}
		if !test.ok {
			continue
		}
		got, rest, err := decodeAddress(test.a.append(nil))
		if err != nil || got != test.a || len(rest) > 0 {
			t.Errorf("%+v was read as %+v: %v", test.a, got, err)
		}
	}
	for _, b := range [][]byte{nil, {0}, {1}, {1, 0, 0, 0}} {
		if list, _, err := decodeAddresses(b); err == nil {
			t.Errorf("%x is %+v", b, list)
		}
	}
}

// change makes a membership change of several nodes.
func change(kinds map[uint64]pb.ConfChangeType) *pb.ConfChangeV2 {
	c := new(pb.ConfChangeV2)
	for id := uint64(0); id < 20; id++ {
		if kind, there := kinds[id]; there {
			c.Changes = append(c.Changes, &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: &id})
		}
	}
	return c
}

// TestMembersAfter: what a change makes of three voters and a learner, node 4, where node 5 was removed.
func TestMembersAfter(t *testing.T) {
	t.Parallel()
	before := Members{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}, Highest: 5, Addresses: []Address{
		{ID: 1, Peer: "one:1"}, {ID: 4, Nonce: [16]byte{4}, Peer: "four:1"},
	}}
	const (
		voter, learner = pb.ConfChangeAddNode, pb.ConfChangeAddLearnerNode
		remove, update = pb.ConfChangeRemoveNode, pb.ConfChangeUpdateNode
	)
	type kinds = map[uint64]pb.ConfChangeType
	for _, test := range []struct {
		what    string
		kinds   kinds
		address *Address
		want    string // voters and learners, the highest, and the addresses
		err     string
	}{
		{what: "a new learner", kinds: kinds{6: learner}, address: &Address{ID: 6, Peer: "six:1"},
			want: "[1 2 3] [4 6] 6 [one:1 four:1 six:1]"},
		{what: "ids may be left out", kinds: kinds{9: learner}, want: "[1 2 3] [4 9] 9 [one:1 four:1]"},
		{what: "a learner votes", kinds: kinds{4: voter}, want: "[1 2 3 4] [] 5 [one:1 four:1]"},
		{what: "a removed node's address goes", kinds: kinds{4: remove}, want: "[1 2 3] [] 5 [one:1]"},
		{what: "a voter is removed", kinds: kinds{1: remove}, want: "[2 3] [4] 5 [four:1]"},
		{what: "a removed node is removed", kinds: kinds{5: remove}, want: "[1 2 3] [4] 5 [one:1 four:1]"},
		{what: "a new address", kinds: kinds{4: update}, address: &Address{ID: 4, Nonce: [16]byte{4}, Peer: "f:2"},
			want: "[1 2 3] [4] 5 [one:1 f:2]"},
		{what: "a first address", kinds: kinds{2: update}, address: &Address{ID: 2, Peer: "two:1"},
			want: "[1 2 3] [4] 5 [one:1 two:1 four:1]"},
		{what: "an id of before", kinds: kinds{5: learner}, err: "id 5 was used before"},
		{what: "an id of before as a voter", kinds: kinds{5: voter}, err: "id 5 was used before"},
		{what: "an address of no member", kinds: kinds{6: update}, err: "node 6 is no member"},
		{what: "two voters at once, by way of a joint step", kinds: kinds{6: voter, 7: voter},
			want: "[1 2 3 6 7] [4] 7 [one:1 four:1]"},
	} {
		c := change(test.kinds)
		if test.address != nil {
			test.address.AppendTo(c)
		}
		next, err := before.after(c)
		if test.err != "" {
			check.ErrorContains(t, err, test.err, "%s: %+v", test.what, next)
			continue
		}
		var peers []string
		for _, a := range next.Addresses {
			peers = append(peers, a.Peer)
		}
		if got := fmt.Sprint(next.Voters, next.Learners, next.Highest, peers); err != nil || got != test.want {
			t.Errorf("%s: %s, %v; want %s", test.what, got, err, test.want)
		}
	}
	last := Members{Voters: []uint64{1}, Highest: 1}
	if next, err := last.after(change(kinds{1: remove})); err == nil {
		t.Errorf("the last voter was removed: %+v", next)
	}
	// An entry that cannot be read, or that no cluster could make, changes nothing: every node decides so.
	impossible := must.Get(proto.Marshal(change(kinds{5: voter})))(t)
	sound := must.Get(proto.Marshal(change(kinds{6: learner})))(t)
	for _, e := range []segment.Entry{{Kind: KindChange, Data: impossible}, {Kind: KindChange, Data: []byte{0xff}},
		{Kind: KindChange + 1, Data: sound}} {
		if next := before.After(&e); !reflect.DeepEqual(next, before) {
			t.Errorf("%+v has made %+v", e, next)
		}
	}
	check.Equal(t, before.After(&segment.Entry{Kind: KindChange, Data: sound}).Highest, 6,
		"a sound change has made %+v")
}

// TestReplacedChangesAreForgotten: a change that was replaced in the log hides no earlier one that took its place.
func TestReplacedChangesAreForgotten(t *testing.T) {
	t.Parallel()
	var c changes
	c.append([]segment.Entry{{Index: 10, Kind: KindChange}})
	c.append([]segment.Entry{{Index: 8, Kind: KindCommand}, {Index: 9, Kind: KindChange}})
	if !c.between(8, 9) || c.between(9, 10) {
		t.Errorf("changes at %d, want one at 9", c.indexes)
	}
}

// TestAnyEntryOfBeforeMayBeAChange: after a start, what the log had may be changes until the commit index is stored.
func TestAnyEntryOfBeforeMayBeAChange(t *testing.T) {
	t.Parallel()
	c := changes{unknown: 9}
	if !c.between(5, 7) || !c.between(8, 12) || c.between(9, 12) {
		t.Error("entries up to 9 may be changes, and none after them")
	}
}

// TestAnotherTermIsAnotherProposal: a proposal is not answered with the entry of another leader at its index.
func TestAnotherTermIsAnotherProposal(t *testing.T) {
	t.Parallel()
	n := &Node{proposals: []proposal{{segment.Position{Index: 5, Term: 2}, 7}}}
	check.Equal(t, n.takeProposal(segment.Position{Index: 5, Term: 3}), 0, "the entry is proposal %d")
	check.EqualSlices(t, n.out.Lost, []uint64{7}, "lost %d")
}

// A stalled node keeps one vote of each voter, however often they come.
func TestStalledNodeKeepsOneVoteOfEach(t *testing.T) {
	t.Parallel()
	n := &Node{stalled: true}
	for i := range uint64(100) {
		n.step(&pb.Message{Type: pb.MsgVoteResp.Enum(), From: new(2 + i%2)})
	}
	check.Equal(t, len(n.votes), 2)
}
