package client

import (
	"context"
	"fmt"
	"iter"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Write commits one write that the caller numbered, once. It repeats the same
// bytes when the answer is lost, which is safe only because sequence and key
// make the ledger recognise them.
//
// An error is an [*OutcomeUnknownError] whenever any copy that was sent may
// still be executed, also when a later copy was refused: the refusal is not
// final while the first may be under way. Settle it by calling Write with the
// same request again, or with GetClientState. That later call knows nothing of
// the copies that an earlier call sent: a refusal that it returns is its own,
// and the earlier copy may still commit until a new session fences it. Any
// other error means that the write was not executed, except
// ErrAlreadyCommitted. Most programs want a [Writer].
func (c *Client) Write(ctx context.Context, request *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
	open := false
	method := func(ctx context.Context, r *connect.Request[seqledgerv1.WriteRequest]) (*connect.Response[seqledgerv1.WriteResponse], error) {
		response, err := c.ledger.Write(ctx, r)
		if err != nil && errorFromConnect(err).leavesOutcomeOpen() {
			open = true
		}
		return response, err
	}
	response, err := call(ctx, c, method, request)
	switch {
	case err == nil && response.GetReceipt() == nil:
		err = fmt.Errorf("%w: an answer without a receipt", ErrProtocol)
	case err == nil:
		return response.GetReceipt(), nil
	case CodeOf(err) == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED, !open:
		return nil, err
	}
	return nil, newOutcomeUnknown(request.GetSequence(), request.GetIdempotencyKey(), err)
}

// GetClientState tells where a stream stands.
func (c *Client) GetClientState(ctx context.Context, request *seqledgerv1.GetClientStateRequest) (*seqledgerv1.ClientState, error) {
	response, err := call(ctx, c, c.ledger.GetClientState, request)
	return response.GetState(), err
}

// OpenSession takes a stream over: every older session is fenced from then on.
// Repeats carry the same attempt_id and so hand out the same session.
func (c *Client) OpenSession(ctx context.Context, request *seqledgerv1.OpenSessionRequest) (*seqledgerv1.OpenSessionResponse, error) {
	return call(ctx, c, c.ledger.OpenSession, request)
}

// GetEntity reads one entity; an absent one is an [*Error] with CodeNotFound.
func (c *Client) GetEntity(ctx context.Context, request *seqledgerv1.GetEntityRequest) (*seqledgerv1.Entity, error) {
	response, err := call(ctx, c, c.ledger.GetEntity, request)
	return response.GetEntity(), err
}

// ListEntities reads one page.
func (c *Client) ListEntities(ctx context.Context, request *seqledgerv1.ListEntitiesRequest) (*seqledgerv1.ListEntitiesResponse, error) {
	return call(ctx, c, c.ledger.ListEntities, request)
}

// ListRelationships reads one page.
func (c *Client) ListRelationships(ctx context.Context, request *seqledgerv1.ListRelationshipsRequest) (*seqledgerv1.ListRelationshipsResponse, error) {
	return call(ctx, c, c.ledger.ListRelationships, request)
}

// GetTransaction reads one committed write, with its proof if asked.
func (c *Client) GetTransaction(ctx context.Context, request *seqledgerv1.GetTransactionRequest) (*seqledgerv1.GetTransactionResponse, error) {
	return call(ctx, c, c.ledger.GetTransaction, request)
}

// GetBlock reads one block.
func (c *Client) GetBlock(ctx context.Context, request *seqledgerv1.GetBlockRequest) (*seqledgerv1.Block, error) {
	response, err := call(ctx, c, c.ledger.GetBlock, request)
	return response.GetBlock(), err
}

// ListBlocks reads one page of headers.
func (c *Client) ListBlocks(ctx context.Context, request *seqledgerv1.ListBlocksRequest) (*seqledgerv1.ListBlocksResponse, error) {
	return call(ctx, c, c.ledger.ListBlocks, request)
}

// Status describes the server.
func (c *Client) Status(ctx context.Context) (*seqledgerv1.Status, error) {
	response, err := call(ctx, c, c.admin.GetStatus, &seqledgerv1.GetStatusRequest{})
	return response.GetStatus(), err
}

// ListClients reads one page of streams.
func (c *Client) ListClients(ctx context.Context, request *seqledgerv1.ListClientsRequest) (*seqledgerv1.ListClientsResponse, error) {
	return call(ctx, c, c.admin.ListClients, request)
}

// UpdateConfig changes the fields that are set. Repeating it is safe because it
// sets values and never adds to them.
func (c *Client) UpdateConfig(ctx context.Context, request *seqledgerv1.UpdateConfigRequest) (*seqledgerv1.Config, error) {
	response, err := call(ctx, c, c.admin.UpdateConfig, request)
	return response.GetConfig(), err
}

// Watch yields the blocks of a scope in order and without a hole, from
// request.from_height (0 means 1) on, until ctx ends or the caller breaks off.
// A broken connection is opened again at the next height; after
// Options.MaxAttempts failures without a block between them the last error is
// yielded and the sequence ends.
func (c *Client) Watch(ctx context.Context, request *seqledgerv1.WatchRequest) iter.Seq2[*seqledgerv1.Block, error] {
	return func(yield func(*seqledgerv1.Block, error) bool) {
		next := max(1, request.GetFromHeight())
		for failures := 0; ; failures++ {
			from := next
			err := c.watchOnce(ctx, request.GetScope(), &next, yield)
			if err == nil {
				return
			}
			if next > from {
				failures = 0
			}
			last := errorFromConnect(err)
			if failures+1 >= c.options.MaxAttempts || !last.worthRetrying() || ctx.Err() != nil {
				yield(nil, fmt.Errorf("watch at height %d: %w", next, last))
				return
			}
			if err := sleep(ctx, backoff(failures, last.RetryAfter)); err != nil {
				yield(nil, fmt.Errorf("watch at height %d: %w", next, err))
				return
			}
		}
	}
}

// watchOnce yields blocks from one connection and moves next past them. Nil
// means that the caller broke off.
func (c *Client) watchOnce(ctx context.Context, scope *seqledgerv1.Scope, next *uint64, yield func(*seqledgerv1.Block, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ledger.Watch(ctx, connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope, FromHeight: *next}))
	if err != nil {
		return err
	}
	// Cancelling first ends the stream at once; closing alone would wait for
	// the server to finish a stream that has no end.
	defer func() { cancel(); _ = stream.Close() }()
	for stream.Receive() {
		block := stream.Msg().GetBlock()
		if height := block.GetHeader().GetHeight(); height != *next {
			return fmt.Errorf("%w: block %d where %d was due", ErrProtocol, height, *next)
		}
		*next++
		if !yield(block, nil) {
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	// A watch has no end of its own, so a clean one is a server going away.
	return connect.NewError(connect.CodeUnavailable, fmt.Errorf("the server ended the watch"))
}
