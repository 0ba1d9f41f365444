package host

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var (
	// ErrNotLeader means that a proposal was certainly never in the log, so that it is
	// safe to send it elsewhere as if it had never been made.
	ErrNotLeader = errors.New("host: not the leader")
	// ErrOutcomeUnknown means that the entry may or may not be committed, now or after a
	// restart. It wraps the cause.
	ErrOutcomeUnknown = errors.New("host: outcome unknown")
	// ErrClosed answers calls after Close; a proposal that ends with it was never in the log.
	ErrClosed = errors.New("host: closed")
	// ErrEntryTooLarge refuses an entry over MaxEntryBytes; it was never proposed.
	ErrEntryTooLarge = errors.New("host: the entry is too large")
)

// MaxEntryBytes bounds one proposed entry. Two of them may be uncommitted at once.
const MaxEntryBytes = core.MaxUncommittedBytes / 2

// Options configures Start. ID, Log, Members and Apply are required.
type Options struct {
	ID uint64 // of this node among the members
	// Log is open and belongs to the host until Close returns; Close does not close it.
	Log     *segment.Log
	Applied segment.Position // what the state store holds durably
	Members core.Members     // as of Applied

	// Apply is called for each committed entry behind Applied in the order of the log, from
	// one goroutine. The result goes to the proposer. A failure of the state store is told
	// with Host.Fail, which Apply may call. The entry must not be changed and may be kept.
	Apply func(at segment.Position, entry []byte) any

	// Send takes messages for other nodes, in order; it must neither block nor call the
	// host, and may lose them. Nil: this node is and stays the only voter.
	Send func([]*pb.Message)
	// Tick is the time between two heartbeats; an election begins after ten to twenty
	// without one. 0: 50 ms. Unused without Send.
	Tick      time.Duration
	Logger    *slog.Logger // nil: slog.Default()
	OnFailure func(error)  // told the first failure, once; must not block; may be nil
	// Stored is told of each write of entries: their bytes and how long it took, the sync
	// included. It must not block; may be nil.
	Stored func(bytes int, took time.Duration)
}

const defaultTick = 50 * time.Millisecond

