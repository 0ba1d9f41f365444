package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
)

// writeUntil commits writes of a stream on the current leader until a condition holds after one of them.
func writeUntil(t *testing.T, next *uint64, nodes []*clusterNode, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		leader := awaitLeader(t, slices.DeleteFunc(slices.Clone(nodes), func(n *clusterNode) bool {
			return n.Err() != nil
		})...)
		o, err := leader.Write(ctx, appendWrite("c", *next+1, fmt.Append(nil, "write ", *next+1)))
		var elsewhere *cluster.NotLeaderError
		switch {
		case errors.As(err, &elsewhere) || errors.Is(err, ledger.ErrOutcomeUnknown) && ctx.Err() == nil:
			continue
		case err != nil:
			t.Fatal(err)
		case o.Code != machine.Committed && o.Code != machine.Replayed:
			t.Fatalf("%+v", o)
		}
		if *next++; holds() {
			return
		}
	}
}

// TestWhoDiffersFromAMajorityStops: the states of some nodes are altered. These nodes stop and report where and how
// they differ. The others continue, even if the altered node was the leader.
func TestWhoDiffersFromAMajorityStops(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name            string
		size, followers int
		leader          bool
	}{
		{"leader of three", 3, 0, true},
		{"follower of three", 3, 1, false},
		{"leader of five", 5, 0, true},
		{"follower of five", 5, 1, false},
		{"leader and follower of five", 5, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && test.size > 3 && !(test.leader && test.followers > 0) {
				t.Skip("the same with more nodes")
			}
			nodes := startClusterOf(t, test.size)
			var next uint64
			writeUntil(t, &next, nodes, func() bool { return next == 5 })
			leader := awaitLeader(t, nodes...)
			var altered, rest []*clusterNode
			for _, n := range nodes {
				if n == leader && test.leader || n != leader && test.followers > 0 {
					altered = append(altered, n)
					if n != leader {
						test.followers--
					}
					must.Do(t, ledger.Alter(n.Ledger))
				} else {
					rest = append(rest, n)
				}
			}
			writeUntil(t, &next, nodes, func() bool {
				return !slices.ContainsFunc(altered, func(n *clusterNode) bool { return n.Err() == nil })
			})
			for _, n := range altered {
				err := n.Err()
				for _, want := range []string{"ledger index", "digest that begins with", "of the log"} {
					if !errors.Is(err, cluster.ErrDiffers) || !strings.Contains(err.Error(), want) {
						t.Errorf("a node that was altered stops with %v, want %q", err, want)
					}
				}
			}
			last := next + 5
			writeUntil(t, &next, rest, func() bool { return next >= last })
			digests := map[uint64]machine.Hash{} // by index
			for _, n := range rest {
				if err := n.Err(); err != nil {
					t.Errorf("node %d stops, too: %v", n.Cluster().Status().Self, err)
					continue
				}
				must.Do(t, n.View(t.Context(), func(v machine.View) error {
					if before, found := digests[v.Index()]; found && before != v.Digest() {
						t.Errorf("the rest differs at index %d", v.Index())
					}
					digests[v.Index()] = v.Digest()
					return nil
				}))
			}
		})
	}
}

// TestOneOfTwoThatDiffersFromTheLeaderStops: no other node can decide which state is right, and the leader's results
// are the acknowledged ones.
func TestOneOfTwoThatDiffersFromTheLeaderStops(t *testing.T) {
	t.Parallel()
	nodes := startClusterOf(t, 2)
	leader := awaitLeader(t, nodes...)
	mustWrite(t, leader.Ledger, appendWrite("c", 1, []byte("x")), machine.Committed)
	other := nodes[0]
	if other == leader {
		other = nodes[1]
	}
	must.Do(t, ledger.Alter(other.Ledger))
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	var sequence uint64 = 2
	go func() { // ends with the test's context, or when the leader loses its majority
		for ; t.Context().Err() == nil; sequence++ {
			if _, err := leader.Write(t.Context(), appendWrite("c", sequence, []byte("x"))); err != nil {
				return
			}
		}
	}()
	select {
	case <-other.Failed():
	case <-deadline.C:
		t.Fatal("it goes on")
	}
	if err := other.Err(); !errors.Is(err, cluster.ErrDiffers) || leader.Err() != nil {
		t.Errorf("it stops with %v, and the leader with %v", err, leader.Err())
	}
}

// TestAloneItStops: a node without others stops without a comparison.
func TestAloneItStops(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir(), anyAddress)
	awaitAddress(t, n)
	mustWrite(t, n.Ledger, appendWrite("c", 1, []byte("x")), machine.Committed)
	must.Do(t, ledger.Alter(n.Ledger))
	_, err := n.Write(t.Context(), appendWrite("c", 2, []byte("x")))
	if !errors.Is(err, ledger.ErrOutcomeUnknown) || !errors.Is(n.Err(), machine.ErrDiverged) {
		t.Errorf("%v, %v", err, n.Err())
	}
}

// Each node reports for all others whether their states equal its own, and the free space on their disks.
func TestStatusHasDigestsAndDisks(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	var next uint64
	writeUntil(t, &next, nodes, func() bool { return true })
	for _, n := range nodes {
		awaitStatus(t, n, "the digests and disks of all nodes", func(s cluster.Status) bool {
			known := s.Compared.Index > 0
			for _, m := range s.Members {
				known = known && m.State == cluster.Same && m.Disk.Size > 0
			}
			return known
		})
	}
}
