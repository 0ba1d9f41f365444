package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sort"
)

const (
	transactionVersion = 1
	headerVersion      = 1
	recordVersion      = 1
	// indexOffset is where a transaction's ledger index stands in its encoding:
	// behind the version and the ledger id.
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
	Operations   []Operation
	BlockHeight  uint64
	Position     uint32 // in the block, from 0
	Versions     []uint64
}

// ID returns the transaction's id.
func (t *Transaction) ID() TxID { return NewTxID(t.LedgerID, t.Index) }

// Encode returns the canonical encoding: the leaf of the block's Merkle tree.
// The block's coordinates are no part of it, so that a history has one digest
// however it is cut into log entries.
func (t *Transaction) Encode() []byte {
	return t.append(nil, appendOperations(nil, t.Operations))
}

func (t *Transaction) append(dst, encodedOperations []byte) []byte {
	dst = append(dst, transactionVersion)
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
	return append(dst, encodedOperations...)
}

// appendCommandTransaction is append for a command that is just being applied:
// it copies from the log entry and allocates nothing.
func appendCommandTransaction(dst []byte, h *head, c *writeCommand, created uint64, hash RequestHash) []byte {
	dst = append(dst, transactionVersion)
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
	return append(dst, c.encodedOperations...)
}

// LeafHash returns the RFC 6962 leaf hash of an encoded transaction.
func LeafHash(encoded []byte) Hash {
	h := sha256.New()
	h.Write([]byte{leafPrefix})
	h.Write(encoded)
	return Hash(h.Sum(nil))
}

// storedTransaction is a transaction in a block's record.
type storedTransaction struct {
	encoded []byte // the leaf
	changed []byte // nil: every operation changed something; else a bitmap
}

// appendStored appends a transaction to a block's record. How many operations
// changed something is beside the leaf, because a reader who recomputes the
// leaf from a Transaction does not know it.
func appendStored(dst, encoded, changed []byte) []byte {
	dst = appendBytes(dst, encoded)
	return appendBytes(dst, changed)
}

func (d *decoder) stored() storedTransaction {
	return storedTransaction{encoded: d.bytes(), changed: d.bytes()}
}

func (t storedTransaction) index() uint64 {
	if len(t.encoded) < indexOffset+8 {
		return 0
	}
	return binary.BigEndian.Uint64(t.encoded[indexOffset:])
}

// decode reads a stored transaction. Operations alias the record unless they
// are copied by the caller.
func (t storedTransaction) decode(height uint64, position uint32) (Transaction, error) {
	d := decoder{rest: t.encoded}
	var x Transaction
	d.version(transactionVersion)
	x.LedgerID = LedgerID(d.uint64())
	x.Index = d.uint64()
	x.CommittedAt = d.time()
	x.Scope = Scope{string(d.bytes()), string(d.bytes())}
	x.ClientID = string(d.bytes())
	x.CreatedIndex, x.Session, x.Sequence = d.uvarint(), d.uvarint(), d.uvarint()
	x.Key = d.key()
	copy(x.RequestHash[:], d.take(16))
	x.Actor = string(d.bytes())
	x.Operations = decodeOperations(&d, nil)
	if err := d.done("transaction"); err != nil {
		return Transaction{}, err
	}
	if !validBitmap(t.changed, len(x.Operations)) {
		return Transaction{}, fmt.Errorf("%w: results of transaction %d", ErrCorrupt, x.Index)
	}
	x.Versions = make([]uint64, len(x.Operations))
	for i := range x.Versions {
		if len(t.changed) == 0 || t.changed[i/8]>>(i%8)&1 == 1 {
			x.Versions[i] = x.Index
		}
	}
	x.BlockHeight, x.Position = height, position
	return x, nil
}

// validBitmap tells whether changed is what addTransaction stores for n
// operations: nothing when all of them changed something, otherwise a bit for
// each and none besides.
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

