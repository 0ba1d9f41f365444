package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Write commits one write, numbered by the caller, exactly once. When the answer is lost it
// sends the same bytes again until ctx ends. That is safe because the ledger recognises a
// repeat by its sequence and key. Most programs want a [Writer].
//
// The error is
//
//   - an [*OutcomeUnknownError] whenever a copy that was sent may still be executed,
//     also when a later copy was refused: the refusal is not final while the first may
//     be under way. Settle it by calling Write with the same request again, or with
//     GetClientState.
//   - a [*NotExecutedError] when nothing was sent, because no connection could be had.
//   - [ErrAlreadyCommitted] for a write that is committed and whose receipt is gone.
//   - a refusal, otherwise: no copy that this call sent was executed.
//
// Each of these describes only the copies that this call sent. Copies that an earlier call sent
// with the same sequence may still commit, until a new session fences them.
func (c *Client) Write(ctx context.Context, request *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
	sent, open := false, false
	response, err := call(ctx, c, rpcWrite, request, func(attemptSent bool, e *Error) {
		sent = sent || attemptSent
		open = open || attemptSent && e.leavesOutcomeOpen()
	})
	switch {
	case err == nil && response.GetReceipt() == nil:
		err = protocolError("an answer without a receipt")
		return nil, newOutcomeUnknown(request.GetSequence(), request.GetIdempotencyKey(), err)
	case err == nil:
		return response.GetReceipt(), nil
	case CodeOf(err) == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED:
		return nil, err
	case open:
		return nil, newOutcomeUnknown(request.GetSequence(), request.GetIdempotencyKey(), err)
	case !sent:
		return nil, &NotExecutedError{Sequence: request.GetSequence(), Cause: &unsentError{err}}
	}
	return nil, err
}

// unsentError is the reason why a call sent nothing.
type unsentError struct{ cause error }

// Error implements error.
func (e *unsentError) Error() string { return "nothing was sent: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *unsentError) Unwrap() error { return e.cause }

// GetClientState returns the state of a stream.
func (c *Client) GetClientState(
	ctx context.Context, request *seqledgerv1.GetClientStateRequest,
) (*seqledgerv1.ClientState, error) {
	response, err := call(ctx, c, rpcGetClientState, request, nil)
	return response.GetState(), err
}

// OpenSession takes over a stream: it fences every older session. Repeats carry the same
// attempt_id and therefore return the same session.
func (c *Client) OpenSession(
	ctx context.Context, request *seqledgerv1.OpenSessionRequest,
) (*seqledgerv1.OpenSessionResponse, error) {
	return call(ctx, c, rpcOpenSession, request, nil)
}

// GetEntity reads one entity; an absent one is [ErrNotFound].
func (c *Client) GetEntity(ctx context.Context, request *seqledgerv1.GetEntityRequest) (*seqledgerv1.Entity, error) {
	response, err := call(ctx, c, rpcGetEntity, request, nil)
	return response.GetEntity(), err
}

// GetTransaction reads one committed write, with its proof if asked; an absent one is
// [ErrNotFound]. The answer has all operations, whatever their size: a large transaction is
// read in parts and joined. request.parts and request.first_operation are ignored, and
// next_operation in the answer is 0. Parts that do not belong together are an [ErrProtocol].
func (c *Client) GetTransaction(
	ctx context.Context, request *seqledgerv1.GetTransactionRequest,
) (*seqledgerv1.GetTransactionResponse, error) {
	ask := new(seqledgerv1.GetTransactionRequest)
	proto.Merge(ask, request)
	ask.Parts, ask.FirstOperation = true, 0
	answer, err := call(ctx, c, rpcGetTransaction, ask, nil)
	if err != nil {
		return nil, err
	}
	transaction := answer.GetTransaction()
	if transaction == nil || transaction.GetFirstOperation() != 0 {
		return nil, protocolError("an answer without the beginning of the transaction")
	}
	ask.IncludeProof = false // the first part has it
	for next := answer.GetNextOperation(); next != 0; {
		if int(next) != len(transaction.GetOperations()) {
			return nil, protocolError(
				"a part of transaction %s says that the next one begins at operation %d, and ends before %d",
				transaction.GetTxId(), next, len(transaction.GetOperations()))
		}
		ask.FirstOperation = next
		part, err := call(ctx, c, rpcGetTransaction, ask, nil)
		if err != nil {
			return nil, err
		}
		if err := appendOperations(transaction, part.GetTransaction()); err != nil {
			return nil, err
		}
		next = part.GetNextOperation()
	}
	answer.NextOperation = 0
	return answer, nil
}

// GetBlock reads one block; an absent one is [ErrNotFound]. The block is whole, whatever its
// size: a large one is read in parts and joined. BLOCK_CONTENT_PARTS and request.start are
// therefore ignored, and next in the block is unset. Parts that do not belong together are an
// [ErrProtocol]. With BLOCK_CONTENT_HEADER the block has no transactions.
func (c *Client) GetBlock(ctx context.Context, request *seqledgerv1.GetBlockRequest) (*seqledgerv1.Block, error) {
	if !readsParts(request.GetContent()) {
		response, err := call(ctx, c, rpcGetBlock, request, nil)
		return response.GetBlock(), err
	}
	ask := new(seqledgerv1.GetBlockRequest)
	proto.Merge(ask, request)
	ask.Content, ask.Start = seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS, nil
	for joiner := new(blockJoiner); ; ask.Start = joiner.block.GetNext() {
		response, err := call(ctx, c, rpcGetBlock, ask, nil)
		if err != nil {
			return nil, err
		}
		block, err := joiner.add(response.GetBlock())
		switch {
		case err != nil:
			return nil, err
		case block == nil:
			continue
		case block.GetHeader().GetHeight() != request.GetHeight():
			return nil, protocolError("block %d where %d was asked for", block.GetHeader().GetHeight(),
				request.GetHeight())
		}
		return block, nil
	}
}

// Status describes the server.
func (c *Client) Status(ctx context.Context) (*seqledgerv1.Status, error) {
	response, err := call(ctx, c, rpcGetStatus, &seqledgerv1.GetStatusRequest{}, nil)
	return response.GetStatus(), err
}

// UpdateConfig changes the fields that are set in the request. Repeating it is safe because it
// assigns values and never increments them.
func (c *Client) UpdateConfig(
	ctx context.Context, request *seqledgerv1.UpdateConfigRequest,
) (*seqledgerv1.Config, error) {
	response, err := call(ctx, c, rpcUpdateConfig, request, nil)
	return response.GetConfig(), err
}
