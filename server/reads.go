package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// Nothing is applied during a view of the state, so reads copy what they need of it in short views, and read what is in
// blocks (ledger.Ledger.Blocks and Pieces) and render it afterwards. What each answer is consistent with:
//
//   - GetClientState and a page of ListEntities or ListRelationships are of one
//     moment: one view finds the keys, versions and places of everything, and what
//     these lead to (receipts, long values) is in blocks, which never change.
//   - Blocks, transactions, headers and proofs never change; a page of ListBlocks ends
//     where the chain ended when it began.
//   - A page of ListClients has each stream as it stood at some moment of the call.

// clientState is what one view shows of a stream.
type clientState struct {
	config         machine.Config
	stream         machine.StreamState
	found, expired bool
	newest         []uint64 // index of the newest receipt, if there is one
	receipts       []uint64 // indexes of those that are asked for
}

// getClientState returns where a client should resume.
func (s *Server) getClientState(
	ctx context.Context, m *seqledgerv1.GetClientStateRequest,
) (*seqledgerv1.GetClientStateResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if err := machine.ValidateClientID(m.ClientId); err != nil {
		return nil, err
	}
	if m.ReceiptsBelow > 0 && !m.IncludeReceipts {
		return nil, &machine.FieldError{Field: "receipts_below", Problem: "needs include_receipts"}
	}
	var c clientState
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		c.config = v.Config()
		if c.stream, c.found, err = v.Stream(scope, m.ClientId); err != nil {
			return err
		}
		c.expired = v.SessionExpired(c.stream, c.found, m.Session)
		if c.newest, err = v.ReceiptIndexes(scope, m.ClientId, 0, 1); err != nil || !m.IncludeReceipts {
			return err
		}
		c.receipts, err = v.ReceiptIndexes(scope, m.ClientId, m.ReceiptsBelow, maxReceipts)
		return err
	})
	if err != nil {
		return nil, err
	}
	state, err := s.renderClientState(ctx, &c)
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.GetClientStateResponse{State: state}, nil
}

// renderClientState reads the receipts and renders everything.
func (s *Server) renderClientState(ctx context.Context, c *clientState) (*seqledgerv1.ClientState, error) {
	newest, _, err := s.readReceipts(ctx, c.newest)
	if err != nil {
		return nil, err
	}
	state := &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN, ReceiptWindow: uint32(c.config.ReceiptWindow),
	}
	if c.found {
		// The newest receipt has the last key and hash.
		var last *machine.Receipt
		if len(newest) > 0 {
			last = &newest[0]
		}
		state = wire.RenderState(c.stream, last, c.config)
	}
	if c.expired {
		state.Status = seqledgerv1.ClientStatus_CLIENT_STATUS_EXPIRED
	}
	receipts, all, err := s.readReceipts(ctx, c.receipts)
	if err != nil {
		return nil, err
	}
	for i := range receipts {
		state.Receipts = append(state.Receipts, wire.RenderReceipt(&receipts[i]))
	}
	if !all {
		state.NextReceiptsBelow = receipts[len(receipts)-1].Sequence
	}
	return state, nil
}

// maxReceipts is the largest possible receipt window.
const maxReceipts = 1_024

// The maximum size of a receipt in an answer: its own fields with the longest actor, and a result for each operation.
const (
	receiptBytes = 1_024
	resultBytes  = 16
)

// readReceipts reads the receipts at these indexes, or as many of the first of them as fit in an answer.
func (s *Server) readReceipts(ctx context.Context, indexes []uint64) (receipts []machine.Receipt, all bool, err error) {
	size := 0
	more := func() bool { return len(receipts) < len(indexes) && size < wire.MaxPageBytes }
	if !more() {
		return nil, true, nil
	}
	err = s.options.Ledger.Pieces(ctx, func(b machine.Blocks) (bool, error) {
		r, err := b.ReceiptAt(indexes[len(receipts)])
		if isGone(err) { // since the view, as are all that follow
			indexes = indexes[:len(receipts)]
			return false, nil
		}
		receipts = append(receipts, r)
		size += receiptBytes + resultBytes*len(r.Versions)
		return more(), err
	})
	return receipts, len(receipts) == len(indexes), err
}

// maxChangedReads is how often an entity is read whose value is dropped again and again before it is read, each time
// because the entity has changed.
const maxChangedReads = 3

