package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// This file decides what answers mean. All of it runs with the mux's mutex
// held and does no I/O. The argument why it is right is in doc.go.

// markSent takes p for the frame that is being filled.
func (p *Pending) markSent(frame uint64) {
	w := p.writer
	p.frame = frame
	p.session = w.session
	p.verdict, p.refusal, p.receipt = verdictNone, nil, nil
	p.sends++
	if p.sends > 1 {
		p.doubtful = true
	}
	w.inflight++
	w.mux.inFlight.push(p)
	w.mux.counters.sent.Add(1)
}

// connectionLost notes that the stream broke before p was answered.
func (p *Pending) connectionLost() {
	if p.settled {
		return
	}
	w := p.writer
	p.verdict, p.doubtful = verdictNone, true
	w.halted = true
	w.inflight--
	if w.inflight == 0 {
		w.resolve()
	}
}

// settle gives p its outcome.
func (p *Pending) settle(err error) {
	p.settled = true
	p.err = err
	if err != nil {
		p.receipt = nil
	}
	w := p.writer
	if err == nil && w.kept != nil {
		w.kept.settled(p)
	}
	switch n := w.mux.counters; {
	case err == nil:
		n.committed.Add(1)
	case errors.Is(err, ErrNotExecuted):
		n.refused.Add(1)
	default:
		n.unsettled.Add(1)
	}
	w.bytes -= p.size
	w.mux.settled = append(w.mux.settled, p)
	w.wakeNext()
}

// answered looks at one answer, which came at now. Commits at the front of the
// queue are settled at once, because nothing can undo them. Any other answer
// halts the Writer: what it means depends on what else is in flight.
func (w *Writer) answered(p *Pending, now time.Time) {
	w.inflight--
	if p.verdict == verdictCommitted {
		p.committed = true
		if !p.receipt.GetReplayed() {
			w.refreshed = now
		}
	} else {
		w.halted = true
	}
	if p.verdict == verdictFatal {
		w.noteFatal(p)
	}
	w.settleFront()
	if w.halted && w.inflight == 0 {
		w.resolve()
	}
}

// noteFatal remembers why the Writer has to end. The first reason stands.
func (w *Writer) noteFatal(p *Pending) {
	cause := p.foreign
	if p.refusal != nil {
		cause = p.refusal
		switch p.refusal.Code {
		case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_REUSED,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED:
			w.shared = true
		}
	}
	w.shared = w.shared || p.foreign != nil
	if w.fatal == nil {
		w.fatal = cause
	}
}

// settleFront settles commits in order. A commit behind an undecided write
// waits, so that an application sees its writes settled in their order. So does one
// whose commit may be somebody else's.
func (w *Writer) settleFront() {
	for w.queue.len() > 0 {
		p := w.queue.at(0)
		if p.verdict != verdictCommitted || !w.isVerified() && ReceiptGone(p.receipt) {
			return
		}
		w.queue.pop()
		p.settle(nil)
		w.cursor = max(0, w.cursor-1)
		if p.Sequence() == w.verifiedThrough {
			w.verifiedThrough = 0
			if !w.halted {
				w.mux.makeReady(w)
			}
		}
	}
}

// isVerified tells whether what the ledger had committed when the journal was recovered
// is known to be the journal's. An old copy of a journal has the same numbers, and a
// ledger that has a write's receipt no more can only say that its number is
// committed; of the last one it knows key and content.
func (w *Writer) isVerified() bool {
	if w.verifiedThrough == 0 || w.queue.len() == 0 {
		return true
	}
	last := w.verifiedThrough - w.queue.at(0).Sequence()
	return last < uint64(w.queue.len()) && w.queue.at(int(last)).verdict == verdictCommitted
}

// resolve decides how to go on after a round: everything that was sent has been
// answered or lost.
func (w *Writer) resolve() {
	w.settleFront()
	switch {
	case w.fatal != nil:
		w.terminate(w.fatal)
	case w.queue.len() == 0:
		w.halted = false
	case w.queue.at(0).verdict == verdictGap:
		// The write before it is settled as committed, so the ledger cannot be
		// waiting for it: it has lost a commit, or is not the same ledger.
		w.terminate(fmt.Errorf("%w: %w", protocolError("gap after a committed write"), w.queue.at(0).refusal))
	case w.queue.at(0).verdict != verdictRefused:
		w.resend()
	case w.queue.at(0).committed:
		w.refusedThoughCommitted(w.queue.at(0))
	case w.copiesUnderWay():
		// Not final: a copy might still commit, now that conditions change and
		// gaps fill. A new session fences all copies; the session loop opens it and
		// calls fenced.
		w.state = stateSettling
		w.wakeSessionLoop()
	default:
		w.stop()
	}
}

// refusedThoughCommitted is for a write at the front that is known to be committed,
// from when a session was opened, and whose receipt the server does not give: it
// refuses the write before it looks for one, as a server with narrower limits does.
// To ask again and again would change nothing.
func (w *Writer) refusedThoughCommitted(p *Pending) {
	if w.shared || !w.isVerified() {
		w.terminate(fmt.Errorf("%w: %w", protocolError("%d is committed, and refused", p.Sequence()), p.refusal))
		return
	}
	p.verdict, p.refusal, p.receipt = verdictCommitted, nil, p.bareReceipt()
	w.resolve()
}

