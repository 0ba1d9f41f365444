package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// details returns the details of an error by type.
func details(t *testing.T, err error) (e *seqledgerv1.WriteError,
	bad *errdetails.BadRequest, retry *errdetails.RetryInfo) {
	t.Helper()
	var failed *connect.Error
	if !errors.As(err, &failed) {
		t.Fatalf("%v is not a Connect error", err)
	}
	for _, d := range failed.Details() {
		m := must.Get(d.Value())(t)
		switch m := m.(type) {
		case *seqledgerv1.WriteError:
			e = m
		case *errdetails.BadRequest:
			bad = m
		case *errdetails.RetryInfo:
			retry = m
		}
	}
	return e, bad, retry
}

// TestExhaustedStream: only a client whose stream can take no more writes is told to leave it.
func TestExhaustedStream(t *testing.T) {
	t.Parallel()
	for last, want := range map[uint64]string{
		0: "so the next is 1", 1: "the last committed one is 1, so the next is 2",
		math.MaxUint64 - 2: "so the next is 18446744073709551614",
		math.MaxUint64 - 1: "continue with another client_id",
	} {
		e := refusal(&machine.Outcome{Code: machine.SequenceExhausted, Last: last}, math.MaxUint64)
		leave := strings.Contains(e.Message, "another client_id")
		if !strings.Contains(e.Message, want) || leave != (last == math.MaxUint64-1) ||
			e.LastCommittedSequence != last {
			t.Errorf("last %d: %v, want %q", last, e, want)
		}
	}
}

// TestEveryRefusalOfTheMachine is the table of the API's errors: each outcome has the Connect code and the
// WriteErrorCode that bears its name.
func TestEveryRefusalOfTheMachine(t *testing.T) {
	t.Parallel()
	codes := map[machine.Code]connect.Code{
		machine.SequenceGap:          connect.CodeFailedPrecondition,
		machine.AlreadyCommitted:     connect.CodeAlreadyExists,
		machine.IdempotencyKeyReused: connect.CodeFailedPrecondition,
		machine.SequenceReused:       connect.CodeFailedPrecondition,
		machine.SequenceExhausted:    connect.CodeFailedPrecondition,
		machine.SessionExpired:       connect.CodeFailedPrecondition,
		machine.SessionFenced:        connect.CodeFailedPrecondition,
		machine.SessionRequired:      connect.CodeFailedPrecondition,
		machine.KeyExists:            connect.CodeFailedPrecondition,
		machine.KeyNotFound:          connect.CodeFailedPrecondition,
		machine.VersionMismatch:      connect.CodeFailedPrecondition,
		machine.ValueMismatch:        connect.CodeFailedPrecondition,
		machine.TooManyStreams:       connect.CodeResourceExhausted,
		machine.InvalidArgument:      connect.CodeInvalidArgument,
	}
	for code := machine.Committed; !strings.HasPrefix(code.String(), "CODE_"); code++ {
		out := machine.Outcome{
			Code: code, Last: 7, Session: 3, CommittedSequence: 5, OperationIndex: 2, EntityKey: []byte("k"),
			CurrentVersion: 9, Field: &machine.FieldError{Field: "client_ttl", Problem: "is short"},
		}
		err := outcomeError(&out, 9)
		if code == machine.TooManyKeys {
			continue // of keyed writes, which this API does not have
		}
		want, refused := codes[code]
		if !refused {
			if err != nil || code > machine.Replayed {
				t.Errorf("%s: got %v", code, err)
			}
			continue
		}
		check.Equal(t, connect.CodeOf(err), want, "%s: got %s", code)
		e, bad, retry := details(t, err)
		if e.Code.String() != "WRITE_ERROR_CODE_"+code.String() || e.Message == "" {
			t.Errorf("%s: got the code %s and the message %q", code, e.Code, e.Message)
		}
		if said := e.Message; code == machine.SequenceGap &&
			(!strings.Contains(said, "sequence 9 ") || !strings.Contains(said, "is 7;")) {
			t.Errorf("the message of a gap must say its two numbers: %s", said)
		}
		if e.LastCommittedSequence != 7 || e.Session != 3 || e.CommittedSequence != 5 {
			t.Errorf("%s: the stream's state is not in %v", code, e)
		}
		aboutEntity := code >= machine.KeyExists && code <= machine.ValueMismatch
		if got := e.Key == "k" && e.OperationIndex == 2 && e.CurrentVersion == 9; got != aboutEntity {
			t.Errorf("%s: the entity stands in %v: %t", code, e, got)
		}
		if (bad != nil) != (code == machine.InvalidArgument) || bad != nil && e.Field != "client_ttl" {
			t.Errorf("%s: BadRequest is %v, field %q", code, bad, e.Field)
		}
		if (retry != nil) != (code == machine.TooManyStreams) || (e.RetryAfter != nil) != (retry != nil) {
			t.Errorf("%s: RetryInfo is %v, retry_after %v", code, retry, e.RetryAfter)
		}
	}
}

