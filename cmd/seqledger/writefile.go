package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// maxFileWrites is how many writes the API takes in one call.
const maxFileWrites = 1_000

// writeFile commits the lines of a file in one call, each as a write.
func (c *writeCommand) writeFile(e *environment, scope *seqledgerv1.Scope, flags *operation.Flags) error {
	given := flags.Names()
	for name, set := range map[string]bool{
		"operations": c.Operations != "", "key": c.Key != "", "include-proof": c.IncludeProof,
	} {
		if set {
			given = append(given, name)
		}
	}
	if len(given) > 0 {
		return usage("--file takes whole writes, one a line: --%s does not go with it", given[0])
	}
	writes, err := c.readWrites(e, scope)
	if err != nil {
		return err
	}
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		if err := c.numberAll(ctx, conn, writes); err != nil {
			return err
		}
		first := writes[0].GetSequence()
		// Print it before sending, because after a kill it would be lost.
		e.notice("writing sequences %d to %d, session %d", first, first+uint64(len(writes))-1, c.Session)
		results := conn.WriteBatch(ctx, writes)
		if err := showBatch(e, first, results); err != nil { // it must not look like failed writes
			return fail(exitFailed, sameAnswer, "the results could not be shown: %w", err)
		}
		return batchError(first, results)
	})
}

// readWrites reads the whole file before anything is sent.
func (c *writeCommand) readWrites(
	e *environment, scope *seqledgerv1.Scope,
) (writes []*seqledgerv1.WriteRequest, err error) {
	text, err := readBounded(e, c.File, maxFileBytes)
	add := func(_ uint64, operations []*seqledgerv1.Operation) {
		writes = append(writes, &seqledgerv1.WriteRequest{
			Scope: scope, ClientId: c.ClientID, Session: c.Session, Operations: operations,
		})
	}
	if err == nil {
		_, err = surveyInput(e.ctx, bytes.NewReader(text), modeOperations, add)
	}
	switch {
	case e.ctx.Err() != nil:
		return nil, context.Cause(e.ctx)
	case errors.Is(err, errTooLong):
		return nil, usage("--file %s: %w, too many for one call: seqledger import takes any number", c.File, err)
	case err != nil:
		return nil, usage("--file %s: %w", c.File, err)
	case len(writes) == 0:
		return nil, usage("--file %s: has no line", c.File)
	case len(writes) > maxFileWrites:
		return nil, usage("--file %s: has %d lines, and one call takes %d: seqledger import takes any number",
			c.File, len(writes), maxFileWrites)
	}
	return writes, nil
}

// maxFileBytes bounds a file, which is in memory as a whole. No request that the API takes is longer
// as JSON.
const maxFileBytes = 2 * maxLineBytes

// numberAll numbers the writes one after the other, from --sequence or from the stream's next one.
func (c *writeCommand) numberAll(ctx context.Context, conn *client.Client, writes []*seqledgerv1.WriteRequest) error {
	first := &seqledgerv1.WriteRequest{
		Scope: writes[0].GetScope(), ClientId: c.ClientID, Session: c.Session, Sequence: c.Sequence,
	}
	if err := c.number(ctx, conn, first); err != nil {
		return err
	}
	if first.GetSequence() > math.MaxUint64-uint64(len(writes)) {
		return errors.New("the stream does not have so many sequences left: continue under a new --client-id")
	}
	for i, w := range writes {
		w.Sequence = first.GetSequence() + uint64(i)
	}
	return nil
}

// showBatch prints what became of each line.
func showBatch(e *environment, first uint64, results []client.BatchResult) error {
	answer := new(seqledgerv1.WriteBatchResponse)
	for _, r := range results {
		result := new(seqledgerv1.WriteResult)
		if r.Err == nil {
			result.Result = &seqledgerv1.WriteResult_Receipt{Receipt: r.Receipt}
		} else {
			result.Result = &seqledgerv1.WriteResult_Error{Error: &seqledgerv1.WriteError{
				Code: batchCode(r.Err), Message: r.Err.Error(),
			}}
		}
		answer.Results = append(answer.Results, result)
	}
	return e.show(answer, func(t *table) {
		t.row("LINE", "SEQUENCE", "TRANSACTION", "RESULT")
		for i, r := range results {
			word := "committed"
			switch {
			case r.Err != nil:
				word = r.Err.Error()
			case r.Receipt.GetReplayed():
				word = "committed before"
			}
			t.row(number(uint64(i)+1), number(first+uint64(i)), r.Receipt.GetTxId(), word)
		}
	})
}

// batchCode returns the code of a write's error, which says of an open one that it is.
func batchCode(err error) seqledgerv1.WriteErrorCode {
	if errors.Is(err, failure.ErrOutcomeUnknown) {
		return seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN
	}
	return failure.CodeOf(err)
}

// batchError returns the error of the first line that is not committed. One whose outcome is unknown
// comes before others, because the exit code must say so.
func batchError(first uint64, results []client.BatchResult) error {
	failed := -1
	for i, r := range results {
		if errors.Is(r.Err, failure.ErrOutcomeUnknown) {
			return fail(exitUnknown, fmt.Sprintf("run it again with --sequence %d: what is committed is answered again",
				first), "line %d: %w", i+1, r.Err)
		}
		if r.Err != nil && failed < 0 {
			failed = i
		}
	}
	if failed < 0 {
		return nil
	}
	err := results[failed].Err
	code, hint := classify(err)
	if failed > 0 && code == exitRefused {
		hint = fmt.Sprintf("the lines before it are committed: mend it, and go on from this line with --sequence %d",
			first+uint64(failed))
	}
	return fail(code, hint, "line %d: %w", failed+1, err)
}
