package ledger_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
)

// clusterReserve is a Reserve of a key. Each attempt is another caller.
func clusterReserve(key string, attempt byte) *machine.KeyedCommand {
	return &machine.KeyedCommand{
		ID: machine.KeyedID{Scope: scope, Principal: "user:1", Key: sha256.Sum256([]byte(key))}, Actor: "client:test",
		MaxKeys: 1_000,
		Command: keyed.Command{
			Kind: keyed.Reserve, AttemptID: keyed.AttemptID{attempt, 1},
			ValidUntil: time.Now().Add(time.Minute).UnixNano(), Lease: int64(time.Minute), TTL: int64(time.Hour),
		},
	}
}

// ownerOf is a command of the owner of a reservation.
func ownerOf(c *machine.KeyedCommand, kind keyed.Kind, token uint64, response string) *machine.KeyedCommand {
	owned := *c
	owned.Command = keyed.Command{Kind: kind, AttemptID: c.AttemptID, Token: token, Lease: int64(time.Minute),
		Response: []byte(response)}
	return &owned
}

// keyedOnLeader decides a command on the node that leads, and returns its outcome.
func keyedOnLeader(t *testing.T, nodes []*clusterNode, c *machine.KeyedCommand, want machine.Code) machine.Outcome {
	t.Helper()
	var out machine.Outcome
	err := onLeader(t, nodes, func(leader *clusterNode) (err error) {
		out, err = leader.Keyed(t.Context(), c, 0, nil)
		return err
	})
	if err != nil || out.Code != want {
		t.Fatalf("command %d: %v, %v, want %v", c.Kind, out.Code, err, want)
	}
	return out
}

// handOver lets another node lead; 0 is any.
func handOver(t *testing.T, nodes []*clusterNode, to uint64) (before *clusterNode) {
	t.Helper()
	err := cluster.ErrNoSuccessor
	for errors.Is(err, cluster.ErrNoSuccessor) { // which may not have been heard of for a while on a busy machine
		err = onLeader(t, nodes, func(leader *clusterNode) error {
			before = leader
			return leader.Cluster().TransferLeadership(t.Context(), to)
		})
	}
	must.Do(t, err)
	return before
}

// recordOn returns a record as a node has it, as fresh as every acknowledgement.
func recordOn(t *testing.T, n *clusterNode, id *machine.KeyedID) (k *machine.KeyedRecord) {
	t.Helper()
	must.Do(t, n.View(t.Context(), func(v machine.View) (err error) {
		k, err = v.Keyed(id, n.Now())
		return err
	}))
	return k
}

