package ledger

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// The way of a write.
//
// A caller encodes its commands, in its own goroutine, into a Submission and puts
// it on the queue. The commit loop takes everything that
// waits, up to a bound, stamps the time and proposes it as one log entry.
// There is no timer: a log entry is whatever arrived while the ones before
// were being written. maxInFlight entries may be under way, so that the disk
// does not idle while a batch is gathered; more would only make batches
// smaller.
//
// The log makes an entry durable and hands it to the applier (apply.go), which
// decides its commands. The answer loop then wakes the callers that wait, in the
// order of the log. So an acknowledgement never comes before the fsync (invariant
// 2), and every later read finds its effect (invariant 9).
//
// Everything between Submit and the answer counts against one budget of bytes.
// When checkpoints cannot keep up, the commit loop waits before it proposes. The
// applier never waits, because what is in the log must be applied.

const (
	maxInFlight = 2
	// A submission of these, with its overhead, fits in the smallest queue.
	maxSubmissionCommands = 4_096
	maxSubmissionBytes    = 12 << 20
	// entryHeaderBytes is the most that the header of an entry takes.
	entryHeaderBytes = 48

	// commandOverhead is what a waiting command counts beside its bytes: its
	// outcome, twice, and its part of the request.
	commandOverhead = 900
	// unaryShare is the part of the queue that is kept for single commands, so
	// that a stream that waits for room does not shut them out.
	unaryShare = 8
)

// slowSync is how long a sync takes at least where one entry is in flight and not maxInFlight.
const slowSync = 500 * time.Microsecond

// slowerThanApply is how many times as long as an apply a sync takes, too, where one entry is in flight. Where an apply
// takes about as long, as that of keyed commands does, two are: one is applied beside the other's sync.
const slowerThanApply = 2

// pace is about how long something has taken the last times. Nothing but the size of entries depends on it.
type pace struct{ nanos atomic.Int64 }

// observe takes in one duration. One goroutine calls it.
func (p *pace) observe(took time.Duration) {
	const weight = 8 // of what was before
	was := p.last()
	p.set(was + (took-was)/weight)
}

func (p *pace) last() time.Duration    { return time.Duration(p.nanos.Load()) }
func (p *pace) set(took time.Duration) { p.nanos.Store(int64(took)) }

// syncsAreSlow reports whether an entry had better wait until the one before is answered.
func (l *Ledger) syncsAreSlow() bool {
	sync := l.syncs.last()
	return sync > slowSync && sync > slowerThanApply*l.applies.last()
}

// stored notes that what was given to the log is on the disk, and how long that took. The log calls it after each
// write.
func (l *Ledger) stored(took time.Duration) {
	l.syncs.observe(took)
	l.unsynced.Store(false)
	signal(l.synced)
}

// inflightEntry is a proposed entry.
type inflightEntry struct {
	proposal *raftlog.Proposal
	spans    []span
}

// Write decides one write and waits until it is durable. An outcome that is
// not Committed or Replayed is a refusal. A full queue is refused with
// ErrQueueFull. When ctx ends first, the error wraps ErrOutcomeUnknown and the
// cause. The error of a malformed write is a *machine.FieldError.
func (l *Ledger) Write(ctx context.Context, w *machine.Write) (machine.Outcome, error) {
	buffer := getWriteBuffer()
	defer buffer.free()
	var command [1]machine.Command
	var err error
	if command[0], buffer.memory, err = w.Encode(buffer.memory); err != nil {
		return machine.Outcome{}, err
	}
	return l.write(ctx, command[:], &buffer.retry)
}

// WriteEncoded is Write for a write that is encoded. The command may be used again once WriteEncoded
// returns.
func (l *Ledger) WriteEncoded(ctx context.Context, c *machine.Command) (machine.Outcome, error) {
	buffer := getWriteBuffer()
	defer buffer.free()
	command := [1]machine.Command{*c}
	return l.write(ctx, command[:], &buffer.retry)
}