// getEntity reads one entity.
func (s *Server) getEntity(
	ctx context.Context, m *seqledgerv1.GetEntityRequest,
) (*seqledgerv1.GetEntityResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	if err := machine.ValidateKey(m.Key, "key"); err != nil {
		return nil, err
	}
	var entity machine.EntityRef
	var id machine.TxID
	for range maxChangedReads {
		err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
			entity, err = v.EntityRef(scope, m.Key)
			id = v.TxIDAt(entity.Version)
			return err
		})
		if err == nil && !entity.HasValue() {
			err = s.options.Ledger.Blocks(ctx, func(b machine.Blocks) error { return b.ReadValue(&entity) })
		}
		if !errors.Is(err, machine.ErrChanged) {
			break
		}
	}
	if err != nil {
		return nil, notFound(err, "entity %q of %s", wire.Clip(m.Key), scope)
	}
	return &seqledgerv1.GetEntityResponse{Entity: wire.RenderEntity(&entity.Entity, id)}, nil
}

// blockReader reads blocks for one caller.
type blockReader struct {
	server  *Server
	party   admission.Party
	chain   *machine.Chain // of the scope, when a block after its end was last asked for
	content seqledgerv1.BlockContent
	// chainOf returns the chain of a scope.
	chainOf func(context.Context, machine.Scope) (*machine.Chain, error)
}

// newBlockReader validates which part of a block a request asks for.
func (s *Server) newBlockReader(
	ctx context.Context, m *seqledgerv1.Scope, content seqledgerv1.BlockContent,
) (*blockReader, error) {
	scope, err := wire.RequireScope(m)
	if err != nil {
		return nil, err
	}
	switch content {
	case seqledgerv1.BlockContent_BLOCK_CONTENT_UNSPECIFIED, seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER,
		seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS:
	default:
		return nil, &machine.FieldError{Field: "content",
			Problem: fmt.Sprintf("is %d, which is not known here", content)}
	}
	return &blockReader{s, s.party(ctx), &machine.Chain{Scope: scope}, content, s.options.Ledger.Chain}, nil
}

// read returns the block of a height, or the part of it that begins at a position. A block that exceeds the caller's
// message memory is refused.
func (b *blockReader) read(
	ctx context.Context, height uint64, start *seqledgerv1.BlockPosition,
) (*seqledgerv1.Block, error) {
	engine := b.server.options.Ledger
	if height > b.chain.Height {
		chain, err := b.chainOf(ctx, b.chain.Scope)
		if err != nil {
			return nil, err
		}
		b.chain = chain
	}
	if b.content == seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER {
		var header machine.BlockHeader
		err := engine.Blocks(ctx, func(blocks machine.Blocks) (err error) {
			header, err = blocks.BlockHeader(b.chain, height)
			return err
		})
		return wire.RenderBlock(&header), b.notFound(err, height)
	}
	limit := wire.MaxPageBytes
	if whole := b.content != seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS; whole {
		limit = b.party.Limits.MessageBytes / 2 // see admission.Controller.Answer
	}
	part := wire.NewPart(limit)
	first := int(start.GetOperation())
	header, err := engine.VisitBlock(ctx, b.chain, height, start.GetTransaction(),
		func(t machine.Transaction) bool {
			more := part.Add(&t, first)
			first = 0
			return more
		})
	if err != nil {
		return nil, b.notFound(err, height)
	}
	if start.GetTransaction() > 0 && start.GetTransaction() >= header.TxCount || part.Behind {
		return nil, &machine.FieldError{Field: "start", Problem: "is after the end of the block"}
	}
	if b.content != seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS && part.Next != nil {
		// Not resource_exhausted, which clients repeat, because the block's size does not change.
		return nil, connect.NewError(connect.CodeOutOfRange, fmt.Errorf(
			"block %d has more than %d bytes, which is too much for one message; ask for its parts "+
				"(content: BLOCK_CONTENT_PARTS) or its header (BLOCK_CONTENT_HEADER)", height, limit))
	}
	block := wire.RenderBlock(&header)
	block.Transactions, block.Next = part.Transactions, part.Next
	return block, nil
}

func (b *blockReader) notFound(err error, height uint64) error {
	return notFound(err, "block %d of %s", height, b.chain.Scope)
}

// getBlock reads one block of a scope.
func (s *Server) getBlock(ctx context.Context, m *seqledgerv1.GetBlockRequest) (*seqledgerv1.GetBlockResponse, error) {
	reader, err := s.newBlockReader(ctx, m.Scope, m.Content)
	switch {
	case err != nil:
		return nil, err
	case m.Height == 0:
		return nil, &machine.FieldError{Field: "height", Problem: "must be at least 1"}
	case m.Start != nil && m.Content != seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS:
		return nil, &machine.FieldError{Field: "start", Problem: "needs content BLOCK_CONTENT_PARTS"}
	}
	block, err := reader.read(ctx, m.Height, m.Start)
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.GetBlockResponse{Block: block}, nil
}

