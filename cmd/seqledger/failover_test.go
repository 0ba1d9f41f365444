package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/datadir"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// testCluster is some servers of one ledger, as processes.
type testCluster struct {
	nodes []*clusterServer
}

// clusterServer is one of them, through all of its lives.
type clusterServer struct {
	*testServer

	peer string   // its address for the other nodes
	args []string // of each of its starts
}

// serveCluster starts n nodes, and returns once all of them vote.
func serveCluster(t *testing.T, n int) *testCluster {
	t.Helper()
	return serveClusterWith(t, binary, n)
}

// serveClusterWith is serveCluster with another program.
func serveClusterWith(t *testing.T, program string, n int) *testCluster {
	t.Helper()
	c := new(testCluster)
	for i := range n {
		peer := freeAddress(t)
		args := []string{"--peer-listen", peer, "--no-console"}
		if i > 0 {
			args = append(args, "--join", c.nodes[0].peer)
			args = append(args, "--join-token-file", filepath.Join(c.nodes[0].data, datadir.TokenName))
		}
		s := serveWith(t, program, filepath.Join(t.TempDir(), fmt.Sprint("node", i+1)), "127.0.0.1:0", args...)
		c.nodes = append(c.nodes, &clusterServer{s, peer, args})
	}
	c.await(t, c.client(t), "all nodes vote", func(s *seqledgerv1.Cluster) bool {
		members := s.GetMembers()
		return len(members) == n && !slices.ContainsFunc(members, func(m *seqledgerv1.ClusterMember) bool {
			return !m.GetVoter() || !m.GetActive()
		})
	})
	return c
}

// client returns a client of all nodes.
func (c *testCluster) client(t *testing.T) *client.Client {
	t.Helper()
	var servers []string
	for _, n := range c.nodes {
		servers = append(servers, n.address)
	}
	conn := must.Get(client.New(client.Options{Server: strings.Join(servers, ",")}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// await asks the leader until the cluster is as it should be.
func (c *testCluster) await(t *testing.T, conn *client.Client, what string, is func(*seqledgerv1.Cluster) bool) (
	s *seqledgerv1.Cluster,
) {
	t.Helper()
	must.Await(t, func() bool {
		s = must.Get(admin.GetCluster(t.Context(), conn))(t)
		return s.GetSelf() == s.GetLeader() && is(s)
	}, what)
	return s
}

// leader returns the node that leads.
func (c *testCluster) leader(t *testing.T, conn *client.Client) *clusterServer {
	t.Helper()
	s := c.await(t, conn, "a node leads", func(*seqledgerv1.Cluster) bool { return true })
	for _, m := range s.GetMembers() {
		for _, n := range c.nodes {
			if m.GetId() == s.GetLeader() && m.GetPeerAddress() == n.peer {
				return n
			}
		}
	}
	t.Fatalf("the leader is none of the nodes: %v", s)
	return nil
}

// restart starts a node that was killed, and returns once it follows.
func (c *testCluster) restart(t *testing.T, conn *client.Client, n *clusterServer) {
	t.Helper()
	n.testServer = serveWith(t, binary, n.data, n.address, n.args...)
	c.await(t, conn, "the node is back", func(s *seqledgerv1.Cluster) bool {
		return !slices.ContainsFunc(s.GetMembers(), func(m *seqledgerv1.ClusterMember) bool { return !m.GetActive() })
	})
}

// TestFailover kills the leader of three nodes with SIGKILL under the load of Writers that know nothing of it.
// Each acknowledged write is there once, under its own number and with its receipt, and all nodes have the same. With
// FAILOVER_KILLS=50 it is the measurement of how long a failover takes.
func TestFailover(t *testing.T) {
	t.Parallel()
	kills := 5
	if testing.Short() {
		kills = 1
	}
	if text := os.Getenv("FAILOVER_KILLS"); text != "" {
		kills, _ = strconv.Atoi(text)
	}
	const writers = 4
	c := serveCluster(t, 3)
	conn, watching := c.client(t), c.client(t)
	load := startLoad(t, writers, func() *client.Client { return conn })
	probe := must.Get(writer.Open(t.Context(), c.client(t), writer.Options{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "probe"}, ClientID: "probe",
	}))(t)
	var took []time.Duration
	for range kills {
		for range 50 { // so that each leader has something to lose
			<-load.progress
		}
		leader := c.leader(t, watching)
		leader.kill()
		began := time.Now()
		must.Get(probe.Write(t.Context(), op.Append([]byte("after the leader"))))(t)
		took = append(took, time.Since(began))
		c.restart(t, watching, leader)
	}
	load.end()
	slices.Sort(took)
	t.Logf("from SIGKILL to the next acknowledged write, %d times: median %v, longest %v", kills,
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	load.audit(t, conn)
	c.alike(t)
}

// TestStoppedLeader: a leader that is stopped keeps its connections, and says nothing on them. Writes and calls of a
// client that knows the other nodes go on there, each once, and it follows when it goes on.
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	const writers = 2
	c := serveCluster(t, 3)
	conn, watching := c.client(t), c.client(t)
	load := startLoad(t, writers, func() *client.Client { return conn })
	unary := c.client(t)
	call := func(sequence uint64) {
		t.Helper()
		limited, cancel := context.WithTimeout(t.Context(), hangs)
		defer cancel()
		receipt, err := unary.Write(limited, &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "calls"}, ClientId: "unary", Sequence: sequence,
			IdempotencyKey: fmt.Sprintf("00000000-0000-4000-8000-%012d", sequence),
			Operations:     []*seqledgerv1.Operation{op.Append([]byte("x"))},
		})
		if err != nil || receipt.GetSequence() != sequence {
			t.Fatalf("write %d by a call: %v, %v", sequence, receipt, err)
		}
	}
	call(1)
	<-load.progress
	leader := c.leader(t, watching)
	t.Cleanup(func() { _ = leader.cmd.Process.Signal(syscall.SIGCONT) }) // so that it can be ended
	must.Do(t, leader.cmd.Process.Signal(syscall.SIGSTOP))
	began := time.Now()
	call(2)
	t.Logf("from SIGSTOP to a call's answer: %v", time.Since(began).Round(time.Millisecond))
	for range 3 { // the first may be from before
		<-load.progress
	}
	t.Logf("and to the third acknowledged write of a Writer: %v", time.Since(began).Round(time.Millisecond))
	must.Do(t, leader.cmd.Process.Signal(syscall.SIGCONT))
	call(3)
	load.end()
	load.audit(t, conn)
	c.alike(t)
}

// alike compares what the nodes have at one index. The ledger writes by itself now and then, so it asks until they
// have the same one.
func (c *testCluster) alike(t *testing.T) {
	t.Helper()
	digests := map[uint64]string{}
	asked := make([]map[uint64]bool, len(c.nodes))
	must.Await(t, func() bool {
		for i, n := range c.nodes {
			s := must.Get(n.client(t).Status(t.Context()))(t)
			index := s.GetIndex()
			if known, found := digests[index]; found && known != s.GetDigest() {
				t.Fatalf("at index %d node %d has %s, and another one %s", index, i+1, s.GetDigest(), known)
			}
			digests[index] = s.GetDigest()
			if asked[i] == nil {
				asked[i] = map[uint64]bool{}
			}
			asked[i][index] = true
			if !slices.ContainsFunc(asked, func(m map[uint64]bool) bool { return !m[index] }) {
				return true
			}
		}
		return false
	}, "one index of all nodes")
}
