package client

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/journal"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// open opens the Writer's first session, with what the journal knows if there
// is one. An error leaves no claim behind.
func (w *Writer) open(ctx context.Context) error {
	if w.options.journal == nil {
		attempt := w.options.AttemptID
		if len(attempt) == 0 {
			attempt = newAttempt()
		}
		response, err := w.openSession(ctx, attempt, w.options.ExpectedSession)
		if err != nil {
			return fmt.Errorf("opening a session: %w", err)
		}
		w.adopt(attempt, response.GetState())
		w.next = response.GetState().GetLastCommittedSequence() + 1
		return nil
	}
	name := journal.Name{Organization: w.scope.GetOrganization(), Vault: w.scope.GetVault(), ClientID: w.clientID}
	state, err := w.options.journal.Claim(name)
	if err != nil {
		return err
	}
	w.kept = &streamLog{journal: w.options.journal, name: name, head: state.Head}
	if err = w.load(state); err == nil {
		err = w.recover(ctx)
	}
	if err != nil {
		w.kept.journal.Release(name)
	}
	return err
}

// load makes writes of the journal's entries.
func (w *Writer) load(state journal.State) error {
	for _, e := range state.Entries {
		operations, err := DecodeOperations(e.Request)
		if err != nil {
			return fmt.Errorf("sequence %d of %s: %w", e.Sequence, state.Name, err)
		}
		p := w.newPending(e.Request, len(operations))
		p.session, p.sequence, p.key, p.tag = state.Head.Session, e.Sequence, e.Key, e.Tag
		p.entry, p.durable = e.ID, true
		w.recovered = append(w.recovered, p)
		if !e.Settled {
			w.queue.push(p)
			w.bytes += p.size
			continue
		}
		p.receipt = new(seqledgerv1.Receipt)
		if err := proto.Unmarshal(e.Receipt, p.receipt); err != nil {
			return fmt.Errorf("receipt of sequence %d of %s: %w", e.Sequence, state.Name, err)
		}
		p.settled = true
		close(p.done)
	}
	return nil
}

// recover opens a session that only this journal's owner can get, and prepares
// the unsettled writes to be sent again under it. When that cannot be done they
// are the application's to settle, in an [*UnsettledError].
func (w *Writer) recover(ctx context.Context) error {
	before := w.kept.head
	if err := w.checkLedger(ctx); errors.Is(err, ErrOtherLedger) {
		return w.returnUnsettled(err)
	} else if err != nil {
		return err
	}
	attempt := before.Attempt
	if len(attempt) == 0 {
		attempt = newAttempt()
		if err := w.journalAttempt(ctx, attempt); err != nil {
			return err
		}
	}
	response, anew, err := w.resumeSession(ctx, attempt, before.Session)
	if err != nil {
		if errors.Is(err, ErrExpired) || errors.Is(err, ErrFenced) {
			return w.returnUnsettled(err)
		}
		return fmt.Errorf("opening a session: %w", err)
	}
	last := response.GetState().GetLastCommittedSequence()
	next := last + 1
	if before.Session != 0 && !anew {
		next = before.NextSequence
		first := next
		if w.queue.len() > 0 {
			first = w.queue.at(0).Sequence()
		}
		// The session is the journal's, so nobody else has written. Then either
		// side has lost something, or this is an old copy of the journal.
		if last+1 < first || last >= next {
			return w.returnUnsettled(protocolError("the ledger has committed up to sequence %d, the journal says %d to %d",
				last, first-1, next-1))
		}
	}
	// Once more, because another server may have taken the address between the
	// two calls. What is sent there cannot be taken back, and a session of its
	// must not be journalled as one of the other ledger.
	if err := w.checkLedger(ctx); errors.Is(err, ErrOtherLedger) {
		return w.returnUnsettled(err)
	} else if err != nil {
		return err
	}
	if err := w.journalSession(ctx, response.GetState().GetSession(), next); err != nil {
		return err
	}
	w.adopt(attempt, response.GetState())
	w.next, w.ledger = next, w.kept.head.Ledger
	for i := range w.queue.len() {
		// Sent again all the same, because the answer is the receipt.
		p := w.queue.at(i)
		p.committed = p.Sequence() <= last
		if p.committed {
			w.verifiedThrough = last
		}
	}
	return nil
}

