package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Blocks, transactions and their proofs. A part of something long lets a caller read
// all of it in several short Views: nothing is applied while a View lasts. Blocks
// never change, so parts that were read in different Views fit together. What does
// change (the keys of a listing, the window of a stream) is read in one View, without
// the values and receipts, which are in blocks.

// ChainHead returns the height and hash of the last block of a scope, zeros
// when it has none.
func (v View) ChainHead(scope Scope) (uint64, Hash, error) {
	return readChainHead(v.r, appendScopeKey(nil, scope))
}

// Block is what one log entry committed in one scope.
type Block struct {
	Header       BlockHeader
	Transactions []Transaction
}

// Block returns the block of a height, or ErrNotFound.
func (v View) Block(scope Scope, height uint64) (Block, error) {
	var block Block
	err := v.blockRecord(scope, height, func(b *blockRecord) error {
		block.Header = b.header
		var failed error
		err := b.visit(func(_ uint32, t storedTransaction) bool {
			x, err := t.decode(b.header.Height)
			failed = err
			block.Transactions = append(block.Transactions, x.clone())
			return err == nil
		})
		return firstErr(err, failed)
	})
	return block, err
}

// BlockHeader returns the header of a height, or ErrNotFound.
func (v View) BlockHeader(scope Scope, height uint64) (header BlockHeader, err error) {
	err = v.blockRecord(scope, height, func(b *blockRecord) error {
		header = b.header
		return nil
	})
	return header, err
}

func (v View) blockRecord(scope Scope, height uint64, visit func(*blockRecord) error) error {
	location, err := v.r.Get(TableHeights, appendHeightKey(nil, appendScopeKey(nil, scope), height))
	if err != nil {
		return err
	}
	if location == nil {
		return ErrNotFound
	}
	d := decoder{rest: location}
	last, place := d.take(8), d.uvarint()
	if err := d.done("block location"); err != nil {
		return err
	}
	data, err := v.r.Get(TableBlocks, last)
	if err != nil {
		return err
	}
	r, err := openRecord(last, data)
	if err != nil {
		return err
	}
	b, err := r.blockAtPlace(place)
	if err != nil {
		return err
	}
	if b.header.Height != height || b.header.Scope != scope {
		return fmt.Errorf("%w: block %d of %s is not where its height says", ErrCorrupt, height, scope)
	}
	return visit(&b)
}

// Transaction returns the transaction of an id, or ErrNotFound.
func (v View) Transaction(id TxID) (Transaction, error) {
	ledger, index := id.Parts()
	t, found, err := findTransaction(v.r, index)
	if err != nil {
		return Transaction{}, err
	}
	if !found || t.LedgerID != ledger {
		return Transaction{}, ErrNotFound
	}
	return t.clone(), nil
}

// Proof is an RFC 6962 inclusion path from a transaction to the root in its
// block's header.
type Proof struct {
	Header    BlockHeader
	LeafIndex uint64
	Path      []Hash // from the leaf's sibling upwards
}

// Proof returns the proof for the transaction that took an index, or
// ErrNotFound.
func (v View) Proof(index uint64) (Proof, error) {
	l, found, err := locate(v.r, index)
	if err != nil {
		return Proof{}, err
	}
	if !found {
		return Proof{}, ErrNotFound
	}
	leaves, err := l.block.leaves()
	if err != nil {
		return Proof{}, err
	}
	return Proof{Header: l.header, LeafIndex: uint64(l.position), Path: merklePath(leaves, int(l.position))}, nil
}

// findTransaction finds the transaction that took an index. Its operations
// alias the storage.
func findTransaction(r Reader, index uint64) (t Transaction, found bool, err error) {
	l, found, err := locate(r, index)
	if err != nil || !found {
		return t, false, err
	}
	t, err = l.stored.decode(l.header.Height)
	return t, true, err
}

// locate finds the transaction that took an index in a closed block.
func locate(r Reader, index uint64) (l located, found bool, err error) {
	record, last, err := recordOf(r, index)
	if err != nil || last == 0 {
		return l, false, err
	}
	return record.find(index)
}

// recordOf returns the record that has the transaction of an index, if there is
// one, and its key, or 0 when there is no record. A record stands at or behind
// the last of its transactions and before those of the next record, so it is
// the first at or behind the index.
func recordOf(r Reader, index uint64) (found record, last uint64, err error) {
	var failed error
	err = r.Ascend(TableBlocks, appendIndexKey(nil, index), func(key, data []byte) bool {
		if found, failed = openRecord(key, data); failed == nil {
			last = binary.BigEndian.Uint64(key)
		}
		return false
	})
	return found, last, firstErr(err, failed)
}

// clone copies what aliases the storage.
func (t Transaction) clone() Transaction {
	for i := range t.Operations {
		op := &t.Operations[i]
		op.Key, op.Value = bytes.Clone(op.Key), bytes.Clone(op.Value)
		op.Relation, op.Subject = bytes.Clone(op.Relation), bytes.Clone(op.Subject)
		op.Condition.Value = bytes.Clone(op.Condition.Value)
	}
	return t
}