// write decides one command. A retry that the state answers needs no submission, and nearly no memory.
func (l *Ledger) write(
	ctx context.Context, command []machine.Command, buffer *decide.Buffer,
) (machine.Outcome, error) {
	if err := mustBeEncoded(command); err != nil {
		return machine.Outcome{}, err
	}
	var receipt [1]*machine.Receipt
	if err := l.answerRetries(ctx, command, receipt[:], buffer); err != nil {
		return machine.Outcome{}, err
	}
	if receipt[0] != nil {
		return replayed(&command[0], receipt[0]), nil
	}
	s := l.single()
	s.addWrite(&command[0])
	return l.decide(ctx, s)
}

// Submit puts commands on the queue, in their order, and does not wait for the
// disk; it waits, until ctx ends, when the queue is full. The commands may be
// used again once Submit returns. The error of too many is a *machine.FieldError,
// and nothing is queued.
func (l *Ledger) Submit(ctx context.Context, commands []machine.Command) (*Submission, error) {
	return l.submit(ctx, commands, true)
}

// SubmitNow is Submit, but a full queue is refused with ErrQueueFull.
func (l *Ledger) SubmitNow(ctx context.Context, commands []machine.Command) (*Submission, error) {
	return l.submit(ctx, commands, false)
}

func (l *Ledger) submit(ctx context.Context, commands []machine.Command, wait bool) (*Submission, error) {
	if len(commands) > maxSubmissionCommands {
		problem := fmt.Sprintf("must be at most %d, are %d", maxSubmissionCommands, len(commands))
		return nil, &machine.FieldError{Field: "writes", Problem: problem}
	}
	if err := mustBeEncoded(commands); err != nil {
		return nil, err
	}
	s := &Submission{commands: make([]queuedCommand, 0, len(commands))}
	buffer := getWriteBuffer()
	defer buffer.free()
	s.frames = buffer.memory
	var receipts [retryGroup]*machine.Receipt
	for i := range commands {
		if i%retryGroup == 0 {
			group := commands[i:min(i+retryGroup, len(commands))]
			if err := l.answerRetries(ctx, group, receipts[:], &buffer.retry); err != nil {
				return nil, err
			}
		}
		if receipt := receipts[i%retryGroup]; receipt != nil {
			s.setReplayed(i, replayed(&commands[i], receipt), len(commands))
			continue
		}
		if s.slots != nil {
			s.slots = append(s.slots, i)
		}
		s.addWrite(&commands[i])
		if len(s.frames) > maxSubmissionBytes && i > 0 {
			problem := fmt.Sprintf("must have at most %d bytes together", maxSubmissionBytes)
			return nil, &machine.FieldError{Field: "writes", Problem: problem}
		}
	}
	if s.frames = buffer.take(s.frames); len(s.commands) == 0 {
		return s, nil
	}
	if err := l.enqueue(ctx, s, wait); err != nil {
		return nil, err
	}
	return s, nil
}

// mustBeEncoded refuses an empty command, which would stop every node that applies it.
func mustBeEncoded(commands []machine.Command) error {
	for i := range commands {
		if len(commands[i].Encoded()) == 0 {
			return &machine.FieldError{Field: fmt.Sprintf("writes[%d]", i), Problem: "was not encoded"}
		}
	}
	return nil
}

// OpenSession decides an OpenSession; see Write.
func (l *Ledger) OpenSession(ctx context.Context, o *machine.OpenSession) (machine.Outcome, error) {
	if err := o.Validate(); err != nil {
		return machine.Outcome{}, err
	}
	return l.one(ctx, origin{o.Scope, o.Actor}, machine.AppendOpenSession(nil, o))
}

// UpdateConfig changes the replicated configuration; see Write. The outcome
// has the configuration as it is then.
func (l *Ledger) UpdateConfig(ctx context.Context, u *machine.ConfigUpdate, actor string) (machine.Outcome, error) {
	return l.exclusive(ctx, machine.AppendUpdateConfig(nil, u, actor))
}

