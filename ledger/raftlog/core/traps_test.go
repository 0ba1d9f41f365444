package core_test

import (
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// host is a node whose disk and state store take no time, unless they are held back.
type host struct {
	*core.Node
	id           uint64
	disk         *simdisk.Disk
	log          *segment.Log
	options      core.Options
	snapshot     *core.Snapshot
	held         bool // appends are written and not reported
	waiting      uint64
	heldBack     bool // entries are not applied
	applies      []core.Committed
	applied      []core.Committed
	lost         []uint64
	reads        []uint64
	appends      []core.Append
	sent         []*pb.Message
	diesAtCommit bool              // the host dies when it is to store Raft's state alone
	inspect      func(core.Append) // called with each append before it is written; may be nil
}

// group is a set of hosts and the messages between them.
type group struct {
	t     *testing.T
	hosts map[uint64]*host
	queue []*pb.Message
	drop  func(*pb.Message) bool
}

// The library draws its election timeouts from crypto/rand.Reader. A group gets them from a seed instead.
type router struct {
	mu      sync.Mutex // locked by the test whose group this is
	current io.Reader
	real    io.Reader
}

var random = &router{real: crand.Reader}

func (r *router) Read(b []byte) (int, error) {
	if r.current != nil { // set by the goroutine that reads, which holds mu
		return r.current.Read(b)
	}
	return r.real.Read(b)
}

func TestMain(m *testing.M) {
	crand.Reader = random
	os.Exit(m.Run())
}

// newGroup starts voters whose log begins after entry 1. While the test runs, it is the only user of the library's
// source of randomness.
func newGroup(t *testing.T, ids ...uint64) *group {
	t.Helper()
	t.Parallel()
	random.mu.Lock()
	random.current = rand.NewChaCha8([32]byte{1})
	t.Cleanup(func() { random.current = nil; random.mu.Unlock() })
	g := &group{t: t, hosts: map[uint64]*host{}, drop: func(*pb.Message) bool { return false }}
	m := core.Members{Voters: ids, Highest: slices.Max(ids)}
	for _, id := range ids {
		g.start(id, segment.Position{Index: 1, Term: 1}, m)
	}
	return g
}

func (g *group) start(id uint64, at segment.Position, m core.Members) *host {
	g.t.Helper()
	disk := simdisk.New()
	c := segment.Checkpoint{Position: at, Data: m.Encode()}
	must.Do(g.t, segment.Create(logOptions(id, disk), c, segment.State{Term: at.Term}))
	log := g.open(id, disk)
	h := &host{
		id: id, disk: disk, log: log,
		options: core.Options{ID: id, Applied: at, Members: m, Log: log, Nonce: id},
	}
	h.options.Snapshot = func(uint64) (core.Snapshot, error) {
		if h.snapshot == nil {
			return core.Snapshot{}, errors.New("none")
		}
		return *h.snapshot, nil
	}
	g.hosts[id] = h
	g.restart(h, at, m)
	return h
}

func logOptions(id uint64, d *simdisk.Disk) segment.Options {
	return segment.Options{
		Disk: d, Identity: fmt.Append(nil, id), SegmentBytes: 64 << 10,
		Random: rand.NewChaCha8([32]byte{2}), Logger: slog.New(slog.DiscardHandler),
	}
}

func (g *group) open(id uint64, d *simdisk.Disk) *segment.Log {
	g.t.Helper()
	log := must.Get(segment.Open(logOptions(id, d)))(g.t)
	return log
}

// restart makes a new node from the host's log.
func (g *group) restart(h *host, applied segment.Position, m core.Members) {
	g.t.Helper()
	h.options.Applied, h.options.Members, h.options.State = applied, m, h.log.State()
	h.options.Nonce += 100
	n := must.Get(core.New(h.options))(g.t)
	h.Node, h.waiting, h.applies, h.appends = n, 0, nil, nil
}

// effects performs a node's effects, and reports whether there were any.
func (g *group) effects(h *host) bool {
	out := h.Effects()
	h.lost, h.reads = append(h.lost, out.Lost...), append(h.reads, out.Reads...)
	h.appends, h.sent = append(h.appends, out.Append...), append(h.sent, out.Send...)
	h.applies = append(h.applies, out.Apply...)
	for _, a := range out.Append {
		if h.diesAtCommit && a.State != nil && len(a.Entries) == 0 {
			g.queue = append(g.queue, out.Send...) // sent at once, as in package raftlog
			delete(g.hosts, h.id)
			return true
		}
		if h.inspect != nil {
			h.inspect(a)
		}
		if a.Snapshot != nil {
			c := segment.Checkpoint{Position: a.Snapshot.Position, Data: a.Snapshot.Members.Encode()}
			g.must(h.log.Reset(c, segment.State{Term: a.Snapshot.Term}))
		}
		g.must(errors.Join(h.log.Append(a.State, a.Entries), h.log.Sync()))
		h.waiting = a.Number
	}
	g.queue = append(g.queue, out.Send...)
	busy := len(out.Send) > 0
	if !h.held && h.waiting > 0 {
		busy = true
		number := h.waiting
		h.waiting = 0
		g.must(h.Appended(number))
	}
	if !h.heldBack && len(h.applies) > 0 {
		busy = true
		h.applied = append(h.applied, h.applies...)
		last := h.applies[len(h.applies)-1].Index
		h.applies = nil
		g.must(h.Done(last))
	}
	return busy
}

func (g *group) must(err error) {
	if err != nil {
		g.t.Helper()
		g.t.Fatal(err)
	}
}

// settle delivers messages until there are none left.
func (g *group) settle() {
	g.t.Helper()
	for busy := true; busy; {
		busy = false
		for _, id := range g.ids() {
			busy = g.effects(g.hosts[id]) || busy
		}
		queue := g.queue
		g.queue = nil
		for _, m := range queue {
			if to := g.hosts[m.GetTo()]; to != nil && !g.drop(m) {
				g.must(to.Receive(m))
				busy = true
			}
		}
	}
}

func (g *group) ids() (ids []uint64) {
	for id := range g.hosts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// elect makes a node the leader.
func (g *group) elect(id uint64) *host {
	g.t.Helper()
	g.must(g.hosts[id].Campaign())
	g.settle()
	if !g.hosts[id].Role().Leads {
		g.t.Fatalf("node %d does not lead: %+v", id, g.hosts[id].Role())
	}
	return g.hosts[id]
}

func (g *group) tick(h *host, times int) {
	for range times {
		g.must(h.Tick())
	}
}

// cutOff drops all messages from and to a node.
func (g *group) cutOff(id uint64) {
	g.drop = func(m *pb.Message) bool { return m.GetFrom() == id || m.GetTo() == id }
}

func (g *group) mend() { g.drop = func(*pb.Message) bool { return false } }

// outgrow has a leader drop the entries that a node which is cut off needs, and returns the position of the last.
func (g *group) outgrow(l *host) segment.Position {
	g.t.Helper()
	for i := range uint64(200) {
		g.must(l.Propose(10+i, make([]byte, 1000)))
		g.settle()
	}
	at := l.Applied()
	g.must(l.log.Truncate(segment.Checkpoint{Position: at}))
	g.must(l.Truncated(l.log.First()))
	return at
}

// beat has a leader send heartbeats, and settles after each.
func (g *group) beat(l *host, times int) {
	g.t.Helper()
	for range times {
		g.tick(l, 1)
		g.settle()
	}
}

func change(kind pb.ConfChangeType, id uint64) *pb.ConfChangeV2 {
	return &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &id}}}
}

