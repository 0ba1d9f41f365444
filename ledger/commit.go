package ledger

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// The way of a write.
//
// A caller encodes its commands, in its own goroutine, into a Submission and puts
// it on the queue. The commit loop takes everything that
// waits, up to a bound, stamps the time and proposes it as one log entry.
// A caller that is alone, and has no deadline, does all this itself, because
// waking the loops takes longer than what they do; see lead.
// There is no timer: a log entry is whatever arrived while the ones before
// were being written. engine.MaxInFlight entries may be under way, so that the disk
// does not idle while a batch is gathered; more would only make batches
// smaller.
//
// The log makes an entry durable and hands it to the applier (apply.go), which
// decides its commands. The answer loop then wakes the callers that wait, in the
// order of the log. So an acknowledgement never comes before the fsync (invariant
// 2), and every later read finds its effect (invariant 9).
//
// Everything between Submit and the answer counts against one budget of bytes.
// When checkpoints cannot keep up, nothing is proposed. The applier never waits,
// because what is in the log must be applied.

const (
	// A submission of these, with its overhead, fits in the smallest queue.
	maxSubmissionCommands = 4_096
	maxSubmissionBytes    = 12 << 20
	// entryHeaderBytes is the most that the header of an entry takes.
	entryHeaderBytes = 48
)

// inflightEntry is a proposed entry.
type inflightEntry struct {
	proposal *raftlog.Proposal
	spans    []engine.Span
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
	ctx context.Context, command []machine.Command, buffer *engine.Buffer,
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
	return l.submit(ctx, commands, true, false)
}

// SubmitHere is Submit which commits one command in the caller's goroutine if it is the only one on its way, and then
// returns when it is decided. Nothing ends that wait for the disk.
func (l *Ledger) SubmitHere(ctx context.Context, commands []machine.Command) (*Submission, error) {
	return l.submit(ctx, commands, true, len(commands) == 1)
}

// SubmitNow is Submit, but a full queue is refused with ErrQueueFull.
func (l *Ledger) SubmitNow(ctx context.Context, commands []machine.Command) (*Submission, error) {
	return l.submit(ctx, commands, false, false)
}

