package ledger_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// tokenOf returns the join token of a node.
func tokenOf(t *testing.T, n *clusterNode) string {
	t.Helper()
	token := must.Get(n.Cluster().JoinToken())(t)
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
	q := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+n.address+"/seqledger.peer.v1/Seed?at_least=0", http.NoBody))(t)
	r := must.Get(transport.NewRoundTripper(nil).RoundTrip(q))(t)
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
	check.Equal(t, seedStatus(t, n), http.StatusUnauthorized, "without a token: %d")
	closeLedger(t, n.Ledger)
	n = startNode(t, dir, n.address)
	if again := tokenOf(t, n); again != token {
		t.Errorf("after a restart the token is %q, and was %q", again, token)
	}
	closeLedger(t, n.Ledger)
	n = startNodeWith(t, n.address, ledger.Options{Dir: dir, Cluster: &cluster.Options{Token: "a token that is given"}})
	check.Equal(t, tokenOf(t, n), "a token that is given", "it was given another, and has %q")
}

// A node that has lost the token of its cluster reports it at once, because the others would refuse it.
func TestNodeWithoutItsToken(t *testing.T) {
	t.Parallel()
	nodes := startClusterOf(t, 2)
	n := nodes[1]
	closeLedger(t, n.Ledger)
	must.Do(t, os.Remove(filepath.Join(n.dir, datadir.TokenName)))
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
	must.Do(t, onLeader(t, rest, func(leader *clusterNode) error {
		return leader.Cluster().Remove(t.Context(), 3,
			false)
	}))
	back := startNode(t, gone.dir, gone.address)
	<-back.Failed()
	check.Is(t, back.Err(), cluster.ErrRemoved, "it ends with")
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
	must.Do(t, onLeader(t, rest, func(leader *clusterNode) error {
		return leader.Cluster().Remove(t.Context(), 3,
			false)
	}))
	var next uint64
	writeUntil(t, &next, rest, func() bool { return len(rest[0].Cluster().Status().Members) == 2 })
	q := cluster.JoinRequest{Nonce: [16]byte{4}, Peer: gone.address}
	must.Do(t, onLeader(t, rest, func(leader *clusterNode) error {
		a, err := leader.Cluster().Admit(t.Context(), q)
		if err == nil && a.ID != 4 {
			t.Errorf("the new node got %+v", a)
		}
		return err
	}))
	closeLedger(t, rest[0].Ledger) // so that its directory can be copied, instead of fetching a state
	dir := copyNode(t, rest[0].dir, 4)
	rest[0] = startNode(t, rest[0].dir, rest[0].address)
	successor := startNode(t, dir, gone.address)
	all := append(rest, successor)
	writeUntil(t, &next, all, func() bool { return successor.Cluster().Status().Leader.ID != 0 })

	id := must.Get(successor.ID())(t)
	ask := func(n *clusterNode, from, to uint64) int {
		as := transport.Identity{Token: tokenOf(t, n), Ledger: id.String(), From: from}
		q := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+n.address+"/seqledger.peer.v1/Pulse",
			http.NoBody))(t)
		transport.AddressTo(q.Header, to)
		r := must.Get(transport.As(transport.NewRoundTripper(nil),
			func() transport.Identity { return as }).RoundTrip(q))(t)
		_ = r.Body.Close()
		return r.StatusCode
	}
	check.Equal(t, ask(successor, 2, 3), http.StatusMisdirectedRequest,
		"what node 2 asks node 3 is answered by node 4 with %d")
	for i, n := range all {
		self := []uint64{1, 2, 4}[i]
		for from, want := range map[uint64]int{1: http.StatusOK, 3: http.StatusForbidden, 9: http.StatusForbidden} {
			check.Equal(t, ask(n, from, self), want, "node %d answers node %d with %d", self, from)
		}
	}
}
