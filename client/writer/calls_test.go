package writer_test

import (
	"context"
	"errors"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var errLost = connect.NewError(connect.CodeUnavailable, errors.New("answer lost"))

const aKey = "0197e1c0-0000-7000-8000-000000000001"

func numbered(sequence uint64) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Scope: org, ClientId: "unary", Sequence: sequence, IdempotencyKey: aKey,
		Operations: []*seqledgerv1.Operation{payload("x")},
	}
}

// TestUnaryWriteRepeatsTheSameRequest loses the first answer: the repeat must be
// the same bytes and get the same receipt, and the ledger must hold one commit.
func TestUnaryWriteRepeatsTheSameRequest(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	lost := false
	s.set(func(s *fakeServer) {
		s.afterUnary = func(*seqledgerv1.WriteRequest) error {
			if !lost {
				lost = true
				return errLost
			}
			return nil
		}
	})
	receipt, err := c.Write(t.Context(), numbered(1))
	if err != nil || !receipt.GetReplayed() {
		t.Fatalf("want the replayed receipt of the first copy, got %v, %v", receipt, err)
	}
	if len(s.unary) != 2 || !proto.Equal(s.unary[0], s.unary[1]) {
		t.Errorf("want two equal requests, got %v", s.unary)
	}
	check.Equal(t, len(s.ledger.history()), 1, "%d commits")
}

// TestUnaryRefusalBehindALostAnswerIsNotFinal: the first copy may still run, so
// the refusal of the second must not be reported as the outcome.
func TestUnaryRefusalBehindALostAnswerIsNotFinal(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	calls := 0
	s.set(func(s *fakeServer) {
		s.onUnary = func(*seqledgerv1.WriteRequest) error {
			if calls++; calls == 1 {
				return errLost
			}
			return withDetail(connect.CodeFailedPrecondition, &seqledgerv1.WriteError{Code: codeKeyExists})
		}
	})
	_, err := c.Write(t.Context(), numbered(1))
	open, ok := errors.AsType[*failure.OutcomeUnknownError](err)
	if !ok || open.Refusal == nil || open.Refusal.Code != codeKeyExists {
		t.Fatalf("want an unknown outcome with the refusal, got %v", err)
	}
	if _, refused := errors.AsType[*failure.Error](err); refused || errors.Is(err, failure.ErrConditionFailed) ||
		failure.CodeOf(err) != 0 {
		t.Errorf("errors.Is must not find the refusal, because the first copy may commit: %v", err)
	}
	// Without a lost answer before it the same refusal is final.
	_, err = c.Write(t.Context(), numbered(1))
	if errors.Is(err, failure.ErrOutcomeUnknown) || !errors.Is(err, failure.ErrConditionFailed) {
		t.Fatalf("want a final refusal, got %v", err)
	}
}

// TestUnaryDeadlineLeavesTheOutcomeOpen: the caller must see both why the call
// ended and that the write may be committed, with what names it.
func TestUnaryDeadlineLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(s *fakeServer) {
		s.afterUnary = func(*seqledgerv1.WriteRequest) error { cancel(); return errLost }
	})
	_, err := c.Write(ctx, numbered(1))
	open, ok := errors.AsType[*failure.OutcomeUnknownError](err)
	if !ok || !errors.Is(err, context.Canceled) || open.Sequence != 1 || open.IdempotencyKey != aKey {
		t.Fatalf("want an unknown outcome of (1, a-key) and context.Canceled, got %v", err)
	}
}
