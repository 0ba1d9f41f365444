package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Write commits one write, numbered by the caller, exactly once. When the answer is lost it
// sends the same bytes again until ctx ends. That is safe because the ledger recognises a
// repeat by its sequence and key. Most programs want a writer.Writer.
//
// The error is
//
//   - an [*failure.OutcomeUnknownError] whenever a copy that was sent may still be executed, also when a later copy was
//     refused: the refusal is not final while the first may be under way. Settle it by calling Write with the same
//     request again, or with GetClientState.
//   - a [*failure.NotExecutedError] when nothing was sent, because no connection could be had.
//   - [failure.ErrAlreadyCommitted] for a write that is committed and whose receipt is gone.
//   - a refusal, otherwise: no copy that this call sent was executed.
//
// Each of these describes only the copies that this call sent. Copies that an earlier call sent
// with the same sequence may still commit, until a new session fences them.
func (c *Client) Write(ctx context.Context, request *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
	var copies writeCopies
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).Write, request, copies.add)
	switch {
	case err != nil:
		return nil, copies.failure(request, err)
	case response.GetReceipt().GetTxId() == "":
		err = rpc.ProtocolError("an answer without a receipt and its tx_id")
		return nil, failure.OutcomeUnknown(request.GetSequence(), request.GetIdempotencyKey(), err)
	}
	return response.GetReceipt(), nil
}

// BatchResult is what became of one write of a batch.
type BatchResult struct {
	// Receipt of the committed write; nil if there is an error.
	Receipt *seqledgerv1.Receipt
	// Err is what Write would have returned; nil for a committed write.
	Err error
}

// WriteBatch commits up to 1,000 writes, numbered by the caller, in one call: it is [Client.Write] for a program that
// has gathered several. The ledger decides them in order, one by one. A refused write does not stop later ones,
// but leaves a gap, for which later writes of the same stream are refused. The results have the order of the writes.
//
// When the answer is lost, WriteBatch sends the same bytes again until ctx ends. The error of each write means what
// it means for Write.
func (c *Client) WriteBatch(ctx context.Context, writes []*seqledgerv1.WriteRequest) []BatchResult {
	var copies writeCopies
	results := make([]BatchResult, len(writes))
	batch := &seqledgerv1.WriteBatchRequest{Writes: writes}
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).WriteBatch, batch, copies.add)
	answers := response.GetResults()
	if err == nil && len(answers) != len(writes) {
		err = rpc.ProtocolError("%d results for %d writes", len(answers), len(writes))
		copies = writeCopies{sent: true, open: true}
	}
	for i, request := range writes {
		switch {
		case err != nil:
			results[i].Err = copies.failure(request, err)
		case answers[i].GetReceipt().GetTxId() != "":
			results[i].Receipt = answers[i].GetReceipt()
		case answers[i].GetError() != nil:
			e := failure.FromStream(answers[i].GetError())
			decided := writeCopies{sent: true, open: copies.open || e.IsOpen()}
			results[i].Err = decided.failure(request, e)
		default:
			results[i].Err = failure.OutcomeUnknown(request.GetSequence(), request.GetIdempotencyKey(),
				rpc.ProtocolError("an answer without a receipt and its tx_id"))
		}
	}
	return results
}

// writeCopies describes the copies of a write that a call has sent.
type writeCopies struct {
	sent bool // at least one may have arrived
	open bool // one may still be executed
}

// add records a failed attempt.
func (w *writeCopies) add(sent bool, e *failure.Error) {
	w.sent = w.sent || sent
	w.open = w.open || sent && e.IsOpen()
}

// failure returns the error of a write, given the error of the last attempt.
func (w *writeCopies) failure(request *seqledgerv1.WriteRequest, err error) error {
	switch {
	case failure.CodeOf(err) == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED:
		return err
	case w.open:
		return failure.OutcomeUnknown(request.GetSequence(), request.GetIdempotencyKey(), err)
	case !w.sent:
		return &failure.NotExecutedError{Sequence: request.GetSequence(), Cause: &unsentError{err}}
	}
	return err
}

// unsentError says why a call sent nothing.
type unsentError struct{ cause error }

// Error implements error.
func (e *unsentError) Error() string { return "nothing was sent: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *unsentError) Unwrap() error { return e.cause }

// GetClientState returns the state of a stream.
func (c *Client) GetClientState(
	ctx context.Context, request *seqledgerv1.GetClientStateRequest,
) (*seqledgerv1.ClientState, error) {
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetClientState, request, nil)
	return response.GetState(), err
}

