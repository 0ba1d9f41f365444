package core_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

const second = 1000 * millisecond

// again repeats do at random intervals for as long as there are faults.
func (w *world) again(most int64, do func()) {
	w.after(w.upTo(most), nil, func() {
		if w.faults {
			do()
			w.again(most, do)
		}
	})
}

// partition cuts some links and restores those that were cut before.
func (w *world) partition() {
	if w.drill.On() {
		return
	}
	clear(w.cut)
	a, b := w.nodes[w.rng.IntN(len(w.nodes))].id, w.nodes[w.rng.IntN(len(w.nodes))].id
	switch w.rng.IntN(6) {
	case 0:
		w.met["cut one way"]++
		w.cut[[2]uint64{a, b}] = true
	case 1:
		w.cut[[2]uint64{a, b}], w.cut[[2]uint64{b, a}] = true, true
		w.met["cut both ways"]++
	case 2:
		for _, n := range w.nodes {
			w.cut[[2]uint64{a, n.id}] = true
			if w.chance(2) {
				w.cut[[2]uint64{n.id, a}] = true
			}
		}
		w.met["cut off"]++
	}
}

// duel ends the leader and lets two other nodes campaign at the same moment. A node that votes for the first candidate
// dies, and is back before the second one asks it.
func (w *world) duel() {
	leader := w.leader()
	if leader == nil || w.drill.On() {
		return
	}
	clear(w.cut)
	voters := leader.core.Members().Voters
	leader.crashFor(w.upTo(400 * millisecond))
	const silence = 10 * (tick + tick/10) // every node considers the leader dead by then
	w.after(silence, nil, func() {
		var candidates []*node
		for _, n := range w.nodes {
			if n.up && !n.leads && slices.Contains(voters, n.id) {
				candidates = append(candidates, n)
			}
		}
		if len(candidates) < 2 || !w.faults {
			return
		}
		w.met["duel"]++
		w.duelUntil, w.slower = w.now+20*millisecond, candidates[0].id
		for _, n := range candidates[:2] {
			n.must(n.core.Campaign())
			n.effects()
		}
	})
}

// duelDelay returns the additional delay of a message during a duel. The second vote request arrives after the voter's
// restart, and before the first candidate has announced itself as leader.
func (w *world) duelDelay(m *pb.Message) int64 {
	switch m.GetType() {
	case pb.MsgVote:
		if m.GetFrom() == w.slower {
			return 2*millisecond + w.upTo(5*millisecond)
		}
	case pb.MsgApp, pb.MsgHeartbeat:
		return 10 * millisecond
	}
	return 0
}

// change proposes a membership change, and starts the node that joins.
func (w *world) change() {
	n := w.leader()
	if n == nil || w.drill.On() {
		return
	}
	w.next++
	m := n.core.Members()
	change := new(pb.ConfChangeV2)
	add := func(kind pb.ConfChangeType, id uint64) {
		change.Changes = append(change.Changes, &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: &id})
	}
	switch {
	case len(m.Learners) > 0: // promoted, and another node removed in the same step
		add(pb.ConfChangeAddNode, m.Learners[0])
		if len(m.Voters) > 2 && w.chance(2) {
			add(pb.ConfChangeRemoveNode, m.Voters[w.rng.IntN(len(m.Voters))])
			w.met["joint change proposed"]++
		}
	case len(m.Voters) > 3 && w.chance(2):
		add(pb.ConfChangeRemoveNode, m.Voters[w.rng.IntN(len(m.Voters))])
	case len(w.nodes) < maxNodes:
		id := m.Highest + 1
		add(pb.ConfChangeAddLearnerNode, id)
		if w.node(id) == nil {
			w.add(id, state{})
		}
	default:
		return
	}
	_ = n.core.Change(w.next, change) // a refusal is a valid outcome
	n.effects()
}

// simulate runs a cluster under faults until the given number of proposals is answered, then lets it come to rest.
func simulate(seed uint64, answers int, mutant string) *world {
	w := newWorld(seed, 3, mutant)
	w.faults = true
	w.again([]int64{2, 5, 10}[w.rng.IntN(3)]*millisecond, w.propose)
	w.again(5*millisecond, w.read)
	w.again(600*millisecond, w.partition)
	w.again(700*millisecond, w.change)
	w.again(1500*millisecond, func() {
		if n := w.nodes[w.rng.IntN(len(w.nodes))]; n.up {
			n.crash()
		}
	})
	w.again(2*second, w.duel)
	w.again(2*second, w.drill.Run)
	w.again(2*second, func() {
		if n := w.leader(); n != nil {
			w.met["transfer"]++
			n.must(n.core.Transfer(w.nodes[w.rng.IntN(len(w.nodes))].id))
			n.effects()
		}
	})
	if !w.run(600*second, func() bool { return w.answers >= answers }) {
		w.failf("%d of %d proposals were answered in %d s", w.answers, answers, w.now/second)
	}
	w.faults = false
	clear(w.cut)
	if !w.run(30*second, w.atRest) {
		w.failf("the cluster did not come to rest: %s", w.describe())
	}
	return w
}

