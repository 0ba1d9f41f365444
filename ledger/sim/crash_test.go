package sim

import (
	"encoding/binary"

	"github.com/seqledger/seqledger/ledger/machine"
)

// A life of the node: what it finds on the disk, in the steps that ledger/DESIGN.md describes, and how it ends.

// birth opens the directory of a node that is not running.
func (n *node) birth() {
	n.life++
	n.step(n.w.upTo(200*millisecond), func() {
		if n.log.open(n.w.bugs.believeTorn) {
			n.w.counted["torn tails cut"]++
		}
		n.step(n.w.upTo(n.w.plan.syncTime), func() {
			// What was read may be only in the cache, so it is written and synced again before anything relies on it.
			if !n.w.bugs.noResync {
				n.log.rewrite()
			}
			n.step(n.quick(), n.load)
		})
	})
}

// load reads the checkpoint and replays the log after it.
func (n *node) load() {
	err := n.state.view(func(r machine.Reader) (err error) {
		n.m, err = machine.Open(r)
		return err
	})
	n.w.must(err, "opening the state")
	covered := n.state.checkpoint().Index
	if len(n.log.records) > 0 && n.log.records[0].index > covered+1 || n.log.last() < covered {
		n.w.fail(nil, "invariant 2: the log has entries %d to %d and the checkpoint stands at %d: entries are lost",
			n.log.last()+1-uint64(len(n.log.records)), n.log.last(), covered)
	}
	n.w.oracle.found(n.log.records, covered)
	n.mustHideBlocks()
	n.mustHaveHistory()
	if n.log.last() == 0 {
		n.create()
		return
	}
	n.replay()
}

// replay applies what the checkpoint lacks, some entries per step.
func (n *node) replay() {
	applied := n.state.applied().Index
	for range 20 {
		if n.log.last() == applied {
			n.w.must(n.state.endReplay(), "looking for blocks that the log has not made")
			n.step(n.quick(), func() { n.begin(); n.propose() })
			return
		}
		first := n.log.records[0].index
		n.applyRecord(n.log.records[applied+1-first])
		applied++
	}
	n.step(n.w.upTo(millisecond), n.replay)
}

// mustHideBlocks checks that blocks after the checkpoint are hidden.
func (n *node) mustHideBlocks() {
	err := n.state.view(func(r machine.Reader) error {
		index := n.m.View(r).Index()
		return r.Ascend(machine.TableBlocks, binary.BigEndian.AppendUint64(nil, index+1), func(key, _ []byte) bool {
			n.w.fail(nil, "the checkpoint stands at ledger index %d, and a block with key %x is believed", index, key)
			return false
		})
	})
	n.w.must(err, "looking for blocks behind the checkpoint")
}

// mustHaveHistory reads on both sides of the checkpoint's horizon. A replay reads from the horizon on, and files before
// it may be gone.
func (n *node) mustHaveHistory() {
	began := n.state.began()
	if began > 0 {
		n.w.counted["starts with files removed"]++
	}
	err := n.state.view(func(r machine.Reader) error {
		v := n.m.View(r)
		if horizon := v.Horizon().Index(); began >= max(horizon, 1) {
			n.w.fail(nil, "the block files begin behind ledger index %d, and the horizon of the checkpoint is %d",
				began, horizon)
		}
		n.w.auditAround(v, v.Horizon().Index(), v.Index())
		return nil
	})
	n.w.must(err, "looking around the horizon")
}

// create proposes the first command of a ledger.
func (n *node) create() {
	config := n.w.plan.config
	c := &command{create: &config, encoded: machine.AppendCreate(nil, ledgerID, 77, config)}
	n.begin()
	n.queue.add([]waiting{{c, func(answer) {}}})
	n.propose()
}

// die ends the process or the power, at any step.
func (n *node) die() { n.stop(n.w.chance(2)) }

// stop ends a life. Waiting clients get no answer, or learn that the outcome is unknown. With power, the system's cache
// is lost, too.
func (n *node) stop(power bool) {
	n.w.faults++
	n.w.mark(2)
	tell := !power && n.w.chance(2)
	for _, f := range n.flights {
		for _, p := range f.parts {
			if tell {
				p.reply(answer{kind: unknown})
			}
		}
	}
	if n.w.archive != nil {
		n.w.archive.revive()
		if power && n.w.chance(2) { // the archive's disk is in the same machine
			n.w.archive.own.Crash(n.w.rng.IntN)
		}
	}
	if power {
		n.w.counted["power losses"]++
		n.log.powerLoss(n.w)
	} else {
		n.w.counted["kills"]++
		n.log.kill(n.w)
	}
	n.w.must(n.state.crash(n.w, power), "opening the checkpoint")
	next := newNode(n.w, n.state)
	next.life, next.log = n.life, n.log
	*n = *next
	n.birth()
	if !n.w.calm && n.w.chance(4) { // one failure is often followed by another
		n.step(n.w.upTo(second), func() { n.stop(true) })
	}
}

func newNode(w *world, state stateDisk) *node {
	return &node{w: w, state: state, receipts: newReceipts(w.plan.cache), tamper: tamper{w: w}, queue: newQueue(w)}
}

const ledgerID machine.LedgerID = 0xfeedfacecafe