// OpenSession takes over a stream: it fences every older session. Repeats carry the same
// attempt_id and therefore return the same session.
func (c *Client) OpenSession(
	ctx context.Context, request *seqledgerv1.OpenSessionRequest,
) (*seqledgerv1.OpenSessionResponse, error) {
	return rpc.Call(ctx, c.core, (*rpc.Endpoint).OpenSession, request, nil)
}

// StaleRead makes the server answer a read from its own state, without asking the other nodes of its cluster. This
// works when most nodes are away, and on a node that lags. Never use such an answer to decide whether a write happened:
// GetClientState and all calls about keys refuse it.
//
// A client of several servers sends it to one of them like any call, mostly the leader. To read a certain node, use a
// client of that server.
type StaleRead = rpc.StaleRead

// WithStaleRead makes the reads of entities, relationships, transactions, blocks and the list of clients with the
// context stale. Each sets s.Index to the ledger index up to which its answer is complete. Reads that share an s must
// not be concurrent.
func WithStaleRead(ctx context.Context, s *StaleRead) context.Context {
	return rpc.WithStaleRead(ctx, s)
}

// GetEntity reads one entity; an absent one is [failure.ErrNotFound].
func (c *Client) GetEntity(ctx context.Context, request *seqledgerv1.GetEntityRequest) (*seqledgerv1.Entity, error) {
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetEntity, request, nil)
	return response.GetEntity(), err
}

// GetTransaction reads one committed write, with its proof if asked; an absent one is
// [failure.ErrNotFound]. The answer has all operations, whatever their size: a large transaction is
// read in parts and joined. request.parts and request.first_operation are ignored, and
// next_operation in the answer is 0. Parts that do not belong together are an [failure.ErrProtocol].
func (c *Client) GetTransaction(
	ctx context.Context, request *seqledgerv1.GetTransactionRequest,
) (*seqledgerv1.GetTransactionResponse, error) {
	ask := new(seqledgerv1.GetTransactionRequest)
	proto.Merge(ask, request)
	ask.Parts, ask.FirstOperation = true, 0
	answer, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetTransaction, ask, nil)
	if err != nil {
		return nil, err
	}
	transaction := answer.GetTransaction()
	if transaction == nil || transaction.GetFirstOperation() != 0 {
		return nil, rpc.ProtocolError("an answer without the beginning of the transaction")
	}
	ask.IncludeProof = false // the first part has it
	for next := answer.GetNextOperation(); next != 0; {
		if int(next) != len(transaction.GetOperations()) {
			return nil, rpc.ProtocolError(
				"a part of transaction %s names operation %d as the next one, but ends before %d",
				transaction.GetTxId(), next, len(transaction.GetOperations()))
		}
		ask.FirstOperation = next
		part, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetTransaction, ask, nil)
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

// GetReceipt returns a receipt of a transaction that verifies offline: a file of the format c2sp.org/tlog-proof, as
// seqledger receipt verify takes it. It waits for the next checkpoint of the ledger, some ten seconds.
func (c *Client) GetReceipt(ctx context.Context, request *seqledgerv1.GetReceiptRequest) ([]byte, error) {
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetReceipt, request, nil)
	return response.GetReceipt(), err
}

// GetBlock reads one block; an absent one is [failure.ErrNotFound]. The block is whole, whatever its
// size: a large one is read in parts and joined. BLOCK_CONTENT_PARTS and request.start are
// therefore ignored, and next in the block is unset. Parts that do not belong together are an
// [failure.ErrProtocol]. With BLOCK_CONTENT_HEADER the block has no transactions.
func (c *Client) GetBlock(ctx context.Context, request *seqledgerv1.GetBlockRequest) (*seqledgerv1.Block, error) {
	if !readsParts(request.GetContent()) {
		response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetBlock, request, nil)
		return response.GetBlock(), err
	}
	ask := new(seqledgerv1.GetBlockRequest)
	proto.Merge(ask, request)
	ask.Content, ask.Start = seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS, nil
	for joiner := new(blockJoiner); ; ask.Start = joiner.block.GetNext() {
		response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetBlock, ask, nil)
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
			return nil, rpc.ProtocolError("block %d where %d was asked for", block.GetHeader().GetHeight(),
				request.GetHeight())
		}
		return block, nil
	}
}

// Status describes the server.
func (c *Client) Status(ctx context.Context) (*seqledgerv1.Status, error) {
	response, err := rpc.Call(ctx, c.core, (*rpc.Endpoint).GetStatus, &seqledgerv1.GetStatusRequest{}, nil)
	return response.GetStatus(), err
}