func (l *Ledger) one(ctx context.Context, from origin, command []byte) (machine.Outcome, error) {
	s := l.single()
	s.addFrom(from, command, 1)
	return l.decide(ctx, s)
}

// exclusive decides a command in an entry that holds no other one, because the command
// may change how later commands are divided into entries.
func (l *Ledger) exclusive(ctx context.Context, command []byte) (machine.Outcome, error) {
	s := l.single()
	s.exclusive = true
	s.add(command, 1)
	return l.decide(ctx, s)
}

// decide proposes a single submission, waits for the outcome of its command and gives the submission back.
func (l *Ledger) decide(ctx context.Context, s *Submission) (machine.Outcome, error) {
	if err := l.enqueue(ctx, s, false); err != nil {
		l.freeSingle(s)
		return machine.Outcome{}, err
	}
	if !s.await(ctx) {
		return machine.Outcome{}, unknown(context.Cause(ctx)) // not freed, because the loops still have it
	}
	out, err := machine.Outcome{}, s.err
	if err == nil {
		out = s.outcomes[0]
	}
	l.freeSingle(s)
	return out, err
}

// enqueue puts a submission on the queue, if the budget has room or, with
// wait, as soon as it has.
func (l *Ledger) enqueue(ctx context.Context, s *Submission, wait bool) error {
	if err := l.refusal(); err != nil {
		return err
	}
	if !s.single {
		s.done = make(chan struct{})
	}
	switch s.budget = l.budget; {
	case s.budget.TryAcquire(s.cost):
	case wait:
		if err := s.budget.Acquire(ctx, s.cost); err != nil {
			return fmt.Errorf("%w: nothing was proposed: %w", ErrQueueFull, err)
		}
	case l.unaryBudget.TryAcquire(s.cost):
		s.budget = l.unaryBudget
	default:
		l.counters.queueFull.Add(1)
		return ErrQueueFull
	}
	// Drain takes the whole budget to know that nothing is under way, so what
	// got its share after that must be turned away.
	if err := l.refusal(); err != nil {
		s.budget.Release(s.cost)
		return err
	}
	l.counters.queuedBytes.Add(s.cost)
	l.queue.add(s, int(l.entryCommands.Load()))
	signal(l.queue.wake)
	return nil
}

// refusal returns why nothing more is taken, or nil.
func (l *Ledger) refusal() error {
	if err := l.Err(); err != nil {
		return unknown(err)
	}
	if l.draining.Load() {
		return ErrDraining
	}
	if l.cluster.Term() == 0 {
		return l.cluster.NotLeading()
	}
	return nil
}

// commitLoop proposes what waits, until the ledger stops. It is the only
// proposer, so that ledger time follows the order of the log.
func (l *Ledger) commitLoop() {
	defer l.loops.Done()
	// Only this loop sends on it, so the answer loop ends after the last proposed entry.
	defer close(l.inFlight)
	for {
		select {
		case <-l.queue.wake:
		case <-l.stopping.Done():
			return
		}
		for l.proposeNext() {
		}
	}
}

// proposeNext proposes one log entry and reports whether there was anything to
// propose.
func (l *Ledger) proposeNext() bool {
	l.awaitRoom()
	l.takeSlot()
	// Callers that were just answered come back with their next write. They run
	// first, because one entry then has what would be a small one and the rest.
	// If no other goroutine can run, Gosched returns at once.
	runtime.Gosched()
	spans, commands, size := l.queue.take(int(l.entryCommands.Load()))
	if len(spans) == 0 {
		<-l.slots
		return false
	}
	entry := make([]byte, 0, size+entryHeaderBytes)
	// Read before all that goes by it: in a later term, nothing is proposed.
	term := l.cluster.Term()
	// Read before the time, so that the check is that of an entry in front.
	header := l.Head().header
	header.UnixNanos = l.clock.now()
	l.lastProposed.Store(header.UnixNanos)
	entry = machine.AppendEntryHeader(entry, header, commands)
	for _, p := range spans {
		entry = append(entry, p.submission.frames[p.submission.start(p.from):p.submission.commands[p.to-1].end]...)
	}
	// Read before the send, because an answered submission may already be used for another call.
	exclusive := spans[0].submission.exclusive
	l.inFlight <- inflightEntry{l.propose(term, entry), spans}
	if exclusive {
		l.awaitApplied()
	}
	return true
}

