package sim

import (
	"errors"
	"slices"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
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
	order int    // of submissions
	cost  int64  // bytes of the queue
	fates []fate // of parts
}

// fate is what became of a command, as far as the log and the machine tell.
type fate struct {
	out machine.Outcome
	err error // that it was not decided
	set bool
}

// submissionOf returns whose submission the engine has.
func submissionOf(s *engine.Submission) *submission { return s.Owner.(*submission) }

// maxTogether is how many commands of a request are one submission, at most.
const maxTogether = 8

// queue is the engine of a node, and what its answers are compared with.
type queue struct {
	*engine.Engine

	w       *world
	number  int
	cost    int64           // of what is on its way
	entries [][]engine.Span // in flight
	led     bool            // the last of them is that of a caller that leads
	// The submission whose command was taken last, by what keeps an order.
	scopes map[machine.Scope]int
	actors map[string]int
}

// newQueue returns an empty queue with room for a submission, and for about as many commands more as the plan says.
func newQueue(w *world) *queue {
	const command = 2 << 10
	q := &queue{
		Engine: engine.New(int64(maxTogether+w.plan.queue)*command, mostCommands(w, w.plan.config)), w: w,
		scopes: map[machine.Scope]int{}, actors: map[string]int{},
	}
	q.SetCheckpointBytes(w.plan.flushEvery, 0)
	return q
}

// mostCommands returns how many commands an entry may have: what the configuration says, or fewer unless the world is
// to come to rest, because clients repeat what is not decided in time.
func mostCommands(w *world, c machine.Config) int {
	switch {
	case w.bugs.singly():
		return 1
	case w.calm:
		return engine.EntryCommands(c)
	}
	return min(engine.EntryCommands(c), w.plan.entry)
}

// add puts commands on the queue that follow each other in a request. A change of the configuration is a submission of
// its own.
func (q *queue) add(commands []waiting) {
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

func (q *queue) submit(s *submission) {
	q.number++
	s.order, s.fates = q.number, make([]fate, len(s.parts))
	if s.Owner = s; len(s.parts) == 0 {
		return
	}
	before := q.Bytes()
	if q.Submit(&s.Submission, false) == engine.Queued {
		s.cost = q.Bytes() - before
		q.cost += s.cost
		return
	}
	q.w.counted["queue full"]++
	for _, p := range s.parts {
		p.reply(answer{kind: neverQueued})
	}
}

// cut takes the next entry from the queue: its commands, their number and their bytes.
func (q *queue) cut() (spans []engine.Span, parts []waiting, frames []byte) {
	if q.number%2 == 0 { // as whoever submitted last would
		spans, _, _ = q.Lead()
	}
	led := len(spans) > 0
	if !led {
		spans, _, _ = q.Cut()
	}
	q.checkCut(spans, led)
	for _, p := range spans {
		frames = append(frames, p.Frames()...)
		s := submissionOf(p.Submission)
		parts = append(parts, s.parts[p.From:p.To]...)
		q.inOrder(s, s.parts[p.From:p.To])
		if p.To-p.From < len(s.parts) {
			q.w.counted["submissions over several entries"]++
		}
	}
	return spans, parts, frames
}

// checkCut checks what is in flight together: a change of the configuration has an entry to itself and no later one
// beside it, and nothing is beside the entry of a caller that leads.
func (q *queue) checkCut(spans []engine.Span, led bool) {
	if len(spans) == 0 {
		return
	}
	if len(q.entries) > 0 && (led || q.led) {
		q.w.fail(nil, "an entry is in flight beside that of a caller that leads")
	}
	if q.led = led; led {
		q.w.counted["callers that led"]++
	}
	if q.entries = append(q.entries, spans); len(q.entries) > engine.MaxInFlight {
		q.w.fail(nil, "%d entries are in flight", len(q.entries))
	}
	for i, entry := range q.entries {
		for _, p := range entry {
			if p.Submission.Exclusive && (len(entry) > 1 || i < len(q.entries)-1) {
				q.w.fail(nil, "a command is in flight beside a change of the configuration")
			}
		}
	}
}

// woken tells the engine that the callers of the oldest entry are awake.
func (q *queue) woken() {
	q.entries = q.entries[1:]
	q.Woken()
}

// inOrder checks that commands of a scope, and those of an actor, are taken in the order in which they came.
func (q *queue) inOrder(s *submission, parts []waiting) {
	for _, p := range parts {
		from := p.command.origin()
		if from == (engine.Origin{}) {
			continue
		}
		if s.order < max(q.scopes[from.Scope], q.actors[from.Actor]) {
			q.w.fail(nil, "submission %d of %+v goes into the log behind a later one", s.order, from)
		}
		q.scopes[from.Scope], q.actors[from.Actor] = s.order, s.order
	}
}

// decide answers the commands of submissions that are decided with an entry.
func (q *queue) decide(spans []engine.Span, outcomes []machine.Outcome, err error) {
	at := 0
	for _, p := range spans {
		for i := p.From; i < p.To; i++ {
			f := &submissionOf(p.Submission).fates[i]
			if f.err, f.set = err, true; err == nil {
				f.out = outcomes[at]
			}
			at++
		}
	}
	for _, s := range q.Decide(spans, outcomes, err, nil) {
		q.check(submissionOf(s))
		q.cost -= submissionOf(s).cost
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
	q.checkBytes()
}

// checkBytes checks that what is answered takes no room.
func (q *queue) checkBytes() {
	if q.Bytes() != q.cost {
		q.w.fail(nil, "the queue counts %d bytes of submissions, and %d are on their way", q.Bytes(), q.cost)
	}
}

// check checks the answer of a submission against what became of its commands: all were decided, and each has its own
// outcome; or none can be in the log; or the outcome is unknown.
func (q *queue) check(s *submission) {
	refused := 0
	for i, f := range s.fates {
		switch {
		case !f.set:
			q.w.fail(s.parts[i].command.name(), "a submission is answered before its command %d is decided", i)
		case f.err == nil && s.Err == nil && ledgermodel.Differ(&s.Outcomes[i], &f.out) != "":
			q.w.fail(s.parts[i].command.name(), "command %d of a submission has the outcome of another one", i)
		case errors.Is(f.err, errNotProposed):
			refused++
		}
	}
	unknown := errors.Is(s.Err, engine.ErrOutcomeUnknown)
	switch {
	case s.Err != nil && !unknown && refused < len(s.fates):
		q.w.fail(s.parts[0].command.name(), "a submission is refused, and a part of it may be in the log")
	case s.Err == nil && slices.ContainsFunc(s.fates, func(f fate) bool { return f.err != nil }):
		q.w.fail(s.parts[0].command.name(), "a submission succeeds, and a part of it is not decided")
	case unknown && refused == len(s.fates):
		q.w.fail(s.parts[0].command.name(), "a submission is unknown, and nothing of it was proposed")
	}
}

// The errors of an entry.
var (
	errNotProposed = errors.New("the entry was not proposed")
	errLost        = engine.Unknown(errors.New("the entry may be in the log"))
)

// exclusive reports whether the command has an entry to itself.
func (c *command) exclusive() bool { return c.update != nil || c.create != nil }
