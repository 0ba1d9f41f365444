package sim

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// The consensus draws its election timeouts from crypto/rand.Reader. While a cluster is simulated, they come from its
// seed instead. Only one cluster is simulated at a time.
type router struct {
	mu      sync.Mutex
	current atomic.Pointer[rand.ChaCha8]
	real    io.Reader
}

var random = &router{real: crand.Reader}

// Read implements io.Reader.
func (r *router) Read(b []byte) (int, error) {
	if source := r.current.Load(); source != nil {
		return source.Read(b)
	}
	return r.real.Read(b)
}

func TestMain(m *testing.M) {
	crand.Reader = random
	os.Exit(m.Run())
}

// newClusterPlan draws the plan of an episode of a cluster.
func newClusterPlan(seed uint64) (plan, clusterPlan) {
	p := newPlan(seed)
	p.commands = 1_000 + p.commands/8
	p.real, p.epochs, p.crash = false, false, 0
	p.replays = true
	p.latency = min(p.latency, 20*millisecond)
	// From a source of their own, so that the rest of the plan is what it was before they were there.
	badStates := pick(&world{rng: rand.New(rand.NewPCG(seed, 6))}, false, false, true)
	late := &world{rng: rand.New(rand.NewPCG(seed, 7))}
	w := &world{rng: rand.New(rand.NewPCG(seed, 3))}
	c := clusterPlan{
		wrongClocks: pick(late, false, true), hangs: pick(late, false, false, true),
		nodes: pick(w, 3, 3, 4, 5), crash: pick(w, 0, 2_000, 10_000), keepLog: pick(w, 20, 100, 500),
		rivals: pick(w, 500*millisecond, 5*second), partition: pick(w, 300*millisecond, second, 4*second),
		change: pick(w, second, 5*second), duel: pick(w, 0, 0, 2*second),
		drill: pick(w, 0, 0, 2*second), applyBytes: pick(w, 0, 0, uint64(500)),
		badDisks: pick(w, false, false, true), badStates: badStates, kill: 2 * second, transfer: 3 * second,
	}
	if pick(late, false, false, false, true) {
		// What damages or hangs one node stops a cluster that has no other.
		c.nodes, c.badDisks, c.badStates, c.hangs = 1, false, false, false
	}
	return p, c
}

// runCluster simulates one episode of a cluster.
func runCluster(seed uint64, limit int, b bugs, mutant string) result {
	e := clusterEpisode{seed: seed, limit: limit, bugs: b, mutant: mutant}
	return e.run()
}

// clusterEpisode is one episode of a cluster.
type clusterEpisode struct {
	seed    uint64
	limit   int // of commands
	bugs    bugs
	mutant  string
	without []string // parts that are left out
}

func (e *clusterEpisode) run() (res result) {
	seed, b, mutant := e.seed, e.bugs, e.mutant
	random.mu.Lock()
	defer random.mu.Unlock()
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	source := rand.NewChaCha8(key)
	random.current.Store(source)
	defer random.current.Store(nil)

	p, cp := newClusterPlan(seed)
	p.commands = min(p.commands, e.limit)
	leaveOut(e.without, &p, &cp)
	if mutant != "" && mutant != failedWriteIgnored {
		cp.badDisks = false // bad disks end nodes before the damage of the other controls shows
	}
	if mutant != "" && !b.ofKeys() {
		p.owners, p.jobbers = 0, 0
	}
	if mutant != "" {
		cp.badStates = mutant == rotBelieved || mutant == fullIgnored
	}
	if mutant != "" {
		cp.wrongClocks, cp.hangs = mutant == ownClockBelieved, mutant == hangUnnoticed
	}
	if cp.wrongClocks {
		p.wallJump = 0 // a majority stays right
	}
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 4)), plan: p, bugs: b, wallOff: epochStart,
		counted: map[string]int{}}
	w.oracle = newOracle(w)
	w.cluster = &cluster{
		w: w, episode: e, plan: cp, mutant: mutant, source: source,
		own: &world{rng: rand.New(rand.NewPCG(seed, 8))},
		cut: map[[2]uint64]bool{}, wallOff: map[uint64]int64{},
		proposals: map[uint64][]waiting{}, leaders: map[uint64]uint64{}, written: map[segment.Position]segment.Entry{},
		votes: map[[2]uint64]uint64{}, changes: map[uint64][]byte{},
	}
	w.cluster.drill = &drill{c: w.cluster}
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			res.err = w.explain(v)
		default: // a control may drive the machine or the model into a state that is otherwise impossible
			res.err = w.explain(violation{what: fmt.Sprintf("panic: %v\n%s", v, debug.Stack())})
		}
		res.seed, res.commands, res.trace, res.faults, res.counted = seed, w.oracle.decisions, w.trace, w.faults,
			w.counted
		for k, n := range w.oracle.model.Fired {
			res.counted[k] += n
		}
	}()
	w.cluster.build()
	w.cluster.live()
	w.cluster.settleDown()
	w.cluster.audit()
	return res
}

