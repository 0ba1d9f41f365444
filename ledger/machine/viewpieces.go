package machine

import (
	"bytes"
	"fmt"
)

// The reads in this file return a part of something long, so that a caller can
// read all of it in several short Views: nothing is applied while a View lasts.
// Blocks never change, so parts that were read in different Views fit together.
// What does change (the keys of a listing, the window of a stream) is read in one
// View, without the values and receipts, which are in blocks.

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

// ReceiptIndexes returns the ledger indexes of the receipts of a stream that are
// in the window, newest first, at most limit, of sequences lower than below; 0
// means all. [View.ReceiptAt] reads the receipts themselves, in any later View.
func (v View) ReceiptIndexes(scope Scope, clientID string, below uint64, limit int) ([]uint64, error) {
	s, found, err := v.stream(scope, clientID)
	if err != nil || !found {
		return nil, err
	}
	var indexes []uint64
	for i := range s.visible(v.head.config.ReceiptWindow) {
		if len(indexes) == limit {
			break
		}
		if below == 0 || s.last-i < below {
			indexes = append(indexes, s.window.slot(i).index)
		}
	}
	return indexes, nil
}

// ReceiptAt returns the receipt of the transaction that took an index.
func (v View) ReceiptAt(index uint64) (Receipt, error) {
	l, found, err := locate(v.r, index)
	if err != nil {
		return Receipt{}, err
	}
	if !found {
		return Receipt{}, fmt.Errorf("%w: no receipt at ledger index %d", ErrCorrupt, index)
	}
	return l.stored.receipt(l.header.Height)
}

// EntityRef is an entity of which the value may still have to be read, with
// [View.ReadValue].
type EntityRef struct {
	Entity

	record  entity // with inBlock, if the value has not been read
	missing bool
}

// VisitEntityRefs is [View.VisitEntities] without the values that are in blocks:
// how long it takes depends on the number of the entities alone, and on the bytes
// of the values that it does have.
func (v View) VisitEntityRefs(scope Scope, prefix, after string, visit func(EntityRef) bool) (resume string, err error) {
	scopeKey := appendScopeKey(nil, scope)
	from := append(bytes.Clone(scopeKey), prefix...)
	var afterKey []byte
	if after != "" {
		afterKey = append(bytes.Clone(scopeKey), after...)
	}
	expired := 0
	err = v.scan(TableEntities, from, afterKey, func(k, value []byte) (bool, error) {
		e, err := decodeEntity(value)
		if err != nil {
			return false, err
		}
		key := string(k[len(scopeKey):])
		if v.head.entityExpired(&e) {
			if expired++; expired == maxExpiredInPiece {
				resume = key
			}
			return expired < maxExpiredInPiece, nil
		}
		ref := EntityRef{Entity: Entity{Key: key, Version: e.version, ExpiresAt: e.expiresAt}}
		if e.inBlock != 0 {
			ref.record, ref.missing = e, true
		} else {
			ref.Value = bytes.Clone(e.value)
		}
		return visit(ref), nil
	})
	return resume, err
}

// maxExpiredInPiece bounds how many expired entities one VisitEntityRefs steps
// over, which takes some 0.25 µs for each.
const maxExpiredInPiece = 2_000

// ReadValue reads the value of an entity unless it is there. It may run in a
// later View than the one that the entity is from.
func (v View) ReadValue(ref *EntityRef) error {
	if !ref.missing {
		return nil
	}
	found, err := (&valueReader{r: v.r}).entity(&ref.record, ref.Key)
	ref.Entity, ref.missing = found, err != nil
	return err
}