// getTransaction reads one committed write.
func (s *Server) getTransaction(
	ctx context.Context, m *seqledgerv1.GetTransactionRequest,
) (*seqledgerv1.GetTransactionResponse, error) {
	id, err := machine.ParseTxID(m.TxId)
	if err != nil {
		return nil, err
	}
	if m.FirstOperation > 0 && !m.Parts {
		return nil, &machine.FieldError{Field: "first_operation", Problem: "needs parts"}
	}
	var x machine.Transaction
	err = s.lookUp(ctx, id, func(b machine.Blocks) (err error) {
		x, err = b.Transaction(id)
		return err
	})
	if err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.GetTransactionResponse)
	limit := wire.MaxPageBytes
	if !m.Parts {
		limit = machine.MaxWriteBytes * 2 // no transaction has more, and this splits none
	}
	part := wire.NewPart(limit)
	scope, height, position := x.Scope, x.BlockHeight, x.Position
	part.Add(&x, int(m.FirstOperation))
	if part.Behind {
		return nil, &machine.FieldError{Field: "first_operation", Problem: "is after the last operation"}
	}
	answer.Transaction, answer.NextOperation = part.Transactions[0], part.Next.GetOperation()
	if !m.IncludeProof {
		return answer, nil
	}
	tree, err := s.blockTree(ctx, scope, height)
	if err != nil {
		return nil, err
	}
	proof, err := tree.Proof(position)
	if err != nil {
		return nil, err
	}
	answer.BlockHeader, answer.Proof = wire.RenderHeader(&proof.Header), wire.RenderProof(&proof)
	return answer, nil
}

// notFoundStep exceeds the time of a lookup of a transaction, also when the disk has to be read some times for it. Only
// a lookup on a disk that is slower than that takes another step.
const notFoundStep = 50 * time.Millisecond

// awaitStep returns at the end of the current step since began. A lookup reads from a record of blocks, which is in
// memory if it was read lately and else on the disk. Without the wait, the time of not_found would reveal which
// transactions of other scopes there are, and what is read of them.
func awaitStep(ctx context.Context, began time.Time) {
	timer := time.NewTimer(notFoundStep - time.Since(began)%notFoundStep)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// receiptPatience bounds the wait for a checkpoint: the time between two of them, and that of witnesses.
const receiptPatience = 30 * time.Second

// getReceipt returns a receipt that verifies offline.
func (s *Server) getReceipt(
	ctx context.Context, m *seqledgerv1.GetReceiptRequest,
) (*seqledgerv1.GetReceiptResponse, error) {
	id, err := machine.ParseTxID(m.TxId)
	if err != nil {
		return nil, err
	}
	if err := s.lookUp(ctx, id, func(machine.Blocks) error { return nil }); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, receiptPatience, errNoCheckpoint)
	defer cancel()
	receipt, err := s.options.Ledger.OfflineReceipt(ctx, id, callOf(ctx).endWork)
	if err == nil && s.caller(ctx).Read(receipt.Header.Scope) != nil { // since the wait began
		err = machine.ErrNotFound
	}
	switch {
	case errors.Is(err, ledger.ErrNoReceipts):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, errNoCheckpoint), errors.Is(err, ledger.ErrReceiptsFail):
		return nil, connect.NewError(connect.CodeUnavailable, err)
	case err != nil:
		return nil, notFound(err, "transaction %s", id)
	}
	return &seqledgerv1.GetReceiptResponse{Receipt: receipt.Append(nil)}, nil
}

var errNoCheckpoint = errors.New("no checkpoint that has the transaction was signed in time; the node may lead no " +
	"longer: ask again")

// lookUp reads something of a transaction that the caller may read. It looks up the scope first, which reads
// as much for a transaction that does not exist. With awaitStep neither the answer nor its time reveals the contents of
// other scopes.
func (s *Server) lookUp(ctx context.Context, id machine.TxID, read func(machine.Blocks) error) error {
	began := time.Now()
	err := s.options.Ledger.Fresh(ctx)
	if err != nil {
		return err
	}
	var scope machine.Scope
	err = s.options.Ledger.Blocks(ctx, func(b machine.Blocks) (err error) {
		scope, err = b.TransactionScope(id)
		return err
	})
	if err == nil && s.caller(ctx).Read(scope) != nil {
		err = machine.ErrNotFound
	}
	if err == nil {
		err = s.options.Ledger.Blocks(ctx, read)
	}
	if errors.Is(err, machine.ErrNotFound) {
		callOf(ctx).endWork() // the wait is no work
		awaitStep(ctx, began)
	}
	return notFound(err, "transaction %s", id)
}
