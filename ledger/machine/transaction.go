package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

const (
	transactionVersion      = 1
	transactionVersionKeyed = 2 // of a keyed write: its identity follows the actor
	// indexOffset is the offset of the ledger index in an encoded transaction: after the version and the ledger id.
	indexOffset = 1 + 8
)

// Transaction is a committed write as a block keeps it.
type Transaction struct {
	LedgerID     LedgerID
	Index        uint64
	CommittedAt  int64 // Unix nanoseconds of ledger time
	Scope        Scope
	ClientID     string // empty for the ledger's own transactions
	CreatedIndex uint64 // of the stream
	Session      uint64
	Sequence     uint64
	Key          Key
	RequestHash  RequestHash
	Actor        string
	Keyed        *KeyedID // of a keyed write, else nil; its scope is the transaction's
	Operations   []Operation
	BlockHeight  uint64
	Position     uint32 // in the block, from 0
	Versions     []uint64
}

// ID returns the transaction's id.
func (t *Transaction) ID() TxID { return NewTxID(t.LedgerID, t.Index) }

// Encode returns the canonical encoding.
// The block's coordinates are no part of it, so that a history has one digest
// however it is cut into log entries.
func (t *Transaction) Encode() []byte {
	return t.append(nil, appendOperations(nil, t.Operations))
}

// Leaf returns the data of the transaction's leaf in the Merkle tree of its block.
func (t *Transaction) Leaf() []byte {
	head := t.append(nil, binary.AppendUvarint(nil, uint64(len(t.Operations))))
	stored := storedTransaction{encoded: t.Encode(), head: len(head), changed: t.Changed()}
	return stored.appendLeaf(nil)
}

// Changed returns which operations have changed something: nil for all of them, else a bit for each, lowest first.
func (t *Transaction) Changed() []byte {
	if !slices.Contains(t.Versions, 0) {
		return nil
	}
	return appendChanged(nil, t.Versions)
}

func appendChanged(dst []byte, versions []uint64) []byte {
	dst = append(dst, make([]byte, (len(versions)+7)/8)...)
	for i, v := range versions {
		if v != 0 {
			dst[i/8] |= 1 << (i % 8)
		}
	}
	return dst
}

func (t *Transaction) append(dst, encodedOperations []byte) []byte {
	if t.Keyed == nil {
		dst = append(dst, transactionVersion)
	} else {
		dst = append(dst, transactionVersionKeyed)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.LedgerID))
	dst = binary.BigEndian.AppendUint64(dst, t.Index)
	dst = appendTime(dst, t.CommittedAt)
	dst = appendBytes(dst, t.Scope.Organization)
	dst = appendBytes(dst, t.Scope.Vault)
	dst = appendBytes(dst, t.ClientID)
	dst = binary.AppendUvarint(dst, t.CreatedIndex)
	dst = binary.AppendUvarint(dst, t.Session)
	dst = binary.AppendUvarint(dst, t.Sequence)
	dst = appendKey(dst, t.Key)
	dst = append(dst, t.RequestHash[:]...)
	dst = appendBytes(dst, t.Actor)
	if k := t.Keyed; k != nil {
		dst = appendBytes(dst, k.Namespace)
		dst = appendBytes(dst, k.Principal)
		dst = append(dst, k.Key[:]...)
	}
	return append(dst, encodedOperations...)
}

// appendCommandTransaction is append for a command that is just being applied. It
// copies from the log entry, so that it allocates nothing.
func appendCommandTransaction(
	dst []byte, h *head, c *writeCommand, keyed *keyedID, created uint64, hash RequestHash,
) []byte {
	if keyed == nil {
		dst = append(dst, transactionVersion)
	} else {
		dst = append(dst, transactionVersionKeyed)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.ledgerID()))
	dst = binary.BigEndian.AppendUint64(dst, h.index)
	dst = appendTime(dst, h.time)
	dst = appendBytes(dst, c.organization)
	dst = appendBytes(dst, c.vault)
	dst = appendBytes(dst, c.clientID)
	dst = binary.AppendUvarint(dst, created)
	dst = binary.AppendUvarint(dst, c.session)
	dst = binary.AppendUvarint(dst, c.sequence)
	dst = appendKey(dst, c.key)
	dst = append(dst, hash[:]...)
	dst = appendBytes(dst, c.actor)
	if keyed != nil {
		dst = appendBytes(dst, keyed.namespace)
		dst = appendBytes(dst, keyed.principal)
		dst = append(dst, keyed.key...)
	}
	return append(dst, c.encodedOperations...)
}

// LeafHash returns the RFC 6962 leaf hash of data.
func LeafHash(data []byte) Hash {
	h := sha256.New()
	h.Write([]byte{leafPrefix})
	h.Write(data)
	return Hash(h.Sum(nil))
}

