package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// importQueue bounds the unanswered lines; the ledger's receipt window, at most 1,024,
	// bounds them too.
	importQueue = 1024
	// settleTime is how long an interrupted import waits for its last answers.
	settleTime = 5 * time.Second
)

var (
	// errStalled ends an import that makes no progress.
	errStalled = errors.New("no progress within --timeout")
	// errInputChanged: the file differs from what the first pass has read.
	errInputChanged = errors.New("the input was changed while it was imported")
)

// resume opens a session, decides which line is next, sends from there, and records the result.
// It returns how many lines it has sent.
func (c *importCommand) resume(e *environment, conn *client.Client, scope *seqledgerv1.Scope,
	state *importState, input io.Reader) (uint64, error) {
	w, err := c.openWriter(e, conn, scope, state)
	if err != nil {
		return 0, err
	}
	opened := w.State()
	last := opened.NextSequence - 1
	if state.Session == 0 {
		state.Base = last
	}
	// The expected session guarantees this already. Check it again, because a mistake would
	// write lines twice or skip some.
	if last < state.Base || last-state.Base > state.Lines {
		return 0, fail(exitRefused, "find out who else writes under --client-id "+c.ClientID,
			"the stream is no longer this import's: its last sequence is %d, and the import's are %d to %d",
			last, state.Base+1, state.Base+state.Lines)
	}
	state.Session, state.AttemptID = opened.Session, ""
	if err := state.save(c.StateFile); err != nil {
		return 0, fmt.Errorf("state file: %w; no line of this run was sent", err)
	}
	run := &importRun{
		writer: w, state: state, committed: last - state.Base, timeout: c.Timeout,
		progress: newProgress(e, state.Lines, last-state.Base),
	}
	first := run.committed
	sendErr := run.send(e.ctx, input)
	run.progress.end()
	// Everything that can be settled is settled; the next run handles the rest.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.Close(ended)

	state.Done = sendErr == nil
	// Nothing else changes the state any more: Close has waited for the Writer.
	if err := state.save(c.StateFile); err != nil {
		sendErr = errors.Join(sendErr, fmt.Errorf("state file: %w", err))
	}
	if sendErr != nil {
		return 0, c.explainSend(run, sendErr)
	}
	return run.committed - first, nil
}

// importRun sends the lines of an input that are not committed yet.
type importRun struct {
	writer    *client.Writer
	state     *importState
	timeout   time.Duration
	progress  *progress
	committed uint64 // all lines up to this one; belongs to collect while send runs
	unknown   bool   // lines behind committed may be committed too
}

// sentLine is a line on its way.
type sentLine struct {
	line    uint64
	pending *client.Pending
}

// send submits lines while a second goroutine collects their receipts.
func (r *importRun) send(ctx context.Context, input io.Reader) error {
	// An interrupt ends sending at once and waiting a little later, so that
	// what is under way is counted.
	waiting, stopWaiting := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWaiting(nil)
	sending, stopSending := context.WithCancelCause(waiting)
	defer stopSending(nil)
	stop := context.AfterFunc(ctx, func() {
		stopSending(context.Cause(ctx))
		time.AfterFunc(settleTime, func() { stopWaiting(context.Cause(ctx)) })
	})
	defer stop()
	// It sleeps until the first line is submitted, because passing over what is
	// committed already may take longer than any timeout.
	watchdog := time.AfterFunc(math.MaxInt64, func() { stopWaiting(errStalled) })
	defer watchdog.Stop()
	progressed := func() { watchdog.Reset(r.timeout) }

	lines := make(chan sentLine, importQueue)
	collected := make(chan error, 1)
	// Ends when lines is closed or a line fails; the receive below waits for it.
	go func() {
		err := r.collect(waiting, lines, progressed)
		if err != nil {
			stopSending(err)
		}
		collected <- err
	}()
	submitErr := r.submit(sending, input, lines, progressed)
	close(lines)
	if err := <-collected; err != nil {
		// The first line that failed is the reason; what Submit said follows
		// from it.
		return err
	}
	return submitErr
}

