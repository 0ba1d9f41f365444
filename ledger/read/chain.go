package read

import (
	"context"
	"runtime"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Chain returns the chain of blocks of a scope, with those of every write that was
// acknowledged before the call.
func (r *Reader) Chain(ctx context.Context, scope machine.Scope) (c *machine.Chain, err error) {
	err = r.View(ctx, func(v machine.View) (err error) {
		c, err = v.Chain(scope)
		return err
	})
	return c, err
}

// StoredChain is Chain as this node has it, and asks no other one: the end may be missing.
func (r *Reader) StoredChain(ctx context.Context, scope machine.Scope) (c *machine.Chain, err error) {
	if err := r.source.Err(); err != nil {
		return nil, err
	}
	err = r.StoredView(ctx, func(v machine.View) (err error) {
		c, err = v.Chain(scope)
		return err
	})
	return c, err
}

// partBytes is how many bytes of transactions one step reads, at least one
// transaction.
const partBytes = 64 << 10

// VisitBlock calls visit for the transactions of a block from a position on, in
// order, until visit returns false. The block is read in parts and visit is called
// between them, so that a reader of a large block holds no more of it than it
// keeps. The header is that of the block, also when nothing is visited. The error
// is ErrNotFound of package machine where there is no such block.
func (r *Reader) VisitBlock(
	ctx context.Context, chain *machine.Chain, height uint64, from uint32, visit func(machine.Transaction) bool,
) (header machine.BlockHeader, err error) {
	for {
		var part machine.BlockPart
		err := r.Blocks(ctx, func(b machine.Blocks) (err error) {
			part, err = b.BlockPart(chain, height, from, partBytes)
			return err
		})
		if err != nil {
			return header, err
		}
		runtime.Gosched() // as in Pieces
		header = part.Header
		for i := range part.Transactions {
			if !visit(part.Transactions[i]) {
				return header, nil
			}
		}
		if from = part.Next; from >= header.TxCount {
			return header, nil
		}
	}
}

// BlockTree returns the Merkle tree of a block, which makes the proofs of its
// transactions.
func (r *Reader) BlockTree(ctx context.Context, chain *machine.Chain, height uint64) (*machine.BlockTree, error) {
	var header machine.BlockHeader
	var leaves []machine.Hash
	err := r.Pieces(ctx, func(b machine.Blocks) (bool, error) {
		h, some, err := b.LeafHashes(chain, height, uint32(len(leaves)), partBytes)
		header, leaves = h, append(leaves, some...)
		return len(leaves) < int(h.TxCount), err
	})
	if err != nil {
		return nil, err
	}
	tree, err := machine.NewBlockTree(header, leaves)
	return tree, r.source.Failed(err)
}