func (l *Ledger) submit(ctx context.Context, commands []machine.Command, wait, here bool) (*Submission, error) {
	if len(commands) > maxSubmissionCommands {
		problem := fmt.Sprintf("must be at most %d, are %d", maxSubmissionCommands, len(commands))
		return nil, &machine.FieldError{Field: "writes", Problem: problem}
	}
	if err := mustBeEncoded(commands); err != nil {
		return nil, err
	}
	s := newSubmission(false)
	s.engine.Commands = make([]engine.Command, 0, len(commands))
	buffer := getWriteBuffer()
	defer buffer.free()
	s.engine.Frames = buffer.memory
	var receipts [retryGroup]*machine.Receipt
	for i := range commands {
		if i%retryGroup == 0 {
			group := commands[i:min(i+retryGroup, len(commands))]
			if err := l.answerRetries(ctx, group, receipts[:], &buffer.retry); err != nil {
				return nil, err
			}
		}
		if receipt := receipts[i%retryGroup]; receipt != nil {
			s.engine.AddReplay(replayed(&commands[i], receipt), len(commands))
			continue
		}
		s.addWrite(&commands[i])
		if len(s.engine.Frames) > maxSubmissionBytes && i > 0 {
			problem := fmt.Sprintf("must have at most %d bytes together", maxSubmissionBytes)
			return nil, &machine.FieldError{Field: "writes", Problem: problem}
		}
	}
	if s.engine.Frames = buffer.take(s.engine.Frames); len(s.engine.Commands) == 0 {
		return s, nil
	}
	if err := l.enqueue(ctx, s, wait, here); err != nil {
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
	return l.one(ctx, engine.Origin{Scope: o.Scope, Actor: o.Actor}, machine.AppendOpenSession(nil, o))
}

// UpdateConfig changes the replicated configuration; see Write. The outcome
// has the configuration as it is then.
func (l *Ledger) UpdateConfig(ctx context.Context, u *machine.ConfigUpdate, actor string) (machine.Outcome, error) {
	return l.exclusive(ctx, machine.AppendUpdateConfig(nil, u, actor))
}

func (l *Ledger) one(ctx context.Context, from engine.Origin, command []byte) (machine.Outcome, error) {
	s := l.single()
	s.engine.Add(from, command, 1)
	return l.decide(ctx, s)
}

// exclusive decides a command in an entry that holds no other one, because the command
// may change how later commands are divided into entries.
func (l *Ledger) exclusive(ctx context.Context, command []byte) (machine.Outcome, error) {
	s := l.single()
	s.engine.Exclusive = true
	s.engine.Add(engine.Origin{}, command, 1)
	return l.decide(ctx, s)
}

// decide proposes a single submission, waits for the outcome of its command and gives the submission back.
func (l *Ledger) decide(ctx context.Context, s *Submission) (machine.Outcome, error) {
	if err := l.enqueue(ctx, s, false, true); err != nil {
		l.freeSingle(s)
		return machine.Outcome{}, err
	}
	if !s.await(ctx) {
		return machine.Outcome{}, unknown(context.Cause(ctx)) // not freed, because the loops still have it
	}
	out, err := machine.Outcome{}, s.engine.Err
	if err == nil {
		out = s.engine.Outcomes[0]
	}
	l.freeSingle(s)
	return out, err
}

// enqueue puts a submission on the queue, if there is room or, with wait, as soon as there is. With here, the caller
// may do the work of the loops.
func (l *Ledger) enqueue(ctx context.Context, s *Submission, wait, here bool) error {
	if err := l.refusal(); err != nil {
		return err
	}
	if !s.single {
		s.done = make(chan struct{})
	}
	var spans []engine.Span
	var commands, size int
	mayLead := here && l.mayLead(ctx)
	l.mu.Lock()
	admission := l.engine.Submit(&s.engine, wait)
	if admission == engine.Waiting {
		s.admitted = make(chan bool, 1)
	}
	if admission == engine.Queued && mayLead {
		spans, commands, size = l.engine.Lead()
	}
	l.changed()
	l.mu.Unlock()
	switch admission {
	case engine.Full:
		l.counters.queueFull.Add(1)
		return ErrQueueFull
	case engine.Closed:
		return l.refusal()
	case engine.Waiting:
		return l.awaitQueue(ctx, s)
	}
	if len(spans) > 0 {
		l.lead(spans, commands, size)
	}
	return nil
}

// mayLead reports whether a caller may do the work of the loops. One with a deadline must not wait for a disk that
// hangs. An entry that waits for other nodes is to have another one beside it.
func (l *Ledger) mayLead(ctx context.Context) bool {
	_, limited := ctx.Deadline()
	return !limited && l.options.Cluster == nil
}

// lead proposes an entry, writes it to the log, applies and answers it in the goroutine of its caller, which returns
// only when the disk has answered. What another goroutine does already, or is better left to one, is left to the loops.
func (l *Ledger) lead(spans []engine.Span, commands, size int) {
	defer func() {
		if p := recover(); p != nil {
			// A server recovers from the panics of its handlers, and would go on with an entry that is half applied.
			go panic(fmt.Sprintf("%v\n%s", p, debug.Stack()))
			select {}
		}
	}()
	term, entry := l.entry(spans, commands, size)
	f := inflightEntry{l.log.ProposeHere(term, entry, l.store.Idle), spans}
	select {
	case <-f.proposal.Done():
		var answered [1]*engine.Submission
		l.answer(f, answered[:0])
	default:
		l.inFlight <- f // capacity engine.MaxInFlight
	}
}

// awaitQueue waits until there is room in the queue for a submission and it is in it, or until ctx ends.
func (l *Ledger) awaitQueue(ctx context.Context, s *Submission) error {
	select {
	case queued := <-s.admitted:
		if !queued {
			return l.refusal()
		}
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	left := l.engine.Leave(&s.engine)
	l.changed() // the next one may need less room
	l.mu.Unlock()
	if !left && <-s.admitted {
		return nil // it was put on the queue meanwhile, and Wait tells that ctx has ended
	}
	return fmt.Errorf("%w: nothing was proposed: %w", ErrQueueFull, ctx.Err())
}

// changed does what a change of the engine makes due. mu is held.
func (l *Ledger) changed() {
	for {
		s, queued := l.engine.Admitted()
		if s == nil {
			break
		}
		owner(s).admitted <- queued // capacity 1
	}
	l.counters.queuedBytes.Store(l.engine.Bytes())
	if lacks := l.engine.LacksRoom(); lacks != l.lacksRoom.Load() {
		l.lacksRoom.Store(lacks)
		if lacks {
			l.counters.slowed.Add(1)
		}
	}
	if l.engine.MayCut() {
		signal(l.cutDue)
	}
	if l.engine.HasJob() {
		signal(l.jobDue)
	}
	if l.engine.Drained() {
		signal(l.drained)
	}
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

// commitLoop proposes what waits, until the ledger stops. While it proposes, nobody else does, so that ledger time
// follows the order of the log: an entry of a caller that leads is the only one in flight.
func (l *Ledger) commitLoop() {
	for {
		select {
		case <-l.cutDue:
			// Callers that were just answered come back with their next write. They run
			// first, because one entry then has what would be a small one and the rest.
			// If no other goroutine can run, Gosched returns at once.
			runtime.Gosched()
			l.proposeNext()
		case <-l.stopping.Done():
			return
		}
	}
}

// proposeNext proposes one log entry, if one may be.
func (l *Ledger) proposeNext() {
	l.mu.Lock()
	spans, commands, size := l.engine.Cut()
	l.changed()
	l.mu.Unlock()
	if len(spans) == 0 {
		return
	}
	term, entry := l.entry(spans, commands, size)
	l.inFlight <- inflightEntry{l.log.ProposeIn(term, entry), spans} // capacity engine.MaxInFlight
}

// entry returns the next log entry, and the term in which it may be proposed.
func (l *Ledger) entry(spans []engine.Span, commands, size int) (term uint64, entry []byte) {
	entry = make([]byte, 0, size+entryHeaderBytes)
	// Read before all that goes by it: in a later term, nothing is proposed.
	term = l.cluster.Term()
	// Read before the time, so that the check is that of an entry in front.
	header := l.Head().header
	header.UnixNanos = l.clock.now()
	l.lastProposed.Store(header.UnixNanos)
	entry = machine.AppendEntryHeader(entry, header, commands)
	for _, p := range spans {
		entry = append(entry, p.Frames()...)
	}
	return term, entry
}

// stored notes that what was given to the log is on the disk, and how long that took. The log calls it after each
// write.
func (l *Ledger) stored(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.engine.Stored(took)
	l.changed()
}

// answerLoop wakes the callers whose commands are decided, in the order of the log.
func (l *Ledger) answerLoop() {
	var answered []*engine.Submission
	for f := range l.inFlight {
		answered = l.answer(f, answered[:0])
		clear(answered) // so that it keeps none
	}
}

// answer waits for the outcomes of an entry and wakes its callers. It appends them to answered.
func (l *Ledger) answer(f inflightEntry, answered []*engine.Submission) []*engine.Submission {
	result, err := f.proposal.Wait()
	outcomes, ok := result.([]machine.Outcome)
	if err == nil && (!ok || len(outcomes) == 0) {
		err = errors.New("the log entry was not decided") // the failure says why
	}
	if err != nil {
		err = l.proposalError(err)
	}
	l.mu.Lock()
	answered = l.engine.Decide(f.spans, outcomes, err, answered)
	l.changed()
	l.mu.Unlock()
	for i, s := range answered {
		// The last one only after Woken, because the Go scheduler runs first what was made ready last: the commit
		// loop then runs after the others.
		if i == len(answered)-1 {
			l.woken(len(answered))
		}
		owner(s).answered()
	}
	if len(answered) == 0 {
		l.woken(0)
	}
	return answered
}

// woken tells the engine that the callers of an entry are awake, except the last one.
func (l *Ledger) woken(callers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.engine.Woken()
	l.changed()
	if callers > 1 {
		// Also if nothing waits yet: the loop yields to the callers, and then finds what they came back with.
		signal(l.cutDue)
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