// BlockHeader names one block. The headers of a scope form a hash chain.
type BlockHeader struct {
	Scope        Scope
	Height       uint64 // from 1
	PreviousHash Hash   // zero at height 1
	TxRoot       Hash   // RFC 6962 root of the transactions
	TxCount      uint32
	CommittedAt  int64 // Unix nanoseconds of ledger time
}

// Hash returns SHA-256 over the byte 2 and the header's canonical encoding.
func (h *BlockHeader) Hash() Hash {
	return sha256.Sum256(h.append([]byte{headerPrefix}))
}

func (h *BlockHeader) append(dst []byte) []byte {
	dst = append(dst, headerVersion)
	dst = appendBytes(dst, h.Scope.Organization)
	dst = appendBytes(dst, h.Scope.Vault)
	dst = binary.AppendUvarint(dst, h.Height)
	dst = append(dst, h.PreviousHash[:]...)
	dst = append(dst, h.TxRoot[:]...)
	dst = binary.AppendUvarint(dst, uint64(h.TxCount))
	return appendTime(dst, h.CommittedAt)
}

func (d *decoder) header() BlockHeader {
	d.version(headerVersion)
	h := BlockHeader{Scope: Scope{string(d.bytes()), string(d.bytes())}, Height: d.uvarint()}
	h.PreviousHash, h.TxRoot = d.hash(), d.hash()
	n := d.uvarint()
	if n == 0 || n > 1<<31 {
		d.fail()
	}
	h.TxCount, h.CommittedAt = uint32(n), d.time()
	return h
}

// blockRecord is one block inside the record of a log entry.
type blockRecord struct {
	header BlockHeader
	body   []byte // the stored transactions
}

// visit calls f for the transactions in order until f returns false.
func (b *blockRecord) visit(f func(position uint32, t storedTransaction) bool) error {
	d := decoder{rest: b.body}
	for position := range b.header.TxCount {
		t := d.stored()
		if d.bad {
			break
		}
		if !f(position, t) {
			return nil
		}
	}
	return d.done("block record")
}

// leaves returns the leaf hashes of the block.
func (b *blockRecord) leaves() ([]Hash, error) {
	leaves := make([]Hash, 0, min(b.header.TxCount, 1<<16))
	err := b.visit(func(_ uint32, t storedTransaction) bool {
		leaves = append(leaves, LeafHash(t.encoded))
		return true
	})
	return leaves, err
}

// visitBlocks calls f for the blocks in the record of a log entry until it
// returns false.
func visitBlocks(record []byte, f func(ordinal uint64, b *blockRecord) bool) error {
	d := decoder{rest: record}
	d.version(recordVersion)
	n, transactions := d.uvarint(), uint64(0)
	for ordinal := range n {
		b := d.block()
		if d.bad {
			break
		}
		transactions += uint64(b.header.TxCount)
		if !f(ordinal, &b) {
			return nil
		}
	}
	if len(d.rest) != tableSize(transactions) {
		d.fail()
	} else {
		d.take(uint64(tableSize(transactions)))
	}
	return d.done("block record")
}

func (d *decoder) block() blockRecord {
	inner := decoder{rest: d.bytes()}
	b := blockRecord{header: inner.header(), body: inner.rest}
	if inner.bad {
		d.fail()
	}
	return b
}

// A record ends with a table that finds a transaction by its index without
// walking through the others: for each, in the order of their indexes, the
// offset of its block, its position in it, and its own offset, and then how
// many there are; all of 32 bits. Without it a client that repeats old
// sequences would make the ledger read a whole record for each of them.
const tableRow = 12

func tableSize(transactions uint64) int {
	return int(min(transactions, 1<<31))*tableRow + 4
}

// tableRows reads how many rows the table of a record has.
func tableRows(record []byte) (rows uint64, ok bool) {
	if len(record) < 4 {
		return 0, false
	}
	rows = uint64(binary.BigEndian.Uint32(record[len(record)-4:]))
	return rows, len(record) >= tableSize(rows)
}

