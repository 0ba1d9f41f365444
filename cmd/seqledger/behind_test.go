package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/seed"
)

// shortLogNode is a node of a cluster in this process, which drops its log soon.
type shortLogNode struct {
	*ledger.Ledger
	dir, address string
}

// startShortLog joins the node of a directory to a cluster, unless it is the first one, and opens it.
func startShortLog(t *testing.T, dir string, join ...string) *shortLogNode {
	t.Helper()
	ip := "127.0.0.1"
	if runtime.GOOS == "linux" {
		ip = "127.0.0.3" // on which no other test takes the port when the node has closed it
	}
	listener := must.Get(net.Listen("tcp", ip+":0"))(t)
	quiet := slog.New(slog.DiscardHandler)
	if len(join) > 0 {
		must.Do(t, seed.Join(t.Context(), seed.Options{
			Dir: dir, Nodes: join, RoundTripper: transport.NewRoundTripper(nil), Peer: listener.Addr().String(),
			Logger: quiet, Token: "a secret of the nodes",
		}))
	}
	l := must.Get(ledger.Open(t.Context(), ledger.Options{
		Dir: dir, CacheBytes: -1, ScrubBytes: -1, Logger: quiet, LogBytes: 64 << 10,
		Cluster: &cluster.Options{Listener: listener, Token: "a secret of the nodes"},
	}))(t)
	mux := http.NewServeMux()
	mux.Handle(cluster.JoinPath, l.Cluster().JoinHandler())
	mux.Handle(seed.Path, seed.Handler(l, -1))
	l.Cluster().ServePeers(mux)
	t.Cleanup(func() { _ = l.Close() }) // a test that closes it looks at the error
	return &shortLogNode{l, dir, listener.Addr().String()}
}

// awaitNodes waits until something holds of a cluster.
func awaitNodes(t *testing.T, what string, holds func() bool) {
	t.Helper()
	must.Await(t, holds, what)
}

// voters returns how many voters a leader among the nodes hears of that have its whole log.
func voters(nodes ...*shortLogNode) (n int) {
	for _, node := range nodes {
		s := node.Cluster().Status()
		if !s.Leader.Self {
			continue
		}
		for _, m := range s.Members {
			if m.Voter && m.Active && m.Matched >= s.Committed {
				n++
			}
		}
	}
	return n
}

// A server whose node is too far behind fetches the state of another one, and goes on as the same node.
func TestServeCatchesUp(t *testing.T) {
	t.Parallel()
	nodes := []*shortLogNode{startShortLog(t, filepath.Join(t.TempDir(), "1"))}
	for id := 2; id <= 3; id++ {
		nodes = append(nodes, startShortLog(t, filepath.Join(t.TempDir(), fmt.Sprint(id)), nodes[0].address))
	}
	awaitNodes(t, "three voters", func() bool { return voters(nodes...) == 3 })
	away, rest := nodes[2], nodes[:2]
	must.Do(t, away.Close())
	sequence := uint64(1)
	awaitNodes(t, "the others have dropped the beginning of their logs", func() bool {
		for _, n := range rest {
			o, err := n.Write(t.Context(), &machine.Write{
				Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "c", Actor: "system:test",
				Sequence: sequence, Operations: []machine.Operation{
					{Kind: machine.OpAppend, Value: bytes.Repeat([]byte{byte(sequence)}, 256<<10)},
				},
			})
			if err == nil && (o.Code == machine.Committed || o.Code == machine.Replayed) {
				sequence++
				break
			}
			var elsewhere *cluster.NotLeaderError
			if err == nil || !errors.As(err, &elsewhere) && !errors.Is(err, ledger.ErrOutcomeUnknown) {
				t.Fatal(o.Code, err)
			}
		}
		for _, n := range rest {
			if _, err := os.Stat(filepath.Join(n.dir, "log", "segments", "0000000000000001.log")); err == nil {
				return false
			}
		}
		return true
	})
	s := serveOn(t, away.dir, "127.0.0.1:0", "--peer-listen", away.address)
	awaitNodes(t, "the third node has everything", func() bool { return voters(rest...) == 3 })
	s.kill() // and it starts as any other node
	if log := s.stderr.String(); strings.Count(log, "the state of another one in place of its own") != 1 {
		t.Errorf("it took another state not once:\n%s", log)
	}
	again := serveOn(t, away.dir, "127.0.0.1:0", "--peer-listen", away.address)
	awaitNodes(t, "the third node is back", func() bool { return voters(rest...) == 3 })
	again.kill()
	if log := again.stderr.String(); strings.Contains(log, "in place of its own") {
		t.Errorf("it took another state once more:\n%s", log)
	}
}
