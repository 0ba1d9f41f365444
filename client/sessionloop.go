package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// defaultTTL stands in for a state that does not tell its times.
	defaultTTL = 24 * time.Hour
	// minKeepAlive keeps a nonsensical client_ttl from becoming a busy loop.
	minKeepAlive = 100 * time.Millisecond
	// openTimeout bounds one OpenSession on its way. A repeat under the same
	// attempt is harmless, and a peer that answers pings but no requests would
	// otherwise hold a fence for ever.
	openTimeout = 10 * time.Second
)

// wakeSessionLoop makes the session loop look at the state.
func (w *Writer) wakeSessionLoop() {
	select {
	case w.sessionWork <- struct{}{}:
	default:
	}
}

// runSessionLoop does what a Writer needs beside sending: it opens sessions and
// keeps an idle stream alive. ctx ends it.
func (w *Writer) runSessionLoop(ctx context.Context) {
	defer close(w.loopDone)
	timer := time.NewTimer(w.keepAliveIn())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.sessionWork:
			w.fence(ctx)
			w.dropFromJournal()
		case <-timer.C:
			w.keepAlive(ctx)
		}
		timer.Reset(w.keepAliveIn())
	}
}

// keepAliveEvery is a third of the time after which the stream is evicted. mu
// is held.
func (w *Writer) keepAliveEvery() time.Duration { return max(w.ttl/3, minKeepAlive) }

// keepAliveIn is how long to wait for the next look. It counts from the last
// refresh and not in a fixed beat, so that two attempts fit into the time to
// live wherever in the beat the last commit came.
func (w *Writer) keepAliveIn() time.Duration {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	last := w.refreshed
	if w.asked.After(last) {
		last = w.asked
	}
	return time.Until(last.Add(w.keepAliveEvery()))
}

// openSession does one OpenSession call, with its bounded repeats, all of them
// under the same attempt.
func (w *Writer) openSession(ctx context.Context, attempt []byte, expected uint64) (*seqledgerv1.OpenSessionResponse, error) {
	response, err := call(ctx, w.client, w.openOnce, &seqledgerv1.OpenSessionRequest{
		Scope: w.scope, ClientId: w.clientID, AttemptId: attempt, ExpectedSession: expected,
	})
	if err != nil {
		return nil, err
	}
	if response.GetState().GetSession() == 0 {
		return nil, protocolError("OpenSession handed out no session")
	}
	return response, nil
}

// openOnce sends one OpenSession and waits no longer than openTimeout.
func (w *Writer) openOnce(ctx context.Context, request *connect.Request[seqledgerv1.OpenSessionRequest]) (*connect.Response[seqledgerv1.OpenSessionResponse], error) {
	once, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	response, err := w.client.ledger.OpenSession(once, request)
	if err != nil && once.Err() != nil && ctx.Err() == nil {
		// Unavailable, because the code of a deadline means that the caller's
		// time is over, and the caller still waits.
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("no answer to OpenSession in %v: %w", openTimeout, err))
	}
	return response, err
}