func types(messages []*pb.Message) (list []pb.MessageType) {
	for _, m := range messages {
		list = append(list, m.GetType())
	}
	return list
}

// A leader whose sync hangs still sends entries and heartbeats, and takes messages.
func TestTicksAndMessagesPassASlowDisk(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	l.held, l.sent = true, nil
	g.must(l.Propose(1, []byte("x")))
	g.effects(l)
	if sent := types(l.sent); !slices.Contains(sent, pb.MsgApp) {
		t.Fatalf("the entry waits for the leader's own disk: %v", sent)
	}
	g.settle()
	if len(l.applied) != 1 { // the leader's first entry of the term
		t.Fatalf("applied %d entries, one of which the leader has not on its disk", len(l.applied)-1)
	}
	l.sent = nil
	g.tick(l, 1)
	g.effects(l)
	if sent := types(l.sent); !slices.Contains(sent, pb.MsgHeartbeat) {
		t.Fatalf("no heartbeat while the disk is slow: %v", sent)
	}
	l.held = false
	g.settle()
	if len(l.applied) != 2 || l.applied[1].Proposal != 1 {
		t.Fatalf("applied %v", l.applied)
	}
}

// A vote and the acknowledgement of entries are sent only once they are durable.
func TestResponsesWaitForTheDisk(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	two := g.hosts[2]
	two.held = true
	g.must(g.hosts[1].Campaign())
	g.settle()
	for _, m := range two.sent {
		if m.GetType() == pb.MsgVoteResp {
			t.Fatal("a vote was sent before it was durable")
		}
	}
	two.held, two.sent = false, nil
	g.settle()
	if !slices.Contains(types(two.sent), pb.MsgVoteResp) {
		t.Fatalf("no vote: %v", types(two.sent))
	}
	two.held, two.sent = true, nil
	g.must(g.hosts[1].Propose(7, []byte("x")))
	g.settle()
	if slices.Contains(types(two.sent), pb.MsgAppResp) {
		t.Fatal("an entry was acknowledged before it was durable")
	}
	two.held = false
	g.settle()
	if !slices.Contains(types(two.sent), pb.MsgAppResp) {
		t.Fatal("an entry was not acknowledged")
	}
}

// A node grants no pre-vote while entries sent to it are not durable, because the candidate relies on the node's log.
func TestPreVoteWaitsForTheDisk(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, two := g.elect(1), g.hosts[2]
	two.held = true
	g.must(l.Propose(1, []byte("x")))
	g.settle()
	g.tick(two, 10) // the node considers the leader gone
	g.tick(g.hosts[3], 10)
	g.cutOff(1)
	two.sent = nil
	g.must(g.hosts[3].Campaign())
	g.settle()
	if slices.Contains(types(two.sent), pb.MsgPreVoteResp) {
		t.Fatal("a vote was granted while an entry was not durable")
	}
	two.held = false
	g.settle()
	if !slices.Contains(types(two.sent), pb.MsgPreVoteResp) {
		t.Fatalf("no answer: %v", types(two.sent))
	}
}

