package writer

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// open opens the Writer's first session, using the journal's state if there is a journal. After
// an error the stream is not claimed.
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
	w.log = &streamLog{journal: w.options.journal, name: name, head: state.Head}
	if err = w.load(state); err == nil {
		err = w.recover(ctx)
	}
	if err != nil {
		w.log.journal.Release(name)
	}
	return err
}

// load creates the pending writes from the journal's entries.
func (w *Writer) load(state journal.State) error {
	for _, e := range state.Entries {
		operations, err := op.Decode(e.Request)
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

// recover opens a session that only this journal's owner can get, and prepares the unsettled writes to be sent again
// under it. If that fails it returns them to the application in an [*UnsettledError].
func (w *Writer) recover(ctx context.Context) error {
	before := w.log.head
	if err := w.checkLedger(ctx); errors.Is(err, failure.ErrOtherLedger) {
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
		if errors.Is(err, failure.ErrExpired) || errors.Is(err, failure.ErrFenced) {
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
		// The session is the journal's, so no other client has written. Either the ledger or
		// the journal has lost writes, or this is an old copy of the journal.
		if last+1 < first || last >= next {
			return w.returnUnsettled(rpc.ProtocolError("the ledger has committed up to sequence %d, the journal says "+
				"%d to %d", last, first-1, next-1))
		}
	}
	// Check again, because another server may have taken over the address between the two calls. What is sent there
	// cannot be undone, and its session must not be journalled as one of this ledger.
	if err := w.checkLedger(ctx); errors.Is(err, failure.ErrOtherLedger) {
		return w.returnUnsettled(err)
	} else if err != nil {
		return err
	}
	if err := w.journalSession(ctx, response.GetState().GetSession(), next); err != nil {
		return err
	}
	w.adopt(attempt, response.GetState())
	w.next, w.ledger = next, w.log.head.Ledger
	for i := range w.queue.len() {
		// Send it again anyway, because the answer is the receipt.
		p := w.queue.at(i)
		p.committed = p.Sequence() <= last
		if p.committed {
			w.verifiedThrough = last
		}
	}
	return nil
}

// resumeSession opens a session with the journal's as the expected one. It reports whether it started the stream anew,
// which it does if the stream was evicted while nothing was unanswered.
//
// An earlier process may have done that under the same attempt, and crashed before it journalled the session. Then the
// attempt is the stream's latest: the ledger answers with its session and ignores the expected one. The session before
// it shows this case. If that process was allowed to start anew and this one is not, the journal stays unchanged, and
// every Open returns the same error until NoReopen is off or the stream is forgotten.
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
	if !errors.Is(err, failure.ErrExpired) || w.queue.len() > 0 || w.options.NoReopen {
		return nil, false, err
	}
	if done {
		return response, true, nil
	}
	if err = w.unused(ctx); err != nil {
		return nil, false, err
	}
	response, err = w.openSession(ctx, attempt, 0)
	if err != nil {
		return nil, false, err
	}
	return response, true, onlyOurs(response)
}

// unused refuses to start an evicted stream anew if another client has used it since. It asks before a session is
// opened: the session would stand even if this Writer refused it, and lock out the other client. onlyOurs catches a
// client that comes between.
func (w *Writer) unused(ctx context.Context) error {
	request := &seqledgerv1.GetClientStateRequest{Scope: w.scope, ClientId: w.clientID}
	response, err := rpc.Call(ctx, w.mux.client, once((*rpc.Endpoint).GetClientState), request, nil)
	if err != nil {
		return err
	}
	return refuseUsed(response.GetState().GetSession(), response.GetState().GetLastCommittedSequence())
}

// evictedBefore returns the ledger's answer to the process that started the stream anew.
func evictedBefore() error {
	return &failure.Error{
		Code:        seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED,
		ConnectCode: connect.CodeFailedPrecondition,
		Message:     "the stream was evicted, and an earlier Writer with this journal started it anew",
	}
}

// onlyOurs is refuseUsed for a session that has been opened.
func onlyOurs(response *seqledgerv1.OpenSessionResponse) error {
	return refuseUsed(response.GetPreviousSession(), response.GetState().GetLastCommittedSequence())
}

// refuseUsed refuses a stream that another client has used since it was evicted, with a session or without one: its
// numbers are not a fresh start for this Writer.
func refuseUsed(session, last uint64) error {
	refusal := &failure.Error{
		Code:        seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED,
		ConnectCode: connect.CodeFailedPrecondition,
		Session:     session,
	}
	switch {
	case session != 0:
		refusal.Message = "another session was opened after the stream was evicted"
	case last != 0:
		refusal.Message = fmt.Sprintf("another client wrote up to sequence %d after the stream was evicted", last)
	default:
		return nil
	}
	return refusal
}

// returnUnsettled hands the unsettled writes to the application. They stay in the journal until
// the application calls Forget, so that a crash loses none.
func (w *Writer) returnUnsettled(cause error) error {
	open := &UnsettledError{Cause: cause}
	for w.queue.len() > 0 {
		p := w.queue.pop()
		p.settled, p.err = true, p.unknown(cause)
		close(p.done)
		open.Writes = append(open.Writes, p)
	}
	return open
}

// Recovered returns the writes that the journal held when the Writer was opened, in the order in which they were
// submitted: the committed ones without an acknowledgement, and the unsettled ones. The Writer settles the latter like
// every other write; Wait returns the outcome of each. If a receipt's Session is not [State].Session, the write was
// committed before the restart.
func (w *Writer) Recovered() []*Pending {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return append([]*Pending(nil), w.recovered...)
}

// SubmitTagged is Submit with a tag: the application's own name for the write. It needs
// Options.Journal. The write stays in the journal when it is committed, until
// [Pending.Acknowledge], and its tag for a time after that ([journal.Options].RememberTags).
//
// A tag that the journal knows is refused with [journal.ErrTagInUse], which does not match [failure.ErrNotExecuted]:
// the write that has the tag is under way or committed. A write that was not executed leaves its tag free.
//
// So an application that handles [Writer.Recovered] first, and acknowledges an outcome only after it has recorded it,
// may submit everything else that it has not recorded: no crash makes it pay twice.
func (w *Writer) SubmitTagged(ctx context.Context, tag string, operations ...*seqledgerv1.Operation) (*Pending, error) {
	if err := w.tagged(tag); err != nil {
		return nil, &failure.NotExecutedError{Cause: err}
	}
	return w.submit(ctx, tag, operations, false)
}

// Tag returns the write's tag, empty for none.
func (p *Pending) Tag() string { return p.tag }

// Operations returns what was submitted. Each call decodes it anew, from the bytes that are sent.
func (p *Pending) Operations() []*seqledgerv1.Operation {
	// No error is possible, because they were encoded here, or decoded when the journal was read.
	operations, _ := op.Decode(p.operations)
	return operations
}

// Acknowledge removes this write from the journal; call it when the application has recorded the outcome durably. The
// tag stays in use for [journal.Options].RememberTags. Acknowledge does not wait for the disk: after a crash the
// outcome may be returned once more. It does nothing for a write that has no tag or was not executed, because the
// journal does not hold it. Call it before the Writer is closed.
func (p *Pending) Acknowledge() error {
	w := p.writer
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	switch {
	case p.tag == "" || p.acknowledged || errors.Is(p.err, failure.ErrNotExecuted):
		return nil
	case !p.settled || p.err != nil:
		return fmt.Errorf("client: write %d cannot be acknowledged: %w", p.sequence, failure.ErrOutcomeUnknown)
	}
	err := w.log.journal.Append(w.log.name, journal.Record{Kind: journal.KindAcknowledged, ID: p.entry})
	p.acknowledged = err == nil
	return err
}
