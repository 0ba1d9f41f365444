package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A record holds the blocks that one log entry, or a piece of one, has
// committed. Its key in TableBlocks is the ledger index of its last transaction.
//
// Its parts have checksums (CRC-32C), so that reading a transaction does not read the others:
//
//   - the head of a transaction: everything but its operations, which is at most
//     some 1,300 bytes. A receipt needs no more.
//   - the operations, in chunks of operationChunk bytes. A value needs the chunks
//     of its operation.
//   - the header of a block, with its leaf index and the places of earlier blocks of its scope.
//
// The rows that lead to a transaction have no checksum. They need none: what a
// damaged row leads to is not the head of the transaction that was asked for,
// and its block is not one of the transaction's scope.
const (
	recordVersion = 1

	operationChunk = 16 << 10 // bytes

	// A row leads from a ledger index to its transaction: u32 where it is stored
	// and u32 where its block begins, both from the beginning of the record. There is one
	// for each index from the first to the last; that of an index without a transaction
	// has noRow in both.
	rowSize = 8
	noRow   = 1<<32 - 1

	recordStart = 1 + 8 // the version and the first ledger index
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// SelfChecked reports whether the parts of a stored value have checksums of their
// own, so that a store need not check the whole when it hands the value out.
func SelfChecked(table Table, value []byte) bool {
	return table == TableBlocks && len(value) > 0 && value[0] == recordVersion
}

// CheckKey returns an error unless a value that is SelfChecked belongs to its
// key. It costs the same however long the value is.
func CheckKey(key, value []byte) error {
	_, err := openRecord(key, value)
	return err
}

// record is a record of blocks that has been opened for reading.
type record struct {
	data  []byte
	last  uint64 // the ledger index in its key, of the last row
	first uint64 // the ledger index of the first row
	rows  []byte
}

// openRecord checks what can be checked without reading the blocks.
func openRecord(key, data []byte) (r record, err error) {
	d := decoder{rest: data}
	if err := d.formatVersion(recordVersion, "record of blocks"); err != nil {
		return r, err
	}
	first := d.uint64()
	if len(key) != 8 || len(d.rest) < 4 {
		return r, fmt.Errorf("%w: record of blocks does not decode", ErrCorrupt)
	}
	body := len(data) - 4
	rows := uint64(binary.BigEndian.Uint32(data[body:]))
	if rows == 0 || rows > uint64(body-recordStart)/rowSize {
		return r, fmt.Errorf("%w: record of blocks does not decode", ErrCorrupt)
	}
	at := body - int(rows)*rowSize
	r = record{data: data[:at], last: first + rows - 1, first: first, rows: data[at:body]}
	if binary.BigEndian.Uint64(key) != r.last {
		return r, fmt.Errorf("%w: record of blocks under another key", ErrCorrupt)
	}
	return r, nil
}

// count returns how many transactions the rows lead to.
func (r *record) count() (n uint64) {
	for rows := r.rows; len(rows) > 0; rows = rows[rowSize:] {
		if binary.BigEndian.Uint64(rows) != 1<<64-1 { // noRow twice
			n++
		}
	}
	return n
}

// located is a transaction in its record.
type located struct {
	stored   storedTransaction
	header   BlockHeader
	position uint32
	block    blockRecord
}

// find returns the transaction that took an index, if there is one.
func (r *record) find(index uint64) (l located, found bool, err error) {
	row := r.row(index)
	if row == nil {
		return l, false, nil
	}
	at, blockAt := binary.BigEndian.Uint32(row), binary.BigEndian.Uint32(row[4:])
	d := decoder{rest: r.data}
	d.take(uint64(at))
	l.stored = d.storedTransaction()
	if d.bad || l.stored.index() != index {
		return l, false, fmt.Errorf("%w: transaction at ledger index %d", ErrCorrupt, index)
	}
	if l.block, err = r.blockAt(blockAt); err != nil {
		return l, false, err
	}
	l.header, l.position = l.block.header, l.stored.position
	if scope, err := l.stored.scope(); err != nil || scope != l.header.Scope || l.position >= l.header.TxCount {
		return l, false, fmt.Errorf("%w: block of the transaction at ledger index %d", ErrCorrupt, index)
	}
	return l, true, nil
}

// row returns the row of an index up to the last one: the offsets of its transaction and of its block. It is nil for an
// index without a transaction.
func (r *record) row(index uint64) []byte {
	if index < r.first {
		return nil // between two records
	}
	row := r.rows[(index-r.first)*rowSize:]
	if binary.BigEndian.Uint64(row) == 1<<64-1 { // noRow twice
		return nil
	}
	return row
}

// blockAt returns the block that begins at an offset.
func (r *record) blockAt(offset uint32) (blockRecord, error) {
	d := decoder{rest: r.data}
	d.take(uint64(offset))
	b := d.block(r.first)
	if d.bad {
		return blockRecord{}, fmt.Errorf("%w: header of a block in the record that ends at ledger index %d",
			ErrCorrupt, r.last)
	}
	return b, nil
}

// visitBlocks calls f for the blocks of the record, in their order, until it
// returns false.
func (r *record) visitBlocks(f func(p place, b *blockRecord) bool) error {
	d := decoder{rest: r.data}
	d.take(recordStart)
	for range d.uvarint() {
		p := place{r.last, uint32(len(r.data) - len(d.rest))}
		b := d.block(r.first)
		if d.bad {
			break
		}
		if !f(p, &b) {
			return nil
		}
	}
	return d.done("record of blocks")
}

// blockRecord is one block inside a record.
type blockRecord struct {
	header  BlockHeader
	encoded []byte // the header
	leaf    uint64 // its index in the ledger's tree of blocks
	body    []byte // the stored transactions

	first uint64 // the ledger index of the first row of its record
	links []byte // encoded places, relative to first
}

// places returns the places of the blocks below that this one leads to.
func (b *blockRecord) places() (places []place) {
	d := decoder{rest: b.links}
	d.places(b.first, b.header.Height, func(p place) { places = append(places, p) })
	return places
}

// block reads a block of a record with its first ledger index.
func (d *decoder) block(first uint64) blockRecord {
	sum := d.uint32()
	checked := d.rest
	encoded := d.bytes()
	inner := decoder{rest: encoded}
	b := blockRecord{header: inner.header(), encoded: encoded, leaf: d.uvarint(), first: first}
	links := d.rest
	if inner.bad || len(inner.rest) != 0 {
		d.fail()
	}
	d.places(first, b.header.Height, func(place) {})
	b.links = links[:len(links)-len(d.rest)]
	size := d.uint32()
	if d.bad || checksum(checked[:len(checked)-len(d.rest)]) != sum {
		d.fail()
		return blockRecord{}
	}
	b.body = d.take(uint64(size))
	return b
}

// appendBlock appends a block of a record with its first ledger index.
func appendBlock(dst, header []byte, leaf, first uint64, links []place, body []byte) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.AppendUvarint(appendBytes(dst, header), leaf)
	dst = appendPlaces(dst, first, links)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	binary.BigEndian.PutUint32(dst[at:], checksum(dst[at+4:]))
	return append(dst, body...)
}

