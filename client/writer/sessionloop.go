package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// defaultTTL is used if a client state has no times.
	defaultTTL = 24 * time.Hour
	// minKeepAlive prevents a busy loop if client_ttl is tiny.
	minKeepAlive = 100 * time.Millisecond
	// onceTimeout bounds one attempt of a call that is not a write. A repeat is harmless, and a
	// peer that answers pings but no requests would otherwise block the Writer.
	onceTimeout = 10 * time.Second
)

// wakeSessionLoop makes the session loop check the state.
func (w *Writer) wakeSessionLoop() { signal(w.sessionWork) }

// runSessionLoop opens a Writer's sessions and keeps an idle stream alive. It runs until ctx ends, and then releases
// the journal for another Writer.
func (w *Writer) runSessionLoop(ctx context.Context) {
	defer close(w.loopDone)
	defer w.leaveJournal()
	timer := time.NewTimer(w.keepAliveIn())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.sessionWork:
			w.fence(ctx)
			w.dropFromJournal(ctx)
		case <-timer.C:
			w.keepAlive(ctx)
		}
		timer.Reset(w.keepAliveIn())
	}
}

// keepAliveEvery is a third of the time after which the stream is evicted. mu is held.
func (w *Writer) keepAliveEvery() time.Duration { return max(w.ttl/3, minKeepAlive) }

// keepAliveIn returns how long to wait before the next check. It counts from the last refresh,
// not at a fixed interval, so that two attempts always fit into the time to live.
func (w *Writer) keepAliveIn() time.Duration {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	last := w.refreshed
	if w.asked.After(last) {
		last = w.asked
	}
	return time.Until(last.Add(w.keepAliveEvery()))
}

// openSession does one OpenSession call with bounded repeats, all under the same attempt.
func (w *Writer) openSession(ctx context.Context, attempt []byte,
	expected uint64) (*seqledgerv1.OpenSessionResponse, error) {
	response, err := rpc.Call(ctx, w.mux.client, once((*rpc.Endpoint).OpenSession), &seqledgerv1.OpenSessionRequest{
		Scope: w.scope, ClientId: w.clientID, AttemptId: attempt, ExpectedSession: expected,
	}, nil)
	if err != nil {
		return nil, err
	}
	if response.GetState().GetSession() == 0 {
		return nil, rpc.ProtocolError("OpenSession returned no session")
	}
	return response, nil
}

// once bounds the wait for one answer of a method by onceTimeout.
func once[Req, Res any](method rpc.Unary[Req, Res]) rpc.Unary[Req, Res] {
	return func(e *rpc.Endpoint, ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		limited, cancel := context.WithTimeout(ctx, onceTimeout)
		defer cancel()
		response, err := method(e, limited, r)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			// Return unavailable, because deadline_exceeded would mean that the caller's own deadline has passed.
			return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("no answer in %v: %w", onceTimeout, err))
		}
		return response, err
	}
}

// openSessionRetrying opens a session, however long that takes. It fails only on a final answer or when ctx ends.
func (w *Writer) openSessionRetrying(
	ctx context.Context, expected uint64,
) ([]byte, *seqledgerv1.OpenSessionResponse, error) {
	attempt := newAttempt()
	if err := w.journalAttempt(ctx, attempt); err != nil {
		return nil, nil, closedBy(ctx, err)
	}
	var response *seqledgerv1.OpenSessionResponse
	err := retrying(ctx, func() (err error) {
		response, err = w.openSession(ctx, attempt, expected)
		return err
	})
	return attempt, response, err
}

// retrying calls do until it succeeds, fails with a final error, or ctx ends, which only Close does. Answers that are
// not the ledger's own are not final here. A single call returns most of them at once, so that its caller sees a wrong
// address or token, but a Writer must survive a load balancer that fails for half a second. TOO_MANY_STREAMS is not
// final either, because streams are evicted all the time.
func retrying(ctx context.Context, do func() error) error {
	var denied patience
	for failures := 0; ; failures++ {
		err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return closedBy(ctx, err)
		}
		var wait time.Duration
		e, _ := errors.AsType[*failure.Error](err)
		over := denied.isOver(e)
		if e != nil {
			full := e.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS
			over = over || e.IsFinal() && !full
			wait = e.RetryAfter
		}
		if over || errors.Is(err, failure.ErrProtocol) || errors.Is(err, failure.ErrOtherLedger) {
			return err
		}
		if rpc.Sleep(ctx, rpc.Backoff(failures, wait)) != nil {
			return closedBy(ctx, err)
		}
	}
}

// closedBy replaces the end of the session loop's context with failure.ErrClosed, which applications
// check for, because only Close ends that context.
func closedBy(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", failure.ErrClosed, err)
}

// adopt starts to use a new session. mu is held, or w is not shared yet.
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

