package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Submission is a group of commands on its way into the log. It may be spread
// over several log entries, in its order.
type Submission struct {
	frames    []byte // the commands as they stand in an entry
	commands  []queuedCommand
	slots     []int // which outcome belongs to which command; nil: all in order
	outcomes  []machine.Outcome
	err       error
	done      chan struct{} // nil: nothing had to be proposed
	single    bool          // one command, used again; see Ledger.single
	exclusive bool          // it has an entry to itself
	origin    origin        // of all commands; the zero one if there are several, or none is known
	large     bool          // one of the commands is large; see takeSmall

	cost     int64
	budget   *semaphore.Weighted // that cost was taken from
	proposed int                 // commands; belongs to the commit loop
	decided  int                 // commands; belongs to the answer loop
	logged   bool                // a part of it is, or may be, in the log; the same
}

// single returns an empty submission for one command, for decide, which gives it back. It is used again, because each
// takes five pieces of memory otherwise. The pool is the ledger's own: a channel that was made in a bubble of
// testing/synctest must not come to a ledger outside of it.
func (l *Ledger) single() *Submission {
	if s, ok := l.singles.Get().(*Submission); ok {
		return s
	}
	return &Submission{single: true, done: make(chan struct{}, 1)}
}

// freeSingle gives a single submission to the next call. It must be answered, or not be in the queue: nothing else may
// know it any more.
func (l *Ledger) freeSingle(s *Submission) {
	frames := s.frames[:0]
	if cap(frames) > longBuffer {
		frames = nil
	}
	*s = Submission{single: true, done: s.done, frames: frames, commands: s.commands[:0]}
	l.singles.Put(s)
}

// answered wakes the caller, once all commands are decided.
func (s *Submission) answered() {
	if s.single {
		s.done <- struct{}{} // capacity 1; the submission now belongs to the caller
		return
	}
	s.frames = nil // a caller that keeps the submission needs no payloads
	close(s.done)
}

// origin is what decides whether commands may be taken in another order than they came in.
type origin struct {
	scope machine.Scope
	actor string
}

// ordered reports whether commands of two origins keep their order: those of a scope, which has streams
// and conditions, and those of an actor, which may have sent them one after the other.
func (o origin) ordered(other origin) bool {
	return o.scope == other.scope || o.actor == other.actor
}

// queuedCommand is one command of a submission.
type queuedCommand struct {
	end  int // where it ends in frames
	work int // see decide.MaxEntryWork
}

// queue is what waits to be proposed.
type queue struct {
	mu    sync.Mutex
	items []*Submission
	wake  chan struct{} // capacity 1
	// commands and bytes are of what waits.
	commands, bytes int
	filled          chan struct{} // capacity 1; see add
	// yielded: in the last entry, small commands overtook a large one; see takeSmall.
	yielded bool
}

// span is some commands of a submission in one log entry.
type span struct {
	submission *Submission
	from, to   int
}

// setReplayed keeps the outcome of a write that need not be proposed. From the first on,
// those that are no longer correspond to the commands one by one.
func (s *Submission) setReplayed(i int, out machine.Outcome, total int) {
	if s.outcomes == nil {
		s.outcomes = make([]machine.Outcome, total)
		s.slots = make([]int, i, total)
		for j := range s.slots {
			s.slots[j] = j
		}
	}
	s.outcomes[i] = out
}

// writeBuffer is what looking at writes and framing them takes, kept for the next ones.
type writeBuffer struct {
	memory []byte // nothing of what it holds is needed by the next one
	retry  decide.Buffer
}

var writeBuffers = sync.Pool{New: func() any { return new(writeBuffer) }}

func getWriteBuffer() *writeBuffer {
	return writeBuffers.Get().(*writeBuffer) //nolint:forcetypeassert // The pool holds nothing else.
}

// longBuffer is the size in bytes above which a buffer is not kept, so that one large write does not hold memory.
const longBuffer = 64 << 10

func (b *writeBuffer) free() {
	if b.memory = b.memory[:0]; cap(b.memory) > longBuffer {
		b.memory = nil
	}
	writeBuffers.Put(b)
}