// A follower that is too far behind gets a snapshot. In a single append its state comes before the log, the state of
// Raft and the entries, and the response is sent after all of it. Until the sender reports the outcome of the message,
// the leader sends nothing more.
func TestSnapshotIsDurableBeforeItsAnswer(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.cutOff(3)
	at := g.outgrow(l)
	l.snapshot = &core.Snapshot{Position: at, Members: l.Members(), Data: []byte("state")}
	three := g.hosts[3]
	three.held, three.sent, three.appends = true, nil, nil
	lost := 0
	g.drop = func(m *pb.Message) bool {
		if m.GetType() == pb.MsgSnap && lost == 0 {
			lost++
			return true
		}
		return false
	}
	g.beat(l, 20)
	if lost != 1 || len(three.appends) != 0 {
		t.Fatalf("%d snapshots lost, %d appends: nothing was to follow before a report", lost, len(three.appends))
	}
	g.must(l.SnapshotSent(3, false))
	g.beat(l, 3)
	k := slices.IndexFunc(three.appends, func(a core.Append) bool { return a.Snapshot != nil })
	if k < 0 {
		t.Fatalf("no snapshot: %+v", three.appends)
	}
	s := three.appends[k].Snapshot
	if s.Position != at || string(s.Data) != "state" || !slices.Equal(s.Members.Voters, []uint64{1, 2, 3}) {
		t.Fatalf("snapshot %+v", s)
	}
	receipt := func() bool {
		return slices.ContainsFunc(three.sent, func(m *pb.Message) bool {
			return m.GetType() == pb.MsgAppResp && !m.GetReject() && m.GetIndex() >= at.Index
		})
	}
	if receipt() {
		t.Fatal("the snapshot was acknowledged before it was durable")
	}
	three.held = false
	if g.settle(); !receipt() {
		t.Fatalf("the snapshot was not acknowledged: %v", types(three.sent))
	}
	for range 3 {
		g.settle()
		g.tick(l, 1)
	}
	if three.Applied().Index < at.Index {
		t.Fatalf("node 3 is at %v", three.Applied())
	}
}

// The library adopts the members of a snapshot when it receives it. Changes before it may be applied afterwards: the
// library must not get them again, and the members are then those of the snapshot.
func TestChangesAreAppliedBehindASnapshot(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, three := g.elect(1), g.hosts[3]
	three.heldBack = true
	four, five := uint64(4), uint64(5)
	learner := pb.ConfChangeAddLearnerNode
	g.must(l.Change(1, &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{ // joint, and left by a second change
		{Type: &learner, NodeId: &four}, {Type: &learner, NodeId: &five},
	}}))
	for range 5 {
		g.settle()
		g.tick(l, 1)
	}
	moved := func(number uint64, peer string) {
		c := change(pb.ConfChangeUpdateNode, 4)
		(&core.Address{ID: 4, Peer: peer}).AppendTo(c)
		g.must(l.Change(number, c))
		g.settle()
	}
	moved(2, "old:1")
	changes := slices.DeleteFunc(slices.Clone(three.applies), func(c core.Committed) bool {
		return c.Kind != core.KindChange
	})
	must.Equal(t, len(changes), 3, "node 3 is to apply %v: %d changes", changes)
	g.must(three.Done(changes[0].Index))
	g.cutOff(3)
	moved(3, "new:1")
	g.must(l.Change(4, change(pb.ConfChangeRemoveNode, 5)))
	at := g.outgrow(l)
	l.snapshot = &core.Snapshot{Position: at, Members: l.Members()}
	g.mend()
	three.held = true
	for i := 0; i < 20 && three.log.Last().Index < at.Index; i++ {
		g.tick(l, 1)
		g.settle()
	}
	check.Equal(t, three.log.Last().Index, at.Index, "the log of node 3 ends at %d")
	g.must(three.Done(changes[1].Index))
	three.held = false
	for g.effects(three) {
	}
	g.must(three.Done(changes[2].Index)) // with the snapshot installed
	check.Equal(t, three.Applied(), at, "applied %v")
	three.heldBack, three.applies = false, nil
	g.must(l.SnapshotSent(3, true))
	g.settle()
	check.Equal(t, fmt.Sprint(three.Members()), fmt.Sprint(l.Members()), "members behind the snapshot %s")
}

// The commit index is not stored with each entry. At a start it is at least the applied index.
func TestRestartKnowsWhatItAppliedIsCommitted(t *testing.T) {
	g := newGroup(t, 1)
	l := g.elect(1)
	for i := range uint64(5) {
		g.must(l.Propose(i+1, []byte("x")))
		g.settle()
	}
	if c := l.log.State().Commit; c >= l.Applied().Index {
		t.Fatalf("commit %d was stored with each entry", c)
	}
	at := l.Applied()
	g.restart(l, at, l.Members())
	if l.Applied() != at || g.elect(1).Applied().Index != at.Index+1 {
		t.Fatalf("applied %v", l.Applied())
	}
}

// A sole voter that has just started reads only after it has applied an entry of its own term. Otherwise the library
// would answer with the commit index from before the restart.
func TestSoleVoterReadsInItsOwnTerm(t *testing.T) {
	g := newGroup(t, 1)
	l := g.elect(1)
	g.must(l.Propose(1, []byte("x")))
	g.settle()
	was := l.Applied()
	g.restart(l, segment.Position{Index: 1, Term: 1}, l.Members()) // the state store has none of it
	g.must(l.Campaign())
	l.heldBack = true
	g.must(l.Read(5))
	g.settle()
	must.Equal(t, len(l.reads), 0, "a read was answered before the entries of before were applied: %v")
	l.heldBack = false
	g.settle()
	if !slices.Equal(l.reads, []uint64{5}) || l.Applied().Index <= was.Index {
		t.Fatalf("reads %v at %v", l.reads, l.Applied())
	}
	// The same for a read that another node requests.
	g.restart(l, segment.Position{Index: 1, Term: 1}, l.Members())
	g.must(l.Campaign())
	l.heldBack, l.sent = true, nil
	g.effects(l)
	g.effects(l)
	from := uint64(9)
	g.must(l.Receive(&pb.Message{
		Type: pb.MsgReadIndex.Enum(), From: &from, Entries: []*pb.Entry{{Data: []byte("1234567812345678")}},
	}))
	g.settle()
	if slices.Contains(types(l.sent), pb.MsgReadIndexResp) {
		t.Fatal("another node's read was answered before the entries of before were applied")
	}
}

