package client

import (
	"context"
	"fmt"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// verdict is the latest answer to a write in the current round of sending. It
// is final only once the Writer settles the write.
type verdict uint8

const (
	verdictNone      verdict = iota // not answered in this round
	verdictCommitted                // receipt is the answer
	verdictGap                      // the ledger waits for an earlier sequence
	verdictRetry                    // not decided: send again
	verdictRefused                  // refused, and the sequence stays free
	verdictFatal                    // the Writer cannot go on
)

// Pending is a write on its way. Its Writer settles it, whether anyone waits or
// not.
type Pending struct {
	writer *Writer
	// operations are encoded in Submit and never change: every copy that is sent,
	// and the journal, has these bytes. count is how many they are, size bounds
	// the bytes of the whole write in a frame.
	operations  []byte
	count, size int
	// sequence, key, tag, and entry, the write's id in the journal, never change
	// once the write is accepted.
	sequence uint64
	key, tag string
	entry    uint64

	// Guarded by the mux's mutex until done is closed, immutable afterwards.
	verdict verdict
	// session is that under which the write was sent last; sends counts the copies
	// sent under the writer's current session.
	session uint64
	sends   int
	// frame is the number of the frame that had the last copy.
	frame uint64
	// doubtful: a copy may still be under way besides the one whose answer we
	// have, so that no refusal of this write is final.
	doubtful bool
	// committed: proven by the stream's last sequence, or by a commit behind
	// it, even if the receipt has not come.
	committed bool
	settled   bool
	// awaited: whoever submitted it waits for its outcome, and does nothing on the
	// belief that it commits.
	awaited bool
	// durable: it may be sent, because a journal, if there is one, has it.
	durable      bool
	acknowledged bool
	refusal      *Error
	// foreign: the answer shows that this write's number, or the ledger, is not
	// the Writer's own any more.
	foreign error
	receipt *seqledgerv1.Receipt
	err     error

	done chan struct{}
}

// Sequence returns the write's number in its stream.
func (p *Pending) Sequence() uint64 { return p.sequence }

// Key returns the write's idempotency key.
func (p *Pending) Key() string { return p.key }

// Done returns a channel that is closed once the write is settled.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait returns the receipt once the write is committed. The error is
//
//   - a [*NotExecutedError] when the write was not executed and never will be;
//     its cause is the refusal, or a [*StoppedError] behind a refused write,
//   - an [*OutcomeUnknownError] when ctx ends first (the Writer still settles
//     the write and Wait can be called again) or when the Writer ended.
//
// See [ReceiptGone] for a commit whose receipt the ledger no longer keeps.
func (p *Pending) Wait(ctx context.Context) (*seqledgerv1.Receipt, error) {
	select {
	case <-p.done:
		return p.receipt, p.err
	default:
	}
	select {
	case <-p.done:
		return p.receipt, p.err
	case <-ctx.Done():
		return nil, p.unknown(p.writer.mux.explain(ctx.Err()))
	}
}

// unknown is the error of a write whose outcome is not known because of cause.
func (p *Pending) unknown(cause error) error {
	e := newOutcomeUnknown(p.sequence, p.key, cause)
	e.Pending = p
	return e
}

// ReceiptGone reports that a write is committed but the ledger no longer keeps
// its receipt (ALREADY_COMMITTED), which happens when the receipt window was
// made smaller while an answer was lost. Such a receipt has Sequence and
// Replayed alone. It is not an error, because a caller that takes every error
// for "not done" would pay twice.
func ReceiptGone(receipt *seqledgerv1.Receipt) bool { return receipt.GetTxId() == "" }

// bareReceipt stands for a receipt that the ledger no longer keeps.
func (p *Pending) bareReceipt() *seqledgerv1.Receipt {
	return &seqledgerv1.Receipt{Sequence: p.Sequence(), Replayed: true}
}

// answer notes one answer of the server. It decides nothing: the Writer does.
func (p *Pending) answer(result *seqledgerv1.WriteResult) error {
	switch result := result.GetResult().(type) {
	case *seqledgerv1.WriteResult_Receipt:
		if result.Receipt.GetSequence() != p.Sequence() {
			return protocolError("receipt of sequence %d in answer to %d", result.Receipt.GetSequence(), p.Sequence())
		}
		p.verdict, p.receipt = verdictCommitted, result.Receipt
		p.checkReceipt()
	case *seqledgerv1.WriteResult_Error:
		p.refusal = errorFromStream(result.Error)
		p.verdict = verdictOf(p.refusal)
		if p.refusal.leavesOutcomeOpen() {
			p.doubtful = true
		}
		if p.verdict == verdictCommitted {
			p.checkAlreadyCommitted()
		}
	default:
		return protocolError("a result with neither receipt nor error in answer to sequence %d", p.Sequence())
	}
	return nil
}

// repeated says whether an earlier copy of p may have committed before the one
// that was just answered.
func (p *Pending) repeated() bool { return p.sends > 1 || p.doubtful || p.committed }

// checkReceipt turns a receipt that cannot be this write's into the end of the
// Writer.
func (p *Pending) checkReceipt() {
	ledger, known := ledgerOf(p.receipt.GetTxId())
	switch w := p.writer; {
	case known && w.ledger != 0 && ledger != w.ledger:
		p.foreignReceipt("its receipt is of ledger %016x, those before were of %016x", ledger, w.ledger)
	case p.receipt.GetReplayed() && !p.repeated():
		p.foreignReceipt("its only copy was answered as a repeat")
	case known:
		w.ledger = ledger
	}
	if p.verdict == verdictFatal {
		// The receipt may still be of this write: something between here and
		// the server may have repeated it. So it is neither a commit nor not.
		p.doubtful, p.receipt = true, nil
	}
}

// checkAlreadyCommitted believes ALREADY_COMMITTED only of a repeat. A first
// and only copy cannot have been committed before: then somebody else numbers
// this stream, or another ledger stands behind the address, and the write was
// not executed.
func (p *Pending) checkAlreadyCommitted() {
	if p.repeated() {
		p.receipt = p.bareReceipt()
		return
	}
	p.foreignReceipt("its number is taken, but its only copy was never executed")
}

// foreignReceipt makes p's answer the end of the Writer, because somebody else's writes
// stand where its own should.
func (p *Pending) foreignReceipt(format string, args ...any) {
	p.verdict, p.refusal = verdictFatal, nil
	p.foreign = protocolError("write %d: %s", p.Sequence(), fmt.Sprintf(format, args...))
}

// verdictOf sorts the codes by what a Writer does about them.
func verdictOf(refusal *Error) verdict {
	switch refusal.Code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED:
		// Of a repeat; checkAlreadyCommitted looks whether it can be one.
		return verdictCommitted
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP:
		return verdictGap
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
		return verdictRetry
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_NOT_FOUND,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VERSION_MISMATCH,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VALUE_MISMATCH,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS:
		return verdictRefused
	}
	// Fenced, expired, reused, exhausted, session required, and codes of a
	// newer server: guessing what those allow could execute a write twice.
	return verdictFatal
}
