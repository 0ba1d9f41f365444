package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// This file decides what answers mean. All of it runs with the mux's mutex held and does no
// I/O. doc.go explains why it is right.

// markSent records that p is in the frame that is being filled.
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
	w.mux.client.Counters.Sent.Add(1)
}

// connectionLost records that the stream broke before p was answered.
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
	if err == nil && w.log != nil {
		w.log.settled(p)
	}
	switch n := &w.mux.client.Counters; {
	case err == nil:
		n.Committed.Add(1)
	case errors.Is(err, failure.ErrNotExecuted):
		n.Refused.Add(1)
	default:
		n.Unsettled.Add(1)
	}
	w.bytes -= p.size
	w.mux.settled = append(w.mux.settled, p)
	w.wakeNext()
}

// answered handles one answer, which arrived at now. Commits at the front of the queue are settled at once, because
// nothing can undo them. Any other answer halts the Writer: its meaning depends on what else is in flight.
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

// noteFatal records why the Writer has to end. The first reason wins.
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

// settleFront settles commits in order. A commit after an undecided write waits, so that writes are
// settled in their order. A commit that may be another client's waits too.
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

// isVerified reports whether the commits that the ledger had when the journal was recovered are known to be the
// journal's. An old copy of a journal has the same numbers. A ledger that no longer has a write's receipt can only say
// that its number is committed; it knows key and content of the last one.
func (w *Writer) isVerified() bool {
	last := w.verifier()
	return w.verifiedThrough == 0 || last != nil && last.verdict == verdictCommitted
}

// verifier returns the write whose receipt, or commit, verifies the others, if it is in the queue.
func (w *Writer) verifier() *Pending {
	if w.verifiedThrough == 0 || w.queue.len() == 0 {
		return nil
	}
	if last := w.verifiedThrough - w.queue.at(0).Sequence(); last < uint64(w.queue.len()) {
		return w.queue.at(int(last))
	}
	return nil
}

// resolve decides how to continue after a round, when everything that was sent has been answered or lost.
func (w *Writer) resolve() {
	w.settleFront()
	switch last := w.verifier(); {
	case w.fatal != nil:
		w.terminate(w.fatal)
	case w.queue.len() == 0:
		w.halted = false
	case w.queue.at(0).verdict == verdictGap:
		// The previous write is committed, so the ledger cannot be waiting for it: the ledger
		// has lost a commit, or is another ledger.
		w.terminate(fmt.Errorf("%w: %w", rpc.ProtocolError("gap after a committed write"), w.queue.at(0).refusal))
	case w.queue.at(0).verdict == verdictCommitted && last != nil &&
		(last.verdict == verdictRefused || last.verdict == verdictGap):
		// The front waits for a receipt that the server refuses to give.
		w.refusedThoughCommitted(last)
	case w.queue.at(0).verdict != verdictRefused:
		w.resend()
	case w.queue.at(0).committed:
		w.refusedThoughCommitted(w.queue.at(0))
	case w.copiesUnderWay():
		// Not final, because a copy might still commit when conditions change or gaps fill. A new
		// session fences all copies; the session loop opens it and calls fenced.
		w.state = stateSettling
		w.wakeSessionLoop()
	default:
		w.stop()
	}
}

// refusedThoughCommitted ends the Writer if the write at the front is known to be committed but
// the server refuses it instead of returning the receipt. A server with smaller limits refuses
// a write before it looks for a receipt. Repeating the request would not help.
func (w *Writer) refusedThoughCommitted(p *Pending) {
	if w.shared || !w.isVerified() {
		w.terminate(fmt.Errorf("%w: %w", rpc.ProtocolError("write %d is committed, and refused", p.Sequence()),
			p.refusal))
		return
	}
	p.verdict, p.refusal, p.receipt = verdictCommitted, nil, p.bareReceipt()
	w.resolve()
}

// copiesUnderWay reports whether a write in the queue may commit or have committed in spite of
// the refusal at the front.
func (w *Writer) copiesUnderWay() bool {
	for i := range w.queue.len() {
		if p := w.queue.at(i); p.doubtful || p.committed {
			return true
		}
	}
	return false
}

