package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// clientFlags are the flags of every command that expects an answer from a server.
type clientFlags struct {
	connectionFlags `embed:""`
	Timeout         time.Duration `help:"How long to try for an answer." default:"30s"`
}

// check refuses a timeout that is not positive.
func (f *clientFlags) check() error {
	if f.Timeout <= 0 {
		return usage("--timeout must be more than 0")
	}
	return nil
}

// call runs do with a client and a context that ends after the timeout.
func (f *clientFlags) call(e *environment, do func(ctx context.Context, c *client.Client) error) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.connected(e, func(c *client.Client) error {
		return f.within(e, func(ctx context.Context) error { return do(ctx, c) })
	})
}

// ask makes a call and prints its answer.
func ask[M proto.Message](
	e *environment, f *clientFlags, call func(ctx context.Context, c *client.Client) (M, error), human func(*table, M),
) error {
	return f.call(e, func(ctx context.Context, c *client.Client) error {
		answer, err := call(ctx, c)
		if err != nil {
			return err
		}
		return e.show(answer, func(t *table) { human(t, answer) })
	})
}

// connected runs do with a client and closes it. The client repeats a call that gets no answer
// until its context ends after the timeout.
func (f *clientFlags) connected(e *environment, do func(c *client.Client) error) error {
	return f.connect(e, math.MaxInt, do)
}

// quietTime is how long to wait for an answer before printing why there is none,
// so that one that is only slow needs no explanation.
const quietTime = time.Second

// within runs do with a context that ends after the timeout. If there is no answer it finds out
// and prints why, and ends do if trying again cannot help.
func (f *clientFlags) within(e *environment, do func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(e.ctx, f.Timeout)
	defer cancel()
	return f.explained(e, limited, do)
}

// withinEach is within for work of many parts: the timeout starts again whenever do calls
// progress.
func (f *clientFlags) withinEach(e *environment, do func(ctx context.Context, progress func()) error) error {
	limited, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(f.Timeout, func() { cancel(context.DeadlineExceeded) })
	defer watchdog.Stop()
	return f.explained(e, limited, func(ctx context.Context) error {
		return do(ctx, func() { watchdog.Reset(f.Timeout) })
	})
}

// explained runs do until its time has passed, and adds to its error why there was no answer.
func (f *clientFlags) explained(e *environment, limited context.Context, do func(ctx context.Context) error) error {
	ctx, giveUp := context.WithCancelCause(limited)
	ended := make(chan struct{})
	var why *unreachableError // belongs to the goroutine until ended is closed
	// Ends with ctx, which ends below; the receive from ended waits for it.
	go func() {
		defer close(ended)
		why = f.waitQuietly(ctx)
		switch {
		case why == nil:
		case why == undecided: // it waits, too
		case why.final:
			giveUp(why)
		default:
			e.notice("%s; trying again for up to %s (--timeout)", why.from(f.Server), f.Timeout)
		}
	}()
	err := do(ctx)
	late := errors.Is(context.Cause(limited), context.DeadlineExceeded)
	giveUp(nil)
	<-ended
	return f.explainWithin(err, why, late)
}

// waitQuietly waits for quietTime and then finds out why there is no answer. It returns nil if
// the reason is not known or ctx ends first.
func (f *clientFlags) waitQuietly(ctx context.Context) *unreachableError {
	quiet := time.NewTimer(quietTime)
	defer quiet.Stop()
	select {
	case <-quiet.C:
		return f.probe(ctx)
	case <-ctx.Done():
		return nil
	}
}

// explainWithin explains the error of a call. why is the reason for the missing answer, nil if
// not known; the last argument reports whether the time has passed.
func (f *clientFlags) explainWithin(err error, why *unreachableError, late bool) error {
	code, _ := classify(err)
	inVain := why != nil && why.final
	last, answered := errors.AsType[*failure.Error](err)
	switch {
	case err != nil && inVain && code == exitUnknown: // and stays so
		return fmt.Errorf("%w; %s", err, why.from(f.Server))
	case err == nil || code != exitFailed:
		return err
	case inVain:
		return why
	case late && answered && !errors.Is(last, context.DeadlineExceeded):
		return fmt.Errorf("no answer within --timeout %s: %w", f.Timeout, last)
	case late && why == undecided:
		return fail(exitFailed, why.hint, "no answer within --timeout %s: %w", f.Timeout, why)
	case late && why != nil:
		return why
	case late:
		return fail(exitFailed, "is the server running and is --server right? give it longer with --timeout",
			"no answer within --timeout %s", f.Timeout)
	}
	return err
}

// attempts bounds how often a command without a timeout tries to connect, so
// that it ends when the address is wrong.
const attempts = 8

// connected runs do with a client and closes it.
func (f *connectionFlags) connected(e *environment, do func(c *client.Client) error) error {
	return f.connect(e, attempts, do)
}

// connect runs do with a client that sends each call at most the given number of times, and
// closes it.
func (f *connectionFlags) connect(e *environment, attempts int, do func(c *client.Client) error) (err error) {
	options, err := f.options()
	if err != nil {
		return err
	}
	options.MaxAttempts = attempts
	c, err := client.New(options)
	if err != nil {
		return usage("--server %s: %w", f.Server, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := do(c); err != nil {
		return f.explain(e, err)
	}
	return nil
}

// explain adds the server's address to an error that is not the ledger's and not of a file, and the cause if a probe
// finds it.
func (f *connectionFlags) explain(e *environment, err error) error {
	if code, _ := classify(err); code != exitFailed || isA[*fs.PathError](err) || errors.Is(err, errInputChanged) {
		return err
	}
	if _, said := errors.AsType[*exitError](err); e.ctx.Err() != nil && !said {
		return context.Cause(e.ctx)
	}
	why, known := errors.AsType[*unreachableError](err)
	if !known {
		why = whyUnreachable(err)
	}
	if why == nil && connectionBroke(err) {
		if why = f.probe(e.ctx); why == undecided {
			why = nil // the error says more
		}
	}
	if why == nil || e.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", f.Server, err)
	}
	// The original error stays in the tree for errors.Is and errors.As.
	return fail(exitFailed, why.hint, "%w", &explainedError{why.from(f.Server), err})
}

// connectionBroke reports whether an error may come from the connection and not from a server.
func connectionBroke(err error) bool {
	answer, ok := errors.AsType[*failure.Error](err)
	if !ok || answer.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
		return false
	}
	switch answer.ConnectCode {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal,
		connect.CodeDeadlineExceeded:
		return true
	}
	return false
}

// explainedError replaces the text of its cause.
type explainedError struct {
	text  string
	cause error
}

func (e *explainedError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *explainedError) Unwrap() error { return e.cause }

// probe finds out why the server, the first of several, does not answer.
func (f *connectionFlags) probe(ctx context.Context) *unreachableError {
	servers, config, err := f.target()
	if err != nil { // without a valid address there was no call either
		return nil
	}
	why := probe(ctx, servers[0], config)
	if why != nil && why.final && len(servers) > 1 {
		why.final = false // another one may answer
	}
	return why
}
