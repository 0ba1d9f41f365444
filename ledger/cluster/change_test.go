package cluster

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// changes are everything that changes a cluster, each for a node that is not there.
func changes(n *Node) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Admit": func(ctx context.Context) error {
			_, err := n.Admit(ctx, JoinRequest{Nonce: [16]byte{1}, Peer: "127.0.0.1:7451"})
			return err
		},
		"Promote":            func(ctx context.Context) error { return n.Promote(ctx, 9, false) },
		"Remove":             func(ctx context.Context) error { return n.Remove(ctx, 9, false) },
		"TransferLeadership": func(ctx context.Context) error { return n.TransferLeadership(ctx, 9) },
	}
}

// TestLedgerOnOneNodeHasNoCluster: it says how to get one, and nothing of a cluster runs in it.
func TestLedgerOnOneNodeHasNoCluster(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, func(h *Host) { h.Options = nil })
	for what, change := range changes(&f.Node) {
		if err := change(t.Context()); !errors.Is(err, ErrAlone) || !strings.Contains(err.Error(), "--peer-listen") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if token, err := f.JoinToken(); token != "" || !errors.Is(err, ErrAlone) {
		t.Errorf("the join token is %q, %v", token, err)
	}
	if f.PeerTransport() != nil {
		t.Error("it has a transport")
	}
	must.Do(t, f.Start())
	f.Wait() // nothing was started
	f.HandOver()
	f.Send(nil)
	must.Do(t, f.Driver.Close())
}

// TestOnlyTheLeaderChangesMembers: the other nodes name the leader at its address for clients, if there is one.
func TestOnlyTheLeaderChangesMembers(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil)
	for _, test := range []struct {
		leader Leader
		want   string
	}{
		{Leader{ID: 2, Peer: "two:1", Client: "c2:1"}, "it is c2:1"},
		{Leader{ID: 2, Peer: "two:1"}, "there is none"}, // of no use to a client
		{Leader{}, "there is none"},
		{Leader{ID: 1, Client: "c1:1"}, "it is c1:1"}, // elected, and its term has not begun
	} {
		f.leads(test.leader)
		for what, change := range changes(&f.Node) {
			err := change(t.Context())
			no, is := errors.AsType[*NotLeaderError](err)
			if !is || no.Leader != test.leader.Client || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s while %+v leads: %v", what, test.leader, err)
			}
		}
	}
	if f.ticks > 0 || len(f.log.Members().Learners) > 0 {
		t.Error("something was changed")
	}
}

// TestChangesOfMembers: what is done already is done again without a change, and what cannot be is refused.
func TestChangesOfMembers(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	for nonce := range byte(3) {
		q := JoinRequest{Nonce: [16]byte{nonce + 1}, Peer: "127.0.0.1:745" + string('1'+nonce)}
		must.Get(f.Admit(t.Context(), q))(t)
	}
	must.Do(t, f.Remove(t.Context(), 3, false))
	for _, test := range []struct {
		what string
		do   func() error
		want error
	}{
		{"promote a voter", func() error { return f.Promote(t.Context(), 1, false) }, nil},
		{"promote a removed node", func() error { return f.Promote(t.Context(), 3, false) }, ErrNoSuchNode},
		{"promote a node that never was", func() error { return f.Promote(t.Context(), 5, false) }, ErrNoSuchNode},
		{"remove a removed node", func() error { return f.Remove(t.Context(), 3, false) }, nil},
		{"remove a node that never was", func() error { return f.Remove(t.Context(), 5, false) }, ErrNoSuchNode},
		{"remove node 0", func() error { return f.Remove(t.Context(), 0, false) }, ErrNoSuchNode},
		{"remove the leader", func() error { return f.Remove(t.Context(), 1, false) }, ErrNoChange},
		{"transfer to the leader", func() error { return f.TransferLeadership(t.Context(), 1) }, nil},
		{"transfer to a learner", func() error { return f.TransferLeadership(t.Context(), 2) }, ErrNoSuchNode},
		{"transfer to whom there is", func() error { return f.TransferLeadership(t.Context(), 0) }, ErrNoSuchNode},
		{"transfer to a removed node", func() error { return f.TransferLeadership(t.Context(), 3) }, ErrNoSuchNode},
	} {
		before := f.log.MembersChanged()
		check.Is(t, test.do(), test.want, "%s", test.what)
		check.Equal(t, f.log.MembersChanged(), before, "%s: the members have changed: %v", test.what)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, force := range []bool{false, true} {
		err := f.Remove(ended, 2, force)
		if members := f.log.Members(); !errors.Is(err, ErrNoChange) || !members.Has(2) {
			t.Errorf("remove when there is no time: %v, and the members are %+v", err, members)
		}
	}
	f.HandOver() // there is no successor, which is no reason to warn
	if strings.Contains(f.logged.String(), "handed over") {
		t.Error(f.logged.String())
	}
}

// TestChangeIsOfferedWithACommand: a change that no command follows is done all the same, and said.
func TestChangeIsOfferedWithACommand(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	q := JoinRequest{Nonce: [16]byte{1}, Peer: "127.0.0.1:7451"}
	must.Get(f.Admit(t.Context(), q))(t)
	f.tickErr = errors.New("the disk is full")
	must.Do(t, f.Remove(t.Context(), 2, false))
	check.Contains(t, f.logged.String(), "the disk is full")
	if members := f.log.Members(); members.Has(2) {
		t.Error("node 2 is there")
	}
}

// TestLeaderIsNoted: a caller that waits for another leader is woken by every change, and by nothing else.
func TestLeaderIsNoted(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil)
	leader, changed := f.Leader()
	if want := (Leader{ID: 1, Self: true, Term: leader.Term}); leader != want || f.Term() != leader.Term {
		t.Errorf("the leader is %+v in term %d, want %+v", leader, f.Term(), want)
	}
	f.noteLeader()
	select {
	case <-changed:
		t.Error("a change that was none")
	default:
	}
	f.term.Store(0) // elected, and the term has not begun
	f.noteLeader()
	select {
	case <-changed:
	default:
		t.Error("no caller was told")
	}
	if leader, _ := f.Leader(); leader.Self || leader.ID != 1 {
		t.Errorf("the leader is %+v", leader)
	}
}

