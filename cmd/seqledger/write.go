package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/uuid"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type writeCommand struct {
	streamFlags `embed:""`
	clientFlags `embed:""`

	Set        []string `help:"Set the entity KEY to the text VALUE." type:"operation" env:"-" sep:"none" placeholder:"KEY=VALUE"`
	SetFile    []string `help:"Set the entity KEY to the bytes of a file." type:"operation" env:"-" sep:"none" placeholder:"KEY=FILE"`
	Delete     []string `help:"Delete the entity KEY." type:"operation" env:"-" sep:"none" placeholder:"KEY"`
	Append     []string `help:"Append a text." type:"operation" env:"-" sep:"none" placeholder:"TEXT"`
	AppendFile []string `help:"Append the bytes of a file." type:"operation" env:"-" sep:"none" placeholder:"FILE"`

	Relate   []string `help:"Create a relationship." type:"operation" env:"-" sep:"none" placeholder:"RESOURCE#RELATION@SUBJECT"`
	Unrelate []string `help:"Delete a relationship." type:"operation" env:"-" sep:"none" placeholder:"RESOURCE#RELATION@SUBJECT"`

	IfNotExists []string `help:"Only if KEY is absent." type:"operation" env:"-" sep:"none" placeholder:"KEY"`
	IfExists    []string `help:"Only if KEY is present." type:"operation" env:"-" sep:"none" placeholder:"KEY"`
	IfVersion   []string `help:"Only if KEY has the version N." type:"operation" env:"-" sep:"none" placeholder:"KEY=N"`
	IfValue     []string `help:"Only if KEY has the value VALUE." type:"operation" env:"-" sep:"none" placeholder:"KEY=VALUE"`
	ExpiresAt   []string `help:"Expiry of KEY, which must be set." type:"operation" env:"-" sep:"none" placeholder:"KEY=RFC3339"`
	Operations  string   `help:"Read the operations from a JSON file, - for standard input, instead of flags." env:"-" nonempty:"" placeholder:"FILE"`
	File        string   `help:"Commit each line of this file as a write, up to 1,000; - for standard input." env:"-" nonempty:"" placeholder:"FILE"`

	Sequence     uint64 `help:"Sequence of the write; 0 asks the ledger for the next one." env:"-" placeholder:"N"`
	Key          string `help:"Idempotency key, a UUID. Default: a new one, or none with --sequence." env:"-" nonempty:"" placeholder:"UUID"`
	Session      uint64 `help:"Session that numbers the write; 0 for a stream without sessions." env:"-" placeholder:"N"`
	IncludeProof bool   `help:"Add the block header and a Merkle proof to the receipt, and verify that they prove what was sent." env:"-"`
}

func (*writeCommand) Help() string {
	return `All operations commit together or not at all, in the order of their flags on the command line. A condition
or an expiry belongs to the one --set, --set-file or --delete of its key, wherever it stands.

Before it sends anything, write says on standard error which sequence and key it uses. If it is killed or
ends with exit code 4, run it again with these: the ledger answers with the receipt if it had committed.
With --sequence and no --key the write carries no key, and a repeat is known by its sequence and content.

    seqledger write --scope acme/main --client-id till-7 --set balance/42=100
    seqledger write --scope acme/main --client-id till-7 --set balance/42=90 --if-value balance/42=100 \
        --append 'paid 10' --relate invoice:7#payer@user:ann
    seqledger write --scope acme/main --client-id till-7 --sequence 8 --set balance/42=80
    echo '[{"set": {"key": "a", "value": "1"}}, {"append": "x"}]' |
        seqledger write --scope acme/main --client-id till-7 --operations -

With --file, each line of a file is a write of its own, as JSON like that of --operations; all go in one call,
numbered one after the other, and are answered line by line. A write that is refused leaves those behind it
with a gap. If it is killed or ends with exit code 4, run it again with the first sequence that it named.

    seqledger write --scope acme/main --client-id till-7 --file offline.jsonl

` + operation.Help
}

func (c *writeCommand) Run(e *environment, flags *operation.Flags) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	if c.File != "" {
		return c.writeFile(e, scope, flags)
	}
	operations, err := c.operations(e, flags)
	if err == nil {
		err = checkKeyFlag(c.Key)
	}
	if err != nil {
		return err
	}
	if set := operation.Expired(operations, time.Now()); set != nil {
		e.notice("warning: the key %q is to expire at %s, which is in the past: it is absent at once",
			set.GetKey(), timestamp(set.GetExpiresAt()))
	}
	request := &seqledgerv1.WriteRequest{
		Scope: scope, ClientId: c.ClientID, Session: c.Session, Sequence: c.Sequence,
		IdempotencyKey: c.Key, Operations: operations, IncludeProof: c.IncludeProof,
	}
	unanswered := false
	err = c.call(e, func(ctx context.Context, conn *client.Client) error {
		if err := c.number(ctx, conn, request); err != nil {
			return err
		}
		key := request.GetIdempotencyKey()
		if key == "" {
			key = "(none)"
		}
		// Print it before sending, because after a kill it would be lost.
		e.notice("writing sequence %d, key %s, session %d", request.GetSequence(), key, request.GetSession())
		receipt, err := conn.Write(ctx, request)
		if err != nil {
			unanswered = true
			return err
		}
		return c.show(ctx, e, conn, request, receipt)
	})
	if unanswered {
		return c.notSent(request.GetSequence(), err)
	}
	return err
}

