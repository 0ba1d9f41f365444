package core_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// lone is a node without others, whose runs decide with and without the library by turns.
type lone struct {
	*group
	h       *host
	rng     *rand.Rand
	number  uint64            // of the last proposal
	data    map[uint64]string // of proposals of this run that are not applied
	logged  map[uint64]string // by index: what was applied, by any run
	state   segment.Position  // durable position of the state
	found   uint64            // the log ended here at the start of this run
	stored  uint64            // index up to which this run has reported the log durable
	told    uint64            // number of the last append that it has reported
	applied uint64            // by this run
	reads   map[uint64]uint64 // what was committed when they were asked
}

// event does something at random.
func (l *lone) event() {
	h := l.h
	switch l.rng.IntN(12) {
	case 0, 1, 2, 3:
		l.number++
		data := fmt.Sprintf("%d of %d", l.number, h.options.Nonce)
		if l.rng.IntN(20) == 0 {
			data += string(make([]byte, l.rng.IntN(100_000)))
		}
		switch err := h.Propose(l.number, []byte(data)); {
		case err == nil:
			l.data[l.number] = data
		case !errors.Is(err, core.ErrNotLeader) && !errors.Is(err, core.ErrNotProposed):
			l.t.Fatal(err)
		}
	case 4, 5:
		h.held = l.rng.IntN(2) == 0
	case 6:
		h.heldBack = l.rng.IntN(2) == 0
		if k := len(h.applies); h.heldBack && k > 0 { // some of what was handed out
			k = 1 + l.rng.IntN(k)
			h.applied = append(h.applied, h.applies[:k]...)
			h.applies = h.applies[k:]
			l.must(h.Done(h.applied[len(h.applied)-1].Index))
		}
	case 7:
		l.number++
		l.reads[l.number] = h.Committed()
		l.must(h.Read(l.number))
	case 8:
		if l.state.Index > l.rng.Uint64N(50) && h.log.Last().Index > l.state.Index {
			c := segment.Checkpoint{Position: l.state, Data: h.options.Members.Encode()}
			l.must(h.log.Truncate(c))
			l.must(h.Truncated(h.log.First()))
		}
	case 9:
		l.must(h.Tick())
		if h.held && h.waiting > l.told+1 { // some of what was written
			l.told += 1 + l.rng.Uint64N(h.waiting-l.told-1)
			l.storedTo(l.told)
			l.must(h.Appended(l.told))
		}
	case 10:
		if l.rng.IntN(4) == 0 {
			l.crash()
		}
	}
	l.take()
}

// storedTo notes that the appends up to a number are durable.
func (l *lone) storedTo(number uint64) {
	for _, a := range l.h.appends {
		if a.Number <= number && len(a.Entries) > 0 {
			l.stored = max(l.stored, a.Entries[len(a.Entries)-1].Index)
		}
	}
}

// take performs the effects, and checks what is applied.
func (l *lone) take() {
	h := l.h
	for l.effects(h) {
	}
	if !h.held && len(h.appends) > 0 {
		l.told = h.appends[len(h.appends)-1].Number
		l.storedTo(l.told)
	}
	old := 0
	for _, c := range h.applies {
		if c.Index <= l.found {
			old++
		}
	}
	if h.options.Alone && h.options.ApplyBytes == 1 && old > 1 {
		l.t.Fatalf("%d entries of the log are handed out at once", old)
	}
	for _, c := range h.applied {
		if c.Index != l.applied+1 {
			l.t.Fatalf("entry %d is applied after entry %d", c.Index, l.applied)
		}
		if l.applied = c.Index; c.Index > l.stored {
			l.t.Fatalf("entry %d is applied, and the log is durable up to %d", c.Index, l.stored)
		}
		if before, again := l.logged[c.Index]; again && before != string(c.Data) {
			l.t.Fatalf("entry %d was %.30q, and is %.30q", c.Index, before, c.Data)
		}
		l.logged[c.Index] = string(c.Data)
		if want := l.data[c.Proposal]; want != "" && want != string(c.Data) || want == "" && c.Proposal != 0 {
			l.t.Fatalf("proposal %d was %.30q, and is applied as %.30q", c.Proposal, want, c.Data)
		}
		delete(l.data, c.Proposal)
		if l.rng.IntN(3) == 0 {
			l.state = c.Position
		}
	}
	h.applied = nil
	if h.Ready() && l.applied <= l.found {
		l.t.Fatalf("ready at entry %d, and the log had %d", l.applied, l.found)
	}
	for _, number := range h.reads {
		if l.reads[number] > l.applied {
			l.t.Fatalf("a read sees entry %d, and %d was committed", l.applied, l.reads[number])
		}
	}
	h.reads = nil
	if len(h.lost) > 0 {
		l.t.Fatalf("proposals %d are lost", h.lost)
	}
}

