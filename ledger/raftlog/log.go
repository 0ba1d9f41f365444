package raftlog

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Log is an open log, and this node's part in its replication. Its methods may be called from any goroutine.
type Log struct {
	o     Options
	files *segment.Log
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
	covered   Position // position of the last applied command
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
	stopped     chan struct{} // closed to end the loops and all waits
	endOnce     sync.Once
	stopOnce    sync.Once
	closeOnce   sync.Once
	closeErr    error
	truncations sync.Mutex // serializes Truncate; not mu, which must not be held while files are removed
}

// shown describes the node as of its last event. Its lock is held for a copy at most, so that a status call waits
// neither for a disk nor for an event, and no event waits for a status call.
type shown struct {
	mu       sync.Mutex
	changed  chan struct{} // closed when status changes
	status   status
	members  Members
	covered  Position
	progress Progress
}

// status is the state whose changes callers wait for.
type status struct {
	role    Role
	ready   bool
	members uint64 // index of the last membership change
	closing bool
	settled bool // closing, and no proposal is waiting
}

// start starts the consensus on open files with the members as of Options.Checkpoint. A sole voter campaigns at once.
func start(o Options, files *segment.Log, members core.Members) (*Log, error) {
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, err
	}
	l := &Log{
		o: o, files: files, covered: o.Checkpoint,
		proposals: map[uint64]*Proposal{}, reads: map[uint64]chan struct{}{},
		shown: shown{changed: make(chan struct{})}, stopped: make(chan struct{}),
		appendWake: make(chan struct{}, 1), applyWake: make(chan struct{}, 1),
	}
	patience := stalledTicks * o.tick()
	l.writing = o.Watch.Job("a write to the log", patience)
	l.applier = o.Watch.Job("the application of an entry", patience)
	l.ticking = o.Watch.Job("the consensus", patience)
	node, err := core.New(core.Options{
		ID: o.Node, Applied: o.Checkpoint, Members: members, Log: files, State: files.State(),
		Nonce: binary.BigEndian.Uint64(nonce[:]), Snapshot: l.offer, Alone: o.Cluster == nil,
	})
	if err != nil {
		return nil, err
	}
	l.node = node
	l.noteStatus()
	// The three loops end with stopped and are joined by stop.
	l.loops.Go(l.appendLoop)
	l.loops.Go(l.applyLoop)
	if o.Cluster != nil {
		l.loops.Go(l.tickLoop)
	}
	if members.IsSole(o.Node) {
		err = l.event(node.Campaign)
	}
	if err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return l, nil
}

// errChanged means that no state includes the current members, because no command followed the last membership change.
var errChanged = errors.New("raftlog: the members changed after the last command")

// offer returns this node's state position as the snapshot for a node that needs dropped entries. Only the position is
// sent, and the other node fetches the state itself. The node calls offer during an event, under mu.
func (l *Log) offer(atLeast uint64) (core.Snapshot, error) {
	if l.covered.Index < atLeast {
		return core.Snapshot{}, errChanged
	}
	return core.Snapshot{Position: l.covered, Members: l.node.MembersAt(l.covered.Index)}, nil
}

// event runs one event of the node and passes on its effects. It fails with the failure of a failed log, with
// ErrClosed once the log has stopped, or with the event's own error.
func (l *Log) event(do func() error) error {
	appends, applies, err := l.step(do)
	l.wake(appends, applies)
	return err
}

// step is event, but the caller wakes the loops, or does their work itself.
func (l *Log) step(do func() error) (appends, applies bool, err error) {
	l.mu.Lock()
	if err := l.stoppedLocked(); err != nil {
		l.mu.Unlock()
		return false, false, err
	}
	err = do()
	appends, applies = l.passOn()
	broken := l.node.Err()
	l.mu.Unlock()
	if broken != nil {
		l.Fail(broken)
	}
	return appends, applies, err
}

// wake wakes the loops. It must not be called with mu held, because the woken goroutine acquires mu first.
func (l *Log) wake(appends, applies bool) {
	if appends {
		signal(l.appendWake)
	}
	if applies {
		signal(l.applyWake)
	}
}