// take returns frames that were made in the buffer, in memory of their own. What is
// long keeps the memory that it has, and the buffer begins anew.
func (b *writeBuffer) take(frames []byte) []byte {
	if len(frames) > longBuffer {
		b.memory = nil
		return frames
	}
	b.memory = frames[:0]
	return slices.Clone(frames)
}

func (s *Submission) addWrite(c *machine.Command) {
	w := c.Write()
	s.addFrom(origin{w.Scope, w.Actor}, c.Encoded(), decide.CommandWork(c))
}

func (s *Submission) addKeyedWrite(w *machine.KeyedWrite) {
	s.addFrom(origin{w.ID.Scope, w.Actor}, machine.AppendKeyedWrite(nil, w), decide.Work(w.Operations))
}

// addFrom adds a command whose origin is known.
func (s *Submission) addFrom(from origin, command []byte, work int) {
	if len(s.commands) == 0 {
		s.origin = from
	}
	if s.origin != from {
		s.origin = origin{}
	}
	s.add(command, work)
}

func (s *Submission) add(command []byte, work int) {
	s.frames = machine.AppendFramed(slices.Grow(s.frames, len(command)+binary.MaxVarintLen32), command)
	s.commands = append(s.commands, queuedCommand{len(s.frames), work})
	s.cost += int64(len(command)) + commandOverhead
	s.large = s.large || len(command) >= largeCommand
}

// Wait returns one outcome for each command once all are decided. When ctx
// ends first, the error wraps ErrOutcomeUnknown and the cause.
func (s *Submission) Wait(ctx context.Context) ([]machine.Outcome, error) {
	if s.done != nil && !s.await(ctx) {
		return nil, unknown(context.Cause(ctx))
	}
	return s.outcomes, s.err
}