// propose gives an entry to the log, where it is not on the disk yet; see stored.
func (l *Ledger) propose(term uint64, entry []byte) *raftlog.Proposal {
	l.unsynced.Store(true)
	return l.log.ProposeIn(term, entry)
}

// takeSlot waits until one more entry may be in flight, and counts it.
func (l *Ledger) takeSlot() {
	l.slots <- struct{}{} // the answer loop makes room, also after a failure
	// What comes until the entry before is on the disk shares the next sync. A further entry would be smaller, and
	// the log would take both at once whenever it is late: they would then be synced together, applied together and
	// answered together, and the disk and the applier would take turns. To a full one nothing can be added.
	const _ = uint(2 - maxInFlight) // with more, one more slot would not mean that nothing is in flight
	for (l.unsynced.Load() || l.syncsAreSlow()) && !l.queue.fills(int(l.entryCommands.Load())) {
		select {
		case l.slots <- struct{}{}: // nothing is in flight
			<-l.slots
			return
		case <-l.synced:
		case <-l.queue.filled:
		}
	}
}

// awaitApplied returns once nothing is in flight. The number of commands in an entry
// follows from the configuration, and after a change no entry may be filled by the old
// one: each command could start an eviction pass of any size, and together they could
// remove more than a block can hold.
func (l *Ledger) awaitApplied() {
	for range maxInFlight {
		l.slots <- struct{}{} // as in takeSlot
	}
	for range maxInFlight {
		<-l.slots
	}
}

// awaitRoom keeps proposals back while too many changes wait for the state
// file.
func (l *Ledger) awaitRoom() {
	if l.store.PendingBytes() <= l.maxPending() {
		return
	}
	l.counters.slowed.Add(1)
	l.roomAwaited.Begin()
	defer l.roomAwaited.End()
	for l.store.PendingBytes() > l.maxPending() {
		signal(l.checkpointDue)
		select {
		case <-l.flushed:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
	}
}

// answerLoop wakes the callers whose commands are decided, in the order of the log.
func (l *Ledger) answerLoop() {
	defer l.loops.Done()
	for f := range l.inFlight {
		result, err := f.proposal.Wait()
		outcomes, ok := result.([]machine.Outcome)
		if err == nil && (!ok || len(outcomes) == 0) {
			err = errors.New("the log entry was not decided") // the failure says why
		}
		for i, p := range f.spans {
			if i == len(f.spans)-1 {
				// Only now: the next entry would otherwise be taken while most of these callers are still to be
				// woken, and have half of them. Before the last one, because the Go scheduler runs first what was
				// made ready last: the commit loop then runs after the others.
				<-l.slots
			}
			n := p.to - p.from
			if err != nil {
				p.fail(l.proposalError(err))
			} else {
				// The capacity ends there too: an append by one caller must not reach the next one's outcomes.
				p.setOutcomes(outcomes[:n:n])
				outcomes = outcomes[n:]
			}
			s := p.submission
			if s.decided += n; s.decided == len(s.commands) {
				l.counters.queuedBytes.Add(-s.cost)
				s.budget.Release(s.cost)
				s.answered()
			}
		}
	}
}

// proposalError translates the log's errors. After a failure every outcome is
// unknown, because this node must not say that an entry is not on the disk.
func (l *Ledger) proposalError(err error) error {
	if failure := l.Err(); failure != nil {
		return unknown(failure)
	}
	// It was never in the log, so that the caller may send it to the leader at once.
	if errors.Is(err, raftlog.ErrNotLeader) {
		return l.cluster.NotLeading()
	}
	return unknown(err)
}

// signal wakes the goroutine that waits on a channel of capacity 1. It does nothing
// if a signal is pending already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
