package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var errLost = connect.NewError(connect.CodeUnavailable, errors.New("answer lost"))

func numbered(sequence uint64) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Scope: org, ClientId: "unary", Sequence: sequence, IdempotencyKey: "a-key",
		Operations: []*seqledgerv1.Operation{payload("x")},
	}
}

// TestNewChecksItsOptions: what can be known to be wrong without connecting is
// refused at once, with the name of the option.
func TestNewChecksItsOptions(t *testing.T) {
	t.Parallel()
	for server, valid := range map[string]bool{
		"127.0.0.1:7450": true, "http://localhost:1": true, "https://ledger.example": true,
		"": false, "ftp://x": false, "http://": false, "http://%zz": false,
	} {
		c, err := client.New(client.Options{Server: server})
		if (err == nil) != valid {
			t.Errorf("server %q: valid is %v, but the error is %v", server, valid, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	if _, err := client.New(client.Options{Server: "x:1", MaxAttempts: -1}); err == nil {
		t.Error("a negative MaxAttempts must be refused")
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
	if n := len(s.ledger.history()); n != 1 {
		t.Errorf("want one commit, got %d", n)
	}
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
	open, ok := errors.AsType[*client.OutcomeUnknownError](err)
	if !ok || open.Refusal == nil || open.Refusal.Code != codeKeyExists {
		t.Fatalf("want an unknown outcome that tells of the refusal, got %v", err)
	}
	if _, refused := errors.AsType[*client.Error](err); refused || errors.Is(err, client.ErrConditionFailed) || client.CodeOf(err) != 0 {
		t.Errorf("who looks for the refusal first must not find it, because the first copy may commit: %v", err)
	}
	// Without a lost answer before it the same refusal is final.
	_, err = c.Write(t.Context(), numbered(1))
	if errors.Is(err, client.ErrOutcomeUnknown) || !errors.Is(err, client.ErrConditionFailed) {
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
	open, ok := errors.AsType[*client.OutcomeUnknownError](err)
	if !ok || !errors.Is(err, context.Canceled) || open.Sequence != 1 || open.IdempotencyKey != "a-key" {
		t.Fatalf("want an unknown outcome of (1, a-key) and context.Canceled, got %v", err)
	}
}

// TestCallsAreRepeatedWithinBounds: QUEUE_FULL and unavailable are worth
// another attempt, other answers are not, and nothing is repeated for ever.
func TestCallsAreRepeatedWithinBounds(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	full := withDetail(connect.CodeResourceExhausted, &seqledgerv1.WriteError{Code: codeQueueFull})
	for _, test := range []struct {
		name    string
		answers []error
		want    int
	}{
		{"queue full", []error{full, nil}, 2},
		{"unavailable", []error{errLost, errLost, nil}, 3},
		{"permission denied", []error{connect.NewError(connect.CodePermissionDenied, nil)}, 1},
		{"not found", []error{connect.NewError(connect.CodeNotFound, nil)}, 1},
		{"never", []error{errLost, errLost, errLost, errLost, errLost, errLost, errLost, errLost, errLost}, 8},
	} {
		calls := 0
		s.set(func(s *fakeServer) {
			s.onRead = func() error { calls++; return test.answers[calls-1] }
		})
		_, err := c.GetClientState(t.Context(), &seqledgerv1.GetClientStateRequest{Scope: org, ClientId: "x"})
		if calls != test.want {
			t.Errorf("%s: %d attempts, want %d", test.name, calls, test.want)
		}
		if answer := test.answers[calls-1]; (err == nil) != (answer == nil) {
			t.Errorf("%s: the last answer was %v, the call returned %v", test.name, answer, err)
		}
	}
}

// TestWatchGoesOnAfterABreak: the blocks come without a hole and without a
// repeat although the connection breaks after the second.
func TestWatchGoesOnAfterABreak(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	broken := false
	s.set(func(s *fakeServer) {
		s.onWatch = func(height uint64) error {
			if height == 2 && !broken {
				broken = true
				return errBroken
			}
			return nil
		}
	})
	var heights []uint64
	for block, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: org}) {
		if err != nil {
			t.Fatalf("the watch must survive a break: %v", err)
		}
		heights = append(heights, block.GetHeader().GetHeight())
		if len(heights) == 3 {
			break
		}
	}
	if len(heights) != 3 || heights[0] != 1 || heights[1] != 2 || heights[2] != 3 || !broken {
		t.Errorf("want heights 1 2 3 across a break, got %v", heights)
	}
}

// TestAdminCallsReachTheirService and the errors of what it does not implement.
func TestAdminCallsReachTheirService(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	if status, err := c.Status(t.Context()); err != nil || status.GetVersion() != "fake" {
		t.Errorf("want the fake's status, got %v, %v", status, err)
	}
	_, errs := c.ListClients(t.Context(), &seqledgerv1.ListClientsRequest{})
	_, config := c.UpdateConfig(t.Context(), &seqledgerv1.UpdateConfigRequest{})
	_, entity := c.GetEntity(t.Context(), &seqledgerv1.GetEntityRequest{})
	_, entities := c.ListEntities(t.Context(), &seqledgerv1.ListEntitiesRequest{})
	_, relations := c.ListRelationships(t.Context(), &seqledgerv1.ListRelationshipsRequest{})
	_, tx := c.GetTransaction(t.Context(), &seqledgerv1.GetTransactionRequest{})
	_, block := c.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{})
	_, blocks := c.ListBlocks(t.Context(), &seqledgerv1.ListBlocksRequest{})
	for i, err := range []error{errs, config, entity, entities, relations, tx, block, blocks} {
		if e, ok := errors.AsType[*client.Error](err); !ok || e.ConnectCode != connect.CodeUnimplemented {
			t.Errorf("call %d: want a typed unimplemented error, got %v", i, err)
		}
	}
}

// TestMoreCallsThanAConnectionTakes: each call waits until all have arrived, so
// that none may wait for another's place on a connection.
func TestMoreCallsThanAConnectionTakes(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	const calls = 600 // net/http's server takes 250 at once
	var arrived sync.WaitGroup
	arrived.Add(calls)
	s.set(func(s *fakeServer) {
		s.onRead = func() error {
			arrived.Done()
			arrived.Wait()
			return nil
		}
	})
	var group errgroup.Group
	for range calls {
		// Ends with its call; joined by Wait.
		group.Go(func() error {
			_, err := c.GetClientState(t.Context(), &seqledgerv1.GetClientStateRequest{Scope: org, ClientId: "many"})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