// fence replaces the Writer's own session, so that the ledger refuses every copy of its writes that is still under way.
// Expecting the old session ensures that all commits since then are this Writer's.
func (w *Writer) fence(ctx context.Context) {
	w.mux.mu.Lock()
	// Neither the session nor the next number changes while a session is opened.
	due, session, next := w.state == stateSettling && !w.refused, w.session, w.next
	w.mux.mu.Unlock()
	if !due {
		return
	}
	w.mux.client.Counters.Fences.Add(1)
	w.logger().InfoContext(ctx, "a session is opened because copies of a refused write may be under way",
		"session", session)
	attempt, response, err := w.openSessionRetrying(ctx, session)
	if err == nil {
		err = w.journalSession(ctx, response.GetState().GetSession(), next)
	}
	w.mux.mu.Lock()
	defer w.mux.unlock()
	switch {
	case w.state != stateSettling:
		// The Writer was closed: its writes are settled and there is nothing to decide.
	case err != nil:
		w.terminate(err)
	default:
		w.adopt(attempt, response.GetState())
		w.fenced(response.GetState().GetLastCommittedSequence())
	}
}

// dropFromJournal removes a finally refused write and all later ones from the journal, and then reports them: after a
// crash, writes that were reported as not executed must not be sent again.
func (w *Writer) dropFromJournal(ctx context.Context) {
	w.mux.mu.Lock()
	defer w.mux.unlock()
	if w.state != stateSettling || !w.refused {
		return
	}
	err := w.log.drop(w.queue.at(0))
	if err == nil {
		w.mux.mu.Unlock()
		err = closedBy(ctx, w.log.sync(ctx))
		w.mux.mu.Lock()
	}
	w.refused = false
	switch {
	case w.state != stateSettling:
		// The Writer was closed.
	case err != nil:
		w.terminate(err)
	default:
		w.report()
	}
}

// keepAlive refreshes last_seen of an idle stream by repeating the attempt that opened the session. expected_session
// ensures that this neither creates an evicted stream anew nor takes over another client's session.
func (w *Writer) keepAlive(ctx context.Context) {
	w.mux.mu.Lock()
	now, every := time.Now(), w.keepAliveEvery()
	due := now.Sub(w.refreshed) >= every
	if due {
		// Set it only here: a check that finds a recent commit must not delay the attempt that
		// is due a third of the time to live after that commit.
		w.asked = now
	}
	due = due && w.state != stateDead && w.state != stateSettling
	attempt, session := w.attempt, w.session
	w.mux.mu.Unlock()
	if !due {
		return
	}
	// Bounded, so that an attempt that hangs leaves time for the next one.
	limited, cancel := context.WithTimeout(ctx, every/2)
	response, err := w.openSession(limited, attempt, session)
	cancel()
	switch {
	case err == nil:
		w.mux.mu.Lock()
		w.adopt(attempt, response.GetState())
		w.mux.mu.Unlock()
	case errors.Is(err, failure.ErrFenced), errors.Is(err, failure.ErrExpired) && w.options.NoReopen:
		w.fail(err)
	case errors.Is(err, failure.ErrExpired):
		w.reopen(ctx)
	}
	// Otherwise the server cannot be reached. The next turn asks again, when a third of the time to live has passed.
}

// fail ends the Writer once everything in flight is answered, so that as few writes as possible remain unsettled.
func (w *Writer) fail(err error) {
	w.mux.mu.Lock()
	defer w.mux.unlock()
	if w.state == stateDead {
		return
	}
	w.fatal = err
	if refusal, ok := errors.AsType[*failure.Error](err); ok {
		w.fatal = refusal
	}
	w.halted = true
	if w.inflight == 0 {
		w.resolve()
	}
}

// reopen starts the stream anew after an eviction, if nothing is unanswered. Otherwise it does nothing: the answers to
// the unanswered writes will say that the session has expired and which writes are open.
func (w *Writer) reopen(ctx context.Context) {
	w.mux.mu.Lock()
	if w.queue.len() > 0 || w.state == stateDead {
		w.mux.mu.Unlock()
		return
	}
	before := w.state
	// Submit waits from here on, because the numbers start again at 1.
	w.state = stateSettling
	w.mux.mu.Unlock()
	var attempt []byte
	var response *seqledgerv1.OpenSessionResponse
	err := retrying(ctx, func() error { return w.unused(ctx) })
	if err == nil {
		attempt, response, err = w.openSessionRetrying(ctx, 0)
	}
	if err == nil {
		err = onlyOurs(response)
	}
	if err == nil {
		err = retrying(ctx, func() error { return w.checkLedger(ctx) })
	}
	if err == nil {
		err = w.journalSession(ctx, response.GetState().GetSession(), response.GetState().GetLastCommittedSequence()+1)
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
		// A stopped Writer stays stopped, because eviction does not replace Resume.
		w.state = before
		w.wakeNext()
	}
}
