package writer

import (
	"context"
	"fmt"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
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
	verdictFatal                    // the Writer cannot continue
)

// Pending is a submitted write. Its Writer settles it, whether or not a caller waits.
type Pending struct {
	writer *Writer
	// operations are encoded in Submit and never change: the journal and every copy that is sent have these bytes.
	// count is their number; size bounds the bytes of the whole write in a frame.
	operations  []byte
	count, size int
	// sequence, key, tag, and entry, the write's id in the journal, never change once the write is accepted.
	sequence uint64
	key, tag string
	entry    uint64

	// Guarded by the mux's mutex until done is closed, immutable afterwards.
	verdict verdict
	// session is the session of the last copy that was sent; sends counts the copies sent under
	// the Writer's current session.
	session uint64
	sends   int
	// frame is the number of the frame with the last copy.
	frame uint64
	// doubtful: another copy than the answered one may still be under way, so no refusal of this write is final.
	doubtful bool
	// committed: proven by the stream's last sequence, or by a later commit, even without the receipt.
	committed bool
	settled   bool
	// awaited: the submitter waits for the outcome, and does nothing that depends on the commit.
	awaited bool
	// durable: the write may be sent, because the journal, if there is one, has it on disk.
	durable      bool
	acknowledged bool
	refusal      *failure.Error
	// foreign: the answer shows that another client has used this write's number, or that the ledger is another one.
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
//   - a [*failure.NotExecutedError] when the write was not executed and never will be;
//     its cause is the refusal, or a [*StoppedError] if an earlier write was refused,
//   - an [*failure.OutcomeUnknownError] when ctx ends first (the Writer still settles
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
	e := failure.OutcomeUnknown(p.sequence, p.key, cause)
	e.Pending = p
	return e
}

// ReceiptGone reports that a write is committed but the ledger no longer keeps its receipt (ALREADY_COMMITTED), which
// happens when the receipt window was made smaller while an answer was lost. Such a receipt has only Sequence and
// Replayed. It is not an error, because a caller that treats every error as "not done" would pay twice.
func ReceiptGone(receipt *seqledgerv1.Receipt) bool { return receipt.GetTxId() == "" }

// bareReceipt replaces a receipt that the ledger no longer keeps.
func (p *Pending) bareReceipt() *seqledgerv1.Receipt {
	return &seqledgerv1.Receipt{Sequence: p.Sequence(), Replayed: true}
}

// answer records one answer of the server. The Writer decides what it means.
func (p *Pending) answer(result *seqledgerv1.WriteResult) error {
	switch result := result.GetResult().(type) {
	case *seqledgerv1.WriteResult_Receipt:
		switch {
		case result.Receipt.GetTxId() == "": // a ledger's has one
			return rpc.ProtocolError("a receipt without tx_id in answer to sequence %d", p.Sequence())
		case result.Receipt.GetSequence() != p.Sequence():
			return rpc.ProtocolError("receipt of sequence %d in answer to sequence %d", result.Receipt.GetSequence(),
				p.Sequence())
		}
		p.verdict, p.receipt = verdictCommitted, result.Receipt
		p.checkReceipt()
	case *seqledgerv1.WriteResult_Error:
		p.refusal = failure.FromStream(result.Error)
		p.verdict = verdictOf(p.refusal)
		if p.refusal.IsOpen() {
			p.doubtful = true
		}
		if p.verdict == verdictCommitted {
			p.checkAlreadyCommitted()
		}
	default:
		return rpc.ProtocolError("a result with neither receipt nor error in answer to sequence %d", p.Sequence())
	}
	return nil
}

// repeated reports whether an earlier copy of p may have committed before the one that was just answered.
func (p *Pending) repeated() bool { return p.sends > 1 || p.doubtful || p.committed }

// checkReceipt ends the Writer if the receipt cannot be this write's.
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
		// The receipt may still be of this write, because an intermediary may have repeated the
		// request. So the outcome is open.
		p.doubtful, p.receipt = true, nil
	}
}

// checkAlreadyCommitted accepts ALREADY_COMMITTED only for a repeat. A first and only copy
// cannot have been committed before. In that case another client numbers this stream, or the
// address leads to another ledger, and the write was not executed.
func (p *Pending) checkAlreadyCommitted() {
	if p.repeated() {
		p.receipt = p.bareReceipt()
		return
	}
	p.foreignReceipt("its number is taken, but its only copy was never executed")
}

// foreignReceipt ends the Writer because of p's answer: another client's writes have the Writer's numbers.
func (p *Pending) foreignReceipt(format string, args ...any) {
	p.verdict, p.refusal = verdictFatal, nil
	p.foreign = rpc.ProtocolError("write %d: %s", p.Sequence(), fmt.Sprintf(format, args...))
}

// verdictOf maps a code to what a Writer does about it.
func verdictOf(refusal *failure.Error) verdict {
	switch refusal.Code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return verdictFatal
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED:
		// Valid for a repeat; checkAlreadyCommitted checks that it is one.
		return verdictCommitted
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP:
		return verdictGap
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS:
		return verdictRefused
	}
	switch {
	case refusal.IsTemporary():
		return verdictRetry
	case refusal.Is(failure.ErrConditionFailed):
		return verdictRefused
	}
	// Fenced, expired, reused, exhausted, session required, and codes of a newer server: a
	// wrong guess about those could execute a write twice.
	return verdictFatal
}