// A Reserve that waits at a leader does not wait on when the node leads no more: it may be cut off from the
// others, and would not hear of the owner's end. Its caller goes on at the next leader.
func TestALostLeadershipEndsTheWait(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	first := clusterReserve("k", 1)
	first.Lease = int64(time.Hour)
	token := keyedOnLeader(t, nodes, first, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // far less than the wait
	defer cancel()
	leader := awaitLeader(t, nodes...)
	ended := make(chan error, 1)
	go func() { // ends with its answer; received below
		out, err := leader.Keyed(ctx, clusterReserve("k", 2), time.Hour, nil)
		if err == nil {
			t.Errorf("a wait at a node that leads no more ended with %v", out.Code)
		}
		ended <- err
	}()
	for leader.Stats().Keyed.Waited == 0 { // until it waits
		runtime.Gosched()
	}
	handOver(t, nodes, 0)
	if err := <-ended; !isNotLeader(err) {
		t.Error("the waiting Reserve:", err)
	}
	check.Equal(t, leader.Stats().KeyWaiters, 0, "%d calls wait still")
	// A node that does not lead lets no call wait.
	if _, err := leader.Keyed(ctx, clusterReserve("k", 3), time.Hour, nil); !isNotLeader(err) {
		t.Error("a wait at another node:", err)
	}
	keyedOnLeader(t, nodes, ownerOf(first, keyed.Complete, token, "done"), machine.Keyed(keyed.OK))
	keyedOnLeader(t, nodes, clusterReserve("k", 2), machine.Keyed(keyed.Replay))
}

func isNotLeader(err error) bool {
	_, elsewhere := errors.AsType[*cluster.NotLeaderError](err)
	return elsewhere
}

// Records outlive their leader. The owner's token is good at the next one, tokens go on growing there, the
// result is replayed by it, followers read the record, and a node that joins gets it with the state.
func TestRecordsOnACluster(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	const keys = 5
	var last uint64
	commands := map[int]*machine.KeyedCommand{}
	tokens := map[int]uint64{}
	for i := range keys {
		commands[i] = clusterReserve(string(rune('a'+i)), 1)
		out := keyedOnLeader(t, nodes, commands[i], machine.Keyed(keyed.Acquired))
		if tokens[i] = out.Keyed.Record.Token; tokens[i] <= last {
			t.Errorf("token %d after %d", tokens[i], last)
		}
		last = tokens[i]
		if i%2 == 0 {
			handOver(t, nodes, 0)
		}
	}
	// The answer was lost: the next leader gives the same token.
	if out := keyedOnLeader(t, nodes, commands[0], machine.Keyed(keyed.Acquired)); out.Keyed.Record.Token != tokens[0] {
		t.Errorf("a repeat got token %d, and had %d", out.Keyed.Record.Token, tokens[0])
	}
	for i := range keys {
		wrong := ownerOf(commands[i], keyed.Complete, tokens[i]+1, "wrong")
		keyedOnLeader(t, nodes, wrong, machine.Keyed(keyed.LeaseLost))
		keyedOnLeader(t, nodes, ownerOf(commands[i], keyed.Complete, tokens[i], "done"), machine.Keyed(keyed.OK))
	}
	before := handOver(t, nodes, 0)
	for i := range keys {
		replay := *commands[i]
		replay.AttemptID[0] = 9
		out := keyedOnLeader(t, nodes, &replay, machine.Keyed(keyed.Replay))
		if got := string(out.Keyed.Record.Response); got != "done" || out.Keyed.Record.Token != tokens[i] {
			t.Errorf("key %d is replayed as %q under token %d", i, got, out.Keyed.Record.Token)
		}
	}
	must.Do(t, before.Close())
	var left []*clusterNode
	for _, n := range nodes {
		if n != before {
			left = append(left, n)
		}
	}
	checkRecords := func(n *clusterNode) {
		t.Helper()
		for i := range keys {
			if k := recordOn(t, n, &commands[i].ID); k.State != keyed.Committed || k.Token != tokens[i] {
				t.Errorf("node %d has key %d in state %v under token %d",
					n.Cluster().Status().Self, i, k.State, k.Token)
			}
		}
	}
	for _, n := range left { // one of them follows
		checkRecords(n)
	}
	checkRecords(startNode(t, before.dir, before.address))
	out := keyedOnLeader(t, left, clusterReserve("next", 1), machine.Keyed(keyed.Acquired))
	if out.Keyed.Record.Token <= last {
		t.Errorf("token %d after %d", out.Keyed.Record.Token, last)
	}
}

// Behind an outage of all nodes, which is longer than a lease, the owner keeps its key for at least 30 s
// more: it could not reach the ledger, and must not be robbed.
func TestLeasesOutliveAnOutage(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	taken := clusterReserve("k", 1)
	taken.Lease, taken.Policy = int64(time.Second), keyed.TakeOver
	token := keyedOnLeader(t, nodes, taken, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	for _, n := range nodes {
		must.Do(t, n.Close())
	}
	later := func() time.Time { return time.Now().Add(20 * time.Second) }
	for i, n := range nodes {
		nodes[i] = startNodeAt(t, n.dir, n.address, later)
	}
	other := clusterReserve("k", 2)
	out := keyedOnLeader(t, nodes, other, machine.Keyed(keyed.InFlight))
	if left := time.Duration(out.Keyed.RetryAfter); left > 30*time.Second {
		t.Errorf("the lease is good for %v", left)
	}
	keyedOnLeader(t, nodes, ownerOf(taken, keyed.Complete, token, "late"), machine.Keyed(keyed.OK))
	keyedOnLeader(t, nodes, other, machine.Keyed(keyed.Replay))
}

// A Complete whose response is read back after its commit is not told as never proposed, when the leader loses the
// others in between.
func TestCommittedCompleteIsNotToldAsNeverProposed(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	first := clusterReserve("k", 1)
	first.Lease = int64(time.Hour)
	token := keyedOnLeader(t, nodes, first, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	leader := awaitLeader(t, nodes...)
	committed := false
	long := strings.Repeat("x", 4096) // has a row of its own
	out, err := leader.Keyed(t.Context(), ownerOf(first, keyed.Complete, token, long), 0,
		func(ctx context.Context, propose func(context.Context) (machine.Outcome, error)) (machine.Outcome, error) {
			out, err := propose(ctx)
			committed = err == nil && out.Code == machine.Keyed(keyed.OK)
			for _, n := range nodes {
				if n != leader {
					_ = n.Close() // the second cannot hand over
				}
			}
			return out, err
		})
	if committed && (err != nil || out.Code != machine.Keyed(keyed.OK) || string(out.Keyed.Record.Response) != long) {
		t.Errorf("committed, and told %v, %v", out.Code, err)
	}
	if !committed && err == nil {
		t.Errorf("not committed, and told %v", out.Code)
	}
}

// A node that waits for the others at its start counts its keyed records as soon as there is a leader.
func TestKeysAreCountedOnceThereIsALeader(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	keyedOnLeader(t, nodes, clusterReserve("k", 1), machine.Keyed(keyed.Acquired))
	for _, n := range nodes {
		_ = n.Close() // the last cannot hand over
	}
	first := startNodeWith(t, nodes[0].address, ledger.Options{Dir: nodes[0].dir})
	// Longer than the count waits for a leader: both begin with the node.
	if err := first.View(t.Context(), func(machine.View) error { return nil }); !isNotLeader(err) {
		t.Fatal(err)
	}
	second := startNodeWith(t, nodes[1].address, ledger.Options{Dir: nodes[1].dir})
	awaitLeader(t, first, second)
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range []*clusterNode{first, second} {
		for n.Stats().Keyed.Records == nil {
			must.Do(t, limit.Err(), "the records are not counted")
			runtime.Gosched()
		}
	}
}
