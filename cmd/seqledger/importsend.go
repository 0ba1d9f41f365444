package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// settleTime is how long an interrupted import waits for its last answers.
const settleTime = 5 * time.Second

var (
	// errStalled ends an import that makes no progress.
	errStalled = errors.New("no progress within --timeout")
	// errInputChanged reports that the file differs from what the first pass has read.
	errInputChanged = errors.New("the input was changed while it was imported")
)

// resume opens a session and sends the lines that the journal does not have. It returns the place that it reached.
func (c *importCommand) resume(
	e *environment, conn *client.Client, j *journal.File, place importPlace, input inputSummary, from io.Reader,
) (importPlace, error) {
	scope, err := c.scope()
	if err != nil {
		return place, err
	}
	var w *writer.Writer
	err = c.within(e, func(ctx context.Context) error {
		if place.input == nil {
			if err := c.checkUnused(ctx, conn, scope); err != nil {
				return err
			}
		}
		w, err = writer.Open(ctx, conn, writer.Options{Scope: scope, ClientID: c.ClientID, Journal: j, NoReopen: true})
		return c.explainOpen(err)
	})
	if err != nil {
		return place, err
	}
	sendErr := c.send(e, w, place, input, from)
	// After an interrupt, wait a little for what is under way, so that it is counted. The next run settles the rest.
	patience := time.Duration(0)
	if e.ctx.Err() != nil {
		patience = settleTime
	}
	ended, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = w.Close(ended)
	if place, err = placeOf(j.Streams()); err == nil && sendErr != nil {
		err = c.explainSend(place, input, sendErr)
	}
	return place, err
}

// checkUnused refuses a stream that has writes, for an import whose journal says that no line was sent: a journal that
// was lost, or set back with a backup, says so of lines that are committed.
func (c *importCommand) checkUnused(ctx context.Context, conn *client.Client, scope *seqledgerv1.Scope) error {
	state, err := conn.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{Scope: scope, ClientId: c.ClientID})
	if err != nil || state.GetLastCommittedSequence() == 0 {
		return err
	}
	return fail(exitRefused, "restore the journal; if no line of the file was ever imported, use another --client-id",
		"%s says that no line was sent, and the stream of %q has %d writes: they may be lines of this file", c.Journal,
		c.ClientID, state.GetLastCommittedSequence())
}

// send submits the lines that the journal does not have, and waits until all are committed.
func (c *importCommand) send(
	e *environment, w *writer.Writer, place importPlace, input inputSummary, from io.Reader,
) error {
	if next := w.State().NextSequence; next != place.sent+1 {
		return fmt.Errorf("the next sequence of the stream is %d, not %d: %w", next, place.sent+1, failure.ErrFenced)
	}
	ctx, stop := context.WithCancelCause(e.ctx)
	defer stop(nil)
	committed := func() uint64 {
		state := w.State()
		return state.NextSequence - 1 - uint64(state.Pending)
	}
	shown := newProgress(e, "importing", "lines", int64(place.committed), int64(input.Lines))
	defer shown.end()
	last := committed()
	var watchdog *time.Timer
	// It sleeps until the first line is submitted, because passing over earlier lines may take longer than any timeout.
	watchdog = time.AfterFunc(math.MaxInt64, func() {
		now := committed()
		if now == last {
			stop(errStalled)
			return
		}
		last = now
		watchdog.Reset(c.Timeout)
	})
	defer watchdog.Stop()
	// What was appended since the import began is not a part of it.
	reader := newInputReader(io.LimitReader(from, input.Size))
	for {
		line, err := reader.next()
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case reader.line <= place.sent:
			continue
		case reader.line == place.sent+1:
			watchdog.Reset(c.Timeout)
		case reader.line > input.Lines:
			return errInputChanged
		}
		if err := c.submit(ctx, w, input, reader.line, line); err != nil {
			return sendError(ctx, reader.line, err)
		}
		shown.to(int64(committed()))
	}
	watchdog.Reset(c.Timeout)
	if err := w.Flush(ctx); err != nil {
		return sendError(ctx, reader.line, err)
	}
	// Only the end shows the digest, so changed lines may have been sent: that is reported.
	read := reader.summary()
	if read.Mode = input.Mode; read != input {
		return errInputChanged
	}
	return nil
}