// A lost read index request is repeated with a new context, and a late answer to the old one does not count.
func TestLostReadIsAskedAgain(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	g.elect(1)
	two := g.hosts[2]
	var contexts []string
	g.drop = func(m *pb.Message) bool {
		if m.GetType() == pb.MsgReadIndex {
			contexts = append(contexts, string(m.GetEntries()[0].GetData()))
		}
		return m.GetType() == pb.MsgReadIndex
	}
	g.must(two.Read(8))
	for range 15 {
		g.tick(g.hosts[1], 1)
		g.tick(two, 1)
		g.settle()
	}
	if len(contexts) < 2 || contexts[0] == contexts[1] || len(two.reads) != 0 {
		t.Fatalf("%d questions, %d answers", len(contexts), len(two.reads))
	}
	index := uint64(1)
	from, to, term := uint64(1), uint64(2), two.Role().Term
	g.must(two.Receive(&pb.Message{
		Type: pb.MsgReadIndexResp.Enum(), From: &from, To: &to, Term: &term, Index: &index,
		Entries: []*pb.Entry{{Data: []byte(contexts[0])}},
	}))
	g.settle()
	must.Equal(t, len(two.reads), 0, "the answer to a question of before was taken: %v")
	g.mend()
	for range 15 {
		g.tick(g.hosts[1], 1)
		g.tick(two, 1)
		g.settle()
	}
	must.EqualSlices(t, two.reads, []uint64{8}, "reads %v")
}

// A leader that hears from no majority answers no read, and steps down.
func TestLeaderWithoutMajorityStepsDown(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.cutOff(1)
	g.must(l.Propose(4, []byte("x")))
	g.must(l.Read(5))
	g.beat(l, 25)
	if l.Role().Leads || len(l.reads) != 0 || !slices.Equal(l.lost, []uint64{4}) {
		t.Fatalf("leads %t, reads %v, lost %v", l.Role().Leads, l.reads, l.lost)
	}
}

// A node that was cut off comes back without deposing the leader.
func TestReturningNodeDeposesNoLeader(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	term := l.Role().Term
	g.cutOff(3)
	for range 60 {
		g.tick(g.hosts[3], 1)
		g.tick(l, 1)
		g.settle()
	}
	g.mend()
	for range 5 {
		g.tick(l, 1)
		g.tick(g.hosts[3], 1)
		g.settle()
	}
	if !l.Role().Leads || l.Role().Term != term || g.hosts[3].Role().Leader != 1 {
		t.Fatalf("roles %+v and %+v", l.Role(), g.hosts[3].Role())
	}
}

// A follower proposes nothing and forwards nothing, because the leader sets the timestamps.
func TestFollowerProposesNothing(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	g.elect(1)
	two := g.hosts[2]
	two.sent = nil
	must.Is(t, two.Propose(1, []byte("x")), core.ErrNotLeader)
	if g.effects(two); len(two.sent) > 0 {
		t.Fatalf("it sent %v", types(two.sent))
	}
	// The library would forward a proposal.
	from, to := uint64(3), uint64(2)
	g.must(two.Receive(&pb.Message{
		Type: pb.MsgProp.Enum(), From: &from, To: &to, Entries: []*pb.Entry{{Data: []byte("x")}},
	}))
	if g.effects(two); len(two.sent) > 0 {
		t.Fatalf("it passed on %v", types(two.sent))
	}
}

// A node sends nothing in the name of another one: a transport that authenticates its nodes takes that for a forgery.
func TestFollowerPassesNothingOn(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	g.elect(1)
	two := g.hosts[2]
	from, to := uint64(3), uint64(2)
	for what, event := range map[string]func() error{
		"the read of a node that believes another leader": func() error {
			return two.Receive(&pb.Message{
				Type: pb.MsgReadIndex.Enum(), From: &from, To: &to, Entries: []*pb.Entry{{Data: []byte("x")}},
			})
		},
		"a transfer after it has lost the leadership": func() error { return two.Transfer(3) },
	} {
		two.sent = nil
		g.must(event())
		if g.effects(two); len(two.sent) > 0 {
			t.Errorf("%s: it sent %v from node %d", what, types(two.sent), two.sent[0].GetFrom())
		}
	}
}

