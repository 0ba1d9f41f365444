package server_test

import (
	"testing"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestClusterOfOne: a node that takes no others describes itself, and refuses changes with the reason.
func TestClusterOfOne(t *testing.T) {
	t.Parallel()
	h := start(t)
	answer, err := h.admin.GetCluster(t.Context(), connect.NewRequest(&seqledgerv1.GetClusterRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	c := answer.Msg.Cluster
	if c.Self != 1 || c.Leader != 1 || c.Term == 0 || c.CommittedIndex == 0 || c.AppliedIndex != c.CommittedIndex ||
		len(c.Members) != 1 || c.Members[0].Id != 1 || !c.Members[0].Voter || !c.Members[0].Active {
		t.Errorf("%v", c)
	}
	for _, change := range []*seqledgerv1.ChangeClusterRequest{
		{Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: 1}},
		{Change: &seqledgerv1.ChangeClusterRequest_Promote{Promote: 2}},
		{Change: &seqledgerv1.ChangeClusterRequest_Transfer{}},
	} {
		_, err := h.admin.ChangeCluster(t.Context(), connect.NewRequest(change))
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Errorf("%v: %v", change, err)
		}
	}
	_, err = h.admin.ChangeCluster(t.Context(), connect.NewRequest(&seqledgerv1.ChangeClusterRequest{}))
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("no change: %v", err)
	}
}