// submit hands a line to the Writer. The first one is tagged with the input that the journal belongs to.
func (*importCommand) submit(
	ctx context.Context, w *writer.Writer, input inputSummary, number uint64, line []byte,
) (err error) {
	operations, err := parseLine(input.Mode, line)
	if err != nil {
		return err
	}
	var pending *writer.Pending
	if number == 1 {
		tag, err := json.Marshal(input)
		if err != nil {
			return err
		}
		pending, err = w.SubmitTagged(ctx, string(tag), operations...)
		if err != nil {
			return err
		}
	} else if pending, err = w.Submit(ctx, operations...); err != nil {
		return err
	}
	if pending.Sequence() != number {
		return fmt.Errorf("was sent as sequence %d, not %d", pending.Sequence(), number)
	}
	return nil
}

// sendError names the line that an error of the Writer is about, which may be an earlier one.
func sendError(ctx context.Context, line uint64, err error) error {
	if stopped, ok := errors.AsType[*writer.StoppedError](err); ok {
		err = &failure.NotExecutedError{Sequence: stopped.Sequence, Cause: stopped.Refusal}
	}
	if refused, ok := errors.AsType[*failure.NotExecutedError](err); ok && refused.Sequence != 0 {
		line = refused.Sequence
	} else if open, ok := errors.AsType[*writer.UnsettledError](err); ok && len(open.Writes) > 0 {
		line = open.Writes[0].Sequence()
	} else if ctx.Err() != nil {
		return context.Cause(ctx) // an earlier line may be the one that waits
	}
	return &lineError{line, err}
}

// explainOpen explains why no session could be opened.
func (c *importCommand) explainOpen(err error) error {
	switch {
	case errors.Is(err, failure.ErrExpired):
		return fail(exitRefused,
			"find the last committed line with seqledger list blocks and block, and import the later ones from a new "+
				"file under another --client-id",
			"the stream was evicted since the last run, so its sequences no longer show which lines are committed: %w",
			err)
	case errors.Is(err, failure.ErrOtherLedger):
		return fail(exitRefused,
			"give the --server of that ledger; lines may be committed there. If this is that ledger, restored from a "+
				"backup: the last sequence that seqledger state shows is the last line that is committed here; import "+
				"the later ones from a new file under another --client-id",
			"the import was begun on another ledger: %w", err)
	case errors.Is(err, failure.ErrFenced), errors.Is(err, failure.ErrProtocol):
		return fail(exitRefused, "compare what is committed under --client-id "+c.ClientID+" with the file (seqledger "+
			"watch --json shows it), and import only the lines that are missing, from a new file under another "+
			"--client-id; do not go by the journal: if it is an older copy, every sequence up to the one that "+
			"seqledger state shows may be a line of this file. If it is none, find out what else writes there",
			"the stream is not where the journal left it: %w", err)
	}
	return err
}

// explainSend tells what has become of an import that has not reached its end.
func (c *importCommand) explainSend(place importPlace, input inputSummary, err error) error {
	where := fmt.Sprintf("%s: %%w (%d of %d lines are committed)", c.File, place.committed, input.Lines)
	again := "run the same command again; it continues after the last committed line"
	refusal, refused := errors.AsType[*failure.Error](err)
	_, notExecuted := errors.AsType[*failure.NotExecutedError](err)
	code := exitFailed
	// After an interrupt the next run finds out.
	if _, interrupted := errors.AsType[interruptedError](err); place.sent > place.committed && !interrupted {
		code = exitUnknown
	}
	switch {
	case errors.Is(err, errInputChanged):
		return fail(code, "compare what is committed with the file: seqledger watch --json shows it", where, err)
	case errors.Is(err, failure.ErrFenced):
		return fail(max(code, exitRefused), "another process writes under --client-id "+c.ClientID+"; find out "+
			"which one", where, err)
	case errors.Is(err, failure.ErrExpired):
		return fail(max(code, exitRefused), "the stream was evicted; compare what is committed with the file", where,
			err)
	case refused && notExecuted && refusal.Code != 0:
		return fail(exitCodeOf(refusal.Code), refusedLineHint(refusal), where, err)
	case errors.Is(err, errStalled):
		return fail(code, "see that the server at "+c.Server+" is running, and "+again, where, err)
	}
	return fail(code, again, where, err)
}

// refusedLineHint says what to do about a line that was not executed.
func refusedLineHint(refusal *failure.Error) string {
	const rest = "and the later ones into a new file, and import that under another --client-id"
	switch next := nextStep(refusal); {
	case refusal.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:
		// With the line corrected in its place, the input would no longer be the same.
		return "nothing of this line was written; correct " + cmp.Or(refusal.Field, "it") + ", put this line " + rest
	case exitCodeOf(refusal.Code) != exitRefused:
		return next // the line is correct
	case next == "":
		return "run the same command again, or put this line, corrected, " + rest
	default:
		return next + "; then run the same command again, or put this line, corrected, " + rest
	}
}