// visit calls f for the transactions in order until f returns false.
func (b *blockRecord) visit(f func(position uint32, t storedTransaction) bool) error {
	d := decoder{rest: b.body}
	for position := range b.header.TxCount {
		t := d.storedTransaction()
		if d.bad || t.position != position {
			d.fail()
			break
		}
		if !f(position, t) {
			return nil
		}
	}
	return d.done("record of blocks")
}

// leaves returns the leaf hashes of the block.
func (b *blockRecord) leaves() ([]Hash, error) {
	leaves := make([]Hash, 0, min(b.header.TxCount, 1<<16))
	var failed error
	err := b.visit(func(_ uint32, t storedTransaction) bool {
		var leaf Hash
		leaf, failed = t.leafHash()
		leaves = append(leaves, leaf)
		return failed == nil
	})
	return leaves, firstErr(err, failed)
}

// storedTransaction is a transaction in a block's record.
type storedTransaction struct {
	encoded  []byte
	head     int    // how many bytes of encoded come before the operations, their number included
	sums     []byte // a checksum for each chunk of the operations
	changed  []byte // nil: every operation changed something; else a bitmap
	position uint32 // in its block
}

// appendLeaf appends what the transaction's leaf hash covers: the hash of the operations in their place, so that a
// receipt of large ones is small, and what they did.
func (t *storedTransaction) appendLeaf(dst []byte) []byte {
	operations := sha256.Sum256(t.encoded[t.head:])
	dst = append(append(dst, t.encoded[:t.head]...), operations[:]...)
	return appendBytes(dst, t.changed)
}

