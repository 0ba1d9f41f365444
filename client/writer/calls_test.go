package writer_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/failure"
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
	clients := onlyError(t, c.ListClients(t.Context(), &seqledgerv1.ListClientsRequest{}))
	_, config := admin.UpdateConfig(t.Context(), c, &seqledgerv1.UpdateConfigRequest{})
	_, entity := c.GetEntity(t.Context(), &seqledgerv1.GetEntityRequest{})
	entities := onlyError(t, c.ListEntities(t.Context(), &seqledgerv1.ListEntitiesRequest{}))
	relations := onlyError(t, c.ListRelationships(t.Context(), &seqledgerv1.ListRelationshipsRequest{}))
	_, tx := c.GetTransaction(t.Context(), &seqledgerv1.GetTransactionRequest{})
	_, block := c.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{})
	for i, err := range []error{clients, config, entity, entities, relations, tx, block} {
		if e, ok := errors.AsType[*failure.Error](err); !ok || e.ConnectCode != connect.CodeUnimplemented {
			t.Errorf("call %d: want a typed unimplemented error, got %v", i, err)
		}
	}
}

// onlyError returns the error that a listing consists of.
func onlyError[T any](t *testing.T, items iter.Seq2[T, error]) (found error) {
	t.Helper()
	for item, err := range items {
		if err == nil || found != nil {
			t.Errorf("want one error and nothing else, got %v, %v", item, err)
		}
		found = err
	}
	return found
}

// TestMoreCallsThanAConnectionTakes: over HTTP/2 each call waits until all have
// arrived, so that none may wait for another's place on a connection.
func TestMoreCallsThanAConnectionTakes(t *testing.T) {
	t.Parallel()
	s := &fakeServer{ledger: newFakeLedger()}
	c := startFake(t, s, func(o *client.Options) { o.HTTP2 = true })
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
	manyCalls(t, c, calls)
}

// manyCalls makes so many calls at once, which must all succeed.
func manyCalls(t *testing.T, c *client.Client, calls int) {
	t.Helper()
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
