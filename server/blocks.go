package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// blockReader reads blocks for one caller.
type blockReader struct {
	server  *Server
	party   admission.Party
	scope   machine.Scope
	content seqledgerv1.BlockContent
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
		return nil, &machine.FieldError{Field: "content", Problem: fmt.Sprintf("is %d, which is not known here", content)}
	}
	return &blockReader{s, s.party(ctx), scope, content}, nil
}

// read returns the block of a height, or the part of it that begins at a position. A block that
// exceeds the caller's message memory is refused.
func (b *blockReader) read(
	ctx context.Context, height uint64, start *seqledgerv1.BlockPosition,
) (*seqledgerv1.Block, error) {
	if b.content == seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER {
		var header machine.BlockHeader
		err := b.server.options.Ledger.View(ctx, func(v machine.View) (err error) {
			header, err = v.BlockHeader(b.scope, height)
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
	header, err := b.server.options.Ledger.VisitBlock(ctx, b.scope, height, start.GetTransaction(),
		func(t machine.Transaction) bool {
			more := part.Add(&t, first)
			first = 0
			return more
		})
	if err != nil {
		return nil, b.notFound(err, height)
	}
	if start.GetTransaction() > 0 && start.GetTransaction() >= header.TxCount || part.Behind {
		return nil, &machine.FieldError{Field: "start", Problem: "is behind the end of the block"}
	}
	if b.content != seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS && part.Next != nil {
		// Not resource_exhausted, which clients repeat: the block's size does not change.
		return nil, connect.NewError(connect.CodeOutOfRange, fmt.Errorf(
			"block %d has more than %d bytes, which is too much for one message; ask for its parts "+
				"(content: BLOCK_CONTENT_PARTS) or its header (BLOCK_CONTENT_HEADER)", height, limit))
	}
	block := wire.RenderBlock(&header)
	block.Transactions, block.Next = part.Transactions, part.Next
	return block, nil
}

func (b *blockReader) notFound(err error, height uint64) error {
	return notFound(err, "block %d of %s", height, b.scope)
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

// listBlocks pages through the block headers of a scope.
func (s *Server) listBlocks(
	ctx context.Context, m *seqledgerv1.ListBlocksRequest,
) (*seqledgerv1.ListBlocksResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	size, err := wire.PageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	height := max(m.FromHeight, 1)
	q := wire.NewQuery("blocks", scope.Organization, scope.Vault, fmt.Sprint(height))
	if height, err = q.Height(m.PageToken, height); err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListBlocksResponse)
	newest := uint64(0)
	err = s.options.Ledger.Pieces(ctx, func(v machine.View) (bool, error) {
		if newest == 0 { // the page ends here, even if blocks are committed meanwhile
			head, _, err := v.ChainHead(scope)
			newest = head
			return height <= newest, err
		}
		header, err := v.BlockHeader(scope, height)
		if err != nil {
			return false, err
		}
		answer.Blocks = append(answer.Blocks, wire.RenderBlock(&header))
		height++
		return height <= newest && len(answer.Blocks) < size, nil
	})
	if err != nil {
		return nil, err
	}
	if height <= newest {
		answer.NextPageToken = q.HeightToken(height)
	}
	return answer, nil
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
	began := time.Now()
	x, err := s.transaction(ctx, id)
	if errors.Is(err, machine.ErrNotFound) {
		awaitStep(ctx, began)
	}
	if err != nil {
		return nil, notFound(err, "transaction %s", id)
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
		return nil, &machine.FieldError{Field: "first_operation", Problem: "is behind the last operation"}
	}
	answer.Transaction, answer.NextOperation = part.Transactions[0], part.Next.GetOperation()
	if !m.IncludeProof {
		return answer, nil
	}
	tree, err := s.options.Ledger.BlockTree(ctx, scope, height)
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

// notFoundStep exceeds the time of a lookup of a transaction.
const notFoundStep = 2 * time.Millisecond

// awaitStep returns at the end of the current step since began. A lookup reads a whole record
// of blocks, which takes longer the larger it is. Without the wait, many calls would reveal how
// much other callers wrote, and when.
func awaitStep(ctx context.Context, began time.Time) {
	timer := time.NewTimer(notFoundStep - time.Since(began)%notFoundStep)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// transaction returns a transaction that the caller may read, or ErrNotFound. It looks up the
// scope first, at a cost that does not depend on the transaction or its existence. So neither
// the answer nor its time reveals the contents of other scopes.
func (s *Server) transaction(ctx context.Context, id machine.TxID) (x machine.Transaction, err error) {
	var scope machine.Scope
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		scope, err = v.TransactionScope(id)
		return err
	})
	if err == nil && s.caller(ctx).Read(scope) != nil {
		err = machine.ErrNotFound
	}
	if err != nil {
		return x, err
	}
	err = s.options.Ledger.View(ctx, func(v machine.View) (err error) {
		x, err = v.Transaction(id)
		return err
	})
	return x, err
}
