package seed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// joinToken is the join token of all clusters here.
const joinToken = "a secret of the nodes"

var quiet = slog.New(slog.DiscardHandler)

// node is a node of a cluster in this process.
type node struct {
	*ledger.Ledger
	address string
}

// serve opens the ledger in a directory and serves other nodes.
func serve(t *testing.T, dir string, listener net.Listener, change ...func(*ledger.Options)) *node {
	t.Helper()
	o := ledger.Options{
		LogBytes: 2 << 20,
		Dir:      dir, CacheBytes: -1, ScrubBytes: -1, Logger: quiet,
		Cluster: &cluster.Options{Listener: listener, Token: joinToken, Tick: 20 * time.Millisecond},
	}
	for _, c := range change {
		c(&o)
	}
	l := must.Get(ledger.Open(t.Context(), o))(t)
	mux := http.NewServeMux()
	mux.Handle(cluster.JoinPath, l.Cluster().JoinHandler())
	mux.Handle(Path, Handler(l, -1))
	l.Cluster().ServePeers(mux)
	t.Cleanup(func() { _ = l.Close() }) // a test that closes it checks the error
	return &node{l, listener.Addr().String()}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	return l
}

func options(dir, own string, nodes ...string) Options {
	return Options{
		Dir: dir, Nodes: nodes, RoundTripper: transport.NewRoundTripper(nil), Peer: own, Logger: quiet,
		Token: joinToken, retry: 10 * time.Millisecond,
	}
}

var scope = machine.Scope{Organization: "acme", Vault: "main"}

func write(t *testing.T, n *node, sequence uint64) {
	t.Helper()
	o, err := n.Write(t.Context(), &machine.Write{
		Scope: scope, ClientID: "c", Actor: "system:test", Sequence: sequence,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: fmt.Append(nil, "write ", sequence)}},
	})
	if err != nil || o.Code != machine.Committed {
		t.Fatal(o.Code, err)
	}
}

// standing returns a node's position and digest as of every acknowledged write.
func standing(t *testing.T, n *node) string {
	t.Helper()
	var s string
	must.Do(t, n.View(t.Context(), func(v machine.View) error {
		s = fmt.Sprint(v.LedgerID(), v.Index(), v.Digest())
		return nil
	}))
	return s
}

// A node joins a ledger that has been in use, a node that asks a follower is redirected to the leader, and each has
// what the first node has. An interrupted join continues with the same id.
func TestJoin(t *testing.T) {
	t.Parallel()
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t))
	for sequence := uint64(1); sequence <= 200; sequence++ {
		write(t, first, sequence)
	}
	ask := first.address
	for id := 2; id <= 3; id++ {
		listener, dir := listen(t), filepath.Join(t.TempDir(), fmt.Sprint(id))
		own := listener.Addr().String()
		// Interrupted: the node has asked to join, but has received no state.
		ctx, cancel := context.WithCancel(t.Context())
		cut := options(dir, own, ask)
		cut.RoundTripper = roundTrip(func(q *http.Request) (*http.Response, error) {
			if q.URL.Path == Path {
				cancel()
				return nil, errors.New("cut")
			}
			return transport.NewRoundTripper(nil).RoundTrip(q)
		})
		must.Is(t, Join(ctx, cut), context.Canceled)
		if _, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: quiet}); err == nil ||
			!strings.Contains(err.Error(), "--join") {
			t.Fatalf("the directory of a node that has not joined was opened: %v", err)
		}
		must.Do(t, Join(t.Context(), options(dir, own, ask)))
		check.Is(t, Join(t.Context(), options(dir, own, ask)), ErrJoined, "joined again")
		n := serve(t, dir, listener)
		if got := n.Cluster().Status(); got.Self != uint64(id) || len(got.Members) != id {
			t.Fatalf("node %d sees %+v", id, got)
		}
		write(t, first, uint64(199+id))
		// A membership change takes an index of its own, and may happen between the two reads.
		for want, again := "", "-"; want != again; {
			want = standing(t, first)
			got := standing(t, n)
			if again = standing(t, first); again == want && got != want {
				t.Errorf("node %d is at %s, and the first one at %s", id, got, want)
			}
		}
		ask = own
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// An attempt that can never succeed fails at once.
func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t))
	dir := filepath.Join(t.TempDir(), "2")
	err := Join(t.Context(), options(dir, "db.example:7451", first.address))
	if err == nil || !strings.Contains(err.Error(), "peer: ") || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("an address that is not loopback, without TLS: %v", err)
	}
	awaitAddress(t, first)
	err = Join(t.Context(), options(dir, first.address, first.address))
	if err == nil || !strings.Contains(err.Error(), "is the address of node 1 already") {
		t.Errorf("the address of another node: %v", err)
	}
}

// TestAddressOfAnotherCluster: one address of several may have become that of a cluster with another token. Only if all
// refuse the token, it is wrong.
func TestAddressOfAnotherCluster(t *testing.T) {
	t.Parallel()
	other := serve(t, filepath.Join(t.TempDir(), "other"), listen(t),
		func(o *ledger.Options) { o.Cluster.Token = "the secret of others" })
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t))
	dir, own := filepath.Join(t.TempDir(), "2"), listen(t)
	must.Is(t, Join(t.Context(), options(dir, own.Addr().String(), other.address)), cluster.ErrToken)
	must.Do(t, Join(t.Context(), options(dir, own.Addr().String(), other.address, first.address)))
	write(t, first, 1)
	must.Do(t, Again(t.Context(), options(dir, own.Addr().String(), other.address), first.Cluster().Status().Applied))
}

func awaitAddress(t *testing.T, n *node) {
	t.Helper()
	for {
		if members := n.Cluster().Status().Members; len(members) > 0 && members[0].Peer == n.address {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the node never knew its own address")
		}
	}
}
