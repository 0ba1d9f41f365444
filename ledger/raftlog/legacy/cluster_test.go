package legacy

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
)

type node struct {
	*Log
	machine   *recorder
	transport *raft.InmemTransport
}

// newCluster makes three voters that reach one another in process.
func newCluster(t *testing.T) []*node {
	t.Helper()
	nodes := make([]*node, 3)
	var members []raft.Server
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		_, transport := raft.NewInmemTransport(raft.ServerAddress(name + ":7000"))
		nodes[i] = &node{machine: &recorder{}, transport: transport}
		members = append(members, raft.Server{ID: raft.ServerID(name), Address: transport.LocalAddr()})
	}
	for _, n := range nodes {
		for _, other := range nodes {
			n.transport.Connect(other.transport.LocalAddr(), other.transport)
		}
	}
	for i, n := range nodes {
		o := options(t.TempDir(), n.machine)
		o.NodeID, o.Transport = string(members[i].ID), n.transport
		must(t, create(&o, raftConfig(&o), n.transport, members...))
		l, err := Open(o)
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		n.Log = l
	}
	return nodes
}

// leaderOf waits until one of the nodes is ready to lead.
func leaderOf(t *testing.T, nodes []*node) (leader *node, others []*node) {
	t.Helper()
	ready := make(chan *node, len(nodes))
	for _, n := range nodes {
		// Ended by the node's readiness or its closing at the end of the test,
		// which nobody waits for: the channel has room for all.
		go func() {
			if n.Ready(t.Context()) == nil {
				ready <- n
			}
		}()
	}
	leader = <-ready
	return leader, slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == leader })
}

// Nothing assumes one node: a majority commits, others refuse in a way that is
// safe to send elsewhere, and what was acknowledged survives the leader.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t)
	leader, others := leaderOf(t, nodes)
	write(t, leader.Log, numbered(100)...)
	must(t, leader.ReadBarrier(t.Context()))
	isLeader, address, term := leader.Leader()
	if !isLeader || address != string(leader.transport.LocalAddr()) || term == 0 {
		t.Errorf("the leader says %t, %q, term %d", isLeader, address, term)
	}
	for _, n := range others {
		if _, err := n.Propose([]byte("misplaced")).Wait(); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a proposal to a follower: %v, want ErrNotLeader", err)
		}
		if err := n.ReadBarrier(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a read barrier on a follower: %v, want ErrNotLeader", err)
		}
		if got := n.raft.ReloadableConfig().ElectionTimeout; got <= soleTimeout {
			t.Errorf("a node of several waits only %v for a leader", got)
		}
	}
	closeLog(t, leader.Log)
	next, _ := leaderOf(t, others)
	if got := next.machine.texts(); !slices.Equal(got, numbered(100)) {
		t.Fatalf("the next leader has %d entries, want 100", len(got))
	}
	must(t, next.ReadBarrier(t.Context()))
}

// A leader that has lost its majority gives no read and acknowledges nothing.
func TestLeaderWithoutMajority(t *testing.T) {
	t.Parallel()
	leader, others := leaderOf(t, newCluster(t))
	write(t, leader.Log, "before")
	for _, n := range others {
		leader.transport.Disconnect(n.transport.LocalAddr())
		n.transport.Disconnect(leader.transport.LocalAddr())
	}
	p := leader.Propose([]byte("cut off"))
	// Raft takes the reply to a heartbeat that was under way when the barrier
	// began, so that the first barriers may pass; a follower that has replied
	// votes for nobody else for an election timeout.
	var err error
	for err == nil {
		err = leader.ReadBarrier(t.Context())
	}
	if !errors.Is(err, ErrNotLeader) {
		t.Errorf("a read barrier without a majority: %v, want ErrNotLeader", err)
	}
	if _, err := p.Wait(); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("a proposal without a majority: %v, want ErrOutcomeUnknown", err)
	}
}

// A sole voter that gets company stops answering reads on its own, from the
// moment the change is in its log; without a transport it does not even open.
func TestSoleVoterGetsCompany(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &recorder{}
	l := created(t, dir, m)
	must(t, l.ReadBarrier(t.Context()))
	l.raft.AddVoter("two", "nowhere:7000", 0, 0)
	must(t, l.raft.GetConfiguration().Error())
	for l.sole.Load() {
		// Proposals pass through the same queue as the change, so that this ends.
		if _, err := l.Propose([]byte("x")).Wait(); err != nil {
			break
		}
	}
	if err := l.ReadBarrier(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a read barrier without the second voter: %v, want ErrNotLeader", err)
	}
	closeLog(t, l)
	if reopened, err := Open(options(dir, m.restarted())); err == nil {
		t.Error("one voter of two was opened without a transport", reopened.Close())
	}
}
