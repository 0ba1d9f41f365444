package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
)

// knowing returns options of a program that supports a level.
func knowing(dir string, level uint64) ledger.Options {
	o := ledger.Options{Dir: dir}
	ledger.SetLevel(&o, level)
	return o
}

// levelOf returns the level of a node's state, which includes every acknowledged write.
func levelOf(t *testing.T, n *clusterNode) (level uint64) {
	t.Helper()
	if err := n.View(t.Context(), func(v machine.View) error {
		level = v.Level()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return level
}

// TestLevelRisesWithTheLastNode replaces the programs of a cluster with newer ones, one after the other, with one step
// back. The level rises once all nodes support it, including nodes that are down, and no earlier.
func TestLevelRisesWithTheLastNode(t *testing.T) {
	t.Parallel()
	size := 3
	if testing.Short() {
		size = 2
	}
	nodes := startClusterWith(t, size, func(dir string) ledger.Options { return knowing(dir, 2) })
	var next uint64
	replace := func(i int, level uint64) {
		t.Helper()
		closeLedger(t, nodes[i].Ledger)
		nodes[i] = startNodeWith(t, nodes[i].address, knowing(nodes[i].dir, level))
		writeUntil(t, &next, nodes, func() bool { return true })
	}
	// lead makes a node the leader, and returns its error about the level.
	lead := func(n *clusterNode) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for ctx.Err() == nil {
			leader := awaitLeader(t, nodes...)
			if leader == n {
				err := ledger.TendLevel(ctx, n.Ledger)
				if _, elsewhere := errors.AsType[*cluster.NotLeaderError](err); !elsewhere {
					return err
				}
			}
			// It fails if the leadership moves by itself, and is retried.
			_ = leader.Cluster().TransferLeadership(ctx, n.Cluster().Status().Self)
		}
		t.Fatal("the node does not lead")
		return nil
	}
	stays := func(n *clusterNode, why string) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		err := lead(n) // a node that answered too late is asked again
		for ; err == nil || !strings.Contains(err.Error(), why); err = lead(n) {
			if err == nil || time.Now().After(deadline) {
				t.Fatalf("a leader that knows more says %v, want %q", err, why)
			}
		}
		for _, n := range nodes {
			if n.Err() == nil && levelOf(t, n) != 2 {
				t.Fatal("the level was raised")
			}
		}
	}
	replace(1, 3)
	stays(nodes[1], "knows level 2")
	if testing.Short() {
		replace(0, 3)
	} else {
		replace(1, 2) // one step back
		replace(1, 3)
		replace(2, 3)
		stays(nodes[1], "program of node 1 knows level 2")
		closeLedger(t, nodes[0].Ledger)
		away := nodes[0]
		nodes = nodes[1:]
		if err := lead(nodes[0]); err == nil || !strings.Contains(err.Error(), "does not tell") {
			t.Errorf("while a node is away a leader says %v", err)
		}
		nodes = append(nodes, startNodeWith(t, away.address, knowing(away.dir, 3)))
	}
	writeUntil(t, &next, nodes, func() bool { return levelOf(t, nodes[0]) == 3 })
	for _, n := range nodes {
		wantLevel(t, n, 3)
	}
	leader := awaitLeader(t, nodes...)
	if err := ledger.TendLevel(t.Context(), leader.Ledger); err != nil {
		t.Errorf("with nothing to raise: %v", err)
	}
	writeUntil(t, &next, nodes, func() bool { return true })
	admitByLevel(t, nodes)
}

// wantLevel checks the level of a node's state.
func wantLevel(t *testing.T, n *clusterNode, level uint64) {
	t.Helper()
	if got := levelOf(t, n); got != level {
		t.Errorf("node %d is at level %d, want %d", n.Cluster().Status().Self, got, level)
	}
}

// admitByLevel checks that exactly the nodes that can read the log are admitted.
func admitByLevel(t *testing.T, nodes []*clusterNode) {
	t.Helper()
	// Levels of join requests. A program whose requests have no level supports level 3.
	for level, taken := range map[uint64]bool{1: false, 2: false, 0: true, 3: true, 4: true} {
		q := cluster.JoinRequest{Nonce: [16]byte{99}, Peer: "127.0.0.1:9", Level: level}
		err := onLeader(t, nodes, func(leader *clusterNode) error {
			_, err := leader.Cluster().Admit(t.Context(), q)
			return err
		})
		field, wrong := errors.AsType[*machine.FieldError](err)
		if taken != (err == nil) || !taken && (!wrong || field.Field != "level") {
			t.Errorf("a node that knows level %d: %v", level, err)
		}
	}
}

// TestNodesTellTheirLevel: nodes report their level, which programs of later levels ask for.
func TestNodesTellTheirLevel(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), anyAddress)
	client := http.Client{Transport: asNode(t, n)}
	r, err := client.Get("http://" + n.address + "/seqledger.peer.v1/Level")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text := make([]byte, 16)
	length, _ := r.Body.Read(text)
	if got := string(text[:length]); r.StatusCode != http.StatusOK || got != fmt.Sprintln(machine.Level) {
		t.Errorf("it says %q, %s", got, r.Status)
	}
	if got := levelOf(t, n); got != machine.Level {
		t.Errorf("a new ledger has level %d", got)
	}
}
