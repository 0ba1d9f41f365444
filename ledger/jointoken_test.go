package ledger_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// tokenOf returns the join token of a node.
func tokenOf(t *testing.T, n *clusterNode) string {
	t.Helper()
	token, err := n.Cluster().JoinToken()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(filepath.Join(n.dir, datadir.TokenName))
	if token == "" && errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil || string(stored) != token+"\n" {
		t.Errorf("the node has the token %q and has stored %q, %v", token, stored, err)
	}
	return token
}

// seedStatus requests a node's state without a token, as curl would, and returns the status of the response. The test's
// own handler responds with 200.
func seedStatus(t *testing.T, n *clusterNode) int {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+n.address+"/seqledger.peer.v1/Seed?at_least=0", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r, err := transport.NewRoundTripper(nil).RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	return r.StatusCode
}

// anyAnswer installs a handler for requests that the ledger itself does not answer.
func anyAnswer(n *clusterNode) {
	n.Cluster().ServePeers(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}

// The first node generates a token that only its owner can read, and stores it. Without the token nothing is answered,
// not even on loopback. Another token may be configured.
func TestFirstNodeMakesAJoinToken(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "node1")
	n := startNode(t, dir, anyAddress)
	token := tokenOf(t, n)
	info, err := os.Stat(filepath.Join(dir, datadir.TokenName))
	if err != nil || info.Mode().Perm() != 0o600 || len(token) < 26 {
		t.Errorf("%q, %v, %v", token, info, err)
	}
	anyAnswer(n)
	if got := seedStatus(t, n); got != http.StatusUnauthorized {
		t.Errorf("without a token: %d", got)
	}
	closeLedger(t, n.Ledger)
	n = startNode(t, dir, n.address)
	if again := tokenOf(t, n); again != token {
		t.Errorf("after a restart the token is %q, and was %q", again, token)
	}
	closeLedger(t, n.Ledger)
	n = startNodeWith(t, n.address, ledger.Options{Dir: dir, Cluster: &cluster.Options{Token: "a token that is given"}})
	if given := tokenOf(t, n); given != "a token that is given" {
		t.Errorf("it was given another, and has %q", given)
	}
}

