package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// result is the result of an episode.
type result struct {
	seed     uint64
	commands int
	trace    uint64
	faults   int
	counted  map[string]int
	err      error
}

// run simulates one episode: as many commands as its plan has, or limit if that is less. dir is for episodes that use
// real files.
func run(seed uint64, limit int, b bugs, dir string) (res result) {
	p := newPlan(seed)
	p.commands, p.config.RetainBlocks = min(p.commands, limit), p.retain
	if b != (bugs{}) && !b.ofKeys() {
		p.owners, p.jobbers = 0, 0
	}
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), plan: p, bugs: b, wallOff: epochStart,
		counted: map[string]int{}, ordinals: map[uint64]uint64{}}
	w.oracle = newOracle(w)
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			res.err = w.explain(v)
		default: // a control may drive the machine or the model into a state that is otherwise impossible
			res.err = w.explain(violation{what: fmt.Sprintf("panic: %v\n%s", v, debug.Stack())})
		}
		if w.node != nil {
			if err := errors.Join(w.node.state.close(), os.RemoveAll(w.dir)); err != nil && res.err == nil {
				res.err = err
			}
		}
		res.seed, res.commands, res.trace, res.faults, res.counted = seed, w.oracle.decisions, w.trace, w.faults,
			w.counted
		for k, n := range w.oracle.model.Fired {
			res.counted[k] += n
		}
	}()
	w.build(dir)
	w.live()
	w.settleDown()
	w.audit()
	return res
}

func (w *world) build(dir string) {
	var state stateDisk = newMemoryDisk()
	if w.plan.real {
		w.dir = filepath.Join(dir, fmt.Sprint("seed-", w.seed)) // block files are beside the state file
		w.must(os.Mkdir(w.dir, 0o700), "creating its directory")
		file, err := openFile(filepath.Join(w.dir, "state.db"))
		w.must(err, "creating the state")
		state = file
	} else {
		memory := state.(*memoryDisk)
		memory.torn, memory.noSync = w.bugs.tornCheckpoint, w.bugs.blocksUnsynced
	}
	if w.plan.archive {
		w.archive = newArchiveDisk(w.bugs)
		w.actors = append(w.actors, &mount{w})
	}
	w.node = newNode(w, state)
	w.node.disk = simdisk.New()
	at := segment.Checkpoint{Data: alone.Encode()}
	w.must(segment.Create(w.node.options(), at, segment.State{}), "creating the log")
	w.people()
	w.actors = append(w.actors, &historian{w})
	w.node.birth()
	for _, a := range w.actors {
		a.start()
	}
}

// people creates the clients.
func (w *world) people() {
	for i := range w.plan.writers {
		w.actors = append(w.actors, w.newWriter(name{Scope: scopes[i%len(scopes)],
			ID: fmt.Sprintf("writer-%d", i)}, false))
	}
	for i := range w.plan.pairs {
		n := name{Scope: scopes[i%len(scopes)], ID: fmt.Sprintf("pair-%d", i)}
		w.actors = append(w.actors, w.newWriter(n, true), w.newWriter(n, true))
	}
	for i := range w.plan.simple {
		w.actors = append(w.actors, &simple{w: w, number: i})
	}
	for range w.plan.buggy {
		w.actors = append(w.actors, &buggy{w: w, clients: []string{"buggy-1", "buggy-2"}})
	}
	for i := range w.plan.owners {
		w.actors = append(w.actors, &owner{caller: caller{w: w}, principal: principals[i%len(principals)]})
	}
	for i := range w.plan.jobbers {
		w.actors = append(w.actors, &jobber{caller: caller{w: w}, principal: principals[i%len(principals)]})
	}
	w.actors = append(w.actors, &stale{w: w}, &operator{w: w})
}

func (w *world) newWriter(n name, contended bool) *writer {
	return &writer{
		w: w, name: n, contended: contended, datagram: w.chance(3), depth: 1 + w.rng.IntN(12),
		patience: 4*w.plan.latency + pick[int64](w, 20, 100)*millisecond + 4*w.plan.syncTime,
	}
}

// live runs until enough commands are applied.
func (w *world) live() {
	for w.oracle.decisions < w.plan.commands && len(w.events) > 0 {
		w.next()
	}
}

func (w *world) next() {
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	w.mark(uint64(e.at))
	e.do()
}

// settleDown ends the faults and lets all open work finish.
func (w *world) settleDown() {
	w.calm = true
	if !w.node.ready {
		w.counted["calm while down"]++
	}
	for n := 0; len(w.events) > 0; n++ {
		if n > 2_000_000 {
			w.fail(nil, "the world does not come to rest: %s", strings.Join(w.stillOpen(), "; "))
		}
		w.next()
	}
	if open := w.stillOpen(); len(open) > 0 {
		w.fail(nil, "at rest, and not settled: %s", strings.Join(open, "; "))
	}
}

func (w *world) stillOpen() (open []string) {
	for _, a := range w.actors {
		if text := a.unsettled(); text != "" {
			open = append(open, text)
		}
	}
	return open
}

// explain returns what is wrong and how to reproduce it.
func (w *world) explain(v violation) error {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, step %d, ledger index %d: %s\n", w.seed, w.steps, w.oracle.model.Index, v.what)
	if v.stream != nil {
		fmt.Fprintf(&b, "the last commands for %s %q:\n", v.stream.Scope, v.stream.ID)
		for _, line := range w.oracle.history(v.stream, nil) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if v.key != nil {
		k := v.key
		fmt.Fprintf(&b, "the last commands for %s %q %q %x:\n", k.Scope, k.Namespace, k.Principal, k.Key[:1])
		for _, line := range w.oracle.history(nil, v.key) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if w.cluster != nil {
		fmt.Fprintf(&b, "repeat with: %s", w.cluster.episode.repeat())
		return errors.New(b.String())
	}
	fmt.Fprintf(&b, "repeat with: make sim SEED=%d COMMANDS=%d", w.seed, w.plan.commands)
	return errors.New(b.String())
}
