package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// ErrOutcomeUnknown says that a command may be committed already, or later, or never.
var ErrOutcomeUnknown = errors.New("the outcome is unknown: repeat the same sequence and key to learn it")

// Unknown wraps the reason why an outcome is not known.
func Unknown(cause error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause) }

// CommandOverhead is what a waiting command counts beside its bytes: its outcome, twice, and its part of the request.
const CommandOverhead = 900

// Submission is a group of commands on its way into the log. It may be spread over several entries, in its order. From
// Submit until it is answered it is the engine's.
type Submission struct {
	Frames    []byte // the commands as they stand in an entry
	Commands  []Command
	Exclusive bool // it has an entry to itself
	Owner     any  // the host's; the engine does not look at it

	// The answer: an outcome for each command and each replay, or why there are none.
	Outcomes []machine.Outcome
	Err      error

	origin  Origin // of all commands; the zero one if there are several, or none is known
	large   bool   // one of the commands is large; see takeSmall
	replays int
	slots   []int // which outcome belongs to which command; nil: all in order

	cost     int64 // bytes
	account  *account
	proposed int  // commands
	decided  int  // commands
	logged   bool // a part of it is, or may be, in the log
}

// Command is one command of a submission.
type Command struct {
	End  int // where it ends in Frames
	Work int // see MaxEntryWork
}

// Origin is what decides whether commands may be taken in another order than they came in.
type Origin struct {
	Scope machine.Scope
	Actor string
}

// ordered reports whether commands of two origins keep their order: those of a scope, which has streams
// and conditions, and those of an actor, which may have sent them one after the other.
func (o Origin) ordered(other Origin) bool { return o.Scope == other.Scope || o.Actor == other.Actor }

// Add appends a command. The zero Origin is one that is not known.
func (s *Submission) Add(from Origin, command []byte, work int) {
	if len(s.Commands) == 0 {
		s.origin = from
	}
	if s.origin != from {
		s.origin = Origin{}
	}
	s.Frames = machine.AppendFramed(slices.Grow(s.Frames, len(command)+binary.MaxVarintLen32), command)
	s.Commands = append(s.Commands, Command{len(s.Frames), work})
	if s.slots != nil {
		s.slots = append(s.slots, len(s.slots)+s.replays)
	}
	s.cost += int64(len(command)) + CommandOverhead
	s.large = s.large || len(command) >= largeCommand
}

// AddReplay appends the outcome of a write that need not be proposed. total is how many outcomes there will be.
func (s *Submission) AddReplay(out machine.Outcome, total int) {
	at := len(s.Commands) + s.replays
	if s.Outcomes == nil {
		s.Outcomes = make([]machine.Outcome, total)
		s.slots = make([]int, at, total)
		for i := range s.slots {
			s.slots[i] = i
		}
	}
	s.Outcomes[at] = out
	s.replays++
}

// Reset makes s a new submission of the same owner, with the memory that it has.
func (s *Submission) Reset(longest int) {
	frames := s.Frames[:0]
	if cap(frames) > longest {
		frames = nil
	}
	*s = Submission{Owner: s.Owner, Frames: frames, Commands: s.Commands[:0]}
}

// start returns where a command begins in Frames.
func (s *Submission) start(command int) int {
	if command == 0 {
		return 0
	}
	return s.Commands[command-1].End
}

// take proposes as many commands as the entry takes.
func (s *Submission) take(entry *Entry) Span {
	p := Span{s, s.proposed, s.proposed}
	for p.To < len(s.Commands) && entry.Take(s.Commands[p.To].End-s.start(p.To), s.Commands[p.To].Work) {
		p.To++
	}
	s.proposed = p.To
	return p
}

// startsLarge reports whether the next command is large.
func (s *Submission) startsLarge() bool {
	return s.Commands[s.proposed].End-s.start(s.proposed) >= largeCommand
}

// fits reports whether the entry takes the whole submission. It changes nothing.
func (s *Submission) fits(entry *Entry) bool {
	rest := *entry
	for i := range s.Commands {
		if !rest.Take(s.Commands[i].End-s.start(i), s.Commands[i].Work) {
			return false
		}
	}
	return true
}

// Span is some commands of a submission in one log entry.
type Span struct {
	Submission *Submission
	From, To   int
}

// Frames returns the commands as they stand in the entry.
func (p Span) Frames() []byte {
	return p.Submission.Frames[p.Submission.start(p.From):p.Submission.Commands[p.To-1].End]
}

// fail records the error of a span. The error describes the whole submission, so
// "never proposed" must not hide another span that may be in the log.
func (p Span) fail(err error) {
	s := p.Submission
	s.logged = s.logged || errors.Is(err, ErrOutcomeUnknown)
	if s.Err == nil || errors.Is(err, ErrOutcomeUnknown) {
		s.Err = err
	}
	s.markUnknown()
}

// markUnknown makes the error of a submission say that its outcome is unknown if
// a part of it may be in the log.
func (s *Submission) markUnknown() {
	if s.logged && s.Err != nil && !errors.Is(s.Err, ErrOutcomeUnknown) {
		s.Err = Unknown(s.Err)
	}
}

// setOutcomes keeps the outcomes of a span's commands. A part of the submission is in the log from now on, so that
// an error of another part must not say that nothing was proposed.
func (p Span) setOutcomes(outcomes []machine.Outcome) {
	s := p.Submission
	s.logged = true
	s.markUnknown()
	total := max(len(s.Outcomes), len(s.Commands)) // more when some were answered before
	if len(outcomes) == total {
		s.Outcomes = outcomes
		return
	}
	if s.Outcomes == nil {
		s.Outcomes = make([]machine.Outcome, total)
	}
	for i, out := range outcomes {
		at := p.From + i
		if s.slots != nil {
			at = s.slots[at]
		}
		s.Outcomes[at] = out
	}
}
