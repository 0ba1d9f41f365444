package sim

import "github.com/seqledger/seqledger/ledger/machine"

// How a writer interprets answers. Package client gives the reasons.

func (r *writer) send(frame []*pending) {
	var commands []*command
	for _, p := range frame {
		p.sends++
		p.doubtful = p.doubtful || p.sends > 1 || r.datagram
		write := p.write
		write.Session = r.session
		commands = append(commands, r.w.writeCommand(&write, p.app))
	}
	r.flying += len(frame)
	life, round := r.life, r.round
	done := make([]bool, len(frame))
	answered := func(i int, a answer) {
		if a.kind == decided && (a.out.Code == machine.Committed || a.out.Code == machine.Replayed) {
			r.w.oracle.received(commands[i], &a.out)
		}
		if r.life != life || r.round != round || done[i] {
			return
		}
		done[i] = true
		r.flying--
		r.judge(frame[i], a)
	}
	if r.datagram {
		r.w.datagrams(commands, answered)
	} else {
		if r.conn == nil || r.conn.broken {
			r.conn = r.w.connect(func() { r.lost(life) })
		}
		r.conn.send(commands, answered)
	}
	r.later(r.patience, func() {
		for i := range done {
			if !done[i] && r.round == round {
				r.lost(life)
				return
			}
		}
	})
}

// lost ends a round whose answers will not arrive.
func (r *writer) lost(life int) {
	if r.life != life || r.phase != phaseRunning {
		return
	}
	if r.conn != nil {
		r.conn.broken = true
	}
	r.round++
	for _, p := range r.queue {
		if p.verdict == verdictNone && p.answered {
			p.doubtful, p.answered = true, false
		}
	}
	r.flying, r.halted = 0, true
	r.resolve()
}

func (r *writer) judge(p *pending, a answer) {
	p.verdict = r.verdict(p, a)
	p.out = a.out
	if p.verdict == verdictCommitted {
		p.committed = true
	} else {
		r.halted = true
	}
	r.front()
	switch {
	case r.halted && r.flying == 0:
		r.resolve()
	case !r.halted:
		r.pump()
	}
}

func (r *writer) verdict(p *pending, a answer) verdict {
	switch a.kind {
	case unknown:
		p.doubtful = true
		return verdictRetry
	case neverQueued, notConnected:
		return verdictRetry
	case decided:
	}
	switch a.out.Code {
	case machine.Committed:
		return verdictCommitted
	case machine.Replayed, machine.AlreadyCommitted:
		if p.sends == 1 && !p.doubtful && !p.committed {
			r.w.fail(&r.name, "write %d was sent once and is answered as %s", p.app.id, a.out.Code)
		}
		return verdictCommitted
	case machine.SequenceGap:
		return verdictGap
	case machine.KeyExists, machine.KeyNotFound, machine.VersionMismatch, machine.ValueMismatch, machine.TooManyStreams:
		return verdictRefused
	case machine.SessionFenced, machine.SessionExpired:
		return verdictFatal
	}
	r.w.fail(&r.name, "write %d of a client that makes no mistakes is answered with %s", p.app.id, a.out.Code)
	return verdictFatal
}

// front settles commits in order.
func (r *writer) front() {
	n := len(r.queue)
	for len(r.queue) > 0 && r.queue[0].verdict == verdictCommitted {
		p := r.pop()
		p.app.done(r.w, &p.out)
		if v := p.out.Receipt.Versions; len(v) > 1 && string(p.write.Operations[1].Key) == string(ownKey(r.name)) {
			r.version = max(r.version, v[1])
		}
	}
	if len(r.queue) != n {
		r.note()
	}
}

// resolve decides how to continue after a round.
func (r *writer) resolve() {
	r.front()
	for _, p := range r.queue {
		if p.verdict == verdictFatal {
			r.end()
			return
		}
	}
	switch {
	case len(r.queue) == 0:
		r.halted = false
		r.round++
		r.pump()
	case r.queue[0].verdict != verdictRefused:
		r.resend()
	case r.copies():
		r.journal.attempt, r.journal.expected, r.journal.opening = r.w.uuid(), r.session, true
		r.round++
		r.open(phaseSettling)
	default:
		r.stop()
	}
}

// copies reports whether a write in the queue may still commit, or has committed, in spite of the refusal at the front.
func (r *writer) copies() bool {
	for _, p := range r.queue {
		if p.doubtful || p.committed {
			return !r.w.bugs.hastyClient
		}
	}
	return false
}

// stop reports the refusal at the front as final, together with everything after it. The numbers are used again, which
// is recorded in the journal first.
func (r *writer) stop() {
	r.next = r.queue[0].write.Sequence
	for len(r.queue) > 0 {
		r.pop().app.notExecuted(r.w)
	}
	r.note()
	r.flying, r.halted = 0, false
	r.round++
	r.later(r.w.upTo(100*millisecond), r.pump)
}

// end gives up the stream. Writes with unknown outcomes are handed to the application; a new start takes over the
// stream.
func (r *writer) end() {
	proven := 0
	for i, p := range r.queue {
		if p.committed {
			proven = i + 1
		}
	}
	for i, p := range r.queue {
		switch answered := p.verdict != verdictNone; {
		case i < proven:
			p.app.done(r.w, &p.out)
		case !p.doubtful && (p.sends == 0 || answered):
			p.app.notExecuted(r.w)
		default:
			p.app.unsettled(r.w)
		}
	}
	r.queue = nil
	r.note()
	r.journal.session, r.journal.opening = 0, false
	r.phase, r.flying, r.halted = phaseDown, 0, false
	r.round++
	r.w.counted["streams given up"]++
	wait := r.w.upTo(second)
	if r.contended {
		wait = r.w.upTo(10 * second)
	}
	r.later(wait, r.recover)
}

// read reads the stream's last sequence and the client's own entity (invariant 9).
func (r *writer) read() {
	known, version, session := r.w.oracle.known, r.version, r.session
	before := map[uint64]uint64{}
	if s := r.w.oracle.model.Streams[r.name]; s != nil {
		before[s.CreatedIndex] = known[s.CreatedIndex]
	}
	to := r.w.endpoint()
	check := func(got streamRead) {
		r.w.transmit(func() {
			if last, asked := before[got.stream.CreatedIndex]; asked && got.stream.Last < last {
				r.w.fail(&r.name, "invariant 9: the state of session %d says last is %d, %d was acknowledged before",
					session, got.stream.Last, last)
			}
			if got.version < version {
				r.w.fail(&r.name, "invariant 9: entity %s is at version %d, %d was acknowledged before",
					ownKey(r.name), got.version, version)
			}
		})
	}
	r.w.transmit(func() { to.readStream(r.name, check) })
}