// lookup finds the transaction of an index in a record.
func lookup(record []byte, index uint64) (b blockRecord, position uint32, t storedTransaction, found bool, err error) {
	damaged := fmt.Errorf("%w: table of a block record", ErrCorrupt)
	rows, ok := tableRows(record)
	if !ok {
		return b, 0, t, false, damaged
	}
	table := record[len(record)-tableSize(rows):]
	at := func(i int) (d decoder) { // what row i says that the transaction is
		if offset := binary.BigEndian.Uint32(table[i*tableRow+8:]); uint64(offset) < uint64(len(record)) {
			d.rest = record[offset:]
		}
		return d
	}
	i := sort.Search(int(rows), func(i int) bool {
		d := at(i)
		return d.stored().index() >= index
	})
	if i == int(rows) {
		return b, 0, t, false, nil
	}
	d := at(i)
	if t = d.stored(); d.bad || t.index() != index {
		if d.bad {
			err = damaged
		}
		return b, 0, t, false, err
	}
	blockOffset := binary.BigEndian.Uint32(table[i*tableRow:])
	if uint64(blockOffset) >= uint64(len(record)) {
		return b, 0, t, false, damaged
	}
	d = decoder{rest: record[blockOffset:]}
	b, position = d.block(), binary.BigEndian.Uint32(table[i*tableRow+4:])
	if d.bad || position >= b.header.TxCount {
		return b, 0, t, false, damaged
	}
	return b, position, t, true, nil
}

// blockBuilder collects what one log entry commits in one scope.
type blockBuilder struct {
	scope    Scope
	scopeKey []byte
	height   uint64 // of the block being built
	previous Hash
	body     []byte
	leaves   []Hash
	// Where the block and its body begin in the record, once it is written.
	blockOffset, bodyOffset int
}

// pendingTx finds a transaction of the entry that is being applied.
type pendingTx struct {
	index    uint64
	block    *blockBuilder
	position uint32
	offset   int // in the body
}

// addTransaction appends the transaction in m.transaction, which stands behind
// the prefix of a leaf, so that it is hashed where it is. The body copies it.
func (m *Machine) addTransaction(b *blockBuilder, index uint64, changed []byte) (Hash, uint32) {
	leaf, encoded := Hash(sha256.Sum256(m.transaction)), m.transaction[1:]
	position := uint32(len(b.leaves))
	m.pending = append(m.pending, pendingTx{index, b, position, len(b.body)})
	b.body = appendStored(b.body, encoded, changed)
	b.leaves = append(b.leaves, leaf)
	return leaf, position
}

// builder returns the block of the scope in the entry that is being applied.
func (m *Machine) builder(tx Tx, scopeKey []byte) (*blockBuilder, error) {
	if b := m.building[string(scopeKey)]; b != nil {
		return b, nil
	}
	scope, rest, err := splitScope(scopeKey)
	if err != nil || len(rest) != 0 {
		return nil, fmt.Errorf("%w: scope key %x", ErrCorrupt, scopeKey)
	}
	b := m.newBuilder()
	b.scope, b.scopeKey = scope, append(b.scopeKey[:0], scopeKey...)
	b.height, b.previous, err = readChainHead(tx, scopeKey)
	if err != nil {
		return nil, err
	}
	b.height++
	m.building[string(scopeKey)] = b
	m.blocks = append(m.blocks, b)
	return b, nil
}

// newBuilder returns an empty builder that reuses the buffers of one of an
// entry before: they are what grows most while an entry is applied.
func (m *Machine) newBuilder() *blockBuilder {
	if n := len(m.spare); n > 0 {
		b := m.spare[n-1]
		m.spare = m.spare[:n-1]
		b.body, b.leaves = b.body[:0], b.leaves[:0]
		return b
	}
	return new(blockBuilder)
}

