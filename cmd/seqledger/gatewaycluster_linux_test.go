package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestGatewayFailover kills, with SIGKILL, the leader of the three-node ledger behind two gateways while a request is
// in flight. The request is executed once. Its client gets the response, and so does every retry.
func TestGatewayFailover(t *testing.T) {
	t.Parallel()
	kills := 2
	if testing.Short() {
		kills = 1
	}
	c := serveCluster(t, 3)
	conn := c.client(t)
	var addresses []string
	for _, n := range c.nodes {
		addresses = append(addresses, n.address)
	}
	u := newUpstream(t)
	flags := []string{"--ledger", strings.Join(addresses, ","), "--lease", "10s"}
	gateways := []*testGateway{startGateway(t, t.TempDir(), u.URL, flags...),
		startGateway(t, t.TempDir(), u.URL, flags...)}
	var last uint64
	for i := range kills {
		key, want := fmt.Sprintf(`"k%d"`, i), fmt.Sprint("charge ", i+1)
		first := gateways[0].send(key)
		fence := <-u.fences
		if fence <= last {
			t.Errorf("fence %d after %d", fence, last)
		}
		repeat := gateways[1].send(key)
		leader := c.leader(t, conn)
		leader.kill()
		u.finish <- struct{}{}
		if a := <-first; a.status != http.StatusCreated || a.replayed || a.text != want {
			t.Errorf("kill %d: the first request: %+v", i, a)
		}
		if a := <-repeat; a.status == http.StatusCreated && (a.text != want || !a.replayed) {
			t.Errorf("kill %d: the repeat: %+v", i, a)
		}
		for _, g := range gateways {
			if a := g.until(t, key, want); !a.replayed {
				t.Errorf("kill %d: a later repeat: %+v", i, a)
			}
		}
		c.restart(t, conn, leader)
		last = fence
	}
	for i := range kills {
		key, want := fmt.Sprintf(`"k%d"`, i), fmt.Sprint("charge ", i+1)
		if a := gateways[i%2].until(t, key, want); !a.replayed {
			t.Errorf("in the end: %+v", a)
		}
	}
	if n := u.executed.Load(); int(n) != kills {
		t.Errorf("%d requests were executed %d times", kills, n)
	}
	c.alike(t)
}