// withoutTokens creates a cluster as older programs left it.
func withoutTokens(t *testing.T, size int) []*clusterNode {
	t.Helper()
	nodes := startClusterWith(t, size, func(dir string) ledger.Options { return knowing(dir, 2) })
	for _, n := range nodes {
		closeLedger(t, n.Ledger)
		if err := os.Remove(filepath.Join(n.dir, datadir.TokenName)); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// An older cluster has no token and works without one until the programs of all nodes support tokens. Then the leader
// generates a token, gives it to the others and raises the level. From that level on the token is required.
func TestUpgradedClusterGetsAJoinToken(t *testing.T) {
	t.Parallel()
	nodes := withoutTokens(t, 3)
	for i, n := range nodes {
		level := uint64(machine.Level)
		if i == 0 {
			level = 4
		}
		nodes[i] = startNodeWith(t, n.address, knowing(n.dir, level))
		anyAnswer(nodes[i])
	}
	var next uint64
	writeUntil(t, &next, nodes, func() bool { return levelOf(t, nodes[1]) == 4 })
	for _, n := range nodes {
		if token, status := tokenOf(t, n), seedStatus(t, n); token != "" || status != http.StatusOK {
			t.Errorf("before the upgrade a node has the token %q, and answers %d", token, status)
		}
	}
	old := nodes[0]
	closeLedger(t, old.Ledger)
	nodes[0] = startNodeWith(t, old.address, knowing(old.dir, machine.Level))
	anyAnswer(nodes[0])
	writeUntil(t, &next, nodes, func() bool { return levelOf(t, nodes[0]) == machine.Level })
	writeUntil(t, &next, nodes, func() bool { return true })
	token := tokenOf(t, nodes[0])
	for _, n := range nodes {
		raised := levelOf(t, n) == machine.Level // read first, because it may rise meanwhile
		if got, status := tokenOf(t, n), seedStatus(t, n); got != token || token == "" ||
			raised && status != http.StatusUnauthorized {
			t.Errorf("after the upgrade a node has the token %q, not %q, and answers %d", got, token, status)
		}
	}
	for i, n := range nodes { // with the token they continue
		closeLedger(t, n.Ledger)
		nodes[i] = startNodeWith(t, n.address, ledger.Options{Dir: n.dir})
		writeUntil(t, &next, nodes, func() bool { return true })
	}
}

// Nodes that were given different tokens stay at the old level, and report why.
func TestNodesWithDifferentTokens(t *testing.T) {
	t.Parallel()
	nodes := withoutTokens(t, 2)
	for i, token := range []string{"the token of node 1", "the token of node 2"} {
		o := knowing(nodes[i].dir, machine.Level)
		o.Cluster = &cluster.Options{Token: token}
		nodes[i] = startNodeWith(t, nodes[i].address, o)
	}
	for {
		err := onLeader(t, nodes, func(leader *clusterNode) error {
			return ledger.TendLevel(t.Context(), leader.Ledger)
		})
		if err == nil {
			t.Fatal("the level was raised")
		}
		if strings.Contains(err.Error(), "another join token") {
			break
		}
		t.Log(err) // a node that answered too late is asked again
	}
}

// A node that has lost the token of its cluster reports it at once, because the others would refuse it.
func TestNodeWithoutItsToken(t *testing.T) {
	t.Parallel()
	nodes := startClusterOf(t, 2)
	n := nodes[1]
	closeLedger(t, n.Ledger)
	if err := os.Remove(filepath.Join(n.dir, datadir.TokenName)); err != nil {
		t.Fatal(err)
	}
	l, err := openNode(t, n.address, ledger.Options{Dir: n.dir})
	if !errors.Is(err, cluster.ErrNoToken) {
		t.Fatal(l, err)
	}
}

// A node that was down when it was removed learns of the removal from the others when it is started again, and ends.
func TestRemovedNodeThatRestartsEnds(t *testing.T) {
	t.Parallel()
	nodes := startClusterOf(t, 3)
	gone, rest := nodes[2], nodes[:2]
	closeLedger(t, gone.Ledger)
	err := onLeader(t, rest, func(leader *clusterNode) error { return leader.Cluster().Remove(t.Context(), 3, false) })
	if err != nil {
		t.Fatal(err)
	}
	back := startNode(t, gone.dir, gone.address)
	<-back.Failed()
	if err := back.Err(); !errors.Is(err, cluster.ErrRemoved) {
		t.Errorf("it ends with %v", err)
	}
	var next uint64
	writeUntil(t, &next, rest, func() bool { return true })
}

// A node is removed, and another process gets its address. That process refuses requests meant for the removed node.
// All nodes refuse requests from the removed node, because its state or clock could be mistaken for that of a member.
func TestAnotherNodeAtTheAddressOfOneThatWasRemoved(t *testing.T) {
	t.Parallel()
	nodes := startClusterOf(t, 3)
	gone := nodes[2]
	closeLedger(t, gone.Ledger)
	rest := nodes[:2]
	err := onLeader(t, rest, func(leader *clusterNode) error { return leader.Cluster().Remove(t.Context(), 3, false) })
	if err != nil {
		t.Fatal(err)
	}
	var next uint64
	writeUntil(t, &next, rest, func() bool { return len(rest[0].Cluster().Status().Members) == 2 })
	q := cluster.JoinRequest{Nonce: [16]byte{4}, Peer: gone.address, Level: machine.Level}
	err = onLeader(t, rest, func(leader *clusterNode) error {
		a, err := leader.Cluster().Admit(t.Context(), q)
		if err == nil && a.ID != 4 {
			t.Errorf("the new node got %+v", a)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	closeLedger(t, rest[0].Ledger) // so that its directory can be copied, instead of fetching a state
	dir := copyNode(t, rest[0].dir, 4)
	rest[0] = startNode(t, rest[0].dir, rest[0].address)
	successor := startNode(t, dir, gone.address)
	all := append(rest, successor)
	writeUntil(t, &next, all, func() bool { return successor.Cluster().Status().Leader.ID != 0 })

	id, err := successor.ID()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(n *clusterNode, from, to uint64) int {
		as := transport.Identity{Token: tokenOf(t, n), Ledger: id.String(), From: from}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+n.address+"/seqledger.peer.v1/Level",
			http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		transport.AddressTo(q.Header, to)
		r, err := transport.As(transport.NewRoundTripper(nil), func() transport.Identity { return as }).RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		return r.StatusCode
	}
	if got := ask(successor, 2, 3); got != http.StatusMisdirectedRequest {
		t.Errorf("what node 2 asks node 3 is answered by node 4 with %d", got)
	}
	for i, n := range all {
		self := []uint64{1, 2, 4}[i]
		for from, want := range map[uint64]int{1: http.StatusOK, 3: http.StatusForbidden, 9: http.StatusForbidden} {
			if got := ask(n, from, self); got != want {
				t.Errorf("node %d answers node %d with %d", self, from, got)
			}
		}
	}
}