// openSessionRetrying opens a session however long it takes. Only a final answer or the end
// of ctx makes it fail. TOO_MANY_STREAMS is not final, because streams are
// evicted all the time.
func (w *Writer) openSessionRetrying(ctx context.Context, expected uint64) ([]byte, *seqledgerv1.OpenSessionResponse, error) {
	attempt := newAttempt()
	if err := w.journalAttempt(attempt); err != nil {
		return nil, nil, err
	}
	for failures := 0; ; failures++ {
		response, err := w.openSession(ctx, attempt, expected)
		if err == nil {
			return attempt, response, nil
		}
		if ctx.Err() != nil {
			// Only Close ends this context, and an application looks for that.
			return nil, nil, fmt.Errorf("%w while opening a session: %w", ErrClosed, err)
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.permanent() && e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS {
			return nil, nil, err
		}
		if sleep(ctx, backoff(failures, e.RetryAfter)) != nil {
			return nil, nil, ErrClosed
		}
	}
}

// adopt takes over a session that was just opened. mu is held, or w is not
// shared yet.
func (w *Writer) adopt(attempt []byte, state *seqledgerv1.ClientState) {
	w.attempt, w.session = attempt, state.GetSession()
	w.refreshed = time.Now()
	w.limit = max(1, int(state.GetReceiptWindow()))
	if w.options.MaxPending > 0 {
		w.limit = min(w.limit, w.options.MaxPending)
	}
	w.ttl = state.GetExpiresAt().AsTime().Sub(state.GetLastSeen().AsTime())
	if w.ttl <= 0 {
		w.ttl = defaultTTL
	}
}

// fence replaces the Writer's own session, so that every copy of its writes
// that is still under way is refused. Expecting the old session makes sure that
// all commits since then are this Writer's.
func (w *Writer) fence(ctx context.Context) {
	w.mux.mu.Lock()
	due, session := w.state == stateSettling && !w.refused, w.session
	w.mux.mu.Unlock()
	if !due {
		return
	}
	attempt, response, err := w.openSessionRetrying(ctx, session)
	if err == nil {
		err = w.journalSession(response.GetState().GetSession(), w.numberDue())
	}
	w.mux.mu.Lock()
	defer w.mux.unlock()
	switch {
	case w.state != stateSettling:
		// Closed meanwhile: its writes are settled, there is nothing to decide.
	case err != nil:
		w.terminate(err)
	default:
		w.adopt(attempt, response.GetState())
		w.fenced(response.GetState().GetLastCommittedSequence())
	}
}

// numberDue is the number of the next write. It does not change while a session
// is opened.
func (w *Writer) numberDue() uint64 {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return w.next
}

// dropFromJournal removes the writes behind a final refusal from the journal, and then
// reports them: a crash must not send again what was reported as not executed.
func (w *Writer) dropFromJournal() {
	w.mux.mu.Lock()
	defer w.mux.unlock()
	if w.state != stateSettling || !w.refused {
		return
	}
	err := w.log.drop(w.queue.at(0))
	if err == nil {
		w.mux.mu.Unlock()
		err = w.log.journal.Sync()
		w.mux.mu.Lock()
	}
	w.refused = false
	switch {
	case w.state != stateSettling:
		// Closed meanwhile.
	case err != nil:
		w.terminate(err)
	default:
		w.report()
	}
}

// keepAlive refreshes last_seen of an idle stream by repeating the attempt that
// opened the session. With expected_session an evicted stream is not created
// anew by accident, and a foreign session is not taken over.
func (w *Writer) keepAlive(ctx context.Context) {
	w.mux.mu.Lock()
	now, every := time.Now(), w.keepAliveEvery()
	due := now.Sub(w.refreshed) >= every
	if due {
		// Only then: a look that finds a fresh commit must not put off the
		// attempt that is due a third behind that commit.
		w.asked = now
	}
	due = due && w.state != stateDead && w.state != stateSettling
	attempt, session := w.attempt, w.session
	w.mux.mu.Unlock()
	if !due {
		return
	}
	// Bounded, so that an attempt that hangs leaves time for the next one.
	once, cancel := context.WithTimeout(ctx, every/2)
	response, err := w.openSession(once, attempt, session)
	cancel()
	switch {
	case err == nil:
		w.mux.mu.Lock()
		w.adopt(attempt, response.GetState())
		w.mux.mu.Unlock()
	case errors.Is(err, ErrFenced), errors.Is(err, ErrExpired) && w.options.NoReopen:
		w.fail(err)
	case errors.Is(err, ErrExpired):
		w.reopen(ctx)
	}
	// Anything else is a server that cannot be reached: the next turn asks
	// again, and a third of the time to live has passed by then, not all.
}

// fail ends the Writer once everything in flight is answered, so that as few
// writes as possible remain unsettled.
func (w *Writer) fail(err error) {
	cause, ok := errors.AsType[*Error](err)
	if !ok {
		cause = &Error{Message: err.Error(), cause: err}
	}
	w.mux.mu.Lock()
	defer w.mux.unlock()
	if w.state == stateDead {
		return
	}
	w.fatal = cause
	w.halted = true
	if w.inflight == 0 {
		w.resolve()
	}
}

// checkLedgerRetrying is checkLedger however long it takes.
func (w *Writer) checkLedgerRetrying(ctx context.Context) error {
	for failures := 0; ; failures++ {
		err := w.checkLedger(ctx)
		e, ok := errors.AsType[*Error](err)
		if err == nil || !ok || e.permanent() {
			return err
		}
		if sleep(ctx, backoff(failures, e.RetryAfter)) != nil {
			return ErrClosed
		}
	}
}

// reopen starts the stream anew after an eviction, if nothing is unanswered.
// Otherwise it does nothing: the answers to what is unanswered will say that
// the session has expired, and which writes that leaves open.
func (w *Writer) reopen(ctx context.Context) {
	w.mux.mu.Lock()
	if w.queue.len() > 0 || w.state == stateDead {
		w.mux.mu.Unlock()
		return
	}
	before := w.state
	// Submit waits from here on, because the numbers begin anew.
	w.state = stateSettling
	w.mux.mu.Unlock()
	attempt, response, err := w.openSessionRetrying(ctx, 0)
	if err == nil {
		err = onlyOurs(response)
	}
	if err == nil {
		err = w.checkLedgerRetrying(ctx)
	}
	if err == nil {
		err = w.journalSession(response.GetState().GetSession(), response.GetState().GetLastCommittedSequence()+1)
	}
	w.mux.mu.Lock()
	defer w.mux.unlock()
	switch {
	case w.state == stateDead:
	case err != nil:
		w.terminate(err)
	default:
		w.adopt(attempt, response.GetState())
		w.next = response.GetState().GetLastCommittedSequence() + 1
		w.ledger = 0
		if w.log != nil {
			w.ledger = w.log.head.Ledger
		}
		// A Writer that had stopped stays stopped: eviction is no Resume.
		w.state = before
		w.passRoom()
	}
}
