package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger/cluster"
)

// TestLeaderRefusesToLoseItsMajority: with one of three nodes dead, the other one that is alive is not removed, and the
// dead one does not get the leadership. The dead one can be removed.
func TestLeaderRefusesToLoseItsMajority(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	var alive, dead *clusterNode
	leader := awaitLeader(t, nodes...)
	for _, n := range nodes {
		if n != leader {
			alive, dead = dead, n
		}
	}
	id := func(n *clusterNode) uint64 { return n.Cluster().Status().Self }
	lost := id(dead)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	rest := []*clusterNode{leader, alive}
	awaitLeaderStatus(t, rest, "the death of a node", func(s cluster.Status) bool {
		known := s.Leader.Self
		for _, m := range s.Members {
			known = known && m.Active == (m.ID != lost)
		}
		return known
	})
	other := func(leader *clusterNode) uint64 { return id(rest[0]) ^ id(rest[1]) ^ id(leader) }
	for what, change := range map[string]func(leader *clusterNode) error{
		"removal": func(leader *clusterNode) error {
			return leader.Cluster().Remove(t.Context(), other(leader), false)
		},
		"transfer": func(leader *clusterNode) error { return leader.Cluster().TransferLeadership(t.Context(), lost) },
	} {
		err := onLeader(t, rest, change)
		if !errors.Is(err, cluster.ErrNoChange) && !errors.Is(err, cluster.ErrNoSuccessor) ||
			!strings.Contains(err.Error(), fmt.Sprintf("node %d (", lost)) {
			t.Errorf("%s: %v, want that node %d is dead", what, err, lost)
		}
	}
	err := onLeader(t, rest, func(leader *clusterNode) error { return leader.Cluster().Remove(t.Context(), lost, false) })
	if err != nil {
		t.Error("removal of the dead node:", err)
	}
}
