package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type stateCommand struct {
	streamFlags `embed:""`
	clientFlags `embed:""`
	Session     uint64 `help:"Judge this session in the status." env:"-" placeholder:"N"`
	Receipts    bool   `help:"Add the receipts that are kept, newest first." env:"-"`
}

func (*stateCommand) Help() string {
	return `The next write of the stream has the last sequence plus one. A stream that does not exist has the status
unknown and the last sequence 0.

    seqledger state --scope acme/main --client-id till-7
    seqledger state --scope acme/main --client-id till-7 --receipts --json`
}

func (c *stateCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	return ask(e, &c.clientFlags, func(ctx context.Context, conn *client.Client) (*seqledgerv1.ClientState, error) {
		return conn.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{
			Scope: scope, ClientId: c.ClientID, Session: c.Session, IncludeReceipts: c.Receipts,
		})
	}, showClientState)
}

type sessionCommand struct {
	Open sessionOpenCommand `cmd:"" help:"Take over a stream; all older sessions are then refused."`
}

type sessionOpenCommand struct {
	streamFlags     `embed:""`
	clientFlags     `embed:""`
	ExpectedSession uint64 `help:"Only if this is still the stream's session; 0 accepts any." env:"-" placeholder:"N"`
	AttemptID       string `help:"Id of the attempt, 32 hex digits: a repeat returns the same session. Default: a new one." env:"-" placeholder:"HEX"`
}

func (*sessionOpenCommand) Help() string {
	return `Before it calls, it says on standard error which attempt id it uses. If it is killed, run it again with that
one, so that it does not open a second session.

    seqledger session open --scope acme/main --client-id till-7
    seqledger session open --scope acme/main --client-id till-7 --expected-session 12`
}

func (c *sessionOpenCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	attempt := make([]byte, 16)
	if c.AttemptID == "" {
		_, _ = rand.Read(attempt) // never fails: it ends the program instead
	} else if attempt, err = hex.DecodeString(c.AttemptID); err != nil || len(attempt) != 16 {
		return usage("--attempt-id %s: must have 32 hex digits", c.AttemptID)
	}
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		// Ask for the status first, because if the server does not answer, no session was requested.
		_, err := conn.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{Scope: scope, ClientId: c.ClientID})
		if err != nil {
			return err
		}
		// Print it before the call, because a repeat with another attempt would fence the
		// session that this one may have opened.
		e.notice("opening a session, attempt id %x", attempt)
		answer, err := conn.OpenSession(ctx, &seqledgerv1.OpenSessionRequest{
			Scope: scope, ClientId: c.ClientID, AttemptId: attempt, ExpectedSession: c.ExpectedSession,
		})
		if err != nil {
			// A lost answer is not "not opened", because the older session may be fenced.
			if code, _ := classify(err); code == exitFailed || code == exitUnknown {
				return fail(exitUnknown, fmt.Sprintf("run it again with --attempt-id %x", attempt),
					"the session may have been opened: %w", err)
			}
			return err
		}
		err = e.show(answer, func(t *table) {
			t.field("previous session", number(answer.GetPreviousSession()))
			showClientState(t, answer.GetState())
		})
		if err != nil {
			hint := fmt.Sprintf("run it again with --attempt-id %x, which returns the same session", attempt)
			return fail(exitFailed, hint, "the session is open, but could not be shown: %w", err)
		}
		return nil
	})
}
