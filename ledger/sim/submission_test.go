package sim

import (
	"errors"

	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// waiting is a command of a client, and where its answer goes.
type waiting struct {
	command *command
	reply   func(a answer)
}

// submission is a submission of the engine, and whom its outcomes go to.
type submission struct {
	engine.Submission

	parts []waiting
}

// submissionOf returns whose submission the engine has.
func submissionOf(s *engine.Submission) *submission { return s.Owner.(*submission) }

// maxTogether is how many commands of a request are one submission, at most.
const maxTogether = 8

// queue is the engine of a node.
type queue struct {
	*engine.Engine

	w *world
}

// newQueue returns an empty queue with room for a submission, and for about as many commands more as the plan says.
func newQueue(w *world) queue {
	const command = 2 << 10
	return queue{engine.New(int64(maxTogether+w.plan.queue)*command, engine.EntryCommands(w.plan.config)), w}
}

// add puts commands on the queue that follow each other in a request. A change of the configuration is a submission of
// its own.
func (q queue) add(commands []waiting) {
	s := new(submission)
	for i, p := range commands {
		if len(s.parts) == maxTogether || i > 0 && (p.command.exclusive() || s.Exclusive) {
			q.submit(s)
			s = new(submission)
		}
		s.Exclusive = p.command.exclusive()
		s.Add(p.command.origin(), p.command.encoded, p.command.work())
		s.parts = append(s.parts, p)
	}
	q.submit(s)
}

func (q queue) submit(s *submission) {
	if s.Owner = s; len(s.parts) == 0 || q.Submit(&s.Submission, false) == engine.Queued {
		return
	}
	q.w.counted["queue full"]++
	for _, p := range s.parts {
		p.reply(answer{kind: neverQueued})
	}
}

// cut takes the next entry from the queue: its commands, their number and their bytes.
func (q queue) cut() (spans []engine.Span, parts []waiting, frames []byte) {
	if q.w.bugs.singly() {
		q.SetMostCommands(1)
	}
	spans, _, _ = q.Cut()
	for _, p := range spans {
		frames = append(frames, p.Frames()...)
		parts = append(parts, submissionOf(p.Submission).parts[p.From:p.To]...)
	}
	return spans, parts, frames
}

// decide answers the commands of submissions that are decided with an entry.
func (q queue) decide(spans []engine.Span, outcomes []machine.Outcome, err error) {
	for _, s := range q.Decide(spans, outcomes, err, nil) {
		for i, p := range submissionOf(s).parts {
			switch {
			case s.Err == nil:
				p.reply(answer{out: s.Outcomes[i]})
			case errors.Is(s.Err, engine.ErrOutcomeUnknown):
				p.reply(answer{kind: unknown})
			default:
				p.reply(answer{kind: neverQueued})
			}
		}
	}
}

// The errors of an entry.
var (
	errNotProposed = errors.New("the entry was not proposed")
	errLost        = engine.Unknown(errors.New("the entry may be in the log"))
)

// exclusive reports whether the command has an entry to itself.
func (c *command) exclusive() bool { return c.update != nil || c.create != nil }