// A node whose log has lost entries that it acknowledged stops, and sends nothing more, neither votes nor
// acknowledgements. A log that is only short does not stop it.
func TestForgottenEntriesStopTheNode(t *testing.T) {
	for _, test := range []struct {
		what   string
		commit uint64 // beyond the end of the log
		stops  bool
	}{{"what it has", 0, false}, {"one entry more", 1, true}, {"many more", 1 << 40, true}} {
		t.Run(test.what, func(t *testing.T) {
			g := newGroup(t, 1, 2, 3)
			l := g.elect(1)
			g.must(l.Propose(1, []byte("x")))
			g.settle()
			two := g.hosts[2]
			last := two.log.Last().Index
			from, to, term, commit := uint64(1), uint64(2), two.Role().Term, last+test.commit
			err := two.Receive(&pb.Message{
				Type: pb.MsgHeartbeat.Enum(), From: &from, To: &to, Term: &term, Commit: &commit,
			})
			forgotten, is := errors.AsType[*core.ForgottenError](err)
			if is != test.stops || !errors.Is(two.Err(), err) {
				t.Fatalf("%v, and the node's failure is %v", err, two.Err())
			}
			if !test.stops {
				return
			}
			if *forgotten != (core.ForgottenError{Leader: 1, Acknowledged: commit, Last: last}) {
				t.Errorf("%+v", forgotten)
			}
			index, next := uint64(1<<40), term+1
			_ = two.Receive(&pb.Message{ // it fails
				Type: pb.MsgVote.Enum(), From: &from, To: &to, Term: &next, Index: &index, LogTerm: &next,
			})
			if out := two.Effects(); len(out.Send)+len(out.Append) > 0 {
				t.Errorf("a node that stopped sends %v and appends %v", types(out.Send), out.Append)
			}
		})
	}
}

// There is a bound on what a leader may propose without a majority, and on what it sends to a follower that does not
// respond.
func TestUncommittedAndInflightAreBounded(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.drop = func(*pb.Message) bool { return true }
	l.sent = nil
	var err error
	count := uint64(0)
	for ; err == nil; count++ {
		err = l.Propose(count+1, make([]byte, 1<<20))
		g.settle()
	}
	if !errors.Is(err, core.ErrNotProposed) || count != core.MaxUncommittedBytes>>20+1 {
		t.Fatalf("after %d MiB: %v", count-1, err)
	}
	sent := 0
	for _, m := range l.sent {
		for _, e := range m.GetEntries() {
			if m.GetTo() == 2 {
				sent += len(e.GetData())
			}
		}
	}
	if sent > core.MaxInflightBytes+core.MaxMessageBytes {
		t.Fatalf("%d bytes were sent to a follower that does not answer", sent)
	}
	g.mend()
	g.must(l.Unreachable(2)) // so that the leader probes it
	g.must(l.Unreachable(3))
	g.beat(l, 4)
	if n := len(l.applied); n != int(count) { // plus the first entry of the term
		t.Fatalf("%d applied of %d", n, count)
	}
}

// To a node whose messages were lost, a leader sends one message and then waits for the response.
func TestUnreachableIsProbed(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.must(l.Propose(1, []byte("x")))
	g.settle() // so that messages follow each other without waiting for responses
	g.cutOff(2)
	l.sent = nil
	for i := range uint64(5) {
		g.must(l.Propose(2+i, []byte("x")))
		g.settle()
	}
	must.Equal(t, entriesTo(l, 2), 5, "%d entries were sent to a node that answered so far")
	l.sent = nil
	g.must(l.Unreachable(2))
	for i := range uint64(5) {
		g.must(l.Propose(7+i, []byte("x")))
		g.settle()
	}
	messages := 0
	for _, m := range l.sent {
		if m.GetTo() == 2 && m.GetType() == pb.MsgApp {
			messages++
		}
	}
	if messages > 1 {
		t.Fatalf("%d messages were sent to a node that was reported unreachable", messages)
	}
	g.mend()
	g.beat(l, 2)
	if two := g.hosts[2]; two.Applied() != l.Applied() {
		t.Fatalf("node 2 has applied %v, and the leader %v", two.Applied(), l.Applied())
	}
}

func entriesTo(h *host, id uint64) (n int) {
	for _, m := range h.sent {
		if m.GetTo() == id {
			n += len(m.GetEntries())
		}
	}
	return n
}

// Members change when the change is applied, one change at a time, and a refusal is an error.
func TestChangeOfMembers(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	l.heldBack = true
	g.must(l.Change(1, change(pb.ConfChangeAddLearnerNode, 4)))
	g.settle()
	if m := l.Members(); m.Has(4) {
		t.Fatal("the change holds before it is applied")
	}
	must.Is(t, l.Change(2, change(pb.ConfChangeAddLearnerNode, 5)), core.ErrNotProposed, "a second change")
	last := l.Last()
	l.heldBack = false
	g.settle()
	check.Equal(t, l.Last(), last, "a refused change leaves an entry: the log ends at %d")
	for _, h := range g.hosts {
		if m := h.Members(); !slices.Equal(m.Learners, []uint64{4}) || m.Highest != 4 {
			t.Fatalf("node %d has members %+v", h.id, m)
		}
	}
	at := l.MembersChanged()
	g.must(l.Truncated(at))
	if m := l.MembersAt(at - 1); m.Has(4) {
		t.Fatal("the members at the start of the log are those after the change")
	}
	g.must(l.Change(3, change(pb.ConfChangeRemoveNode, 4)))
	g.settle()
	for what, c := range map[string]*pb.ConfChangeV2{
		"an id that was used":   change(pb.ConfChangeAddNode, 4),
		"the leader":            change(pb.ConfChangeRemoveNode, 1),
		"a learner as a leader": change(pb.ConfChangeAddLearnerNode, 1),
		"nothing":               {},
	} {
		check.Is(t, l.Change(9, c), core.ErrNotProposed, "%s", what)
	}
	l.applied = nil
	g.must(l.Change(10, change(pb.ConfChangeRemoveNode, 3)))
	g.settle()
	if len(l.applied) != 1 || l.applied[0].Proposal != 10 || l.applied[0].Kind != core.KindChange {
		t.Fatalf("applied %+v", l.applied)
	}
}