func TestEveryError(t *testing.T) {
	t.Parallel()
	unknown := func(cause error) error { return fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, cause) }
	secret := errors.New("sector 5 of /dev/sda")
	const none = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED
	for _, c := range []struct {
		err    error
		code   connect.Code
		reason seqledgerv1.WriteErrorCode
		logged bool
	}{
		{fmt.Errorf("x: %w", &machine.FieldError{Field: "scope", Problem: "is required"}), connect.CodeInvalidArgument,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, false},
		{unknown(context.DeadlineExceeded), connect.CodeDeadlineExceeded,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN, false},
		{unknown(context.Canceled), connect.CodeUnavailable,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN, false},
		{unknown(errors.New("leadership lost")), connect.CodeUnavailable,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN, false},
		{unknown(fmt.Errorf("%w: %w", ledger.ErrFailed, secret)), connect.CodeInternal,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN, true},
		{unknown(fmt.Errorf("%w: %w", machine.ErrCorrupt, secret)), connect.CodeInternal,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN, true},
		{fmt.Errorf("%w: %w", ledger.ErrQueueFull, context.Canceled), connect.CodeResourceExhausted,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL, false},
		{&cluster.NotLeaderError{Leader: "10.0.0.1:1"}, connect.CodeUnavailable,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER, false},
		{ledger.ErrDraining, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING, false},
		{ledger.ErrClosed, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING, false},
		{machine.ErrNotFound, connect.CodeNotFound, none, false},
		{fmt.Errorf("x: %w", &admission.Refusal{Bound: admission.Requests, RetryAfter: time.Second}),
			connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL, false},
		{admission.ErrTooManyCallers, connect.CodeResourceExhausted, none, false},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded, none, false},
		{context.Canceled, connect.CodeCanceled, none, false},
		{fmt.Errorf("%w: %w", ledger.ErrFailed, secret), connect.CodeInternal, none, true},
		{fmt.Errorf("%w: %w", machine.ErrCorrupt, secret), connect.CodeInternal, none, true},
		{secret, connect.CodeInternal, none, true},
	} {
		var log bytes.Buffer
		err := connectError(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), c.err)
		check.Equal(t, err.Code(), c.code, "%v: got %s", c.err)
		e, bad, retry := details(t, err)
		check.Equal(t, e.GetCode(), c.reason, "%v: got %s", c.err)
		if c.code == connect.CodeInternal && strings.Contains(err.Error()+e.GetMessage(), "sector") {
			t.Errorf("%v: the cause must not leave the server: %v", c.err, err)
		}
		check.Equal(t, log.Len() > 0, c.logged, "%v: logged: %t", c.err)
		if (bad != nil) != (c.code == connect.CodeInvalidArgument) {
			t.Errorf("%v: BadRequest is %v", c.err, bad)
		}
		if full := c.reason == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL; (retry != nil) != full ||
			(e.GetRetryAfter() != nil) != full {
			t.Errorf("%v: RetryInfo is %v", c.err, retry)
		}
	}
}

// TestEveryWriteErrorCodeIsUsed fails when the API gets a code that nothing here answers with.
func TestEveryWriteErrorCodeIsUsed(t *testing.T) {
	t.Parallel()
	used := map[seqledgerv1.WriteErrorCode]bool{
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:       true,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED: true, // there are no identities yet
	}
	for _, outcome := range refusedOutcomes {
		code := outcome.code
		used[code] = true
	}
	for _, err := range []error{
		ledger.ErrOutcomeUnknown, ledger.ErrQueueFull, ledger.ErrDraining, &cluster.NotLeaderError{},
		ledger.ErrTooManyWaiters, &machine.FieldError{},
	} {
		e, _ := writeError(err)
		used[e.GetCode()] = true
	}
	for number, name := range seqledgerv1.WriteErrorCode_name {
		if !used[seqledgerv1.WriteErrorCode(number)] {
			t.Errorf("%s is never answered", name)
		}
	}
}