// resend starts a new round with everything that is not known to be committed, under the same numbers and keys.
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

// stop makes the refusal at the front final. No copy of any write in the queue is under way, so
// the numbers are free, and "not executed" is true. With a journal it must stay true after a
// crash, so the session loop first removes the writes from the journal and then calls report.
func (w *Writer) stop() {
	if w.log == nil {
		w.report()
		return
	}
	w.state, w.refused = stateSettling, true
	w.wakeSessionLoop()
}

// report settles the queue with the refusal at the front. If a write came from Submit, the Writer stops, because the
// application may submit more writes that depend on earlier ones before it sees the refusal. Callers of Write see the
// refusal before they write again, so the Writer need not stop for them.
func (w *Writer) report() {
	front := w.queue.pop()
	stopped := &StoppedError{Sequence: front.sequence, Refusal: front.refusal}
	stop := !front.awaited
	w.next = front.sequence
	front.settle(&failure.NotExecutedError{Sequence: front.sequence, Cause: front.refusal})
	for w.queue.len() > 0 {
		p := w.queue.pop()
		stop = stop || !p.awaited
		p.settle(&failure.NotExecutedError{Sequence: p.sequence, Cause: stopped})
	}
	w.state = stateRunning
	if stop {
		w.state, w.stopped = stateStopped, stopped
	}
	w.cursor = 0
	w.halted = false
	w.wakeNext()
}

// fenced continues after the session loop has opened a session. No copy sent under an older
// session can commit any more, and last shows which did.
func (w *Writer) fenced(last uint64) {
	first := w.queue.at(0).Sequence()
	if last+1 < first || last >= w.next {
		w.terminate(rpc.ProtocolError("last committed sequence %d with %d to %d unsettled", last, first, w.next-1))
		return
	}
	for i := range w.queue.len() {
		if p := w.queue.at(i); p.committed && p.Sequence() > last {
			w.terminate(rpc.ProtocolError("last committed sequence %d after %d was committed", last, p.Sequence()))
			return
		}
	}
	for i := range w.queue.len() {
		p := w.queue.at(i)
		p.doubtful, p.sends = false, 0
		p.committed = p.committed || p.Sequence() <= last
	}
	if last >= first {
		// The refused write has committed through another copy. It is sent again because the answer
		// is its receipt, and the later writes remain valid.
		w.resend()
		return
	}
	w.stop()
}

// terminate ends the Writer. It settles the writes that are known to be committed or not executed, and returns the
// others to the application. With a journal it reports none as not executed, because the next Writer may send them.
func (w *Writer) terminate(cause error) {
	if w.state == stateDead {
		return
	}
	w.state = stateDead
	w.failure = &UnsettledError{Cause: cause}
	// Because sequences have no holes, a commit proves all those before it.
	proven := 0
	for i := range w.queue.len() {
		// That does not hold if another client numbers this stream too: then an earlier commit need not be ours, and
		// each write needs its own receipt. The same holds while it is not known whose commits they are.
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
		case w.log == nil && !p.committed && !p.doubtful && (p.sends == 0 || answered):
			p.settle(&failure.NotExecutedError{Sequence: p.Sequence(), Cause: p.reason(cause)})
		default:
			w.failure.Writes = append(w.failure.Writes, p)
			p.settle(p.unknown(cause))
		}
	}
	w.cursor = 0
	w.halted = true
	close(w.done)
	level := slog.LevelInfo
	if !errors.Is(cause, failure.ErrClosed) || len(w.failure.Writes) > 0 {
		level = slog.LevelError
	}
	unsettled := len(w.failure.Writes)
	w.mux.later = append(w.mux.later, func() {
		w.logger().Log(context.Background(), level, "a writer has ended", "reason", cause, "unsettled", unsettled)
	})
	w.wakeSessionLoop()
	w.wakeNext()
}

// reason returns p's own refusal if there is one, otherwise cause.
func (p *Pending) reason(cause error) error {
	if p.foreign != nil {
		return p.foreign
	}
	if p.refusal != nil && (p.verdict == verdictRefused || p.verdict == verdictFatal) {
		return p.refusal
	}
	return cause
}
