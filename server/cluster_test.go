package server_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// TestClusterOfOne: a node that takes no others describes itself, and refuses changes with the reason.
func TestClusterOfOne(t *testing.T) {
	t.Parallel()
	h := start(t)
	answer, err := h.admin.GetCluster(t.Context(), connect.NewRequest(&seqledgerv1.GetClusterRequest{}))
	must.Do(t, err)
	c := answer.Msg.Cluster
	if c.Self != 1 || c.Leader != 1 || c.Term == 0 || c.CommittedIndex == 0 || c.AppliedIndex != c.CommittedIndex ||
		len(c.Members) != 1 || c.Members[0].Id != 1 || !c.Members[0].Voter || !c.Members[0].Active ||
		c.Members[0].MatchedIndex < c.CommittedIndex {
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
	check.Equal(t, connect.CodeOf(err), connect.CodeInvalidArgument, "no change: %v: %v", err)
}

// status returns what a node says of itself.
func (h *harness) status(t *testing.T) *seqledgerv1.Status {
	t.Helper()
	answer := must.Get(h.admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
	return answer.Msg.Status
}

// TestStatusOfNodes: each node tells how it sees the cluster, and the leader when it has heard of the others.
func TestStatusOfNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, server.Options{})
	leader := leads(t, nodes)
	for _, h := range nodes {
		var status *seqledgerv1.Status
		must.Await(t, func() bool { // on a busy machine an election may go on
			status = h.status(t)
			return status.Node.NotReady == ""
		})
		if c := status.Node.Cluster; len(c.GetMembers()) != 3 || c.Self != h.ledger.Cluster().Status().Self {
			t.Errorf("%v", status)
		}
	}
	c := leader.status(t).Node.Cluster
	for _, m := range c.Members {
		if heard := m.SinceContact; (heard == nil) != (m.Id == c.Self) || heard.AsDuration() < 0 {
			t.Errorf("node %d is the leader, and has heard of node %d %v ago", c.Self, m.Id, heard)
		}
	}
}

// TestStatusWithoutAMajority: a node that is left alone says so, and what it knows, where it led and where it did not.
func TestStatusWithoutAMajority(t *testing.T) {
	t.Parallel()
	for name, led := range map[string]bool{"leader": true, "follower": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := startNodes(t, server.Options{})
			nodes[1].persist(t, writeOf("c", 1, appendOp("x")))
			leader := leads(t, nodes)
			var left *harness
			for _, h := range nodes {
				if (h == leader) == led {
					left = h
				}
			}
			before := left.status(t)
			left.awaitReady(t, true)
			for _, h := range nodes {
				if h != left && h != leader { // the leader last, so that it does not hand over
					must.Do(t, errors.Join(h.stop(), h.ledger.Close()))
				}
			}
			if !led {
				// It cannot hand over to a node that needs a majority for it; that it has not is in its error.
				_ = errors.Join(leader.stop(), leader.ledger.Close())
			}
			for range 2 {
				status := left.status(t)
				if !strings.Contains(status.Node.NotReady, "no majority") || status.LedgerId != before.LedgerId ||
					status.Index < before.Index || status.Digest == "" || len(status.Node.Cluster.Members) != 3 {
					t.Errorf("%v", status)
				}
			}
			left.awaitReady(t, false)
			if status, _ := left.get(t, "/healthz"); status != http.StatusOK {
				t.Error("it is to be started again, which helps nothing:", status)
			}
		})
	}
}

// awaitReady waits until a node says in each way that it is ready, or that it is not.
func (h *harness) awaitReady(t *testing.T, ready bool) {
	t.Helper()
	code, serving, gauge := http.StatusOK, grpchealth.StatusServing, "1"
	if !ready {
		code, serving, gauge = http.StatusServiceUnavailable, grpchealth.StatusNotServing, "0"
	}
	must.Await(t, func() bool {
		status, text := h.get(t, "/readyz")
		health, err := h.health(t, "")
		return status == code && (ready || strings.Contains(text, "no majority")) && err == nil && health == serving &&
			h.metric(t, "seqledger_ready") == gauge
	})
}

// TestNodeThatIsCutOffSendsItsCallersAway: a node that has lost the others ends a Watch and refuses reads, so that a
// client with several servers goes on at another one, even if its calls have no deadlines.
func TestNodeThatIsCutOffSendsItsCallersAway(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, server.Options{})
	must.Do(t, settled(t, func() error {
		_, err := nodes[0].client.Write(within(t), connect.NewRequest(writeOf("c", 1, appendOp("x"))))
		return err
	}))
	leader := leads(t, nodes)
	left := nodes[0]
	for _, h := range nodes {
		if h != leader {
			left = h
		}
	}
	left.server.SetCutOff(100 * time.Millisecond)
	blocks := &seqledgerv1.WatchRequest{Scope: scope(), FromHeight: 1}
	watch, err := left.client.Watch(within(t), connect.NewRequest(blocks))
	if err != nil || !watch.Receive() {
		t.Fatal(err, watch.Err())
	}
	for _, h := range nodes {
		if h != left {
			// The second cannot hand over to a node that needs a majority for it; that it has not is in its error.
			_ = errors.Join(h.stop(), h.ledger.Close())
		}
	}
	if watch.Receive() {
		t.Errorf("a block: %v", watch.Msg())
	}
	const notLeader = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER
	mustRefuse(t, watch.Err(), connect.CodeUnavailable, notLeader)
	_, err = left.client.GetClientState(within(t), connect.NewRequest(&seqledgerv1.GetClientStateRequest{
		Scope: scope(), ClientId: "c",
	}))
	mustRefuse(t, err, connect.CodeUnavailable, notLeader)
}
