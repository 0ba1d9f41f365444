package sim

import (
	"math/rand/v2"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/drill"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// maxNodes bounds the number of nodes that a cluster with drills ever has.
const maxNodes = 15

// drillWorld adapts a cluster to drill.World.
type drillWorld struct{ *cluster }

func (w drillWorld) Rand() *rand.Rand { return w.w.rng }

func (w drillWorld) After(delay time.Duration, do func()) { w.w.after(delay.Nanoseconds(), do) }

func (w drillWorld) Over() bool      { return w.w.calm }
func (w drillWorld) Met(what string) { w.met(what) }

func (w drillWorld) Leader() uint64 {
	if n := w.leader(); n != nil {
		return n.id
	}
	return 0
}

func (w drillWorld) Node(id uint64) drill.Node {
	if n := w.node(id); n != nil {
		return drillNode{n}
	}
	return nil
}

func (w drillWorld) Join(id uint64) bool {
	if len(w.nodes) >= maxNodes {
		return false
	}
	if w.node(id) == nil {
		w.add(id, core.Members{})
	}
	return true
}

func (w drillWorld) Number() uint64      { return w.number() }
func (w drillWorld) Cut(from, to uint64) { w.cut[[2]uint64{from, to}] = true }
func (w drillWorld) Mend()               { clear(w.cut) }

// drillNode adapts a member to drill.Node.
type drillNode struct{ *member }

func (n drillNode) Core() *core.Node {
	if !n.up {
		return nil
	}
	return n.core
}

func (n drillNode) Event(do func(*core.Node) error) {
	n.must(do(n.core), "a drill")
	n.effects()
}

func (n drillNode) Checkpoint() {
	if n.up {
		n.work(true)
	}
}

func (n drillNode) HoldApplier(d time.Duration) { n.heldUntil = n.w.now + d.Nanoseconds() }