// submit reads the input again and hands its lines to the writer. It calls
// starting before the first one.
func (r *importRun) submit(ctx context.Context, input io.Reader, lines chan<- sentLine, starting func()) error {
	// What was appended since the import began is not a part of it, otherwise a
	// file that grows could never be imported.
	reader := newInputReader(io.LimitReader(input, r.state.Size))
	skip := r.writer.State().NextSequence - 1 - r.state.Base
	for {
		line, err := reader.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if reader.line <= skip {
			if reader.line%1024 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		}
		if reader.line == skip+1 {
			starting()
		}
		if reader.line > r.state.Lines {
			return errInputChanged
		}
		operations, err := parseLine(r.state.Mode, line)
		if err != nil {
			return &lineError{reader.line, err}
		}
		pending, err := r.writer.Submit(ctx, operations...)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return &lineError{reader.line, err}
		}
		if want := r.state.Base + reader.line; pending.Sequence() != want {
			// Only an eviction of the stream under our feet can do this.
			return &lineError{reader.line,
				fmt.Errorf("was sent as sequence %d, not %d: the stream was evicted meanwhile", pending.Sequence(),
					want)}
		}
		select {
		case lines <- sentLine{reader.line, pending}:
		case <-ctx.Done():
			return &lineError{reader.line, context.Cause(ctx)}
		}
	}
	// Only the end shows the digest, so that lines which were changed may have
	// been sent: it is reported rather than passed over.
	if reader.summary() != r.state.inputSummary {
		return errInputChanged
	}
	return nil
}

// collect waits for the receipts in the order of the lines.
func (r *importRun) collect(ctx context.Context, lines <-chan sentLine, progressed func()) error {
	for sent := range lines {
		receipt, err := sent.pending.Wait(ctx)
		switch {
		case err != nil:
			r.unknown = errors.Is(err, client.ErrOutcomeUnknown)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return &lineError{sent.line, err}
		case receipt.GetSequence() != r.state.Base+sent.line:
			return &lineError{sent.line,
				fmt.Errorf("its receipt has sequence %d, not %d", receipt.GetSequence(), r.state.Base+sent.line)}
		}
		r.committed = sent.line
		progressed()
		r.progress.to(sent.line)
	}
	return nil
}

// explainSend tells what has become of an import that has not reached its end.
func (c *importCommand) explainSend(run *importRun, err error) error {
	where := fmt.Sprintf("%s: %%w (%d of %d lines are committed)", c.File, run.committed, run.state.Lines)
	again := "run the same command again; it goes on behind the last committed line"
	refusal, refused := errors.AsType[*client.Error](err)
	_, notExecuted := errors.AsType[*client.NotExecutedError](err)
	code := exitFailed
	// Interrupted, it is the next run that finds out, as after any interrupt.
	if _, interrupted := errors.AsType[interruptedError](err); run.unknown && !interrupted {
		code = exitUnknown
	}
	switch {
	case errors.Is(err, errInputChanged):
		return fail(exitFailed, "compare what is committed with the file: seqledger watch --json shows it", where, err)
	case errors.Is(err, client.ErrFenced):
		return fail(exitRefused, "another process writes under --client-id "+c.ClientID+"; find out which one", where,
			err)
	case errors.Is(err, client.ErrExpired):
		return fail(exitRefused, "the stream was evicted; compare what is committed with the file", where, err)
	case refused && notExecuted && refusal.Code != 0:
		return fail(exitCodeOf(refusal.Code), nextStep(refusal)+"; then run the same command again, "+
			"or put this line, corrected, and those behind it into a new file", where, err)
	case errors.Is(err, errStalled):
		return fail(code, "see that the server at "+c.Server+" is running, and "+again, where, err)
	}
	return fail(code, again, where, err)
}