// passOn takes the node's effects and reports whether there is something to append and to apply.
func (l *Log) passOn() (appends, applies bool) {
	out := l.node.Effects()
	l.appends = append(l.appends, out.Append...)
	l.applies = append(l.applies, out.Apply...)
	for _, number := range out.Lost {
		if p := l.takeProposal(number); p != nil {
			p.answer(nil, unknown(errLost))
		}
	}
	for _, number := range out.Reads {
		if done := l.reads[number]; done != nil {
			delete(l.reads, number)
			close(done)
		}
	}
	if len(out.Send) > 0 && l.o.Cluster != nil {
		l.o.Cluster.Send(out.Send)
	}
	l.noteStatus()
	l.wakeApplied()
	appends, applies = len(out.Append) > 0, len(out.Apply) > 0
	for _, m := range out.Send {
		if m.GetType() == pb.MsgSnap {
			// The snapshot is a few bytes. The other node fetches the state itself, and meanwhile the leader keeps
			// asking it where its log ends.
			_ = l.node.SnapshotSent(m.GetTo(), true) // a failure is the node's, and seen by the caller
			more, others := l.passOn()
			appends, applies = appends || more, applies || others
		}
	}
	return appends, applies
}

// noteStatus updates what is shown, and wakes the callers that wait for a change.
func (l *Log) noteStatus() {
	now := status{
		role: l.node.Role(), ready: l.node.Ready(), members: l.node.MembersChanged(),
		closing: l.closing, settled: l.closing && len(l.proposals) == 0,
	}
	s := &l.shown
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.role != s.status.role {
		l.others = l.node.Progress()
	}
	s.members, s.covered = l.node.Members(), l.covered
	l.solo.Store(now.ready && !l.closing && s.members.IsSole(l.o.Node))
	s.progress = Progress{l.node.Applied().Index, l.node.Committed(), l.node.Last(), l.others}
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

// stoppedLocked returns why the log takes no more events, or nil.
func (l *Log) stoppedLocked() error {
	if l.failure != nil {
		return l.failure
	}
	select {
	case <-l.stopped:
		return ErrClosed
	default:
		return nil
	}
}

// Err returns the failure that stopped the log, or nil.
func (l *Log) Err() error {
	if p := l.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Fail stops the log for good. Only the first failure counts, and none after Close. Fail does not wait for the loops,
// and may be called from Options.Apply.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	if l.stoppedLocked() != nil {
		l.mu.Unlock()
		return
	}
	l.failure = err
	l.failed.Store(&err)
	l.solo.Store(false)
	waiting := l.proposals
	l.proposals = nil
	l.mu.Unlock()
	// Before the waits end, so that a woken caller finds the failure already reported.
	l.o.OnFailure(err)
	for _, p := range waiting {
		p.answer(nil, unknown(err))
	}
	l.end()
	l.o.Logger.Error("the replicated log stops", "error", err)
}

// end ends the loops and all waits.
func (l *Log) end() { l.endOnce.Do(func() { close(l.stopped) }) }

// Close waits until every proposal has its result, stops the consensus and closes the files. A proposal made meanwhile
// ends with ErrClosed. A leader that has lost its majority answers within two election timeouts. Close writes nothing
// more to a failed log and returns its failure.
func (l *Log) Close() error {
	l.closeOnce.Do(func() {
		if l.closeErr = l.stop(); l.closeErr != nil {
			_ = l.files.Abandon() // the failure says more than its consequences
			return
		}
		l.closeErr = l.files.Close()
	})
	return l.closeErr
}

// stop is Close, but for the files.
func (l *Log) stop() error {
	l.stopOnce.Do(func() {
		l.mu.Lock()
		l.closing = true
		l.noteStatus()
		for l.stoppedLocked() == nil && len(l.proposals) > 0 {
			// Taken under the lock, so that an answer before the wait is not missed.
			changed := l.Changed()
			l.mu.Unlock()
			select {
			case <-changed:
			case <-l.stopped:
			}
			l.mu.Lock()
		}
		l.mu.Unlock()
		l.end()
	})
	l.loops.Wait()
	l.appending.Lock() // a caller of ProposeHere may be writing; what has failed is answered before that ends
	defer l.appending.Unlock()
	return l.Err()
}

// Receive takes messages from other nodes.
func (l *Log) Receive(messages []*pb.Message) error {
	return l.event(func() error {
		for _, m := range messages {
			if err := l.node.Receive(m); err != nil {
				return err
			}
		}
		return nil
	})
}

// Unreachable reports that messages to a node were lost, so that the leader does not send it more than it can receive.
func (l *Log) Unreachable(id uint64) error {
	return l.event(func() error { return l.node.Unreachable(id) })
}

// Writing returns how long the current write to the log has taken, or 0 if there is none.
func (l *Log) Writing() time.Duration { return l.writing.Took() }

// Advance notes that the entry being applied advances, so that a slow state machine is not taken for one that hangs.
func (l *Log) Advance() { l.applier.Advance() }