func (o *Options) validate() error {
	switch {
	case o.Log == nil:
		return errors.New("host: Options.Log is nil")
	case o.Apply == nil:
		return errors.New("host: Options.Apply is nil")
	case o.Tick < 0:
		return fmt.Errorf("host: Options.Tick is %v", o.Tick)
	case o.Send == nil && !isSole(&o.Members, o.ID):
		return fmt.Errorf("host: the members are %+v, and without Options.Send node %d must be the only one",
			o.Members, o.ID)
	}
	if o.Tick == 0 {
		o.Tick = defaultTick
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.Stored == nil {
		o.Stored = func(int, time.Duration) {}
	}
	return nil
}

// isSole tells whether a node decides alone.
func isSole(m *core.Members, id uint64) bool {
	return slices.Equal(m.Voters, []uint64{id}) && len(m.Outgoing) == 0
}

// Host is a running node. Its methods may be called from any goroutine.
type Host struct {
	o     Options
	loops sync.WaitGroup

	// mu makes the node's events one at a time. Nothing slow happens under it.
	mu        sync.Mutex
	node      *core.Node
	number    uint64               // of the last proposal or read
	proposals map[uint64]*Proposal // whoever removes one answers it
	reads     map[uint64]chan struct{}
	appends   []core.Append
	applies   []core.Committed
	covered   segment.Position // the last command that was applied
	applied   []appliedWaiter
	changed   chan struct{} // closed when was changes
	was       status
	closing   bool
	failure   error

	failed      atomic.Pointer[error] // failure, for readers without mu
	solo        atomic.Bool           // a sole voter that is current: it reads without asking
	started     time.Time
	writing     atomic.Int64  // since started, when the write under way began, in ns; 0: none is
	stuck       atomic.Bool   // the write under way takes longer than an election timeout
	appendWake  chan struct{} // each has room for one: a second one says nothing new
	applyWake   chan struct{}
	applying    sync.Mutex    // held while entries are taken from applies and applied; locked before mu
	stop        chan struct{} // ends the loops and all waiting
	stopOnce    sync.Once
	closeOnce   sync.Once
	truncations sync.Mutex
}

// status is what callers wait to change.
type status struct {
	role    core.Role
	ready   bool
	members uint64 // index at which they changed last
	settled bool   // closing, and no proposal waits
}

// Start runs a node that continues behind what is durable. A sole voter stands for election
// at once.
func Start(o Options) (*Host, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	h := &Host{
		o: o, covered: o.Applied, started: time.Now(),
		proposals: map[uint64]*Proposal{}, reads: map[uint64]chan struct{}{},
		changed: make(chan struct{}), stop: make(chan struct{}),
		appendWake: make(chan struct{}, 1), applyWake: make(chan struct{}, 1),
	}
	node, err := core.New(core.Options{
		ID: o.ID, Applied: o.Applied, Members: o.Members, Log: o.Log, State: o.Log.State(),
		Nonce: binary.BigEndian.Uint64(nonce[:]), Snapshot: h.offer,
	})
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	h.node = node
	// The three end with stop; joined by Close.
	h.loops.Go(h.appendLoop)
	h.loops.Go(h.applyLoop)
	if o.Send != nil {
		h.loops.Go(h.tickLoop)
	}
	if isSole(&o.Members, o.ID) {
		err = h.event(node.Campaign)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host: %w", err), h.Close())
	}
	return h, nil
}

// errChanged says that no state has the members as they are, because no command came behind their change.
var errChanged = errors.New("host: the members changed behind the last command")

// offer is the state that a node gets which is too far behind: where this one is. Only the position is sent, and the
// node fetches the state by itself. The node calls it in an event, under mu.
func (h *Host) offer(atLeast uint64) (core.Snapshot, error) {
	if h.covered.Index < atLeast {
		return core.Snapshot{}, errChanged
	}
	return core.Snapshot{Position: h.covered, Members: h.node.MembersAt(h.covered.Index)}, nil
}

// event runs one event of the node and passes on its effects. It fails with the failure of a
// failed host, with ErrClosed once the host has stopped, and with the event's own error.
func (h *Host) event(do func() error) error {
	h.mu.Lock()
	if err := h.stoppedLocked(); err != nil {
		h.mu.Unlock()
		return err
	}
	err := do()
	appends, applies := h.passOn()
	broken := h.node.Err()
	h.mu.Unlock()
	h.wake(appends, applies)
	if broken != nil {
		h.Fail(broken)
	}
	return err
}

// wake wakes the loops. It is not called under the lock, which a woken goroutine takes first.
func (h *Host) wake(appends, applies bool) {
	if appends {
		signal(h.appendWake)
	}
	if applies {
		signal(h.applyWake)
	}
}

// passOn takes the node's effects and tells whether there is something to append and to apply.
func (h *Host) passOn() (appends, applies bool) {
	out := h.node.Effects()
	h.appends = append(h.appends, out.Append...)
	h.applies = append(h.applies, out.Apply...)
	for _, number := range out.Lost {
		if p := h.takeProposal(number); p != nil {
			p.answer(nil, unknown(errLost))
		}
	}
	for _, number := range out.Reads {
		if done := h.reads[number]; done != nil {
			delete(h.reads, number)
			close(done)
		}
	}
	if len(out.Send) > 0 && h.o.Send != nil && !(h.stuck.Load() && h.node.Role().Leads) {
		h.o.Send(out.Send)
	}
	h.noteStatus()
	h.wakeApplied()
	appends, applies = len(out.Append) > 0, len(out.Apply) > 0
	for _, m := range out.Send {
		if m.GetType() == pb.MsgSnap {
			// It is a few bytes. The node fetches the state by itself and is asked again and again
			// meanwhile where its log ends.
			_ = h.node.SnapshotSent(m.GetTo(), true) // a failure is the node's, and seen by the caller
			more, others := h.passOn()
			appends, applies = appends || more, applies || others
		}
	}
	return appends, applies
}

// noteStatus wakes whoever waits for a change.
func (h *Host) noteStatus() {
	now := status{
		role: h.node.Role(), ready: h.node.Ready(), members: h.node.MembersChanged(),
		settled: h.closing && len(h.proposals) == 0,
	}
	members := h.node.Members()
	h.solo.Store(now.ready && !h.closing && isSole(&members, h.o.ID))
	if now != h.was {
		h.was = now
		h.wakeLocked()
	}
}

func (h *Host) wakeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// signal wakes the goroutine that waits on a channel with room for one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stoppedLocked returns why there are no more events, or nil.
func (h *Host) stoppedLocked() error {
	if h.failure != nil {
		return h.failure
	}
	select {
	case <-h.stop:
		return ErrClosed
	default:
		return nil
	}
}

// Err returns the failure that stopped the host, or nil.
func (h *Host) Err() error {
	if p := h.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Fail stops the host for good. Only the first failure counts, and none after Close. It does not
// wait for the loops, and may be called from Options.Apply.
func (h *Host) Fail(err error) {
	h.mu.Lock()
	if h.stoppedLocked() != nil {
		h.mu.Unlock()
		return
	}
	h.failure = err
	h.failed.Store(&err)
	h.solo.Store(false)
	waiting := h.proposals
	h.proposals = nil
	h.mu.Unlock()
	// Before the waiting ends, so that a caller that is woken finds the failure known.
	h.o.OnFailure(err)
	for _, p := range waiting {
		p.answer(nil, unknown(err))
	}
	h.end()
	h.o.Logger.Error("the replicated log has failed; this node stops", "error", err)
}

// end ends the loops and all waiting.
func (h *Host) end() { h.stopOnce.Do(func() { close(h.stop) }) }

// Close waits until what was proposed before has its answer, and ends the loops. A leader that
// has lost its majority answers within two election timeouts. It returns the failure of a failed
// host.
func (h *Host) Close() error {
	h.closeOnce.Do(func() {
		h.mu.Lock()
		h.closing = true
		h.solo.Store(false)
		for h.stoppedLocked() == nil && len(h.proposals) > 0 {
			changed := h.changed
			h.mu.Unlock()
			select {
			case <-changed:
			case <-h.stop:
			}
			h.mu.Lock()
		}
		h.mu.Unlock()
		h.end()
	})
	h.loops.Wait()
	return h.Err()
}

// Receive takes messages of other nodes.
func (h *Host) Receive(messages ...*pb.Message) error {
	return h.event(func() error {
		for _, m := range messages {
			if err := h.node.Receive(m); err != nil {
				return err
			}
		}
		return nil
	})
}

// Unreachable says that messages to a node were lost, so that it is not sent more than it can
// receive.
func (h *Host) Unreachable(id uint64) error {
	return h.event(func() error { return h.node.Unreachable(id) })
}

// Writing returns how long the write to the log that is under way has taken; 0 when there is none.
func (h *Host) Writing() time.Duration {
	began := h.writing.Load()
	if began == 0 {
		return 0
	}
	return time.Since(h.started) - time.Duration(began)
}

// Progress is a node's place in the log, and what it knows of the others.
type Progress struct {
	Applied, Committed, Last uint64 // indexes
	Others                   map[uint64]core.Progress
}

// Progress returns how far this node is and, if it leads, the others are.
func (h *Host) Progress() Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Progress{h.node.Applied().Index, h.node.Committed(), h.o.Log.Last().Index, h.node.Progress()}
}

// Changed returns a channel that is closed when the role of this node, the members or Ready's answer
// change next. Take it before looking at them.
func (h *Host) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Stopped is closed once there are no more events.
func (h *Host) Stopped() <-chan struct{} { return h.stop }

// Transfer begins to hand the leadership to another voter. Proposals fail meanwhile; after an election
// timeout without success this node goes on to lead.
func (h *Host) Transfer(to uint64) error {
	return h.event(func() error { return h.node.Transfer(to) })
}

// Covered returns the position of the last command that was applied, or Options.Applied.
func (h *Host) Covered() segment.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.covered
}

// Members returns the members as of what was applied.
func (h *Host) Members() core.Members {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node.Members()
}

// MembersChanged returns the index at which the members changed last, as of what was applied.
func (h *Host) MembersChanged() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node.MembersChanged()
}

// MembersAt returns the members as of an index that was applied and not truncated.
func (h *Host) MembersAt(index uint64) core.Members {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node.MembersAt(index)
}

// Truncate drops the log up to a position that Covered has returned and that the state store holds
// durably, by whole files. Writes go on meanwhile.
func (h *Host) Truncate(at segment.Position) error {
	h.truncations.Lock()
	defer h.truncations.Unlock()
	if at.Index <= h.o.Log.Checkpoint().Index {
		return h.event(func() error { return nil })
	}
	var members core.Members
	if err := h.event(func() error { members = h.node.MembersAt(at.Index); return nil }); err != nil {
		return err
	}
	if err := h.o.Log.Truncate(segment.Checkpoint{Position: at, Data: members.Encode()}); err != nil {
		h.Fail(err)
		return err
	}
	return h.event(func() error { return h.node.Truncated(h.o.Log.First()) })
}
