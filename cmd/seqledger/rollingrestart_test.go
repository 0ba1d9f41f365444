package main

import (
	"context"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// rolling is a cluster whose nodes are restarted one after the other under the load of Writers.
type rolling struct {
	*testCluster

	t    *testing.T
	conn *client.Client
	load *killLoad
}

// restart stops a node, starts it again, and makes it the leader.
func (u *rolling) restart(n *clusterServer) {
	u.t.Helper()
	u.stop(n)
	u.testCluster.restart(u.t, u.conn, n)
	u.lead(n)
	for range 20 {
		<-u.load.progress
	}
}

// stop ends a node as an operator does.
func (u *rolling) stop(n *clusterServer) {
	u.t.Helper()
	must.Do(u.t, n.cmd.Process.Signal(syscall.SIGTERM))
	if code := n.wait(u.t); code != exitDone {
		u.t.Fatalf("the node ended with %d\n%s", code, n.stderr.String())
	}
}

// lead makes a node the leader. It tries again if an election intervenes.
func (u *rolling) lead(n *clusterServer) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), hangs)
	defer cancel()
	var err error
	for u.leader(u.t, u.conn) != n {
		s := u.await(u.t, u.conn, "a node leads", func(*seqledgerv1.Cluster) bool { return true })
		for _, m := range s.GetMembers() {
			if m.GetPeerAddress() == n.peer {
				_, err = admin.ChangeCluster(ctx, u.conn, &seqledgerv1.ChangeClusterRequest{
					Change: &seqledgerv1.ChangeClusterRequest_Transfer{Transfer: m.GetId()},
				})
			}
		}
		if ctx.Err() != nil {
			u.t.Fatalf("the node does not lead: %v", err)
		}
	}
}

// TestRollingRestart replaces the program of each of three nodes in turn, by the same one, while Writers write. No
// acknowledged write is lost or repeated, and all nodes end with the same state.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	c := serveCluster(t, 3)
	load := startLoad(t, 3, func() *client.Client { return c.client(t) })
	defer load.end()
	u := &rolling{testCluster: c, t: t, conn: c.client(t), load: load}
	for _, n := range c.nodes {
		u.restart(n)
	}
	load.end()
	load.audit(t, u.conn)
	c.alike(t)
}
