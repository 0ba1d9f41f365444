package sim

import (
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// writer is a client that follows the client's rules completely. It numbers writes consecutively under a session, keeps
// a journal, sends many writes at a time, opens a new session before it reports a refusal that is not final, and
// recovers with expected_session. It sometimes dies, between any two steps.
type writer struct {
	w         *world
	name      name
	datagram  bool // its network duplicates messages, so that every write is in doubt
	depth     int
	contended bool // another process uses the same client id
	patience  int64

	// What survives the death of its process.
	journal journal

	life    int
	phase   phase
	session uint64
	next    uint64
	queue   []*pending
	flying  int
	halted  bool
	round   int
	conn    *conn
	version uint64 // of its own entity, according to a receipt
	idle    bool
}

type journal struct {
	session  uint64 // 0: none
	attempt  [16]byte
	expected uint64
	opening  bool // attempt is in progress
	entries  []entryOf
}

// entryOf is a write that is not settled.
type entryOf struct {
	write machine.Write
	app   *appWrite
}

type phase uint8

const (
	phaseDown phase = iota
	phaseOpening
	phaseRunning
	phaseSettling // opening a session because of a refusal
)

type pending struct {
	entryOf
	sends     int
	doubtful  bool
	committed bool
	answered  bool
	out       machine.Outcome
	verdict   verdict
}

type verdict uint8

const (
	verdictNone verdict = iota
	verdictCommitted
	verdictRetry
	verdictGap
	verdictRefused
	verdictFatal
)

func (r *writer) start() { r.later(r.w.upTo(second), r.recover) }

func (r *writer) unsettled() string {
	if len(r.queue) == 0 && len(r.journal.entries) == 0 {
		return ""
	}
	return fmt.Sprintf("writer %s in phase %d has %d writes, %d in the journal, %d in flight, halted %t",
		r.name.ID, r.phase, len(r.queue), len(r.journal.entries), r.flying, r.halted)
}

// later runs do after a delay, unless the process dies before.
func (r *writer) later(delay int64, do func()) {
	life := r.life
	r.w.after(delay, func() {
		if r.life != life {
			return
		}
		if !r.w.calm && r.w.chance(r.w.plan.clientCrash) {
			r.die()
			return
		}
		do()
	})
}

// die ends the process.
func (r *writer) die() {
	r.w.counted["clients died"]++
	r.w.mark(4)
	if r.conn != nil {
		r.conn.broken = true
	}
	*r = writer{
		w: r.w, name: r.name, datagram: r.datagram, depth: r.depth, contended: r.contended, patience: r.patience,
		journal: r.journal, life: r.life + 1, version: r.version,
	}
	r.later(r.w.upTo(3*second), r.recover)
}

// recover starts from the journal.
func (r *writer) recover() {
	r.queue = nil
	for _, e := range r.journal.entries {
		r.queue = append(r.queue, &pending{entryOf: e, doubtful: true})
	}
	if len(r.queue) == 0 && r.w.calm {
		return
	}
	if !r.journal.opening {
		r.journal.attempt, r.journal.opening = r.w.uuid(), true
		r.journal.expected = 0
		if len(r.queue) > 0 && !r.w.bugs.blindRecovery {
			r.journal.expected = r.journal.session
		}
	}
	r.open(phaseOpening)
}

// open repeats the attempt from the journal until it is answered.
func (r *writer) open(p phase) {
	r.phase = p
	attempt := r.journal.attempt
	o := &machine.OpenSession{
		Scope: r.name.Scope, ClientID: r.name.ID, Actor: "client:sim",
		AttemptID: attempt, ExpectedSession: r.journal.expected,
	}
	c := &command{open: o, encoded: machine.AppendOpenSession(nil, o)}
	life := r.life
	r.w.datagrams([]*command{c}, func(_ int, a answer) {
		if r.life == life && r.journal.opening && r.journal.attempt == attempt && a.kind == decided {
			r.opened(&a.out)
		}
	})
	r.later(r.patience, func() {
		if r.journal.opening && r.journal.attempt == attempt {
			r.open(p)
		}
	})
}

func (r *writer) opened(out *machine.Outcome) {
	switch out.Code {
	case machine.Committed:
	case machine.TooManyStreams:
		if !r.w.calm {
			return // the timer asks again
		}
		fallthrough
	default:
		r.journal.opening = false
		r.end()
		return
	}
	r.journal.opening = false
	r.session, r.journal.session = out.Session, out.Session
	settling := r.phase == phaseSettling
	r.phase = phaseRunning
	r.settle(out.Last, settling)
}

// settle continues after a session was opened. From then on no copy sent under an older session can commit, and last
// tells which writes have committed.
func (r *writer) settle(last uint64, refused bool) {
	if len(r.queue) == 0 {
		r.next = last + 1
		r.flying, r.halted = 0, false
		r.pump()
		return
	}
	r.next = r.queue[len(r.queue)-1].write.Sequence + 1
	first := r.queue[0].write.Sequence
	if last+1 < first || last >= r.next {
		r.w.fail(&r.name, "writer %s has %d to %d open under session %d and the ledger says last is %d",
			r.name.ID, first, r.next-1, r.session, last)
	}
	for _, p := range r.queue {
		p.doubtful, p.sends = false, 0
		p.committed = p.committed || p.write.Sequence <= last
	}
	if refused && last < first {
		r.stop()
		return
	}
	if !refused { // recovery: committed writes need no receipt
		for len(r.queue) > 0 && r.queue[0].write.Sequence <= last {
			r.pop().app.done(r.w, nil)
		}
		r.note()
	}
	r.resend()
}

func (r *writer) pop() *pending {
	p := r.queue[0]
	r.queue = r.queue[1:]
	return p
}

// note updates the journal.
func (r *writer) note() {
	r.journal.entries = nil
	for _, p := range r.queue {
		r.journal.entries = append(r.journal.entries, p.entryOf)
	}
}

// resend begins a new round with the uncommitted writes, under the same numbers and keys.
func (r *writer) resend() {
	for _, p := range r.queue {
		if p.verdict != verdictCommitted {
			p.verdict, p.answered = verdictNone, false
		}
	}
	r.flying, r.halted = 0, false
	r.round++
	r.later(r.w.upTo(20*millisecond), r.pump)
}

// pump creates new writes and sends those that have not been sent in this round.
func (r *writer) pump() {
	if r.phase != phaseRunning || r.halted {
		return
	}
	for !r.w.calm && !r.idle && len(r.queue) < r.depth && !r.w.chance(4) {
		r.add()
	}
	var frame []*pending
	for _, p := range r.queue {
		if p.verdict == verdictNone && !p.answered {
			frame = append(frame, p)
			p.answered = true // until the answer arrives it means sent
		}
	}
	if len(frame) > 0 {
		r.send(frame)
	}
	if len(r.queue) == 0 {
		r.rest()
	}
}

// rest is a pause, sometimes longer than the TTL.
func (r *writer) rest() {
	w := r.w
	if w.calm || r.idle {
		return
	}
	r.idle = true
	wait := w.upTo(100 * millisecond)
	if w.chance(8) {
		wait = w.upTo(min(2*w.plan.config.ClientTTL, 60*second))
	}
	if w.chance(10) {
		r.read()
	}
	if third := w.plan.config.ClientTTL / 3; wait > third && w.chance(2) {
		r.later(third, r.keepAlive)
	}
	r.later(wait, func() {
		r.idle = false
		r.pump()
	})
}

// keepAlive repeats the attempt, so that an idle stream is not evicted. If the stream was evicted and nothing is
// unanswered, the writer continues with the session that it gets.
func (r *writer) keepAlive() {
	if !r.idle || r.phase != phaseRunning || r.w.calm {
		return
	}
	r.w.counted["streams kept alive"]++
	attempt, life := r.journal.attempt, r.life
	o := &machine.OpenSession{Scope: r.name.Scope, ClientID: r.name.ID, Actor: "client:sim", AttemptID: attempt}
	c := &command{open: o, encoded: machine.AppendOpenSession(nil, o)}
	r.w.datagrams([]*command{c}, func(_ int, a answer) {
		current := r.life == life && r.phase == phaseRunning && r.journal.attempt == attempt && len(r.queue) == 0
		if current && a.kind == decided && a.out.Code == machine.Committed && a.out.Session > r.session {
			r.session, r.journal.session, r.next = a.out.Session, a.out.Session, a.out.Last+1
		}
	})
	r.later(r.w.plan.config.ClientTTL/3, r.keepAlive)
}

// add takes a write of the application, which is in the journal before it is sent.
func (r *writer) add() {
	app := r.w.newApp(r.name, true)
	e := entryOf{app: app, write: machine.Write{
		Scope: r.name.Scope, ClientID: r.name.ID, Actor: "client:sim", Sequence: r.next,
		Key: machine.Key{UUID: r.w.uuid(), Present: true}, Operations: r.w.operations(app, true),
	}}
	r.next++
	r.queue = append(r.queue, &pending{entryOf: e})
	r.journal.entries = append(r.journal.entries, e)
}