func (c *cluster) build() {
	w := c.w
	var members core.Members
	for id := uint64(1); id <= uint64(c.plan.nodes); id++ {
		members.Voters, members.Highest = append(members.Voters, id), id
	}
	for id := range uint64(16) {
		c.wallOff[id] = epochStart + w.upTo(second)
	}
	for _, id := range members.Voters {
		c.add(id, members)
	}
	w.people()
	for _, a := range w.actors {
		a.start()
	}
	c.again(c.plan.partition, c.partition)
	c.again(c.plan.change, c.change)
	c.again(c.plan.kill, func() { c.any().crash() })
	c.again(c.plan.transfer, c.transfer)
	c.again(c.plan.rivals, c.rivals)
	c.again(c.plan.duel, c.duel)
	if c.plan.badDisks {
		c.again(second, func() { c.any().fillDisk() })
		c.again(500*millisecond, c.rotRead)
	}
	if c.plan.badStates {
		c.again(second, func() { c.any().fillState() })
		c.again(second, c.rotState)
		c.again(5*second, func() { c.any().scrub() })
		c.tendBroken()
	}
	c.again(c.plan.drill, func() {
		if c.broken() == 0 && len(c.nodes) > 2 { // a drill needs every node that it has chosen
			c.drill.run()
		}
	})
	c.again(40*millisecond, func() { c.any().readStream(name{Scope: scopes[0], ID: "writer-0"}, func(streamRead) {}) })
	if w.plan.owners+w.plan.jobbers > 0 {
		c.again(40*millisecond, c.readKey)
	}
	if w.plan.wallJump > 0 {
		c.again(2*second, func() {
			n, jump := c.any(), w.upTo(2*w.plan.wallJump)-w.plan.wallJump
			if c.time != 0 { // a new ledger begins once a majority of the clocks agrees
				c.met("clocks jumped")
				c.wallOff[n.id] += jump
			}
		})
	}
}

// live runs until enough commands are applied.
func (c *cluster) live() {
	const patience = 3_600 * second
	for c.w.oracle.decisions < c.w.plan.commands {
		if c.w.now > patience {
			c.w.fail(nil, "only %d commands in an hour: %s", c.w.oracle.decisions, c.describe())
		}
		c.w.next()
	}
}

// settleDown ends the faults and lets all open work finish.
func (c *cluster) settleDown() {
	c.w.calm = true
	for _, n := range c.nodes {
		n.disk.SetFree(-1)
		n.state.setFull(false)
		n.scrub()
	}
	clear(c.cut)
	c.rest(300 * second)
	end := c.w.now + 25*second // messages stuck in the network arrive by then
	for c.w.now < end {
		c.w.next()
	}
	c.rest(60 * second)
	if lag := epochStart + c.w.now - c.leader().stamp(); c.plan.wrongClocks && lag > rightClocks {
		c.w.fail(nil, "time: at rest it lags by %d s", lag/second)
	}
}

// rest waits until no work is open.
func (c *cluster) rest(patience int64) {
	for end := c.w.now + patience; !c.atRest() || len(c.w.stillOpen()) > 0; c.w.next() {
		if c.w.now > end {
			c.w.fail(nil, "not at rest: %s; %s", strings.Join(c.w.stillOpen(), "; "), c.describe())
		}
	}
}

// audit checks what an episode leaves behind after a power loss of every node.
func (c *cluster) audit() {
	for _, n := range c.nodes {
		n.crash()
	}
	c.rest(60 * second)
	c.w.auditApps()
	members := c.leader().core.Members()
	for _, n := range c.nodes {
		if members.Has(n.id) {
			c.w.auditState(n.m, n.state)
			c.w.plan.replays = false // one replay is enough, because the states are equal
		}
	}
	c.w.mark(c.w.oracle.model.Index)
}

// clusterMustMeet lists the events that a useful simulation of clusters produces. Late snapshots, and snapshots that
// replace a tail of entries, are too rare to be listed: 100 clusters had 4 of the former and none of the latter.
var clusterMustMeet = []string{
	"elections", "rival elections", "duels", "drills", "leaders died", "kills", "power losses",
	"full state files met", "snapshots met a full disk", "rotten states met", "broken nodes removed",
	"nodes added behind a broken one",
	"slow syncs", "failed syncs", "full disks met", "damaged reads met", "damaged logs refused",
	"nodes alone", "nodes alone with the library", "slow applies", "crashes behind a vote",
	"messages lost", "messages doubled", "messages delayed",
	"ways cut in one direction", "ways cut in both directions", "nodes cut off", "changes of members proposed",
	"joint changes proposed", "transfers", "checkpoints", "truncations", "snapshots sent", "snapshots too old",
	"snapshots installed",
	"clocks wrong at an election", "clocks that did not agree", "hung appliers",
	"crashes between state and log of a snapshot", "log behind an installed state", "clocks jumped",
	"proposals lost", "proposals refused", "requests forwarded", "reads by followers", "results read",
	"drills that add voters", "drills that replace voters", "drills that remove voters", "drills that replace entries",
	"drills with a snapshot behind a change", "drills with a slow applier", "crashes behind an acknowledgement",
	"torn writes that replace entries",
}

// keysMustMeet lists what keys must meet, in clusters and on one node.
var keysMustMeet = []string{
	"keys: taken over", "keys: completion behind a takeover", "keys: completed behind the lease",
	"keys: own token behind a lost answer", "keys: leader changed between Reserve and Complete",
	"keys: owner stopped by a heartbeat", "keys: unknown outcome resolved", "keys: reserved behind an expiry",
	"keys: expired, not forgotten",
	"keys: keyed writes repeated", "keys: written behind an expiry", "lease over, outcome unknown", "key removed",
}

// One seed determines one run of a cluster, to the last step.
func TestOneSeedIsOneCluster(t *testing.T) {
	t.Parallel()
	const commands = 300
	a, b := runCluster(45, commands, bugs{}, ""), runCluster(45, commands, bugs{}, "") // this seed includes a drill
	if a.err != nil || a.trace != b.trace || !maps.Equal(a.counted, b.counted) {
		t.Fatalf("%v: trace %x, then %x", a.err, a.trace, b.trace)
	}
	if a.counted["answers about keys"] == 0 {
		t.Error("this seed has no keys: take another one")
	}
	if c := runCluster(12, commands, bugs{}, ""); c.err != nil || c.trace == a.trace {
		t.Fatalf("%v: another seed gives the same trace %x", c.err, c.trace)
	}
}