// recycle takes the builders of the last entry back, a bounded number of them.
func (m *Machine) recycle() {
	const maxSpare, maxBody = 64, 1 << 20
	for _, b := range m.blocks {
		if len(m.spare) < maxSpare && cap(b.body) <= maxBody {
			m.spare = append(m.spare, b)
		}
	}
	clear(m.blocks)
	clear(m.building)
	clear(m.pending)
	m.blocks, m.pending = m.blocks[:0], m.pending[:0]
}

// findPending looks for a transaction of the entry that is being applied: a
// retry may stand in the same entry as the write that it repeats.
func (m *Machine) findPending(index uint64) (t Transaction, found bool, err error) {
	i := sort.Search(len(m.pending), func(i int) bool { return m.pending[i].index >= index })
	if i == len(m.pending) || m.pending[i].index != index {
		return Transaction{}, false, nil
	}
	p := m.pending[i]
	d := decoder{rest: p.block.body[p.offset:]}
	t, err = d.stored().decode(p.block.height, p.position)
	return t, true, err
}

// finishBlocks writes the blocks of the entry. Their record is stored under
// the last index that the entry took, so that a search for any index of the
// entry ends at it.
func (m *Machine) finishBlocks(tx Tx) error {
	if len(m.blocks) == 0 {
		return nil
	}
	last := m.head.index
	record := binary.AppendUvarint(append(m.record[:0], recordVersion), uint64(len(m.blocks)))
	for ordinal, b := range m.blocks {
		header := BlockHeader{
			Scope: b.scope, Height: b.height, PreviousHash: b.previous, TxCount: uint32(len(b.leaves)),
			CommittedAt: m.head.time,
		}
		header.TxRoot = merkleRoot(b.leaves)
		m.scratch = header.append(append(m.scratch[:0], headerPrefix))
		hash := Hash(sha256.Sum256(m.scratch))
		encoded := m.scratch[1:]
		b.blockOffset = len(record)
		record = binary.AppendUvarint(record, uint64(len(encoded)+len(b.body)))
		b.bodyOffset = len(record) + len(encoded)
		record = append(append(record, encoded...), b.body...)

		key := appendHeightKey(nil, b.scopeKey, b.height)
		value := binary.AppendUvarint(appendIndexKey(nil, last), uint64(ordinal))
		if err := tx.Put(TableHeights, key, value); err != nil {
			return err
		}
		value = append(binary.AppendUvarint(nil, b.height), hash[:]...)
		if err := tx.Put(TableScopes, b.scopeKey, value); err != nil {
			return err
		}
	}
	for _, p := range m.pending { // in the order of their indexes
		record = binary.BigEndian.AppendUint32(record, uint32(p.block.blockOffset))
		record = binary.BigEndian.AppendUint32(record, p.position)
		record = binary.BigEndian.AppendUint32(record, uint32(p.block.bodyOffset+p.offset))
	}
	record = binary.BigEndian.AppendUint32(record, uint32(len(m.pending)))
	m.record = record
	if len(record) > maxRecordBytes {
		return fmt.Errorf("the blocks of one log entry take %d bytes, more than %d", len(record), maxRecordBytes)
	}
	return tx.Put(TableBlocks, appendIndexKey(nil, last), record)
}

// maxRecordBytes keeps offsets within 32 bits and a record within what a store
// takes. A host that keeps its log entries small never comes near.
const maxRecordBytes = 1 << 30

// CommittedScopes calls visit for the scopes in which the last Apply made a
// block.
func (m *Machine) CommittedScopes(visit func(Scope)) {
	for _, b := range m.blocks {
		visit(b.scope)
	}
}

// readChainHead returns the height and hash of the last block of a scope, or
// zeros when there is none.
func readChainHead(r Reader, scopeKey []byte) (uint64, Hash, error) {
	b, err := r.Get(TableScopes, scopeKey)
	if err != nil || b == nil {
		return 0, Hash{}, err
	}
	d := decoder{rest: b}
	height, hash := d.uvarint(), d.hash()
	return height, hash, d.done("chain head")
}