// resumeSession opens a session with the journal's as the expected one. A stream that
// was evicted while nothing was unanswered is started anew, which it says.
//
// An earlier life may have done that under the same attempt and not have lived
// to journal it. Then the attempt is the stream's latest, so that the ledger
// answers with its session and does not look at the expected one. What tells
// is the session before it. When that life was allowed to start anew and this
// one is not, the journal stays as it is, and every further NewWriter gets here
// again until NoReopen is off or the stream is forgotten.
func (w *Writer) resumeSession(
	ctx context.Context, attempt []byte, expected uint64,
) (response *seqledgerv1.OpenSessionResponse, anew bool, err error) {
	response, err = w.openSession(ctx, attempt, expected)
	if err == nil && (expected == 0 || response.GetPreviousSession() == expected) {
		return response, false, nil
	}
	done := err == nil
	if done {
		if err := onlyOurs(response); err != nil {
			return nil, false, err
		}
		err = evictedBefore()
	}
	if !errors.Is(err, ErrExpired) || w.queue.len() > 0 || w.options.NoReopen {
		return nil, false, err
	}
	if done {
		return response, true, nil
	}
	response, err = w.openSession(ctx, attempt, 0)
	if err != nil {
		return nil, false, err
	}
	return response, true, onlyOurs(response)
}

// evictedBefore is what the ledger said to the life that started the stream
// anew.
func evictedBefore() error {
	return &Error{
		Code:        seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED,
		ConnectCode: connect.CodeFailedPrecondition,
		Message:     "the stream was evicted, and an earlier Writer with this journal started it anew",
	}
}

// onlyOurs refuses a session on a stream that was gone and is there again:
// whoever had the session before started it anew, so it is theirs, and its
// numbers are not a fresh start for this Writer.
func onlyOurs(response *seqledgerv1.OpenSessionResponse) error {
	if response.GetPreviousSession() == 0 {
		return nil
	}
	return &Error{
		Code:        seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED,
		ConnectCode: connect.CodeFailedPrecondition,
		Message:     "another session was opened after the stream was evicted",
		Session:     response.GetPreviousSession(),
	}
}

// returnUnsettled gives the unsettled writes to the application. They stay in the
// journal until it says that it has them, so that a crash loses none.
func (w *Writer) returnUnsettled(cause error) error {
	failure := &UnsettledError{Cause: cause}
	for w.queue.len() > 0 {
		p := w.queue.pop()
		p.settled, p.err = true, p.unknown(cause)
		close(p.done)
		failure.Writes = append(failure.Writes, p)
	}
	return failure
}

// Recovered returns the writes that the journal held when the Writer was
// opened, in the order in which they were submitted: those that were committed
// and not acknowledged, and those that were unsettled. The latter are settled
// like every other write; Wait tells the outcome of each. A receipt whose
// Session is not [WriterState].Session is of a write that was committed before
// the restart.
func (w *Writer) Recovered() []*Pending {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return append([]*Pending(nil), w.recovered...)
}

// SubmitTagged is Submit with a name of the application's own for the write,
// which needs WriterOptions.Journal. The write stays in the journal when it is
// committed, until [Pending.Acknowledge], and its tag for a time after that
// ([journal.Options].RememberTags).
//
// A tag that the journal knows is refused with [journal.ErrTagInUse], which does
// not match [ErrNotExecuted]: the write that has the tag is under way or committed.
// A write that was not executed leaves its tag free.
//
// So an application that asks [Writer.Recovered] first, and acknowledges an
// outcome only when it has noted it, may submit everything else that it has not
// noted: whatever crashed in between, no payment is sent twice.
func (w *Writer) SubmitTagged(ctx context.Context, tag string, operations ...*seqledgerv1.Operation) (*Pending, error) {
	if err := w.tagged(tag); err != nil {
		return nil, &NotExecutedError{Cause: err}
	}
	return w.submit(ctx, tag, operations, false)
}

// Tag returns the write's tag, empty for none.
func (p *Pending) Tag() string { return p.tag }

// Operations returns what was submitted. Each call decodes it anew, from the
// bytes that are sent.
func (p *Pending) Operations() []*seqledgerv1.Operation {
	// They were encoded here, or decoded when the journal was read.
	operations, _ := DecodeOperations(p.operations)
	return operations
}

// Acknowledge tells the journal that the application has noted this write's
// outcome, durably, and need not hear of it again. The tag stays in use for
// [journal.Options].RememberTags. It does not wait for the disk: a crash may show
// the outcome once more. For a write that has no tag or was not executed it does
// nothing, because the journal holds nothing of it. Close the Writer afterwards,
// not before.
func (p *Pending) Acknowledge() error {
	w := p.writer
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	switch {
	case p.tag == "" || p.acknowledged || errors.Is(p.err, ErrNotExecuted):
		return nil
	case !p.settled || p.err != nil:
		return fmt.Errorf("client: write %d cannot be acknowledged: %w", p.sequence, ErrOutcomeUnknown)
	}
	err := w.kept.journal.Append(w.kept.name, journal.Record{Kind: journal.KindAcknowledged, ID: p.entry})
	p.acknowledged = err == nil
	return err
}
