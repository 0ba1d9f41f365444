package server_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/cluster"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// without closes a node and returns the others.
func without(nodes []*harness, closed *harness) []*harness {
	_ = errors.Join(closed.stop(), closed.ledger.Close()) // whether it could hand over is not asked
	return slices.DeleteFunc(slices.Clone(nodes), func(h *harness) bool { return h == closed })
}

func (h *harness) id() uint64 { return h.ledger.Cluster().Status().Self }

// mustNotChange makes a change, which must be refused for a reason.
func (h *harness) mustNotChange(t *testing.T, change *seqledgerv1.ChangeClusterRequest, reason string) {
	t.Helper()
	_, err := h.admin.ChangeCluster(within(t), connect.NewRequest(change))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), reason) {
		t.Errorf("%v: %v, want %q", change, err, reason)
	}
}

// TestChangesKeepTheMajority: with one of three nodes dead, the other one that follows is not removed, and the dead one
// does not get the leadership. The dead one can be removed.
func TestChangesKeepTheMajority(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, server.Options{})
	leader := leads(t, nodes)
	i := slices.IndexFunc(nodes, func(h *harness) bool { return h != leader })
	dead := nodes[i].id()
	rest := without(nodes, nodes[i])
	leader = leads(t, rest) // on a slow machine an election may have come between
	reason := fmt.Sprintf("node %d (", dead)
	for _, other := range rest {
		if other != leader {
			leader.mustNotChange(t, &seqledgerv1.ChangeClusterRequest{
				Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: other.id()},
			}, reason)
		}
	}
	leader.mustNotChange(t, &seqledgerv1.ChangeClusterRequest{
		Change: &seqledgerv1.ChangeClusterRequest_Transfer{Transfer: dead},
	}, reason)
	leader.persist(t, writeOf("c", 1, appendOp("x")))
	request := &seqledgerv1.ChangeClusterRequest{Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: dead}}
	must.Do(t, check.Err(leader.admin.ChangeCluster(within(t), connect.NewRequest(request))),
		"the dead node is not removed")
}

// TestLeaderWithoutRoomHandsOver: while another node has room on its disk, writes go on, and a node without room does
// not lead again. Package cluster has the rules; here the server tells it of the room.
func TestLeaderWithoutRoomHandsOver(t *testing.T) {
	t.Parallel()
	full, peer := startSecureNode(t, "", server.Options{DiskReserve: 1 << 60}, nil)
	second, _ := startSecureNode(t, peer, server.Options{}, nil)
	low, leader := full.id(), leads(t, []*harness{second})
	full.persist(t, writeOf("c", 1, appendOp("x")))
	must.Await(t, func() bool { // a new leader may not have asked the other yet
		return slices.ContainsFunc(leader.ledger.Cluster().Status().Members, func(m cluster.Member) bool {
			return m.ID == low && m.Disk.Size > 0
		})
	})
	leader.mustNotChange(t, &seqledgerv1.ChangeClusterRequest{
		Change: &seqledgerv1.ChangeClusterRequest_Transfer{Transfer: low},
	}, "room")
}
