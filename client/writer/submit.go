package writer

import (
	"context"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Write submits operations and waits for the outcome. See [Pending.Wait] for
// the errors; an [*failure.OutcomeUnknownError] has the [*Pending] on which to wait further.
//
// After a refusal the Writer continues without [Writer.Resume] if no unsettled write came from
// Submit, because the callers of Write get the refusal before they write again.
func (w *Writer) Write(ctx context.Context, operations ...*seqledgerv1.Operation) (*seqledgerv1.Receipt, error) {
	p, err := w.submit(ctx, "", operations, true)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		// Because the caller no longer waits for it, its refusal must stop the Writer.
		w.mux.mu.Lock()
		defer w.mux.mu.Unlock()
		if p.awaited = false; !p.settled {
			return nil, p.unknown(w.mux.explainLocked(ctx.Err()))
		}
	}
	return p.receipt, p.err
}

// Submit numbers a write and queues it for sending. It blocks while the Writer has its maximum
// of unanswered writes, and while a session is being opened. It encodes the operations before
// it returns, so that the caller may reuse its buffers.
//
// On an error the write got no number and is not executed. The error is a [*failure.NotExecutedError]
// that wraps ctx's error, a [*StoppedError] until Resume, the error that ended the Writer, or
// [failure.ErrClosed]. Close returns the writes that an ended Writer has left unsettled.
func (w *Writer) Submit(ctx context.Context, operations ...*seqledgerv1.Operation) (*Pending, error) {
	return w.submit(ctx, "", operations, false)
}

// submit is Submit with a tag, which may be empty. awaited reports whether the caller waits for
// the outcome before it does anything else.
func (w *Writer) submit(
	ctx context.Context, tag string, operations []*seqledgerv1.Operation, awaited bool,
) (*Pending, error) {
	p, err := w.prepare(tag, operations)
	if err == nil {
		// Check before the write is queued, while it is certainly not executed.
		err = ctx.Err()
	}
	if err != nil {
		return nil, &failure.NotExecutedError{Cause: err}
	}
	p.awaited = awaited
	inline, err := w.accept(ctx, p)
	switch {
	case errors.Is(err, journal.ErrTagInUse):
		// Not a failure.NotExecutedError, because the write that has the tag, which is the one the caller
		// means, may be committed or commit later.
		return nil, fmt.Errorf("client: %w", err)
	case err != nil:
		return nil, &failure.NotExecutedError{Cause: err}
	}
	if inline {
		w.mux.sendInline()
	}
	return p, nil
}

// accept queues p once there is room for it. inline reports whether the caller must send it. On
// an error p was not taken.
func (w *Writer) accept(ctx context.Context, p *Pending) (inline bool, err error) {
	w.mux.mu.Lock()
	defer w.mux.unlock()
	var t *turn
	for {
		if err := w.unavailable(); err != nil {
			if w.state == stateDead {
				// Do not wrap failure itself, because it lists unknown outcomes of other writes, and
				// this write's outcome is certain.
				err = fmt.Errorf("the writer has ended: %w", w.failure.Cause)
			}
			w.leave(t, false)
			return false, err
		}
		var freed <-chan struct{}
		var full error
		if w.fits(p.size) && w.mayPass(t) {
			inline = w.log == nil && !w.halted && w.mux.canSendInline(p.size)
			freed, err = w.enqueue(p, inline)
			if freed == nil {
				w.leave(t, err == nil)
				return inline, err
			}
			full = err
		}
		if t, err = w.await(ctx, t, p.size, freed); err != nil {
			w.leave(t, false)
			if full != nil {
				err = fmt.Errorf("%w while the journal had no room: %w", err, full)
			}
			return false, w.mux.explainLocked(err)
		}
	}
}

// prepare checks a write, encodes it and gives it its key.
func (w *Writer) prepare(tag string, operations []*seqledgerv1.Operation) (*Pending, error) {
	if len(operations) == 0 || len(operations) > maxOperations {
		return nil, fmt.Errorf("a write has 1 to %d operations, not %d", maxOperations, len(operations))
	}
	for i, operation := range operations {
		// Refuse it, because a nil operation has no text to check, and its encoding would not be what the caller meant.
		if operation == nil {
			return nil, fmt.Errorf("operation %d is nil", i)
		}
		op, ok := message.ReadOperation(operation)
		if !ok {
			return nil, fmt.Errorf("operation %d: its %T, or what that holds, is a nil pointer", i,
				operation.GetOperation())
		}
		// Because text that cannot be encoded would break a frame that other Writers share, check it here.
		if !op.IsUTF8() {
			return nil, fmt.Errorf("operation %d: text is not UTF-8", i)
		}
	}
	encoded, err := message.EncodeOperations(operations)
	if err != nil {
		return nil, err
	}
	if len(encoded) > maxWriteBytes {
		return nil, fmt.Errorf("the write has %d bytes, at most %d are allowed", len(encoded), maxWriteBytes)
	}
	p := w.newPending(encoded, len(operations))
	p.key, p.tag = newKey(), tag
	return p, nil
}

// newPending makes a write of encoded operations.
func (w *Writer) newPending(operations []byte, count int) *Pending {
	return &Pending{
		writer: w, operations: operations, count: count,
		size: len(w.stream) + len(operations) + message.WriteOverhead, done: make(chan struct{}),
	}
}

// unavailable returns why no write can be taken, or nil if one can, now or later.
func (w *Writer) unavailable() error {
	switch {
	case w.state == stateDead:
		return w.failure
	case w.closing:
		return failure.ErrClosed
	case w.state == stateStopped:
		return w.stopped
	}
	return nil
}

// enqueue numbers p and queues it for sending, through the journal if there is one. If the journal is full it returns a
// channel that is closed when a retry may succeed. An error means that p was not taken.
func (w *Writer) enqueue(p *Pending, inline bool) (<-chan struct{}, error) {
	p.sequence = w.next
	if w.log != nil {
		if freed, err := w.journalWrite(p); err != nil {
			return freed, err
		}
	}
	w.next++
	w.bytes += p.size
	w.queue.push(p)
	p.durable = w.log == nil
	if p.durable && !w.halted {
		w.mux.enlist(w)
		if !inline {
			w.mux.wakeSender()
		}
	}
	return nil, nil
}

// journalWrite appends p to the journal. The syncer takes it from there.
func (w *Writer) journalWrite(p *Pending) (<-chan struct{}, error) {
	err := w.log.write(p)
	if errors.Is(err, journal.ErrFull) {
		// Get the channel before the next attempt, so that no change is missed.
		freed := w.log.journal.Freed()
		if err = w.log.write(p); errors.Is(err, journal.ErrFull) {
			return freed, err
		}
	}
	if err != nil && !errors.Is(err, journal.ErrTagInUse) && !errors.Is(err, journal.ErrTooLarge) {
		w.failJournal(err)
	}
	return nil, err
}
