package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestEveryCodeRoundTrips sends each code through both ways, as the detail of an
// RPC error and as a result in a stream: both must give the same Error, with
// every field and the Connect code of the API's table.
func TestEveryCodeRoundTrips(t *testing.T) {
	t.Parallel()
	sentinels := map[string]error{
		"SESSION_FENCED": ErrFenced, "SESSION_EXPIRED": ErrExpired, "OUTCOME_UNKNOWN": ErrOutcomeUnknown,
		"ALREADY_COMMITTED": ErrAlreadyCommitted, "KEY_EXISTS": ErrConditionFailed,
		"KEY_NOT_FOUND": ErrConditionFailed, "VERSION_MISMATCH": ErrConditionFailed,
		"VALUE_MISMATCH": ErrConditionFailed,
	}
	connectCodes := map[string]connect.Code{
		"ALREADY_COMMITTED": connect.CodeAlreadyExists, "INVALID_ARGUMENT": connect.CodeInvalidArgument,
		"PERMISSION_DENIED": connect.CodePermissionDenied, "QUEUE_FULL": connect.CodeResourceExhausted,
		"TOO_MANY_STREAMS": connect.CodeResourceExhausted, "NOT_LEADER": connect.CodeUnavailable,
		"DRAINING": connect.CodeUnavailable, "OUTCOME_UNKNOWN": connect.CodeUnavailable,
		"UNSPECIFIED": connect.CodeUnknown,
	}
	for number, full := range seqledgerv1.WriteErrorCode_name {
		name := full[len("WRITE_ERROR_CODE_"):]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, listed := connectCodes[name]
			if !listed {
				want = connect.CodeFailedPrecondition
			}
			wire := &seqledgerv1.WriteError{
				Code: seqledgerv1.WriteErrorCode(number), Message: "why", LastCommittedSequence: 1, Session: 2,
				CommittedSequence: 3, OperationIndex: 4, Key: "k", CurrentVersion: 5, Field: "f",
				RetryAfter: durationpb.New(6 * time.Second), LeaderAddress: "l:1",
			}
			rpc := connect.NewError(want, errors.New("why"))
			detail, err := connect.NewErrorDetail(wire)
			if err != nil {
				t.Fatal(err)
			}
			rpc.AddDetail(detail)
			fromRPC, fromStream := errorFromConnect(rpc), errorFromStream(wire)
			fromRPC.cause, fromRPC.wire = nil, true // the only differences that are meant
			if *fromRPC != *fromStream {
				t.Errorf("the two ways differ:\n%+v\n%+v", fromRPC, fromStream)
			}
			expected := Error{
				Code: wire.GetCode(), ConnectCode: want, Message: "why", LastCommittedSequence: 1, Session: 2,
				CommittedSequence: 3, OperationIndex: 4, Key: "k", CurrentVersion: 5, Field: "f",
				RetryAfter: 6 * time.Second, LeaderAddress: "l:1", wire: true,
			}
			if *fromStream != expected {
				t.Errorf("got %+v\nwant %+v", fromStream, expected)
			}
			for _, sentinel := range []error{ErrFenced, ErrExpired, ErrOutcomeUnknown, ErrAlreadyCommitted,
				ErrConditionFailed} {
				//nolint:errorlint // Which of the sentinels it is, not what it wraps.
				want := sentinels[name] == sentinel
				if got := errors.Is(fromStream, sentinel); got != want {
					t.Errorf("errors.Is(%s, %v) is %v", name, sentinel, got)
				}
			}
			if CodeOf(&NotExecutedError{Cause: fromStream}) != wire.GetCode() {
				t.Error("CodeOf must find the code through the wrapping")
			}
		})
	}
}

// TestACodeOfANewerServerIsNeverTakenForARefusal: we do not know what it allows,
// so the write counts as possibly executed and the Writer must end.
func TestACodeOfANewerServerIsNeverTakenForARefusal(t *testing.T) {
	t.Parallel()
	newer := errorFromStream(&seqledgerv1.WriteError{Code: 999})
	if !newer.leavesOutcomeOpen() || verdictOf(newer) != verdictFatal {
		t.Error("an unknown code must leave the outcome open and end the Writer")
	}
}