// crash ends a run and begins the next one.
func (l *lone) crash() {
	h := l.h
	if h.disk.Kill(); l.rng.IntN(2) == 0 {
		h.disk.PowerLoss(l.rng)
	}
	h.log = l.open(h.id, h.disk)
	h.options.Log, h.options.Alone = h.log, l.rng.IntN(2) == 0
	h.options.ApplyBytes = 1 << l.rng.IntN(20)
	h.held, h.heldBack, l.applied, l.data = false, false, l.state.Index, map[uint64]string{}
	l.reads, l.told, l.found = map[uint64]uint64{}, 0, h.log.Last().Index
	l.stored = l.found
	l.restart(h, l.state, h.options.Members)
	l.must(h.Campaign())
	h.held, h.heldBack = l.rng.IntN(2) == 0, l.rng.IntN(2) == 0
}

// A node without others, which decides without the library in some of its runs, applies what is durable, in order and
// once, and finds all of it again whichever way the next run decides.
func TestAlone(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := newGroup(t, 1)
			l := &lone{
				group: g, h: g.hosts[1], rng: rand.New(rand.NewPCG(seed, 1)),
				data: map[uint64]string{}, logged: map[uint64]string{}, state: segment.Position{Index: 1, Term: 1},
			}
			l.crash()
			for range 1_500 {
				l.event()
			}
			l.h.held, l.h.heldBack = false, false
			l.take()
			if !l.h.Ready() || len(l.data) > 0 || l.applied != l.h.log.Last().Index {
				t.Errorf("ready %t, %d proposals open, applied up to %d of %d", l.h.Ready(), len(l.data), l.applied,
					l.h.log.Last().Index)
			}
			l.must(l.h.Read(1))
			for l.effects(l.h) {
			}
			check.Equal(t, len(l.h.reads), 1, "a read is not answered: %v")
		})
	}
}

// A node that decides without the library has no other nodes, whatever is asked of it; with a change in its log it
// decides with it.
func TestAloneTakesNoChange(t *testing.T) {
	g := newGroup(t, 1)
	h := g.hosts[1]
	h.options.Alone = true
	g.restart(h, h.options.Applied, h.options.Members)
	check.Is(t, h.Propose(1, []byte("early")), core.ErrNotLeader, "a proposal before the campaign")
	g.elect(1)
	g.must(h.Propose(2, []byte("x")))
	check.Is(t, h.Change(3, change(pb.ConfChangeAddNode, 2)), core.ErrNotProposed, "a change")
	from, to := uint64(2), uint64(1)
	g.must(errors.Join(h.Receive(&pb.Message{Type: pb.MsgVote.Enum(), From: &from, To: &to, Term: &to}), h.Tick(),
		h.Transfer(2), h.Unreachable(2), h.SnapshotSent(2, false)))
	g.settle()
	role, progress := h.Role(), h.Progress()
	if !h.Ready() || role != (core.Role{Leads: true, Leader: 1, Term: 2}) || len(progress) != 1 ||
		progress[1] != (core.Progress{Matched: 3, Active: true}) || len(h.sent) > 0 {
		t.Errorf("%+v, %+v, sent %v", role, progress, h.sent)
	}
	h.held = true
	large := make([]byte, core.MaxUncommittedBytes/2+1)
	g.must(h.Propose(4, large))
	check.Is(t, h.Propose(5, large), core.ErrNotProposed, "more than may be uncommitted")

	h.options.Alone, h.held = false, false
	g.settle()
	applied := h.Applied()
	g.restart(h, applied, h.options.Members)
	g.elect(1)
	g.must(h.Change(6, change(pb.ConfChangeAddNode, 2)))
	g.settle()
	h.options.Alone = true
	g.restart(h, applied, h.options.Members)
	g.must(h.Tick())
	g.settle()
	check.Equal(t, len(h.Members().Voters), 2, "the change is not applied: %+v")
	if g.must(h.Campaign()); h.Role().Leads {
		t.Error("it leads without the other voter")
	}
}