// Stalled returns the work of this node, if any, that has stopped advancing. A node with such work does not lead.
func (l *Log) Stalled() Stall { return l.o.Watch.Stalled() }

// Progress is a node's position in the log and, on a leader, what it knows of the other nodes.
type Progress struct {
	Applied, Committed, Last uint64                   // indexes; Last is durable
	Others                   map[uint64]core.Progress // as of the last tick
}

// Progress returns this node's progress and, on a leader, the progress of the other nodes.
func (l *Log) Progress() Progress {
	l.shown.mu.Lock()
	defer l.shown.mu.Unlock()
	return l.shown.progress
}

// Changed returns a channel that is closed at the next change of this node's role, the members or the result of
// IsReady. Call Changed before reading them, so that no change is missed.
func (l *Log) Changed() <-chan struct{} {
	l.shown.mu.Lock()
	defer l.shown.mu.Unlock()
	return l.shown.changed
}

// Stopped returns a channel that is closed once the log takes no more events.
func (l *Log) Stopped() <-chan struct{} { return l.stopped }

// Transfer starts a transfer of the leadership to another voter. Proposals fail during the transfer; if it has not
// succeeded after an election timeout, this node continues to lead.
func (l *Log) Transfer(to uint64) error {
	return l.event(func() error { return l.node.Transfer(to) })
}

// Hesitate sets whether this node lets another node stand for election before it does; see core.Node.Hesitate.
func (l *Log) Hesitate(on bool) error {
	return l.event(func() error { l.node.Hesitate(on); return nil })
}

// ElectionTimeout is the shortest time without a heartbeat after which an election begins.
func (l *Log) ElectionTimeout() time.Duration { return core.DefaultElectionTicks * l.o.tick() }

// Covered returns the position of the last applied command, or Options.Checkpoint.
func (l *Log) Covered() Position {
	l.shown.mu.Lock()
	defer l.shown.mu.Unlock()
	return l.shown.covered
}

// Entries returns entries that this node has applied, from one index on: at least one, and otherwise about maxBytes of
// data; none if there are none yet. It fails with segment.ErrTruncated if the first one was dropped.
func (l *Log) Entries(from uint64, maxBytes int) ([]Entry, error) {
	end := l.Progress().Applied + 1
	if from >= end {
		return nil, nil
	}
	entries, err := l.files.Entries(from, end, maxBytes)
	if errors.Is(err, segment.ErrMissing) { // others have committed it, and this node's write has not ended
		return nil, nil
	}
	return entries, err
}

// First returns the index of the first entry that [Log.Entries] still has, or will have.
func (l *Log) First() uint64 { return l.files.First() }

// Members returns the members as of the last applied entry.
func (l *Log) Members() Members {
	l.shown.mu.Lock()
	defer l.shown.mu.Unlock()
	return l.shown.members
}

// MembersChanged returns the index of the last applied membership change.
func (l *Log) MembersChanged() uint64 {
	l.shown.mu.Lock()
	defer l.shown.mu.Unlock()
	return l.shown.status.members
}

// MembersAt returns the members as of an index that was applied and not truncated.
func (l *Log) MembersAt(index uint64) Members {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.node.MembersAt(index)
}

// Truncate records that the machine has everything up to an index in its own store, durably, and drops the files that
// have nothing after it, except the newest. The index is at most that of Covered. Commits continue meanwhile.
func (l *Log) Truncate(upTo uint64) error {
	l.truncations.Lock()
	defer l.truncations.Unlock()
	if upTo < l.Truncated() || upTo == 0 {
		// An empty event, so that a failed or closed log still returns its error.
		return l.event(func() error { return nil })
	}
	var members Members
	if err := l.event(func() error { members = l.node.MembersAt(upTo); return nil }); err != nil {
		return err
	}
	term, err := l.files.Term(upTo)
	if err != nil {
		return err
	}
	at := segment.Checkpoint{Position: Position{Index: upTo, Term: term}, Data: members.Encode()}
	if err := l.files.Truncate(at); err != nil {
		l.Fail(err)
		return err
	}
	return l.event(func() error { return l.node.Truncated(l.files.First()) })
}

// Truncated returns the index up to which the log has been dropped.
func (l *Log) Truncated() uint64 { return l.files.Checkpoint().Index }

// BytesSinceTruncate returns roughly how many bytes of entries were stored since the last truncation, including those
// stored before Open.
func (l *Log) BytesSinceTruncate() int64 { return l.files.Bytes() }

// Last returns the last index in this node's log.
func (l *Log) Last() uint64 { return l.files.Last().Index }