// Every node skips a change that is impossible; the library would panic.
func TestImpossibleChangeIsPassedOver(t *testing.T) {
	g := newGroup(t, 1)
	l := g.hosts[1]
	// The log holds it, as another program may have written it.
	entries := []segment.Entry{
		{Index: 2, Term: 1, Kind: core.KindChange, Data: []byte{0xff, 0xff}},
		{Index: 3, Term: 1, Kind: core.KindChange, Data: []byte{0x12, 0x02, 0x10, 0x01}}, // adds node 1
	}
	g.must(errors.Join(l.log.Append(nil, entries), l.log.Sync()))
	g.restart(l, segment.Position{Index: 1, Term: 1}, l.Members())
	l = g.elect(1)
	if m := l.Members(); l.Err() != nil || l.Applied().Index != 4 || !slices.Equal(m.Voters, []uint64{1}) {
		t.Fatalf("%v, at %v with %+v", l.Err(), l.Applied(), m)
	}
}

// One of two voters is removed and gone for good. The other one restarts with a state store from before the change, and
// leads alone, because the commit of the change was durable before the change took effect.
func TestRemovedVoterIsNotNeeded(t *testing.T) {
	g := newGroup(t, 1, 2)
	l := g.elect(1)
	members := l.Members()
	g.must(l.Change(1, change(pb.ConfChangeRemoveNode, 2)))
	g.settle()
	must.Equal(t, len(l.Members().Voters), 1, "members %+v")
	delete(g.hosts, 2)
	g.restart(l, segment.Position{Index: 1, Term: 1}, members)
	g.beat(l, 30)
	if !l.Role().Leads {
		t.Fatalf("it waits for the vote of a voter that was removed: %+v", l.Members())
	}
}

// A leader steps down when a change from an earlier term removes it.
func TestRemovedLeaderStepsDown(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	// The change reaches node 2, but is not committed before node 2 is elected.
	g.drop = func(m *pb.Message) bool { return m.GetType() == pb.MsgAppResp || m.GetTo() == 3 }
	g.must(l.Change(1, change(pb.ConfChangeRemoveNode, 2)))
	g.settle()
	g.cutOff(1)
	two, three := g.hosts[2], g.hosts[3]
	for i := 0; i < 200 && !two.Role().Leads && !slices.Contains(two.Members().Voters, 0); i++ {
		g.tick(two, 1)
		g.tick(three, 1)
		g.settle()
		if m := two.Members(); len(m.Voters) == 2 {
			break
		}
	}
	if m := two.Members(); len(m.Voters) != 2 {
		t.Fatalf("the change was not made: %+v, %+v", m, two.Role())
	}
	if two.Role().Leads {
		t.Fatal("a node that was removed leads")
	}
}

// A panic of the library stops the node for good.
func TestPanicIsFinal(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.cutOff(1)
	g.must(l.Propose(3, []byte("x")))
	g.settle()
	from, to, term, index := uint64(2), uint64(1), uint64(99), uint64(1<<40)
	err := l.Receive(&pb.Message{
		Type: pb.MsgSnap.Enum(), From: &from, To: &to, Term: &term,
		Snapshot: &pb.Snapshot{
			Data: []byte("no members"),
			Metadata: &pb.SnapshotMetadata{
				Index: &index, Term: &term, ConfState: &pb.ConfState{Voters: []uint64{1, 2, 3}},
			},
		},
	})
	if err == nil || !errors.Is(l.Err(), err) {
		t.Fatalf("%v, %v", err, l.Err())
	}
	out := l.Effects()
	if len(out.Send)+len(out.Append)+len(out.Apply)+len(out.Reads) > 0 || !slices.Equal(out.Lost, []uint64{3}) {
		t.Fatalf("effects of a node that stopped: %+v", out)
	}
	if e := l.Propose(4, []byte("y")); !errors.Is(e, core.ErrNotProposed) || !errors.Is(l.Tick(), err) {
		t.Fatalf("it goes on: %v", e)
	}
	if out := l.Effects(); len(out.Lost)+len(out.Append) > 0 {
		t.Fatalf("effects of a node that stopped: %+v", out)
	}
}

// During a leadership transfer nothing is proposed, and the new leader has every entry.
func TestTransfer(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.must(l.Propose(1, []byte("x")))
	g.settle()
	g.drop = func(m *pb.Message) bool { return m.GetType() == pb.MsgTimeoutNow }
	g.must(l.Transfer(2))
	must.Is(t, l.Propose(2, []byte("y")), core.ErrNotProposed, "proposed during a transfer")
	g.tick(l, 12) // timed out
	g.mend()
	g.settle()
	g.must(l.Transfer(2))
	g.settle()
	if !g.hosts[2].Role().Leads || l.Role().Leader != 2 {
		t.Fatalf("roles %+v and %+v", g.hosts[2].Role(), l.Role())
	}
	if len(l.lost) > 0 {
		t.Fatalf("lost %v, all of which were answered", l.lost)
	}
}

