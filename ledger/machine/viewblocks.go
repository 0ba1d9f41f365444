package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Blocks reads blocks, transactions, receipts and values that are in blocks. None of them ever
// changes, so that parts that were read at different moments fit together, and reading
// them needs none of the tables that do change. A part of something long lets a caller read
// all of it in several short steps.
//
// What lies before the horizon is gone for every method, though its file may still be there: the error
// is a *[GoneError].
type Blocks struct {
	r       Reader
	horizon Horizon
	later   bool // than the view in which references to values were found
}

// NewBlocks returns the blocks of a Reader, of which it reads TableBlocks and TableCarried alone. What its
// methods return is copied and stays valid.
func NewBlocks(r Reader, h Horizon) Blocks { return Blocks{r, h, true} }

// BlockHeader returns the header of a height, or ErrNotFound.
func (b Blocks) BlockHeader(c *Chain, height uint64) (BlockHeader, error) {
	found, err := b.find(c, height)
	return found.header, err
}

// Transaction returns the transaction of an id, or ErrNotFound.
func (b Blocks) Transaction(id TxID) (Transaction, error) {
	ledger, index := id.Parts()
	if err := b.horizon.checkID(id); err != nil {
		return Transaction{}, err
	}
	t, found, err := findTransaction(b.r, index)
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

// recordOf returns the record that may have the transaction of an index, and its key, or 0 if there is no record. The
// key of a record is the index of its last transaction, so it is the first record at or after the index.
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
	// Next is the position of the first transaction after the part. It is Header.TxCount at the end of the block.
	Next uint32
}

// BlockPart returns the transactions of a block from a position on. It stops
// after the transaction with which the encodings exceed maxBytes, so that it
// returns at least one unless the position is at the end. It returns ErrNotFound
// where there is no such block.
func (b Blocks) BlockPart(c *Chain, height uint64, from uint32, maxBytes int) (part BlockPart, err error) {
	part.Next = from
	err = b.visitFrom(c, height, from, maxBytes, &part.Header, func(position uint32, t storedTransaction) error {
		x, err := t.decode(height)
		part.Transactions, part.Next = append(part.Transactions, x.clone()), position+1
		return err
	})
	return part, err
}

// LeafHashes returns the header of a block and the leaf hashes of its
// transactions from a position on. It stops like [Blocks.BlockPart].
func (b Blocks) LeafHashes(
	c *Chain, height uint64, from uint32, maxBytes int,
) (header BlockHeader, leaves []Hash, err error) {
	err = b.visitFrom(c, height, from, maxBytes, &header, func(_ uint32, t storedTransaction) error {
		leaf, err := t.leafHash()
		leaves = append(leaves, leaf)
		return err
	})
	return header, leaves, err
}

