package engine

import (
	"slices"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// MaxInFlight is how many entries may be in flight, so that the disk does not idle while a batch is gathered. More
// would only make batches smaller.
const MaxInFlight = 2

// singleShare is the part of the queue that is kept for submissions that do not wait, so that a stream that waits for
// room does not shut them out.
const singleShare = 8

// Engine has the submissions on their way into the log. Use New.
type Engine struct {
	queue []*Submission
	// commands and bytes are of what is in the queue.
	commands, bytes int
	// yielded: in the last entry, small commands overtook a large one; see takeSmall.
	yielded bool

	// Everything between Submit and the answer counts.
	shared, single account
	waiting        []*Submission // for room in shared
	closed, failed bool

	entryCommands int
	together      int  // how many of the last entries, at most, had more than one command
	inFlight      int  // entries that are proposed and whose callers are not awake yet
	alone         bool // no other entry may be in flight beside the last one
	unsynced      bool // the last entry may not be on the disk yet
	syncs         pace // of the log
	applies       pace // of entries
	jobs          jobs
}

// account is a budget in bytes.
type account struct{ used, most int64 }

func (a *account) fits(cost int64) bool { return a.used+cost <= a.most }

// New returns an engine whose submissions may have queueBytes, and an eighth more for those that do not wait.
func New(queueBytes int64, entryCommands int) *Engine {
	e := &Engine{
		shared: account{most: queueBytes}, single: account{most: queueBytes / singleShare},
		entryCommands: entryCommands,
	}
	e.SetCheckpointBytes(0, 0)
	return e
}

// Admission is what Submit did with a submission.
type Admission uint8

// The answers of Submit.
const (
	Queued  Admission = iota
	Waiting           // for room: Admitted or Leave follows
	Full              // there is no room, and nothing was done
	Closed            // nothing more is taken
)

// Submit puts a submission on the queue, if there is room, or with wait as soon as there is.
func (e *Engine) Submit(s *Submission, wait bool) Admission {
	switch {
	case e.closed:
		return Closed
	case len(e.waiting) == 0 && e.shared.fits(s.cost):
		e.enqueue(s, &e.shared)
	case wait:
		e.waiting = append(e.waiting, s)
		return Waiting
	case e.single.fits(s.cost):
		e.enqueue(s, &e.single)
	default:
		return Full
	}
	return Queued
}

func (e *Engine) enqueue(s *Submission, a *account) {
	a.used += s.cost
	s.account = a
	e.queue = append(e.queue, s)
	e.commands, e.bytes = e.commands+len(s.Commands), e.bytes+len(s.Frames)
}

// Admitted returns a submission that waited and is in the queue now, or was turned away because the engine is closed;
// nil when there is none.
func (e *Engine) Admitted() (s *Submission, queued bool) {
	if len(e.waiting) == 0 || !e.closed && !e.shared.fits(e.waiting[0].cost) {
		return nil, false
	}
	s = e.waiting[0]
	e.waiting[0] = nil // so that the array does not keep it
	e.waiting = e.waiting[1:]
	if !e.closed {
		e.enqueue(s, &e.shared)
	}
	return s, !e.closed
}

// Leave takes a submission back that waits for room, and reports whether it did.
func (e *Engine) Leave(s *Submission) bool {
	at := slices.Index(e.waiting, s)
	if at < 0 {
		return false
	}
	e.waiting = slices.Delete(e.waiting, at, at+1)
	return true
}

// Close turns away what comes from now on and what waits for room. What is in the queue is still proposed.
func (e *Engine) Close() { e.closed = true }

// Fail is Close after a failure: there are no jobs any more, and what is in the queue waits for none.
func (e *Engine) Fail() { e.closed, e.failed = true, true }

// Bytes returns how many bytes of submissions are on their way.
func (e *Engine) Bytes() int64 { return e.shared.used + e.single.used }

// Drained reports whether the engine is closed and nothing is on its way any more.
func (e *Engine) Drained() bool { return e.closed && e.Bytes() == 0 && len(e.waiting) == 0 }

// Submissions returns how many submissions are in the queue.
func (e *Engine) Submissions() int { return len(e.queue) }

// InFlight returns how many entries are proposed and not answered.
func (e *Engine) InFlight() int { return e.inFlight }

// MostCommands returns how many commands an entry may have.
func (e *Engine) MostCommands() int { return e.entryCommands }

// MayCut reports whether an entry may be proposed.
func (e *Engine) MayCut() bool {
	switch {
	case len(e.queue) == 0 || e.inFlight == MaxInFlight || e.alone || e.LacksRoom():
		return false
	case e.inFlight == 0:
		return true
	default:
		// What comes until the entry before is on the disk shares the next sync. A further entry would be smaller, and
		// the log would take both at once whenever it is late: they would then be synced together, applied together and
		// answered together, and the disk and the applier would take turns. To a full one nothing can be added.
		return e.full() || !e.unsynced && !e.syncsAreSlow()
	}
}

// Cut removes the commands of the next entry from the queue. There is one if MayCut says so.
func (e *Engine) Cut() (spans []Span, commands, size int) {
	if !e.MayCut() {
		return nil, 0, 0
	}
	entry := NewEntry(e.entryCommands)
	if e.yielded = !e.yielded && e.takeSmall(&entry, &spans); !e.yielded {
		e.takeNext(&entry, &spans)
	}
	e.commands, e.bytes = e.commands-entry.Commands, e.bytes-entry.Bytes
	// The number of commands in an entry follows from the configuration, and after a change no entry may be filled by
	// the old one: each command could start an eviction pass of any size, and together they could remove more than a
	// block can hold.
	e.alone = spans[0].Submission.Exclusive
	if e.together = max(e.together-1, 0); entry.Commands > 1 {
		e.together = gathers
	}
	e.inFlight++
	e.unsynced = true
	return spans, entry.Commands, entry.Bytes
}

// Lead is Cut for a caller that has just put a submission on the queue, and proposes, applies and answers it without
// waking any goroutine. It takes an entry only if the submission is the only one on its way, and until Woken no other
// entry may be proposed. Soon after an entry of more than one command it takes none: where several callers write, what
// one of them would propose alone, while the others come back, makes entries smaller.
func (e *Engine) Lead() (spans []Span, commands, size int) {
	if e.inFlight > 0 || e.together > 0 || len(e.queue) != 1 || e.queue[0].Exclusive || !e.MayCut() {
		return nil, 0, 0
	}
	spans, commands, size = e.Cut()
	e.alone = true
	return spans, commands, size
}

// takeNext fills an entry from the front of the queue.
func (e *Engine) takeNext(entry *Entry, spans *[]Span) {
	for len(e.queue) > 0 && !entry.Full() {
		s := e.queue[0]
		if s.Exclusive && entry.Commands > 0 {
			return // the next one is its own
		}
		if p := s.take(entry); p.To > p.From {
			*spans = append(*spans, p)
		}
		if s.proposed < len(s.Commands) {
			return
		}
		e.queue[0] = nil // so that the array does not keep it
		e.queue = e.queue[1:]
		if s.Exclusive {
			return
		}
	}
}

// full reports whether the queue fills an entry, by the number of commands or their bytes. With a
// large command at the front it does not: small ones may overtake it, and as many as possible should.
func (e *Engine) full() bool {
	if len(e.queue) > 0 && e.queue[0].large {
		return false
	}
	return e.commands >= e.entryCommands || e.bytes >= MaxEntryBytes
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
// for one entry at most. Only commands of other scopes and actors overtake it.
func (e *Engine) takeSmall(entry *Entry, spans *[]Span) bool {
	if len(e.queue) < 2 || !e.queue[0].large || !e.queue[0].startsLarge() {
		return false
	}
	var passed []Origin
	left := e.queue[:0] // what is looked at and not taken; in place, because it is never more than was looked at
	seen := 0
	for _, s := range e.queue[:min(len(e.queue), maxLookahead)] {
		if s.Exclusive || s.origin == (Origin{}) || entry.Full() || len(passed) == maxPassed {
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
		n := copy(e.queue[len(left):], e.queue[seen:])
		clear(e.queue[len(left)+n:])
		e.queue = e.queue[:len(left)+n]
	}
	return len(*spans) > 0
}

// Stored notes that what was given to the log is on the disk, and how long that took.
func (e *Engine) Stored(took time.Duration) {
	e.syncs.observe(took)
	e.unsynced = false
}

// Applied notes how long an entry took to be applied, how many commands the next ones may have, and what has gathered.
func (e *Engine) Applied(took time.Duration, entryCommands int, g Gathered) {
	e.applies.observe(took)
	e.SetMostCommands(entryCommands)
	e.Gather(g)
}

// SetMostCommands sets how many commands the next entries may have; see EntryCommands.
func (e *Engine) SetMostCommands(n int) { e.entryCommands = n }

// Decide hands the outcomes of an entry to its submissions, or the error that none are known of, in the order of the
// log. It appends those to answered that are answered now, and gives back their bytes: see Admitted.
func (e *Engine) Decide(spans []Span, outcomes []machine.Outcome, err error, answered []*Submission) []*Submission {
	for _, p := range spans {
		n := p.To - p.From
		if err != nil {
			p.fail(err)
		} else {
			// The capacity ends there too: an append by one caller must not reach the next one's outcomes.
			p.setOutcomes(outcomes[:n:n])
			outcomes = outcomes[n:]
		}
		s := p.Submission
		if s.decided += n; s.decided == len(s.Commands) {
			s.account.used -= s.cost
			answered = append(answered, s)
		}
	}
	return answered
}

// Woken notes that the callers of the oldest entry in flight are awake, except the last one. If another entry were cut
// before, it would miss the writes that they come back with.
func (e *Engine) Woken() {
	e.inFlight--
	e.alone = e.alone && e.inFlight > 0
}

// gathers is how many entries of one command follow one of several before a caller leads.
const gathers = 8

// slowSync is how long a sync takes at least where one entry is in flight and not MaxInFlight.
const slowSync = 500 * time.Microsecond

// slowerThanApply is how many times as long as an apply a sync takes, too, where one entry is in flight. Where an apply
// takes about as long, as that of keyed commands does, two are: one is applied beside the other's sync.
const slowerThanApply = 2

// syncsAreSlow reports whether an entry had better wait until the one before is answered.
func (e *Engine) syncsAreSlow() bool {
	return e.syncs > pace(slowSync) && e.syncs > slowerThanApply*e.applies
}

// pace is about how many nanoseconds something has taken the last times. Nothing but the size of entries depends on it.
type pace time.Duration

func (p *pace) observe(took time.Duration) {
	const weight = 8 // of what was before
	*p += (pace(took) - *p) / weight
}