// copiesUnderWay says whether a write in the queue may still commit, or has
// committed, in spite of the refusal at the front.
func (w *Writer) copiesUnderWay() bool {
	for i := range w.queue.len() {
		if p := w.queue.at(i); p.doubtful || p.committed {
			return true
		}
	}
	return false
}

// resend starts a new round with everything that is not known to be committed,
// under the same numbers and keys.
func (w *Writer) resend() {
	for i := range w.queue.len() {
		if p := w.queue.at(i); p.verdict != verdictCommitted {
			p.verdict = verdictNone
		}
	}
	w.cursor = 0
	w.halted = false
	w.state = stateRunning
	w.mux.makeReady(w)
	w.wakeNext()
}

// stop makes the refusal at the front final. No copy of any write in the queue
// is under way: so the numbers are free, and "not executed" is true. With a
// journal it has to stay true after a crash, therefore the session loop takes the
// writes out of it first and calls report then.
func (w *Writer) stop() {
	if w.kept == nil {
		w.report()
		return
	}
	w.state, w.refused = stateSettling, true
	w.wakeSessionLoop()
}

// report tells everyone of the refusal at the front. The Writer stops for those who
// have submitted writes without waiting, and may submit more before they look: they
// believe that what went before commits. Who waits for each write learns of it first,
// so that between such writes nothing has to stop.
func (w *Writer) report() {
	front := w.queue.pop()
	stopped := &StoppedError{Sequence: front.sequence, Refusal: front.refusal}
	stop := !front.awaited
	w.next = front.sequence
	front.settle(&NotExecutedError{Sequence: front.sequence, Cause: front.refusal})
	for w.queue.len() > 0 {
		p := w.queue.pop()
		stop = stop || !p.awaited
		p.settle(&NotExecutedError{Sequence: p.sequence, Cause: stopped})
	}
	w.state = stateRunning
	if stop {
		w.state, w.stopped = stateStopped, stopped
	}
	w.cursor = 0
	w.halted = false
	w.wakeNext()
}

// fenced goes on after the session loop has opened a session: from then on no copy
// sent under an older one can commit, and last tells which did.
func (w *Writer) fenced(last uint64) {
	first := w.queue.at(0).Sequence()
	if last+1 < first || last >= w.next {
		w.terminate(protocolError("last committed sequence %d with %d to %d unsettled", last, first, w.next-1))
		return
	}
	for i := range w.queue.len() {
		if p := w.queue.at(i); p.committed && p.Sequence() > last {
			w.terminate(protocolError("last committed sequence %d after %d was committed", last, p.Sequence()))
			return
		}
	}
	for i := range w.queue.len() {
		p := w.queue.at(i)
		p.doubtful, p.sends = false, 0
		p.committed = p.committed || p.Sequence() <= last
	}
	if last >= first {
		// The refused write has committed through another copy. Sending again
		// gets its receipt, and those behind it are as good as before.
		w.resend()
		return
	}
	w.stop()
}

// terminate ends the Writer. Writes that are known to be committed or not executed
// are settled so; the others are handed to the application. With a journal none
// is reported as not executed: what stands in it may be sent by the next Writer.
func (w *Writer) terminate(cause error) {
	if w.state == stateDead {
		return
	}
	w.state = stateDead
	w.failure = &UnsettledError{Cause: cause}
	// Sequences have no holes, so a commit proves all those before it.
	proven := 0
	for i := range w.queue.len() {
		// Unless somebody else numbers this stream too: then what stands before
		// a commit need not be ours, and each needs a receipt of its own.
		// The same while it is not known whose commits they are.
		p := w.queue.at(i)
		if !w.shared && (p.committed && w.isVerified() || p.verdict == verdictCommitted && !ReceiptGone(p.receipt)) {
			proven = i + 1
		}
	}
	for i := 0; w.queue.len() > 0; i++ {
		p := w.queue.pop()
		switch answered := p.verdict != verdictNone; {
		case i < proven, p.verdict == verdictCommitted && !ReceiptGone(p.receipt):
			if p.verdict != verdictCommitted {
				p.receipt = p.bareReceipt()
			}
			p.settle(nil)
		case w.kept == nil && !p.committed && !p.doubtful && (p.sends == 0 || answered):
			p.settle(&NotExecutedError{Sequence: p.Sequence(), Cause: p.reason(cause)})
		default:
			w.failure.Writes = append(w.failure.Writes, p)
			p.settle(p.unknown(cause))
		}
	}
	w.cursor = 0
	w.halted = true
	close(w.done)
	level := slog.LevelInfo
	if !errors.Is(cause, ErrClosed) || len(w.failure.Writes) > 0 {
		level = slog.LevelError
	}
	unsettled := len(w.failure.Writes)
	w.mux.later = append(w.mux.later, func() {
		w.logger().Log(context.Background(), level, "a writer has ended", "reason", cause, "unsettled", unsettled)
	})
	w.wakeSessionLoop()
	w.wakeNext()
}

// reason prefers p's own refusal to the end of the Writer.
func (p *Pending) reason(cause error) error {
	if p.foreign != nil {
		return p.foreign
	}
	if p.refusal != nil && (p.verdict == verdictRefused || p.verdict == verdictFatal) {
		return p.refusal
	}
	return cause
}