// The entries of a Ready are the proposals in their order, even next to the first entry of a term.
func TestProposalsKeepTheirNumbers(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	g.must(g.hosts[1].Campaign())
	l, next := g.hosts[1], uint64(100)
	for i := 0; i < 50; i++ {
		if err := l.Propose(next, fmt.Append(nil, next)); err == nil {
			next++
		} else if !errors.Is(err, core.ErrNotLeader) {
			t.Fatal(err)
		}
		if i%7 == 3 {
			g.settle()
		} else {
			g.effects(l)
		}
	}
	g.settle()
	want := uint64(100)
	for _, c := range l.applied {
		if len(c.Data) == 0 {
			continue
		}
		if c.Proposal != want || string(c.Data) != fmt.Sprint(want) {
			t.Fatalf("entry %q is proposal %d, want %d", c.Data, c.Proposal, want)
		}
		want++
	}
	if want != next || want < 120 {
		t.Fatalf("%d proposals, %d applied", next-100, want-100)
	}
}

// A start is refused if state, log and the state of Raft do not belong together.
func TestStartIsChecked(t *testing.T) {
	g := newGroup(t, 1)
	l := g.elect(1)
	g.must(l.Propose(1, []byte("x")))
	g.settle()
	at, state := l.Applied(), l.log.State()
	for what, spoil := range map[string]func(*core.Options){
		"a state store that is further":   func(o *core.Options) { o.Applied.Index += 9 },
		"a state store of another term":   func(o *core.Options) { o.Applied.Term++ },
		"a state store before the log":    func(o *core.Options) { o.Applied.Index = 0 },
		"a term below the last entry's":   func(o *core.Options) { o.State.Term = 0 },
		"no id":                           func(o *core.Options) { o.ID = 0 },
		"a member above the highest id":   func(o *core.Options) { o.Members.Voters = []uint64{3} },
		"an election at the first tick":   func(o *core.Options) { o.ElectionTicks = 1 },
		"the id of the library's threads": func(o *core.Options) { o.ID = 1<<64 - 1 },
	} {
		o := l.options
		o.Applied, o.State = at, state
		spoil(&o)
		if _, err := core.New(o); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// TestHesitatingNodeStandsLast: a node that should not lead leaves each election to another one, unless there is none.
func TestHesitatingNodeStandsLast(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	leader := g.elect(1).id
	lose := func(hesitating ...uint64) (low, elected uint64) {
		others := slices.DeleteFunc(g.ids(), func(id uint64) bool { return id == leader })
		for _, i := range hesitating {
			low = others[i]
			g.hosts[low].Hesitate(true)
			defer g.hosts[low].Hesitate(false)
		}
		g.cutOff(leader)
		defer g.mend()
		for range 6 * core.DefaultElectionTicks {
			for _, id := range others {
				g.tick(g.hosts[id], 1)
				g.settle()
				if g.hosts[id].Role().Leads {
					return low, id
				}
			}
		}
		return low, 0
	}
	for round := range uint64(20) {
		low, elected := lose(round % 2)
		if elected == 0 || elected == low {
			t.Fatalf("round %d: node %d hesitates, and node %d was elected", round, low, elected)
		}
		g.tick(g.hosts[elected], 1) // its heartbeat tells the former leader
		g.settle()
		leader = elected
	}
	if _, elected := lose(0, 1); elected == 0 {
		t.Fatal("both hesitate, and neither was elected")
	}
}

// A stalled node is not elected by votes that it asked for before, whether its own or another one's comes late. They
// count once it is not stalled any more, and the others need not vote again.
func TestVotesForAStalledNodeWait(t *testing.T) {
	for _, late := range []uint64{1, 2} {
		t.Run(fmt.Sprint("of node ", late), func(t *testing.T) {
			g := newGroup(t, 1, 2, 3)
			g.cutOff(3)
			h := g.hosts[1]
			g.hosts[late].held = true
			g.must(h.Campaign())
			g.settle()
			h.SetStalled(true)
			g.hosts[late].held = false
			for range 2 * core.DefaultElectionTicks {
				g.settle()
				if h.Role().Leads {
					t.Fatal("it is stalled and was elected")
				}
				g.tick(h, 1)
			}
			h.SetStalled(false)
			g.tick(h, 1)
			g.settle()
			if role := h.Role(); !role.Leads || role.Term != 2 {
				t.Fatalf("it is not stalled any more, and the votes do not count: %+v", role)
			}
		})
	}
}

// A stalled leader steps down although it is asked to transfer the leadership, again and again.
func TestStalledLeaderStepsDownDuringTransfers(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	l.SetStalled(true)
	for i := range uint64(3 * core.DefaultElectionTicks) {
		g.must(l.Transfer(2 + i%2))
		g.tick(l, 1)
		g.settle()
	}
	if l.Role().Leads {
		t.Fatal("it still leads")
	}
}

// A candidate names the whole log that it has made durable, even if its vote for itself waited for the same write.
func TestCandidateNamesItsWholeLog(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, two := g.elect(1), g.hosts[2]
	two.held = true
	g.must(l.Propose(1, []byte("x")))
	g.settle()
	g.cutOff(1)
	g.tick(two, core.DefaultElectionTicks) // the nodes consider the leader gone
	g.tick(g.hosts[3], core.DefaultElectionTicks)
	g.must(two.Campaign())
	g.settle()
	two.held = false
	if g.settle(); !two.Role().Leads {
		t.Fatalf("node 3 refused its vote: %+v", two.Role())
	}
}

// A change of members takes effect once its commit is durable, and not before.
func TestChangeWaitsForItsCommit(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, three := g.elect(1), g.hosts[3]
	three.inspect = func(a core.Append) { three.held = three.held || len(a.Entries) == 0 }
	g.must(l.Change(1, change(pb.ConfChangeAddLearnerNode, 4)))
	g.settle()
	if m := three.Members(); !three.held || m.Has(4) {
		t.Fatalf("its commit is written: %t, and the members are %+v", three.held, m)
	}
	three.inspect, three.held = nil, false
	g.settle()
	if m := three.Members(); !m.Has(4) {
		t.Fatalf("its commit is durable, and the members are %+v", m)
	}
}

// A node does not stand for election before it has applied a committed change, even if it has applied some of the
// entries that it was handed with the change.
func TestNoCandidateBeforeItsChange(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, two := g.elect(1), g.hosts[2]
	g.cutOff(2)
	g.must(l.Propose(1, []byte("x")))
	g.must(l.Change(2, change(pb.ConfChangeAddLearnerNode, 4)))
	g.settle()
	g.mend()
	two.heldBack = true
	g.beat(l, 5)
	must.Equal(t, len(two.applies), 2, "node 2 is to apply %d entries at once")
	for i, stands := range []bool{false, true} {
		two.sent = nil
		g.must(errors.Join(two.Done(two.applies[i].Index), two.Campaign()))
		g.effects(two)
		if slices.Contains(types(two.sent), pb.MsgPreVote) != stands {
			t.Fatalf("%d of 2 entries are applied, and it sends %v", i+1, types(two.sent))
		}
	}
}

// What a node has handed out to be applied stays what it is when the node drops it from memory.
func TestDroppedEntriesAreApplied(t *testing.T) {
	g := newGroup(t, 1)
	l := g.elect(1)
	l.heldBack = true
	for i, size := range []int{1, 1, 1, 1, 1, 4 << 20, 4 << 20, 4 << 20} { // more than is kept in memory
		g.must(l.Propose(uint64(i)+1, make([]byte, size)))
		g.settle()
	}
	for _, c := range l.applies {
		g.must(l.Done(c.Index))
		check.Equal(t, l.Applied(), c.Position, "applied %v")
	}
}

// A node that waits with a read, because it knows no leader, asks the next one even if nothing is written.
func TestReadIsAskedOnceThereIsALeader(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, two := g.elect(1), g.hosts[2]
	g.restart(two, two.Applied(), two.Members())
	g.must(two.Read(8))
	g.beat(l, 1)
	must.EqualSlices(t, two.reads, []uint64{8}, "reads %v")
	g.must(errors.Join(two.Read(9), two.Read(10))) // the second while the first is asked
	g.settle()
	must.EqualSlices(t, two.reads, []uint64{8, 9, 10}, "reads %v")
}

// A change that the library replaces by an empty entry, as a new leader does until it has applied its log, is refused.
func TestReplacedChangeIsRefused(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l, two := g.hosts[1], g.elect(2)
	l.heldBack = true
	g.must(two.Propose(1, []byte("x")))
	g.settle()
	g.must(two.Transfer(1))
	g.settle()
	must.Equal(t, l.Role().Leads, true, "node 1 leads: %t")
	must.Is(t, l.Change(1, change(pb.ConfChangeAddLearnerNode, 4)), core.ErrNotProposed)
}

// A leader that stops hands out nothing but its proposals, as lost.
func TestStoppedLeaderLosesItsProposals(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.must(l.Propose(3, []byte("x")))
	from, to, term, commit := uint64(2), uint64(1), l.Role().Term, uint64(1<<40)
	m := &pb.Message{Type: pb.MsgHeartbeat.Enum(), From: &from, To: &to, Term: &term, Commit: &commit}
	if l.Receive(m) == nil {
		t.Fatal("it goes on")
	}
	out := l.Effects()
	check.EqualSlices(t, out.Lost, []uint64{3}, "lost %v")
	check.Equal(t, len(out.Send)+len(out.Append), 0, "%d effects")
}

// A stalled leader sends no snapshot, and does not wait for its arrival either.
func TestStalledLeaderSendsItsSnapshotLater(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.cutOff(3)
	l.snapshot = &core.Snapshot{Position: g.outgrow(l), Members: l.Members()}
	g.drop = func(m *pb.Message) bool {
		if m.GetReject() { // node 3 lacks entries
			l.SetStalled(true)
		}
		return false
	}
	for _, sends := range []bool{false, true} {
		g.beat(l, 4)
		check.Equal(t, slices.Contains(types(l.sent), pb.MsgSnap), sends, "it sends a snapshot: %t")
		g.mend()
		l.SetStalled(false)
	}
}

// A leader sends no snapshot from before the last change of members, even if its host offers one.
func TestSnapshotHasTheLastChange(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	l := g.elect(1)
	g.cutOff(3)
	l.snapshot = &core.Snapshot{Position: g.outgrow(l), Members: l.Members()}
	g.must(l.Change(1, change(pb.ConfChangeAddLearnerNode, 4)))
	g.settle()
	g.mend()
	for _, sends := range []bool{false, true} {
		g.beat(l, 5)
		if slices.Contains(types(l.sent), pb.MsgSnap) != sends {
			t.Fatalf("the members changed at %d, and with a snapshot at %d it sends %v",
				l.MembersChanged(), l.snapshot.Index, types(l.sent[len(l.sent)-9:]))
		}
		l.snapshot = &core.Snapshot{Position: l.Applied(), Members: l.Members()}
	}
}
