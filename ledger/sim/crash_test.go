package sim

import (
	"encoding/binary"
	"errors"
	"log/slog"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// A life of the node: what it finds on the disk, in the steps that ledger/DESIGN.md describes, and how it ends.

var errInjected = errors.New("input/output error")

// alone is the members of a ledger without other nodes.
var alone = core.Members{Voters: []uint64{1}, Highest: 1}

// warnings counts the lines that the log writes when it has cut the remains of an interrupted write.
type warnings struct{ w *world }

func (c warnings) Write(line []byte) (int, error) {
	c.w.counted["torn tails cut"]++
	return len(line), nil
}

func (n *node) options() segment.Options {
	return segment.Options{
		Disk: n.disk, Identity: []byte("ledger"), SegmentBytes: 16 << 10, Random: seeded{n.w},
		Logger: slog.New(slog.NewTextHandler(warnings{n.w}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// birth opens the directory of a node that is not running.
func (n *node) birth() {
	n.life++
	n.step(n.w.upTo(200*millisecond), func() {
		if !n.w.calm && n.w.plan.crash > 0 && n.w.chance(20) {
			n.disk.FailAt(1+n.w.rng.IntN(5), errInjected)
		}
		var err error
		if n.log, err = segment.Open(n.options()); errors.Is(err, errInjected) {
			n.w.counted["starts that failed"]++
			n.stop(n.w.chance(2))
			return
		}
		n.w.must(err, "opening the log")
		n.disk.FailAt(0, nil)
		n.step(n.quick(), n.load)
	})
}

// load reads the checkpoint, and has the log after it applied again.
func (n *node) load() {
	err := n.state.view(func(r machine.Reader) (err error) {
		n.m, err = machine.Open(r)
		return err
	})
	n.w.must(err, "opening the state")
	covered := position(n.state.checkpoint())
	if n.log.Checkpoint().Index > covered.Index || n.log.Last().Index < covered.Index {
		n.w.fail(nil, "invariant 2: the log has entries %d to %d and the checkpoint stands at %d: entries are lost",
			n.log.First(), n.log.Last().Index, covered.Index)
	}
	n.ordinal = n.w.ordinals[covered.Index]
	records := n.records(n.log.First() - 1)
	n.w.oracle.found(records, n.ordinal)
	if len(records) > 0 {
		n.ordinal = max(n.ordinal, records[len(records)-1].index)
	}
	n.mustHideBlocks()
	n.mustHaveHistory()
	n.core, err = core.New(core.Options{
		ID: 1, Applied: covered, Members: alone, Log: n.log, State: n.log.State(), Nonce: n.w.rng.Uint64(), Alone: true,
	})
	n.w.must(err, "starting the consensus")
	n.w.must(n.core.Campaign(), "an election")
	n.effects()
}

// records returns what the log has after an index.
func (n *node) records(after uint64) (records []record) {
	for at := after + 1; at <= n.log.Last().Index; {
		entries, err := n.log.Entries(at, n.log.Last().Index+1, 1<<20)
		n.w.must(err, "reading the log")
		for _, e := range entries {
			if r, ok := recordIn(e.Term, e.Data); ok {
				records = append(records, r)
			}
		}
		at += uint64(len(entries))
	}
	return records
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
	n.queue.add([]waiting{{c, func(answer) {}}})
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
		n.disk.PowerLoss(n.w.rng)
	} else {
		n.w.counted["kills"]++
		n.disk.Kill()
	}
	n.w.must(n.state.crash(n.w, power), "opening the checkpoint")
	next := newNode(n.w, n.state)
	next.life, next.disk = n.life, n.disk
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
