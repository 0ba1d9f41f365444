package client

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// This file joins blocks and transactions that the server sends in parts. Because a server
// refuses a block that is too large for one message, and a proxy may refuse a message
// that the server allows, the client always asks for parts. A small block is one part.

// readsParts reports whether a request for this content is answered with whole blocks, which
// come in parts. The server decides about content unknown to this client.
func readsParts(content seqledgerv1.BlockContent) bool {
	return content == seqledgerv1.BlockContent_BLOCK_CONTENT_UNSPECIFIED ||
		content == seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS
}

// blockJoiner joins the parts of blocks, which arrive in order. It holds one block. Each part
// adds at least one operation, and a block has no more transactions than its header says.
type blockJoiner struct {
	block *seqledgerv1.Block // the parts received so far, nil between two blocks
}

// add takes the next part and keeps it. It returns the block once it is complete, otherwise
// nil. The error is an ErrProtocol: the part is not the expected one.
func (j *blockJoiner) add(part *seqledgerv1.Block) (*seqledgerv1.Block, error) {
	header := part.GetHeader()
	height := header.GetHeight()
	if j.block == nil {
		if header == nil {
			return nil, rpc.ProtocolError("a block without a header")
		}
		j.block = &seqledgerv1.Block{Header: header, Hash: part.GetHash()}
	}
	block := j.block
	if !proto.Equal(header, block.GetHeader()) || !bytes.Equal(part.GetHash(), block.GetHash()) {
		return nil, rpc.ProtocolError("got a part of block %d with the hash %x, want one of block %d with the hash %x",
			height, part.GetHash(), block.GetHeader().GetHeight(), block.GetHash())
	}
	if block.GetNext() != nil && len(part.GetTransactions()) == 0 {
		return nil, rpc.ProtocolError("a part of block %d brings nothing new from transaction %d, "+
			"operation %d on", height, block.GetNext().GetTransaction(), block.GetNext().GetOperation())
	}
	if err := appendTransactions(block, part.GetTransactions()); err != nil {
		return nil, err
	}
	if block.Next = part.GetNext(); block.Next != nil {
		if len(part.GetTransactions()) == 0 || !isEnd(block, block.Next) {
			return nil, rpc.ProtocolError("a part of block %d names transaction %d, "+
				"operation %d, "+
				"which is not where it ends", height, block.Next.GetTransaction(), block.Next.GetOperation())
		}
		return nil, nil
	}
	if n := len(block.GetTransactions()); n != int(header.GetTxCount()) {
		return nil, rpc.ProtocolError("block %d came with %d transactions, its header says %d", height, n,
			header.GetTxCount())
	}
	j.block = nil
	return block, nil
}

// appendTransactions appends the transactions of the next part of a block. The first of
// them may continue the last one of the block.
func appendTransactions(block *seqledgerv1.Block, transactions []*seqledgerv1.Transaction) error {
	header := block.GetHeader()
	if block.GetNext().GetOperation() > 0 && len(transactions) > 0 {
		last := block.GetTransactions()[len(block.GetTransactions())-1]
		if err := appendOperations(last, transactions[0]); err != nil {
			return err
		}
		transactions = transactions[1:]
	}
	for _, t := range transactions {
		due := len(block.GetTransactions())
		if t.GetBlockHeight() != header.GetHeight() || int(t.GetBlockPosition()) != due || t.GetFirstOperation() != 0 ||
			due >= int(header.GetTxCount()) {
			return rpc.ProtocolError(
				"block %d of %d transactions has transaction %d of block %d, from operation %d on, at position %d",
				header.GetHeight(), header.GetTxCount(), t.GetBlockPosition(), t.GetBlockHeight(),
				t.GetFirstOperation(), due)
		}
		block.Transactions = append(block.Transactions, t)
	}
	return nil
}

// isEnd reports whether a position is the end of a block's transactions.
func isEnd(block *seqledgerv1.Block, at *seqledgerv1.BlockPosition) bool {
	n := len(block.GetTransactions())
	if at.GetOperation() == 0 {
		return int(at.GetTransaction()) == n
	}
	return n > 0 && int(at.GetTransaction()) == n-1 &&
		int(at.GetOperation()) == len(block.GetTransactions()[n-1].GetOperations())
}

// appendOperations appends the operations of the next part of a transaction. All other fields
// repeat those of the first part.
func appendOperations(t, part *seqledgerv1.Transaction) error {
	before, more := t.GetOperations(), part.GetOperations()
	if int(part.GetFirstOperation()) != len(before) || len(more) == 0 {
		return rpc.ProtocolError("transaction %s has %d operations from %d on, want operation %d",
			part.GetTxId(), len(more), part.GetFirstOperation(), len(before))
	}
	part.Operations, part.FirstOperation, t.Operations = nil, 0, nil
	same := proto.Equal(t, part)
	t.Operations = append(before, more...)
	if !same {
		return rpc.ProtocolError("got a part of transaction %s, want a part of transaction %s", part.GetTxId(),
			t.GetTxId())
	}
	return nil
}
