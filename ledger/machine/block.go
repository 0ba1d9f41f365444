package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sort"
)

const headerVersion = 1

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

// Encode returns the canonical encoding.
func (h *BlockHeader) Encode() []byte { return h.append(nil) }

// DecodeHeader reads what [BlockHeader.Encode] returns.
func DecodeHeader(b []byte) (BlockHeader, error) {
	d := decoder{rest: b}
	h := d.header()
	return h, d.done("block header")
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

// blockBuilder collects what is committed in one scope until the blocks are
// closed.
type blockBuilder struct {
	scope    Scope
	scopeKey []byte
	chain    chainHead // below the block being built
	body     []byte
	leaves   []Hash
	// Where the block and its body begin in the record, once it is written.
	blockOffset, bodyOffset int
}

// pendingTx finds a transaction that is in no closed block yet.
type pendingTx struct {
	index  uint64
	block  *blockBuilder
	offset int // in the body
}

// addTransaction appends the transaction in m.transaction, which the body copies. head is the number of bytes before
// its operations, including their count.
func (m *Machine) addTransaction(b *blockBuilder, index uint64, head int, changed []byte) (Hash, uint32) {
	t := storedTransaction{encoded: m.transaction, head: head, changed: changed, position: uint32(len(b.leaves))}
	m.leaf = t.appendLeaf(append(m.leaf[:0], leafPrefix))
	leaf := Hash(sha256.Sum256(m.leaf))
	m.pending = append(m.pending, pendingTx{index, b, len(b.body)})
	before := len(b.body)
	b.body = appendStored(b.body, t)
	m.gathered += len(b.body) - before
	m.head.retention.bytes += uint64(len(t.encoded) - t.head)
	b.leaves = append(b.leaves, leaf)
	return leaf, t.position
}

// builder returns the open block of a scope.
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
	if err := b.chain.read(tx, scopeKey); err != nil {
		return nil, err
	}
	m.building[string(scopeKey)] = b
	m.blocks = append(m.blocks, b)
	return b, nil
}

// newBuilder returns an empty builder that reuses the buffers of an earlier
// one, because they are what grows most while an entry is applied.
func (m *Machine) newBuilder() *blockBuilder {
	if n := len(m.spare); n > 0 {
		b := m.spare[n-1]
		m.spare = m.spare[:n-1]
		b.body, b.leaves = b.body[:0], b.leaves[:0]
		return b
	}
	return new(blockBuilder)
}

// recycle takes the builders of closed blocks back, a bounded number of them.
func (m *Machine) recycle() {
	const maxSpare, maxSpareBytes = 64, 4 << 20
	room := maxSpareBytes
	for _, b := range m.spare {
		room -= cap(b.body)
	}
	for _, b := range m.blocks {
		if cap(b.body) > maxBuffer { // as in trim
			continue
		}
		if room -= cap(b.body); room < 0 || len(m.spare) == maxSpare {
			break
		}
		m.spare = append(m.spare, b)
	}
	clear(m.blocks)
	clear(m.building)
	clear(m.pending)
	m.blocks, m.pending, m.gathered = m.blocks[:0], m.pending[:0], 0
}

// findPending looks for a transaction that is in no closed block yet, because a retry
// may stand in the same entry as the write that it repeats.
func (m *Machine) findPending(index uint64) (t storedTransaction, height uint64, found bool) {
	i := sort.Search(len(m.pending), func(i int) bool { return m.pending[i].index >= index })
	if i == len(m.pending) || m.pending[i].index != index {
		return t, 0, false
	}
	p := &m.pending[i]
	d := decoder{rest: p.block.body[p.offset:]}
	return d.storedTransaction(), p.block.chain.height + 1, true
}

// maxPiece is how many bytes of transactions are gathered before their blocks
// are closed, whatever the entry still does, so that no record grows much beyond it.
const maxPiece = 1 << 20

// closeLongBlocks closes the blocks that are being built once they are long.
func (m *Machine) closeLongBlocks(tx Tx) error {
	if m.gathered <= maxPiece {
		return nil
	}
	return m.closeBlocks(tx)
}

// closeBlocks writes the blocks that are being built, in one record.
func (m *Machine) closeBlocks(tx Tx) error {
	if len(m.blocks) == 0 {
		return nil
	}
	if err := m.writeRecord(tx); err != nil {
		return err
	}
	for _, b := range m.blocks {
		m.committed = append(m.committed, b.scope)
	}
	m.recycle()
	return nil
}

// writeRecord stores the blocks under the index of their last transaction.
func (m *Machine) writeRecord(tx Tx) error {
	m.appendRecord()
	for _, b := range m.blocks {
		m.scratch = b.chain.append(m.scratch[:0])
		if err := tx.Put(TableScopes, b.scopeKey, m.scratch); err != nil {
			return err
		}
	}
	return tx.Put(TableBlocks, appendIndexKey(nil, m.pending[len(m.pending)-1].index), m.record)
}

// appendRecord encodes the blocks as a record in m.record, and extends the chain of each scope by its block.
func (m *Machine) appendRecord() {
	first, last := m.pending[0].index, m.pending[len(m.pending)-1].index
	record := binary.BigEndian.AppendUint64(append(m.record[:0], recordVersion), first)
	record = binary.AppendUvarint(record, uint64(len(m.blocks)))
	for _, b := range m.blocks {
		header, hash := m.sealHeader(b)
		b.blockOffset = len(record)
		record = appendBlock(record, header, m.head.leaves, first, b.chain.links(), b.body)
		m.head.leaves++
		b.bodyOffset = len(record) - len(b.body)
		b.chain.add(hash, place{last, uint32(b.blockOffset)})
	}
	rows, next := uint32(0), first
	for i := range m.pending { // in the order of their indexes
		p := &m.pending[i]
		for ; next < p.index; next++ {
			record = binary.BigEndian.AppendUint64(record, 1<<64-1) // noRow twice
			rows++
		}
		record = binary.BigEndian.AppendUint32(record, uint32(p.block.bodyOffset+p.offset))
		record = binary.BigEndian.AppendUint32(record, uint32(p.block.blockOffset))
		next++
		rows++
	}
	m.record = binary.BigEndian.AppendUint32(record, rows)
}

// sealHeader returns the encoded header of a block that gets no more
// transactions, valid until the next call, and its hash.
func (m *Machine) sealHeader(b *blockBuilder) (encoded []byte, hash Hash) {
	header := BlockHeader{
		Scope: b.scope, Height: b.chain.height + 1, PreviousHash: b.chain.hash, TxCount: uint32(len(b.leaves)),
		CommittedAt: m.head.time,
	}
	header.TxRoot = merkleRoot(b.leaves)
	m.scratch = header.append(append(m.scratch[:0], headerPrefix))
	return m.scratch[1:], sha256.Sum256(m.scratch)
}

// CommittedScopes calls visit for the scopes in which the last Apply closed a
// block, for some more than once.
func (m *Machine) CommittedScopes(visit func(Scope)) {
	for _, s := range m.committed {
		visit(s)
	}
}