// BlockPart is a run of transactions of one block.
type BlockPart struct {
	Header       BlockHeader
	Transactions []Transaction
	// Next is the position of the first transaction behind the part. It is
	// Header.TxCount at the end of the block.
	Next uint32
}

// BlockPart returns the transactions of a block from a position on. It stops
// after the transaction with which the encodings exceed maxBytes, so that it
// returns at least one unless the position is at the end. It returns ErrNotFound
// where there is no such block.
func (v View) BlockPart(scope Scope, height uint64, from uint32, maxBytes int) (part BlockPart, err error) {
	part.Next = from
	err = v.visitFrom(scope, height, from, maxBytes, &part.Header, func(position uint32, t storedTransaction) error {
		x, err := t.decode(height)
		part.Transactions, part.Next = append(part.Transactions, x.clone()), position+1
		return err
	})
	return part, err
}

// LeafHashes returns the header of a block and the leaf hashes of its
// transactions from a position on. It stops like [View.BlockPart].
func (v View) LeafHashes(
	scope Scope, height uint64, from uint32, maxBytes int,
) (header BlockHeader, leaves []Hash, err error) {
	err = v.visitFrom(scope, height, from, maxBytes, &header, func(_ uint32, t storedTransaction) error {
		encoded, err := t.verified()
		leaves = append(leaves, LeafHash(encoded))
		return err
	})
	return header, leaves, err
}

// visitFrom calls visit for the transactions of a block from a position on,
// until their encodings exceed maxBytes.
func (v View) visitFrom(
	scope Scope, height uint64, from uint32, maxBytes int, header *BlockHeader,
	visit func(position uint32, t storedTransaction) error,
) error {
	return v.blockRecord(scope, height, func(b *blockRecord) error {
		*header = b.header
		var failed error
		size := 0
		err := b.visit(func(position uint32, t storedTransaction) bool {
			if position < from {
				return true
			}
			failed = visit(position, t)
			size += len(t.encoded)
			return failed == nil && size <= maxBytes
		})
		return firstErr(err, failed)
	})
}

// BlockTree is the Merkle tree of a block. It makes the proofs of all its
// transactions from one read of them.
type BlockTree struct {
	header BlockHeader
	levels [][]Hash // from the leaves to the root
}

// NewBlockTree returns the tree over all leaf hashes of a block. The error wraps
// ErrCorrupt when they do not lead to the root in the header.
func NewBlockTree(header BlockHeader, leaves []Hash) (*BlockTree, error) {
	t := &BlockTree{header: header}
	for level := leaves; ; {
		t.levels = append(t.levels, level)
		if len(level) <= 1 {
			break
		}
		above := make([]Hash, 0, (len(level)+1)/2)
		for i := 0; i+1 < len(level); i += 2 {
			above = append(above, hashNode(&level[i], &level[i+1]))
		}
		if len(level)%2 == 1 {
			above = append(above, level[len(level)-1])
		}
		level = above
	}
	if root := t.levels[len(t.levels)-1]; uint64(len(leaves)) != uint64(header.TxCount) || root[0] != header.TxRoot {
		return nil, fmt.Errorf("%w: the transactions of block %d of %s do not lead to its root",
			ErrCorrupt, header.Height, header.Scope)
	}
	return t, nil
}

// Proof returns the proof of the transaction at a position, or ErrNotFound.
func (t *BlockTree) Proof(position uint32) (Proof, error) {
	if position >= t.header.TxCount {
		return Proof{}, ErrNotFound
	}
	p := Proof{Header: t.header, LeafIndex: uint64(position)}
	i := int(position)
	for _, level := range t.levels[:len(t.levels)-1] {
		if sibling := i ^ 1; sibling < len(level) {
			p.Path = append(p.Path, level[sibling])
		}
		i /= 2
	}
	return p, nil
}

// TransactionScope returns the scope of the transaction of an id, or ErrNotFound.
// It reads a record of blocks for an id that has no transaction, too, so that a
// caller who may not see the transaction cannot tell by the time of the answer
// whether it is there.
func (v View) TransactionScope(id TxID) (scope Scope, err error) {
	ledger, index := id.Parts()
	looked, found := false, false
	look := func(from uint64) error {
		record, last, failed := recordOf(v.r, from)
		if failed != nil || last == 0 {
			return failed
		}
		looked = true
		l, ok, failed := record.find(min(max(index, record.first), last))
		if ok && l.stored.index() == index && l.stored.ledgerID() == ledger {
			scope, found = l.header.Scope, true
		}
		return failed
	}
	if failed := look(min(index, v.head.index)); failed != nil {
		return Scope{}, failed
	}
	if !looked { // the entries since then have committed nothing
		if failed := look(0); failed != nil {
			return Scope{}, failed
		}
	}
	if !found {
		return Scope{}, ErrNotFound
	}
	return scope, nil
}
