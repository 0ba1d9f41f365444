package chaos

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/process"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// testNamespaces returns namespaces, or says why there are none.
func testNamespaces(t *testing.T) *namespaces {
	t.Helper()
	n, why := newNamespaces(t.Context())
	if why != "" {
		t.Skip("there can be no network namespaces: ", why)
	}
	return n
}

// Namespaces are gone with the network, and so is the clients' way to them.
func TestNamespacesAreRemoved(t *testing.T) {
	t.Parallel()
	n, d := testNamespaces(t), &node{number: 1}
	must.Do(t, n.add(t.Context(), d))
	if want := n.prefix + ".1.2:"; !strings.HasPrefix(d.client, want) || !strings.HasPrefix(d.peer, want) {
		t.Errorf("a node is at %q and %q, want %q", d.client, d.peer, want)
	}
	made := []string{n.router, n.of(d)}
	for _, name := range made {
		must.Get(os.Stat(filepath.Join("/run/netns", name)))(t)
	}
	must.Do(t, n.close([]*node{d}))
	for _, name := range made {
		if _, err := os.Stat(filepath.Join("/run/netns", name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	check.ErrorContains(t, n.close(nil), n.router, "what is gone was removed again")
}

// A node that is cut off knows no leader soon, and one that hears nothing does not lead, whichever of the streams to
// the others it has dialled itself; then it finds back. Clients reach it all the time, unless it is unplugged.
func TestPartedNodesLoseTheOthers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it starts three processes, which make test-long does")
	}
	binary := filepath.Join(t.TempDir(), "seqledger")
	must.Do(t, process.Build(t.Context(), binary))
	n := testNamespaces(t)
	c := testParted(t, binary, n)
	for _, d := range c.nodes {
		must.Do(t, n.drop(t.Context(), n.unplugged(d), true))
		if err := answers(t.Context(), d.client); err == nil {
			t.Errorf("node %d is unplugged, and answers", d.number)
		}
		must.Do(t, n.drop(t.Context(), n.unplugged(d), false))
		awaitCluster(t, d, "a leader", func(s *seqledgerv1.Cluster) bool { return s.Leader != 0 })
	}
}

// testParted parts each node of a cluster from the others in each way.
func testParted(t *testing.T, binary string, w *namespaces) *cluster {
	t.Helper()
	c, err := startCluster(t.Context(), binary, t.TempDir(), false, w, 3)
	t.Cleanup(func() {
		check.Is(t, c.close(), nil)
	})
	must.Do(t, err)
	for _, d := range c.nodes {
		for name, part := range map[string]struct {
			routes []route
			done   func(*seqledgerv1.Cluster) bool
		}{
			"cut off": {w.cutOff(d), func(s *seqledgerv1.Cluster) bool { return s.Leader == 0 }},
			"deaf":    {w.deaf(d), func(s *seqledgerv1.Cluster) bool { return s.Leader != s.Self }},
		} {
			awaitCluster(t, d, "a leader", func(s *seqledgerv1.Cluster) bool { return s.Leader != 0 })
			must.Do(t, w.drop(t.Context(), part.routes, true))
			awaitCluster(t, d, "what is so when it is "+name, part.done)
			must.Do(t, w.drop(t.Context(), part.routes, false))
		}
	}
	for _, d := range c.nodes {
		awaitCluster(t, d, "a leader", func(s *seqledgerv1.Cluster) bool { return s.Leader != 0 })
	}
	return c
}

// awaitCluster waits until a node sees the cluster in a state by itself.
func awaitCluster(t *testing.T, d *node, what string, is func(*seqledgerv1.Cluster) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn := must.Get(client.New(client.Options{Server: d.client}))(t)
	defer conn.Close()
	for {
		status, err := conn.Status(ctx)
		if err == nil && is(status.GetNode().GetCluster()) {
			return
		}
		load.Pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			t.Fatalf("node %d never saw %s: %v, %v", d.number, what, status.GetNode().GetCluster(), err)
		}
	}
}

// answers reports whether the ledger at an address is ready.
func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_ = response.Body.Close() // only its status matters
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
