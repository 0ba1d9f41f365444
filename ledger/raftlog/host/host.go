package host

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var (
	// ErrNotLeader means that a proposal was certainly never in the log. It is safe to send it elsewhere as if it had
	// never been made.
	ErrNotLeader = errors.New("host: not the leader")
	// ErrOutcomeUnknown means that the entry may or may not be committed, now or after a restart. It wraps the cause.
	ErrOutcomeUnknown = errors.New("host: outcome unknown")
	// ErrClosed is returned by calls after Close. A proposal that ends with it was never in the log.
	ErrClosed = errors.New("host: closed")
	// ErrEntryTooLarge means that an entry exceeds MaxEntryBytes. It was never proposed.
	ErrEntryTooLarge = errors.New("host: the entry is too large")
)

// MaxEntryBytes is the maximum size of one proposed entry. Two such entries may be uncommitted at once.
const MaxEntryBytes = core.MaxUncommittedBytes / 2

// Options configures Start. ID, Log, Members and Apply are required.
type Options struct {
	ID uint64 // of this node among the members
	// Log is open and belongs to the host until Close returns; Close does not close it.
	Log     *segment.Log
	Applied segment.Position // durable position of the state store
	Members core.Members     // as of Applied

	// Apply is called for each committed entry after Applied, in log order, from one goroutine. The result goes to the
	// proposer. The state store's failure is reported with Host.Fail, which Apply may call. entry must not be changed
	// and may be retained.
	Apply func(at segment.Position, entry []byte) any

	// Send takes messages for other nodes, in order. It must neither block nor call the host, and may lose messages. If
	// it is nil, this node is and stays the only voter.
	Send func([]*pb.Message)
	// Tick is the heartbeat interval; an election begins after ten to twenty intervals without a heartbeat. 0 means 50
	// ms. Unused without Send.
	Tick time.Duration
	// Watch has the work that this node must do to serve. The host adds its own; the caller may add more, and the entry
	// being applied advances with Host.Advance. If it is nil, the host watches only its own work.
	Watch     *Watch
	Logger    *slog.Logger // nil: slog.Default()
	OnFailure func(error)  // called once with the first failure; must not block; may be nil
	// Stored is called after each write of entries with their bytes and the time the write took, including the sync. It
	// must not block; may be nil.
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
	case o.Send == nil && !o.Members.IsSole(o.ID):
		return fmt.Errorf("host: the members are %+v, and without Options.Send node %d must be the only one",
			o.Members, o.ID)
	}
	if o.Tick == 0 {
		o.Tick = defaultTick
	}
	if o.Watch == nil {
		o.Watch = NewWatch()
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

// Host is a running node. Its methods may be called from any goroutine.
type Host struct {
	o     Options
	loops sync.WaitGroup

	// mu serializes the node's events. The only slow thing that happens while it is held is a read of old entries for a
	// lagging node, so what describes this node is read from shown.
	mu        sync.Mutex
	node      *core.Node
	number    uint64               // of the last proposal or read
	proposals map[uint64]*Proposal // whichever goroutine removes a proposal answers it
	reads     map[uint64]chan struct{}
	appends   []core.Append
	applies   []core.Committed
	covered   segment.Position // position of the last applied command
	applied   []appliedWaiter
	others    map[uint64]core.Progress // as of the last tick or change of the role
	closing   bool
	failure   error
	shown     shown

	failed      atomic.Pointer[error] // failure, for readers without mu
	solo        atomic.Bool           // set on a current sole voter, which reads without asking other nodes
	writing     *Job                  // of the log, including the sync
	applier     *Job                  // one entry
	ticking     *Job                  // one tick
	appendWake  chan struct{}         // both have capacity 1, because a second signal adds nothing
	applyWake   chan struct{}
	appending   sync.Mutex    // held while appends are taken and written; locked before applying
	applying    sync.Mutex    // held while entries are taken from applies and applied; locked before mu
	stop        chan struct{} // closed to end the loops and all waits
	stopOnce    sync.Once
	closeOnce   sync.Once
	truncations sync.Mutex // serializes Truncate; not mu, which must not be held while files are removed
}

// shown describes the node as of its last event. Its lock is held for a copy at most, so that a status call waits
// neither for a disk nor for an event, and no event waits for a status call.
type shown struct {
	mu       sync.Mutex
	changed  chan struct{} // closed when status changes
	status   status
	members  core.Members
	covered  segment.Position
	progress Progress
}

// status is the state whose changes callers wait for.
type status struct {
	role    core.Role
	ready   bool
	members uint64 // index of the last membership change
	closing bool
	settled bool // closing, and no proposal is waiting
}

// Start starts a node that continues from the durable state and log. A sole voter campaigns at once.
func Start(o Options) (*Host, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	h := &Host{
		o: o, covered: o.Applied,
		proposals: map[uint64]*Proposal{}, reads: map[uint64]chan struct{}{},
		shown: shown{changed: make(chan struct{})}, stop: make(chan struct{}),
		appendWake: make(chan struct{}, 1), applyWake: make(chan struct{}, 1),
	}
	h.writing = o.Watch.Job("a write to the log", stalledTicks*o.Tick)
	h.applier = o.Watch.Job("the application of an entry", stalledTicks*o.Tick)
	h.ticking = o.Watch.Job("the consensus", stalledTicks*o.Tick)
	node, err := core.New(core.Options{
		ID: o.ID, Applied: o.Applied, Members: o.Members, Log: o.Log, State: o.Log.State(),
		Nonce: binary.BigEndian.Uint64(nonce[:]), Snapshot: h.offer, Alone: o.Send == nil,
	})
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	h.node = node
	h.noteStatus()
	// The three loops end with stop and are joined by Close.
	h.loops.Go(h.appendLoop)
	h.loops.Go(h.applyLoop)
	if o.Send != nil {
		h.loops.Go(h.tickLoop)
	}
	if o.Members.IsSole(o.ID) {
		err = h.event(node.Campaign)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host: %w", err), h.Close())
	}
	return h, nil
}

// errChanged means that no state includes the current members, because no command followed the last membership change.
var errChanged = errors.New("host: the members changed after the last command")

// offer returns this node's state position as the snapshot for a node that needs dropped entries. Only the position is
// sent, and the other node fetches the state itself. The node calls offer during an event, under mu.
func (h *Host) offer(atLeast uint64) (core.Snapshot, error) {
	if h.covered.Index < atLeast {
		return core.Snapshot{}, errChanged
	}
	return core.Snapshot{Position: h.covered, Members: h.node.MembersAt(h.covered.Index)}, nil
}

// event runs one event of the node and passes on its effects. It fails with the failure of a failed host, with
// ErrClosed once the host has stopped, or with the event's own error.
func (h *Host) event(do func() error) error {
	appends, applies, err := h.step(do)
	h.wake(appends, applies)
	return err
}

// step is event, but the caller wakes the loops, or does their work itself.
func (h *Host) step(do func() error) (appends, applies bool, err error) {
	h.mu.Lock()
	if err := h.stoppedLocked(); err != nil {
		h.mu.Unlock()
		return false, false, err
	}
	err = do()
	appends, applies = h.passOn()
	broken := h.node.Err()
	h.mu.Unlock()
	if broken != nil {
		h.Fail(broken)
	}
	return appends, applies, err
}

// wake wakes the loops. It must not be called with mu held, because the woken goroutine acquires mu first.
func (h *Host) wake(appends, applies bool) {
	if appends {
		signal(h.appendWake)
	}
	if applies {
		signal(h.applyWake)
	}
}

// passOn takes the node's effects and reports whether there is something to append and to apply.
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
	if len(out.Send) > 0 && h.o.Send != nil {
		h.o.Send(out.Send)
	}
	h.noteStatus()
	h.wakeApplied()
	appends, applies = len(out.Append) > 0, len(out.Apply) > 0
	for _, m := range out.Send {
		if m.GetType() == pb.MsgSnap {
			// The snapshot is a few bytes. The other node fetches the state itself, and meanwhile the leader keeps
			// asking it where its log ends.
			_ = h.node.SnapshotSent(m.GetTo(), true) // a failure is the node's, and seen by the caller
			more, others := h.passOn()
			appends, applies = appends || more, applies || others
		}
	}
	return appends, applies
}