// TestErrorsWithoutADetail: a bare code says nothing certain about a write,
// except when the call was turned away as a whole.
func TestErrorsWithoutADetail(t *testing.T) {
	t.Parallel()
	for code, open := range map[connect.Code]bool{
		connect.CodeUnavailable: true, connect.CodeInternal: true, connect.CodeDeadlineExceeded: true,
		connect.CodeUnknown: true, connect.CodeUnauthenticated: false, connect.CodePermissionDenied: false,
		connect.CodeUnimplemented: false,
	} {
		if got := errorFromConnect(connect.NewWireError(code, nil)).leavesOutcomeOpen(); got != open {
			t.Errorf("%v leaves the outcome open: %v, want %v", code, got, open)
		}
		// An error made by this side or by a proxy is not an answer of the server.
		if !errorFromConnect(connect.NewError(code, nil)).leavesOutcomeOpen() {
			t.Errorf("%v made on this side must leave the outcome open", code)
		}
	}
	plain := errors.New("plain")
	if e := errorFromConnect(plain); !errors.Is(e, plain) || !e.leavesOutcomeOpen() || !e.worthRetrying() {
		t.Error("an error of the transport keeps its cause, leaves the outcome open and is worth a retry")
	}
}

// TestBackoffGrowsWithinItsBounds and honours the server's retry_after, up to a limit.
func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	t.Parallel()
	for attempt := range 100 {
		ceiling := min(backoffMax, backoffFirst<<min(attempt, 20))
		if d := backoff(attempt, 0); d < ceiling/2 || d > ceiling {
			t.Errorf("attempt %d waits %v, want between %v and %v", attempt, d, ceiling/2, ceiling)
		}
	}
	if d := backoff(0, 5*time.Second); d != 5*time.Second {
		t.Errorf("a retry_after of 5 s became %v", d)
	}
	if d := backoff(0, 24*time.Hour); d != retryAfterMax {
		t.Errorf("a retry_after of a day became %v, want %v", d, retryAfterMax)
	}
}

// TestRingKeepsTheOrder through growth and wrapping, compared with a slice.
func TestRingKeepsTheOrder(t *testing.T) {
	t.Parallel()
	var r ring[int]
	var model []int
	for i := range 1000 {
		r.push(i)
		model = append(model, i)
		if i%3 == 2 {
			if got := r.pop(); got != model[0] {
				t.Fatalf("popped %d, want %d", got, model[0])
			}
			model = model[1:]
		}
	}
	if r.len() != len(model) {
		t.Fatalf("%d left, want %d", r.len(), len(model))
	}
	for i, want := range model {
		if r.at(i) != want {
			t.Fatalf("at(%d) is %d, want %d", i, r.at(i), want)
		}
	}
}

// TestTheLedgerIDIsFoundInATxID around the version, the variant and the index; other text has
// none.
func TestTheLedgerIDIsFoundInATxID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"01234567-89ab-8cde-bc00-000000000001": 0x0123456789abcdef,
		"01234567-89ab-8cde-bfff-ffffffffffff": 0x0123456789abcdef, // the greatest index
		"ffffffff-ffff-8fff-bc00-000000000007": 1<<64 - 1,
		"00000000-0000-8000-8400-000000000007": 1,
	} {
		if got, ok := ledgerOf(text); !ok || got != want {
			t.Errorf("%s is of ledger %016x, got %016x, %v", text, want, got, ok)
		}
	}
	for _, text := range []string{"", "tx-1", "01234567-89ab-7cde-bc00-000000000001", "01234567-89ab-8cde-bc00"} {
		if _, ok := ledgerOf(text); ok {
			t.Errorf("%q is not a tx_id", text)
		}
	}
}

// TestAnOpenOutcomeHidesRefusalsAlone: wherever a refusal stands in the cause it
// is told in Refusal and not found by errors.Is, and everything else is found.
func TestAnOpenOutcomeHidesRefusalsAlone(t *testing.T) {
	t.Parallel()
	refused := errorFromStream(&seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS})
	broken := errorFromConnect(connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF))
	for _, cause := range []error{
		fmt.Errorf("%w: %w: %w", context.Canceled, refused, broken),
		errors.Join(fmt.Errorf("late: %w", fmt.Errorf("%w, last answer: %w", context.Canceled, refused)), broken),
	} {
		err := error(newOutcomeUnknown(7, "k", cause))
		if errors.Is(err, ErrConditionFailed) || CodeOf(err) != 0 {
			t.Errorf("the refusal must not be found in %v", err)
		}
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) ||
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the rest must be found in %v", err)
		}
		if open, _ := errors.AsType[*OutcomeUnknownError](err); open.Refusal != refused {
			t.Errorf("the refusal must be told, got %v", open.Refusal)
		}
	}
}

// TestKeysAreDistinctUUIDs of version 7, in the form that the API wants.
func TestKeysAreDistinctUUIDs(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for range 10_000 {
		key := newKey()
		if len(key) != 36 || key[14] != '7' || key[8] != '-' || key[23] != '-' || seen[key] {
			t.Fatalf("%q is not a fresh UUIDv7", key)
		}
		seen[key] = true
	}
}