// atRest reports whether the members have applied everything.
func (w *world) atRest() bool {
	n := w.leader()
	if n == nil || n.core.Applied().Index < w.last {
		return false
	}
	m := n.core.Members()
	for _, other := range w.nodes {
		if m.Has(other.id) && (!other.up || other.core.Applied() != n.core.Applied()) {
			return false
		}
	}
	return true
}

func (w *world) describe() (s string) {
	for _, n := range w.nodes {
		s += fmt.Sprintf("node %d up %t leads %t applied %v of %d with %+v; ",
			n.id, n.up, n.leads, n.state.Position, w.last, n.state.members)
	}
	return s
}

// seeds runs simulations with new seeds, or with CORE_SEED alone, and counts the situations that occurred.
func seeds(t *testing.T, count, answers int, mutant string) (map[string]int, error) {
	t.Helper()
	met := map[string]int{}
	from := uint64(1) // so that each mutant is always found by the same seed
	if mutant == "" {
		from = rand.Uint64() >> 16
		if s, err := strconv.ParseUint(os.Getenv("CORE_SEED"), 10, 64); err == nil {
			from, count = s, 1
		}
	}
	for seed := from; seed < from+uint64(count); seed++ {
		w := simulate(seed, answers, mutant)
		for what, n := range w.met {
			met[what] += n
		}
		if w.wrong != nil {
			return met, fmt.Errorf("seed %d: %w; to repeat: CORE_SEED=%d go test -run %s ./ledger/raftlog/core",
				seed, w.wrong, seed, t.Name())
		}
	}
	return met, nil
}

// TestCluster simulates clusters under faults, and logs which faults occurred.
func TestCluster(t *testing.T) {
	t.Parallel()
	all := map[string]int{}
	wanted := []string{
		"election", "kill", "power loss", "power loss during a write", "slow sync", "failed sync",
		"message lost", "message doubled", "message delayed", "cut one way", "cut both ways", "cut off",
		"truncation", "snapshot sent", "snapshot installed", "log behind an installed state",
		"change of members", "joint change proposed", "slow apply", "crash behind a vote", "duel", "transfer",
		"read answered", "read answered by a follower", "proposal lost",
		"drills that add voters", "drills that replace voters", "drills that remove voters",
		"drills that replace entries",
		"drills with a snapshot behind a change", "drills with a slow applier", "crashes behind an acknowledgement",
		"leaders that died before they applied a change", "torn writes that replace entries",
	}
	missing := func() string {
		for _, what := range wanted {
			if all[what] == 0 {
				return what
			}
		}
		return ""
	}
	for round := 0; ; round++ {
		met := must.Get(seeds(t, 4, 2000, ""))(t)
		for what, n := range met {
			all[what] += n
		}
		if missing() == "" || testing.Short() || os.Getenv("CORE_SEED") != "" {
			break
		}
		if round == 20 {
			t.Fatalf("never met: %s", missing())
		}
	}
	t.Log(all)
}

// TestSameSeedSameTrace runs one seed twice and compares the traces.
func TestSameSeedSameTrace(t *testing.T) {
	t.Parallel()
	a, b := simulate(11, 1500, ""), simulate(11, 1500, "")
	if a.wrong != nil || a.trace != b.trace || a.now != b.now {
		t.Fatalf("%v: trace %x at %d, and %x at %d", a.wrong, a.trace, a.now, b.trace, b.now)
	}
	if c := simulate(12, 1500, ""); c.trace == a.trace {
		t.Fatal("another seed gave the same trace")
	}
}

// TestMutantsAreFound breaks a rule of the host and expects one of the first seeds to detect it. Most mutants are
// detected at once; the rarest one, a commit index that is not stored after a change, is detected by one seed in
// fifteen.
func TestMutantsAreFound(t *testing.T) {
	t.Parallel()
	const within = 100
	for mutant, soon := range map[string]bool{
		"acknowledge before the sync":             true,
		"vote not stored":                         false,
		"log emptied before the state is durable": true,
		"a leader reads without a majority":       true,
		"commit not stored behind a change":       false,
		"commit stored before its entries":        false,
	} {
		t.Run(mutant, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && !soon {
				t.Skip("takes seconds")
			}
			_, err := seeds(t, within, 2000, mutant)
			if err == nil {
				t.Fatalf("none of the first %d seeds found it", within)
			}
			t.Log(err)
		})
	}
}
