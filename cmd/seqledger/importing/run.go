package importing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
)

const (
	// queue bounds the unanswered lines; the ledger's receipt window, at most 1,024,
	// bounds them too.
	queue = 1024
	// settleTime is how long an interrupted import waits for its last answers.
	settleTime = 5 * time.Second
)

var (
	// ErrStalled ends an import that makes no progress.
	ErrStalled = errors.New("no progress within --timeout")
	// ErrInputChanged reports that the file differs from what the first pass has read.
	ErrInputChanged = errors.New("the input was changed while it was imported")
)

// Run sends the lines of an input that are not committed yet.
type Run struct {
	Writer    *writer.Writer
	State     *State
	Timeout   time.Duration
	Progress  func(line uint64)
	Committed uint64 // all lines up to this one; belongs to collect while send runs
	Unknown   bool   // lines after Committed may be committed too
}

// sentLine is a line on its way.
type sentLine struct {
	line    uint64
	pending *writer.Pending
}

// Send submits lines while a second goroutine collects their receipts.
func (r *Run) Send(ctx context.Context, input io.Reader) error {
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
	watchdog := time.AfterFunc(math.MaxInt64, func() { stopWaiting(ErrStalled) })
	defer watchdog.Stop()
	progressed := func() { watchdog.Reset(r.Timeout) }

	lines := make(chan sentLine, queue)
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
func (r *Run) submit(ctx context.Context, input io.Reader, lines chan<- sentLine, starting func()) error {
	// What was appended since the import began is not a part of it, otherwise a
	// file that grows could never be imported.
	reader := newInputReader(io.LimitReader(input, r.State.Size))
	skip := r.Writer.State().NextSequence - 1 - r.State.Base
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
		if reader.line > r.State.Lines {
			return ErrInputChanged
		}
		operations, err := parseLine(r.State.Mode, line)
		if err != nil {
			return &LineError{reader.line, err}
		}
		pending, err := r.Writer.Submit(ctx, operations...)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return &LineError{reader.line, err}
		}
		if want := r.State.Base + reader.line; pending.Sequence() != want {
			// Only an eviction of the stream under our feet can do this.
			return &LineError{reader.line,
				fmt.Errorf("was sent as sequence %d, not %d: the stream was evicted meanwhile", pending.Sequence(),
					want)}
		}
		select {
		case lines <- sentLine{reader.line, pending}:
		case <-ctx.Done():
			return &LineError{reader.line, context.Cause(ctx)}
		}
	}
	// Only the end shows the digest, so that lines which were changed may have
	// been sent: it is reported rather than passed over.
	if reader.summary() != r.State.Summary {
		return ErrInputChanged
	}
	return nil
}

// collect waits for the receipts in the order of the lines.
func (r *Run) collect(ctx context.Context, lines <-chan sentLine, progressed func()) error {
	for sent := range lines {
		receipt, err := sent.pending.Wait(ctx)
		switch {
		case err != nil:
			r.Unknown = errors.Is(err, failure.ErrOutcomeUnknown)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return &LineError{sent.line, err}
		// Never trust the count alone: a line under another number would be sent again by the next run.
		case receipt.GetSequence() != r.State.Base+sent.line:
			return &LineError{sent.line,
				fmt.Errorf("its receipt has sequence %d, not %d", receipt.GetSequence(), r.State.Base+sent.line)}
		}
		// The receipts come in the order of the lines, so that one number says which are committed.
		r.Committed = sent.line
		progressed()
		r.Progress(sent.line)
	}
	return nil
}
