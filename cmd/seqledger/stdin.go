package main

import (
	"context"
	"io"
)

// interruptible is standard input whose Read also ends with ctx, because a signal must end a command
// that waits for input.
type interruptible struct {
	ctx  context.Context //nolint:containedctx // It lasts as long as the process.
	from io.Reader
}

func (r interruptible) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	buffer, done := make([]byte, len(p)), make(chan result, 1)
	// Ends with the read, or with the process: a read of a terminal cannot be interrupted. It
	// has its own buffer, because the caller may have returned by then.
	go func() {
		n, err := r.from.Read(buffer)
		done <- result{n, err}
	}()
	select {
	case got := <-done:
		return copy(p, buffer[:got.n]), got.err
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}