// noteStatus updates what is shown, and wakes the callers that wait for a change.
func (h *Host) noteStatus() {
	now := status{
		role: h.node.Role(), ready: h.node.Ready(), members: h.node.MembersChanged(),
		closing: h.closing, settled: h.closing && len(h.proposals) == 0,
	}
	s := &h.shown
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.role != s.status.role {
		h.others = h.node.Progress()
	}
	s.members, s.covered = h.node.Members(), h.covered
	h.solo.Store(now.ready && !h.closing && s.members.IsSole(h.o.ID))
	s.progress = Progress{h.node.Applied().Index, h.node.Committed(), h.node.Last(), h.others}
	if now != s.status {
		s.status = now
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// signal wakes the goroutine that waits on a channel with capacity 1.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stoppedLocked returns why the host takes no more events, or nil.
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

// Fail stops the host for good. Only the first failure counts, and none after Close. Fail does not wait for the loops,
// and may be called from Options.Apply.
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
	// Before the waits end, so that a woken caller finds the failure already reported.
	h.o.OnFailure(err)
	for _, p := range waiting {
		p.answer(nil, unknown(err))
	}
	h.end()
	h.o.Logger.Error("the replicated log stops", "error", err)
}

// end ends the loops and all waits.
func (h *Host) end() { h.stopOnce.Do(func() { close(h.stop) }) }

// Close waits until every proposal made before it is answered, and ends the loops. A leader that has lost its majority
// answers within two election timeouts. Close returns the failure of a failed host.
func (h *Host) Close() error {
	h.closeOnce.Do(func() {
		h.mu.Lock()
		h.closing = true
		h.noteStatus()
		for h.stoppedLocked() == nil && len(h.proposals) > 0 {
			// Taken under the lock, so that an answer before the wait is not missed.
			changed := h.Changed()
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
	h.appending.Lock() // a caller of ProposeHere may be writing; what has failed is answered before that ends
	defer h.appending.Unlock()
	return h.Err()
}

// Receive takes messages from other nodes.
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

// Unreachable reports that messages to a node were lost, so that the leader does not send it more than it can receive.
func (h *Host) Unreachable(id uint64) error {
	return h.event(func() error { return h.node.Unreachable(id) })
}

// Writing returns how long the current write to the log has taken, or 0 if there is none.
func (h *Host) Writing() time.Duration { return h.writing.Took() }

// Advance notes that the entry being applied advances, so that a slow state machine is not taken for one that hangs.
func (h *Host) Advance() { h.applier.Advance() }

// Stalled returns the work of this node, if any, that has stopped advancing. A node with such work does not lead.
func (h *Host) Stalled() Stall { return h.o.Watch.Stalled() }

// Progress is a node's position in the log and, on a leader, what it knows of the other nodes.
type Progress struct {
	Applied, Committed, Last uint64                   // indexes; Last is durable
	Others                   map[uint64]core.Progress // as of the last tick
}

// Progress returns this node's progress and, on a leader, the progress of the other nodes.
func (h *Host) Progress() Progress {
	h.shown.mu.Lock()
	defer h.shown.mu.Unlock()
	return h.shown.progress
}

// Changed returns a channel that is closed at the next change of this node's role, the members or the result of
// IsReady. Call Changed before reading them, so that no change is missed.
func (h *Host) Changed() <-chan struct{} {
	h.shown.mu.Lock()
	defer h.shown.mu.Unlock()
	return h.shown.changed
}

// Stopped returns a channel that is closed once the host takes no more events.
func (h *Host) Stopped() <-chan struct{} { return h.stop }

// Transfer starts a transfer of the leadership to another voter. Proposals fail during the transfer; if it has not
// succeeded after an election timeout, this node continues to lead.
func (h *Host) Transfer(to uint64) error {
	return h.event(func() error { return h.node.Transfer(to) })
}

// Hesitate sets whether this node lets another node stand for election before it does; see core.Node.Hesitate.
func (h *Host) Hesitate(on bool) error {
	return h.event(func() error { h.node.Hesitate(on); return nil })
}

// ElectionTimeout is the shortest time without a heartbeat after which an election begins.
func (h *Host) ElectionTimeout() time.Duration { return core.DefaultElectionTicks * h.o.Tick }

// Covered returns the position of the last applied command, or Options.Applied.
func (h *Host) Covered() segment.Position {
	h.shown.mu.Lock()
	defer h.shown.mu.Unlock()
	return h.shown.covered
}

// Members returns the members as of the last applied entry.
func (h *Host) Members() core.Members {
	h.shown.mu.Lock()
	defer h.shown.mu.Unlock()
	return h.shown.members
}

// MembersChanged returns the index of the last applied membership change.
func (h *Host) MembersChanged() uint64 {
	h.shown.mu.Lock()
	defer h.shown.mu.Unlock()
	return h.shown.status.members
}

// MembersAt returns the members as of an index that was applied and not truncated.
func (h *Host) MembersAt(index uint64) core.Members {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node.MembersAt(index)
}

// Truncate drops the log up to a position that Covered has returned and that the state store holds durably. It removes
// whole files. Writes continue meanwhile.
func (h *Host) Truncate(at segment.Position) error {
	h.truncations.Lock()
	defer h.truncations.Unlock()
	if at.Index <= h.o.Log.Checkpoint().Index {
		// An empty event, so that a failed or closed host still returns its error.
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
