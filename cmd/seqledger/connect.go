package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqledger/seqledger/client"
)

// clientFlags are those of every command that talks to a server.
type clientFlags struct {
	connectionFlags `embed:""`
	Timeout         time.Duration `help:"How long to wait for an answer." default:"30s"`
}

// check refuses a timeout that nothing could meet.
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
	ctx, cancel := context.WithTimeout(e.ctx, f.Timeout)
	defer cancel()
	return f.connected(e, func(c *client.Client) error { return do(ctx, c) })
}

// connected runs do with a client and closes it.
func (f *connectionFlags) connected(e *environment, do func(c *client.Client) error) (err error) {
	options, err := f.options(e)
	if err != nil {
		return err
	}
	// The client repeats what failed, so that a server which is just being
	// started again is no error here.
	c, err := client.New(options)
	if err != nil {
		return usage("--server %s: %w", f.Server, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := do(c); err != nil {
		if code, _ := classify(err); code == exitFailed {
			// Which server it was is the first question when none answers.
			return fmt.Errorf("%s: %w", f.Server, err)
		}
		return err
	}
	return nil
}