// visitFrom calls visit for the transactions of a block from a position on,
// until their encodings exceed maxBytes.
func (b Blocks) visitFrom(
	c *Chain, height uint64, from uint32, maxBytes int, header *BlockHeader,
	visit func(position uint32, t storedTransaction) error,
) error {
	block, err := b.find(c, height)
	if err != nil {
		return err
	}
	*header = block.header
	var failed error
	size := 0
	err = block.visit(func(position uint32, t storedTransaction) bool {
		if position < from {
			return true
		}
		failed = visit(position, t)
		size += len(t.encoded)
		return failed == nil && size <= maxBytes
	})
	return firstErr(err, failed)
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

// TransactionScope returns the scope of the transaction of an id, or ErrNotFound. It reads a record of blocks even for
// an id without a transaction, so that the time of an answer does not tell a caller without access whether the
// transaction exists.
func (b Blocks) TransactionScope(id TxID) (scope Scope, err error) {
	ledger, index := id.Parts()
	if err := b.horizon.checkID(id); err != nil {
		return Scope{}, err
	}
	looked, found := false, false
	look := func(from uint64) error {
		record, last, failed := recordOf(b.r, from)
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
	if failed := look(index); failed != nil {
		return Scope{}, failed
	}
	if !looked { // no block is at or after it
		if failed := look(0); failed != nil {
			return Scope{}, failed
		}
	}
	if !found {
		return Scope{}, ErrNotFound
	}
	return scope, nil
}

// VisitScope calls visit for the blocks of a scope from a height on, in order, until it returns false. It needs no
// chain, and reads every record for that: it is for an archive, which has no state. Each block is checked against
// its tx_root, and against the block before it.
func (b Blocks) VisitScope(scope Scope, from uint64, visit func(h BlockHeader, txs []Transaction) bool) error {
	var before *BlockHeader
	var failed error
	err := b.r.Ascend(TableBlocks, nil, func(key, data []byte) bool {
		opened, err := openRecord(key, data)
		if err != nil {
			failed = err
			return false
		}
		more := true
		err = opened.visitBlocks(func(_ place, block *blockRecord) bool {
			if block.header.Scope != scope || block.header.Height < from {
				return true
			}
			var txs []Transaction
			if txs, failed = block.transactions(before); failed == nil {
				more = visit(block.header, txs)
			}
			header := block.header
			before = &header
			return more && failed == nil
		})
		failed = firstErr(failed, err)
		return more && failed == nil
	})
	return firstErr(err, failed)
}

// transactions returns the transactions of a block that follows another, or is the first to be looked at.
func (b *blockRecord) transactions(before *BlockHeader) (txs []Transaction, err error) {
	if before != nil && (b.header.Height != before.Height+1 || b.header.PreviousHash != before.Hash()) {
		return nil, fmt.Errorf("%w: block %d of %s does not follow block %d",
			ErrCorrupt, b.header.Height, b.header.Scope, before.Height)
	}
	leaves, err := b.leaves()
	if err == nil && merkleRoot(leaves) != b.header.TxRoot {
		err = fmt.Errorf("%w: the transactions of block %d of %s do not lead to its root", ErrCorrupt, b.header.Height,
			b.header.Scope)
	}
	if err != nil {
		return nil, err
	}
	var failed error
	err = b.visit(func(_ uint32, t storedTransaction) bool {
		var x Transaction
		x, failed = t.decode(b.header.Height)
		txs = append(txs, x.clone())
		return failed == nil
	})
	return txs, firstErr(err, failed)
}

// Tree is the tree over the blocks of a ledger id, whose first leaf is Origin.
type Tree struct {
	ID     LedgerID
	Start  uint64 // no block of it lies before this ledger index
	Leaves uint64
	Origin Hash
}

// Tree returns the tree of the ledger, with all blocks of the state.
func (v View) Tree() Tree {
	return Tree{v.head.ledgerID(), v.head.epochStart(), v.head.leaves, v.head.origin}
}

// RecordLeaves are the blocks of one record as leaves of the ledger's tree.
type RecordLeaves struct {
	Index  uint64 // of the last transaction: the next record is found after it
	First  uint64 // leaf index of the first block
	Blocks []Hash
}

// VisitLeaves calls visit for the records from a ledger index on until it returns false. The blocks of a record must
// have adjacent leaves. It does not look at the horizon: what lies before it may be there, or not.
func (b Blocks) VisitLeaves(from uint64, visit func(RecordLeaves) bool) error {
	var failed error
	var buffer []byte
	err := b.r.Ascend(TableBlocks, appendIndexKey(nil, from), func(key, data []byte) bool {
		var opened record
		if opened, failed = openRecord(key, data); failed != nil {
			return false
		}
		leaves := RecordLeaves{Index: opened.last}
		err := opened.visitBlocks(func(_ place, block *blockRecord) bool {
			if len(leaves.Blocks) == 0 {
				leaves.First = block.leaf
			}
			if block.leaf != leaves.First+uint64(len(leaves.Blocks)) {
				failed = fmt.Errorf("block %d of %s is leaf %d of the ledger's tree, not %d", block.header.Height,
					block.header.Scope, block.leaf, leaves.First+uint64(len(leaves.Blocks)))
			}
			buffer = append(append(buffer[:0], headerPrefix), block.encoded...)
			leaves.Blocks = append(leaves.Blocks, sha256.Sum256(buffer))
			return failed == nil
		})
		failed = firstErr(failed, err)
		return failed == nil && visit(leaves)
	})
	return firstErr(err, failed)
}

// TransactionLeaf is where a transaction is in the trees.
type TransactionLeaf struct {
	Data     []byte // of its leaf in the tree of its block
	Position uint32 // of that leaf
	Header   BlockHeader
	Block    uint64 // index of its block's leaf in the tree of the ledger
}

// Leaf returns the leaf of the transaction of an id, or ErrNotFound.
func (b Blocks) Leaf(id TxID) (leaf TransactionLeaf, err error) {
	ledger, index := id.Parts()
	if err := b.horizon.checkID(id); err != nil {
		return leaf, err
	}
	l, found, err := locate(b.r, index)
	if err == nil && (!found || l.stored.ledgerID() != ledger) {
		err = ErrNotFound
	}
	if err != nil {
		return leaf, err
	}
	if _, err := l.stored.verified(); err != nil {
		return leaf, err
	}
	return TransactionLeaf{l.stored.appendLeaf(nil), l.position, l.header, l.block.leaf}, nil
}