// leafHash returns the leaf hash of a transaction once all of it has been checked.
func (t *storedTransaction) leafHash() (Hash, error) {
	_, err := t.verified()
	return LeafHash(t.appendLeaf(nil)), err
}

// appendStored appends a transaction as a record has it.
func appendStored(dst []byte, t storedTransaction) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.AppendUvarint(dst, uint64(t.position))
	dst = appendBytes(dst, t.changed)
	operations := t.encoded[t.head:]
	dst = binary.AppendUvarint(dst, uint64(len(operations)))
	for chunk := range chunks(operations) {
		dst = binary.BigEndian.AppendUint32(dst, checksum(chunkOf(operations, chunk)))
	}
	dst = appendBytes(dst, t.encoded[:t.head])
	binary.BigEndian.PutUint32(dst[at:], checksum(dst[at+4:]))
	return append(dst, operations...)
}

// chunks returns how many chunks the operations are checked in.
func chunks(operations []byte) int { return (len(operations) + operationChunk - 1) / operationChunk }

func chunkOf(operations []byte, chunk int) []byte {
	return operations[chunk*operationChunk : min((chunk+1)*operationChunk, len(operations))]
}

// storedTransaction reads a transaction. Its head is checked, its
// operations are not.
func (d *decoder) storedTransaction() (t storedTransaction) {
	sum := d.uint32()
	checked := d.rest
	position, changed, operations := d.uvarint(), d.bytes(), d.uvarint()
	if operations > uint64(len(d.rest)) || position > noRow {
		d.fail()
	}
	t.sums = d.take((operations + operationChunk - 1) / operationChunk * 4)
	size := d.uvarint()
	t.encoded = d.take(size + operations)
	if d.bad || size > uint64(len(t.encoded)) || size < indexOffset+8 {
		d.fail()
		return storedTransaction{}
	}
	head := len(checked) - len(d.rest) - int(operations)
	if checksum(checked[:head]) != sum {
		d.fail()
		return storedTransaction{}
	}
	t.head, t.changed, t.position = int(size), changed, uint32(position)
	return t
}

func (t *storedTransaction) index() uint64 {
	if len(t.encoded) < indexOffset+8 {
		return 0
	}
	return binary.BigEndian.Uint64(t.encoded[indexOffset:])
}

func (t *storedTransaction) ledgerID() LedgerID {
	if len(t.encoded) < indexOffset {
		return 0
	}
	return LedgerID(binary.BigEndian.Uint64(t.encoded[1:]))
}

func (t *storedTransaction) scope() (Scope, error) {
	d := decoder{rest: t.encoded}
	d.take(indexOffset + 8 + 8)
	s := Scope{string(d.bytes()), string(d.bytes())}
	if d.bad {
		return Scope{}, fmt.Errorf("%w: transaction does not decode", ErrCorrupt)
	}
	return s, nil
}

// verified returns the whole encoding once it has been checked.
func (t *storedTransaction) verified() ([]byte, error) {
	return t.encoded, t.check(0, len(t.encoded)-t.head)
}

// check checks the operations between two offsets.
func (t *storedTransaction) check(from, to int) error {
	operations := t.encoded[t.head:]
	for chunk := from / operationChunk; chunk*operationChunk < to; chunk++ {
		if checksum(chunkOf(operations, chunk)) != binary.BigEndian.Uint32(t.sums[4*chunk:]) {
			return fmt.Errorf("%w: operations of the transaction at ledger index %d", ErrCorrupt, t.index())
		}
	}
	return nil
}

// setAt reads the operation that begins at an offset, which must have set an
// entity. What comes before the value is checked; the value is from there to to,
// and check reports whether it is sound.
func (t *storedTransaction) setAt(offset uint64) (key []byte, from, to int, err error) {
	operations := t.encoded[t.head:]
	d := decoder{}
	if offset < uint64(len(operations)) {
		d.rest = operations[offset:]
	}
	kind := OperationKind(d.octet())
	key = d.bytes()
	size := d.uvarint()
	from = len(operations) - len(d.rest)
	if d.bad || kind != OpSetEntity || size > uint64(len(d.rest)) {
		return nil, 0, 0, fmt.Errorf("%w: ledger index %d sets no entity at offset %d", ErrCorrupt, t.index(), offset)
	}
	return key, from, from + int(size), t.check(int(offset), from)
}