// decode reads a stored transaction once all of it has been checked. Operations
// alias the record unless they are copied by the caller.
func (t *storedTransaction) decode(height uint64) (Transaction, error) {
	encoded, err := t.verified()
	if err != nil {
		return Transaction{}, err
	}
	d := decoder{rest: encoded}
	x := d.transactionHead()
	x.Operations = decodeOperations(&d, nil)
	if err := d.done("transaction"); err != nil {
		return Transaction{}, err
	}
	x.BlockHeight, x.Position = height, t.position
	x.Versions, err = t.versions(x.Index, len(x.Operations))
	return x, err
}

// decodeHead is decode without the operations and what they did.
func (t *storedTransaction) decodeHead(height uint64) (x Transaction, operations int, err error) {
	d := decoder{rest: t.encoded}
	x = d.transactionHead()
	operations = int(d.operationCount())
	if d.bad {
		return Transaction{}, 0, fmt.Errorf("%w: head of a transaction", ErrCorrupt)
	}
	x.BlockHeight, x.Position = height, t.position
	return x, operations, nil
}

// receipt returns the receipt of a stored transaction of the block at a height.
func (t *storedTransaction) receipt(height uint64) (Receipt, error) {
	x, operations, err := t.decodeHead(height)
	if err != nil {
		return Receipt{}, err
	}
	return t.receiptOf(x, operations)
}

// receiptOf is receipt for a head that has been decoded.
func (t *storedTransaction) receiptOf(x Transaction, operations int) (r Receipt, err error) {
	x.Versions, err = t.versions(x.Index, operations)
	return x.receipt(), err
}

// transactionHead reads what stands before the operations.
func (d *decoder) transactionHead() (x Transaction) {
	version := d.octet()
	if version != transactionVersion && version != transactionVersionKeyed {
		d.fail()
	}
	x.LedgerID = LedgerID(d.uint64())
	x.Index = d.uint64()
	x.CommittedAt = d.time()
	x.Scope = Scope{string(d.bytes()), string(d.bytes())}
	x.ClientID = string(d.bytes())
	x.CreatedIndex, x.Session, x.Sequence = d.uvarint(), d.uvarint(), d.uvarint()
	x.Key = d.key()
	copy(x.RequestHash[:], d.take(uint64(len(x.RequestHash))))
	x.Actor = string(d.bytes())
	if version == transactionVersionKeyed {
		x.Keyed = &KeyedID{Scope: x.Scope, Namespace: string(d.bytes()), Principal: string(d.bytes()), Key: d.hash()}
	}
	return x
}

// versions returns the version that each operation gave, 0 where it changed
// nothing.
func (t *storedTransaction) versions(index uint64, operations int) ([]uint64, error) {
	if !validBitmap(t.changed, operations) {
		return nil, fmt.Errorf("%w: results of transaction %d", ErrCorrupt, index)
	}
	versions := make([]uint64, operations)
	for i := range versions {
		if len(t.changed) == 0 || t.changed[i/8]>>(i%8)&1 == 1 {
			versions[i] = index
		}
	}
	return versions, nil
}

// validBitmap reports whether changed is what addTransaction stores for n operations: nothing if all of them changed
// something, otherwise one bit for each.
func validBitmap(changed []byte, n int) bool {
	if len(changed) == 0 {
		return true
	}
	ones := 0
	for _, b := range changed {
		ones += bits.OnesCount8(b)
	}
	return len(changed) == (n+7)/8 && ones < n && (n%8 == 0 || changed[len(changed)-1]>>(n%8) == 0)
}

func (t *Transaction) receipt() Receipt {
	return Receipt{
		LedgerID: t.LedgerID, Sequence: t.Sequence, Session: t.Session, Index: t.Index,
		BlockHeight: t.BlockHeight, Position: t.Position, CommittedAt: t.CommittedAt, Actor: t.Actor,
		RequestHash: t.RequestHash, Key: t.Key, Versions: t.Versions,
	}
}

// Leaf is what the data of a transaction's leaf say.
type Leaf struct {
	Transaction      // without its operations
	Payload     Hash // SHA-256 of them
}

// DecodeLeaf reads what [Transaction.Leaf] returns.
func DecodeLeaf(data []byte) (l Leaf, err error) {
	d := decoder{rest: data}
	l.Transaction = d.transactionHead()
	operations := d.operationCount()
	l.Payload = d.hash()
	stored := storedTransaction{changed: d.bytes()}
	if err := d.done("leaf of a transaction"); err != nil {
		return Leaf{}, err
	}
	l.Versions, err = stored.versions(l.Index, int(operations))
	return l, err
}