// await waits until a submission is answered, or ctx ends, and reports whether it is answered. Until then
// it belongs to the loops.
func (s *Submission) await(ctx context.Context) bool {
	if ctx.Done() == nil { // nothing can end it: a plain receive is cheaper
		<-s.done
		return true
	}
	select {
	case <-s.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Done is closed when the submission is decided; nil when it was decided at
// once.
func (s *Submission) Done() <-chan struct{} { return s.done }

// take removes the commands of the next log entry from the queue, at most limit of
// them.
func (q *queue) take(limit int) (spans []span, commands, size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	entry := decide.NewEntry(limit)
	defer func() { q.commands, q.bytes = q.commands-entry.Commands, q.bytes-entry.Bytes }()
	if q.yielded = !q.yielded && q.takeSmall(&entry, &spans); q.yielded {
		return spans, entry.Commands, entry.Bytes
	}
	for len(q.items) > 0 && !entry.Full() {
		s := q.items[0]
		if s.exclusive && entry.Commands > 0 {
			break // the next one is its own
		}
		if p := s.take(&entry); p.to > p.from {
			spans = append(spans, p)
		}
		if s.proposed < len(s.commands) {
			break
		}
		q.items[0] = nil // so that the array does not keep it
		q.items = q.items[1:]
		if s.exclusive {
			break
		}
	}
	return spans, entry.Commands, entry.Bytes
}

// add appends a submission, and signals filled if the queue now fills an entry of at most limit commands and did not
// before. It does not signal for each submission, because waking a goroutine costs the others processor time.
func (q *queue) add(s *Submission, limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	full := q.full(limit)
	q.items = append(q.items, s)
	q.commands, q.bytes = q.commands+len(s.commands), q.bytes+len(s.frames)
	if !full && q.full(limit) {
		signal(q.filled)
	}
}

// fills reports whether the queue fills an entry of at most limit commands, by their number or their bytes. With a
// large command at the front it does not: small ones may overtake it, and as many as possible should.
func (q *queue) fills(limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.full(limit)
}

// full is fills; mu is held.
func (q *queue) full(limit int) bool {
	if len(q.items) > 0 && q.items[0].large {
		return false
	}
	return q.commands >= limit || q.bytes >= decide.MaxEntryBytes
}

// take proposes as many commands as the entry takes.
func (s *Submission) take(entry *decide.Entry) span {
	p := span{s, s.proposed, s.proposed}
	for p.to < len(s.commands) && entry.Take(s.commands[p.to].end-s.start(p.to), s.commands[p.to].work) {
		p.to++
	}
	s.proposed = p.to
	return p
}

const (
	// largeCommand is the size in bytes from which a command lets small ones pass.
	largeCommand = 64 << 10
	// maxLookahead and maxPassed bound what takeSmall looks at: submissions, and origins whose
	// commands it leaves where they are.
	maxLookahead = 1_024
	maxPassed    = 16
)

// takeSmall fills an entry with small commands that overtake a large command at the front of the queue,
// and reports whether it found any. So a small write does not share the sync of a write of several
// mebibytes, which takes tens of milliseconds. The large command goes into the next entry, so it waits
// for one entry at most. Only commands of other scopes and actors overtake it. The caller holds mu.
func (q *queue) takeSmall(entry *decide.Entry, spans *[]span) bool {
	if len(q.items) < 2 || !q.items[0].large || !q.items[0].startsLarge() {
		return false
	}
	var passed []origin
	left := q.items[:0] // what is looked at and not taken; in place, because it is never more than was looked at
	seen := 0
	for _, s := range q.items[:min(len(q.items), maxLookahead)] {
		if s.exclusive || s.origin == (origin{}) || entry.Full() || len(passed) == maxPassed {
			break
		}
		seen++
		if slices.ContainsFunc(passed, s.origin.ordered) || s.proposed > 0 || s.large || !s.fits(entry) {
			if left = append(left, s); !slices.Contains(passed, s.origin) {
				passed = append(passed, s.origin)
			}
			continue
		}
		*spans = append(*spans, s.take(entry))
	}
	if len(*spans) > 0 {
		n := copy(q.items[len(left):], q.items[seen:])
		clear(q.items[len(left)+n:])
		q.items = q.items[:len(left)+n]
	}
	return len(*spans) > 0
}

// startsLarge reports whether the next command is large.
func (s *Submission) startsLarge() bool {
	return s.commands[s.proposed].end-s.start(s.proposed) >= largeCommand
}

// fits reports whether the entry takes the whole submission. It changes nothing.
func (s *Submission) fits(entry *decide.Entry) bool {
	rest := *entry
	for i := range s.commands {
		if !rest.Take(s.commands[i].end-s.start(i), s.commands[i].work) {
			return false
		}
	}
	return true
}

// start returns where a command begins in frames.
func (s *Submission) start(command int) int {
	if command == 0 {
		return 0
	}
	return s.commands[command-1].end
}

// fail records the error of a span. The error describes the whole submission, so
// "never proposed" must not hide another span that may be in the log.
func (p span) fail(err error) {
	s := p.submission
	s.logged = s.logged || errors.Is(err, ErrOutcomeUnknown)
	if s.err == nil || errors.Is(err, ErrOutcomeUnknown) {
		s.err = err
	}
	s.markUnknown()
}

// markUnknown makes the error of a submission say that its outcome is unknown if
// a part of it may be in the log.
func (s *Submission) markUnknown() {
	if s.logged && s.err != nil && !errors.Is(s.err, ErrOutcomeUnknown) {
		s.err = unknown(s.err)
	}
}

// setOutcomes keeps the outcomes of a part's commands. A part of the submission is in the log from now on, so that
// an error of another part must not say that nothing was proposed.
func (p span) setOutcomes(outcomes []machine.Outcome) {
	s := p.submission
	s.logged = true
	s.markUnknown()
	total := max(len(s.outcomes), len(s.commands)) // more when some were answered before
	if len(outcomes) == total {
		s.outcomes = outcomes
		return
	}
	if s.outcomes == nil {
		s.outcomes = make([]machine.Outcome, total)
	}
	for i, out := range outcomes {
		at := p.from + i
		if s.slots != nil {
			at = s.slots[at]
		}
		s.outcomes[at] = out
	}
}