// show prints the receipt. It checks the receipt's proof first if there is one.
func (c *writeCommand) show(
	ctx context.Context, e *environment, conn *client.Client,
	request *seqledgerv1.WriteRequest, receipt *seqledgerv1.Receipt,
) (err error) {
	block := ""
	if c.IncludeProof {
		if block, err = checkReceipt(ctx, conn, request, receipt); err != nil {
			return err // show nothing of the receipt, because none of it may be true
		}
	}
	err = e.show(receipt, func(t *table) {
		showReceipt(t, receipt)
		if block != "" {
			t.field("checked", "what was sent is in the block with the hash "+block)
		}
	})
	if err != nil { // it must not look like a failed write
		return fail(exitFailed, sameAnswer,
			"sequence %d is committed, but its receipt could not be shown: %w", receipt.GetSequence(), err)
	}
	return nil
}

// notSent converts the error of a write that was never sent into one that says so. Other
// errors, such as an unknown outcome, stay unchanged.
func (c *writeCommand) notSent(sequence uint64, err error) error {
	answer, answered := errors.AsType[*failure.Error](err)
	_, unreachable := errors.AsType[*unreachableError](err)
	_, interrupted := errors.AsType[interruptedError](err)
	code, hint := classify(err)
	refused := answered && answer.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED
	switch {
	case interrupted && c.Sequence != 0: // an earlier run may have sent it, as below
	case code != exitFailed || refused || !answered && !unreachable:
		return err
	}
	switch {
	case c.Sequence != 0:
		// Not exitFailed, because a script that settles an unknown outcome would take that for
		// an answer.
		return fail(exitUnknown, repeatHint(sequence, c.Key),
			"this run has not sent sequence %d, but an earlier one may have: %w", sequence, err)
	}
	return fail(code, hint, "sequence %d was not executed, because it could not be sent: %w", sequence, err)
}

// operations returns the operations from the flags or from a file.
func (c *writeCommand) operations(e *environment, flags *operation.Flags) ([]*seqledgerv1.Operation, error) {
	if c.Operations == "" {
		operations, err := flags.Build()
		switch {
		case err != nil:
			err = usage("%w", err)
		case len(operations) == 0:
			err = usage("nothing to write: give --set, --delete, --append, … or --operations")
		}
		return operations, err
	}
	if given := flags.Names(); len(given) > 0 {
		return nil, usage("--operations takes the place of --%s: give one of them", given[0])
	}
	text, err := readBounded(e, c.Operations, maxLineBytes)
	if e.ctx.Err() != nil {
		return nil, context.Cause(e.ctx)
	}
	if err != nil {
		return nil, usage("--operations %s: %w", c.Operations, err)
	}
	operations, err := operation.Parse(bytes.TrimSpace(text))
	if err != nil {
		return nil, usage("--operations %s: %w", c.Operations, err)
	}
	return operations, nil
}

// readBounded reads a file or standard input of at most some bytes, so that a file named by mistake does not fill the
// memory.
func readBounded(e *environment, path string, most int) ([]byte, error) {
	from := e.stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // read only
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, int64(most)+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%w than %d bytes", errTooLong, most)
	}
	return text, err
}

// errTooLong is the error of readBounded for a longer input.
var errTooLong = errors.New("has more")

// number gives a write without a sequence the next one of its stream, and a new key.
func (c *writeCommand) number(ctx context.Context, conn *client.Client, request *seqledgerv1.WriteRequest) error {
	if request.GetSequence() != 0 {
		return nil
	}
	state, err := conn.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{
		Scope: request.GetScope(), ClientId: request.GetClientId(), Session: request.GetSession(),
	})
	if err != nil {
		return err
	}
	// Refuse it here, because the ledger would do so only after a useless key was printed.
	if state.GetSession() != 0 && request.GetSession() == 0 {
		return fail(exitRefused, sessionRequiredHint, "SESSION_REQUIRED: the stream of %s has the session %d",
			c.ClientID, state.GetSession())
	}
	request.Sequence = state.GetLastCommittedSequence() + 1
	// The sum overflows to 0 after the largest sequence.
	if request.Sequence == 0 {
		return errors.New("the stream has used its last sequence: continue under a new --client-id")
	}
	if request.GetIdempotencyKey() == "" {
		request.IdempotencyKey = uuid.New()
	}
	return nil
}

// uuidForm is the form of a key that the ledger accepts.
var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// checkKeyFlag refuses an invalid key before it is printed.
func checkKeyFlag(key string) error {
	if key == "" || uuidForm.MatchString(key) {
		return nil
	}
	return usage("--key %q: must be a UUID, such as %s", key, uuid.New())
}