// TestTermThatCannotBegin: a node that is alone and cannot set its ledger's time does not lead.
func TestTermThatCannotBegin(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil)
	no := errors.New("the clock is wrong")
	f.host.SetTime = func(time.Time, bool) error { return no }
	f.term.Store(0)
	f.noteLeader()
	if err := f.Lead(9); !errors.Is(err, no) || f.Term() != 0 {
		t.Errorf("%v in term %d", err, f.Term())
	}
	if leader, _ := f.Leader(); leader.Self {
		t.Error("it leads")
	}
	if err := f.NotLeading(); err == nil || err.Error() != "this node is not the leader, and there is none" {
		t.Error(err)
	}
}

// TestStatus: members of every kind are in it once, in order, with what is known of them.
func TestStatus(t *testing.T) {
	t.Parallel()
	m := voters(t, nil, nil)
	m.Outgoing, m.LearnersNext = []uint64{1, 2, 5}, []uint64{5}
	m.Learners, m.Highest, m.AutoLeave = []uint64{4}, 6, true
	f := newFake(t, m, nil)
	f.digests.setResult(roundResult{nodes: map[uint64]nodeResult{3: {state: Differs}}})
	s := f.Status()
	var got []uint64
	for _, member := range s.Members {
		got = append(got, member.ID)
		check.Equal(t, member.Voter, member.ID != 4, "node %d: a voter: %v", member.ID)
		check.Equal(t, member.State == Differs, member.ID == 3, "node %d: %v: %v", member.ID, member.State)
	}
	if len(got) != 5 || got[0] != 1 || got[4] != 5 {
		t.Errorf("the members are %v", got)
	}
	if s.Self != 1 || s.Applied != 10 || s.Last != 10 {
		t.Errorf("%+v", s)
	}
}

// TestLastMessagesOfTheDead: a node whose messages still arrive, and which answers no question any more, is not relied
// on; nor is one that answers and sends no messages.
func TestLastMessagesOfTheDead(t *testing.T) {
	t.Parallel()
	alive := beats(pulse{Clock: time.Now().UnixNano()})
	f := newFake(t, voters(t, alive, nil, alive), nil).connect(t)
	for _, id := range []uint64{2, 3} {
		f.heard.note([]*pb.Message{{From: &id}}, time.Now().Add(time.Hour))
	}
	active := map[uint64]bool{}
	err := f.judge(t.Context(), func(s *Status) error {
		for _, m := range s.Members {
			active[m.ID] = m.Active
		}
		return nil
	})
	if want := map[uint64]bool{1: false, 2: true, 3: false, 4: false}; err != nil || !maps.Equal(active, want) {
		t.Errorf("%v, %v, want %v", active, err, want)
	}
}
