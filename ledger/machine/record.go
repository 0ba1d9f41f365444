package machine

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A record holds the blocks that one log entry, or a piece of one, has
// committed. It stands in TableBlocks under a ledger index at or behind the
// index of each of its transactions, and no other record's key lies between.
//
// A record of version 2 is checked part by part, so that reading one
// transaction costs its own bytes and not those of the others. Every part bears
// a CRC-32C:
//
//   - the head of a transaction: everything but its operations, which is at most
//     some 1,300 bytes. A receipt needs no more.
//   - the operations, in chunks of operationChunk bytes. A value needs the chunks
//     that its operation lies in.
//   - the header of a block.
//
// The rows that lead to a transaction have no checksum. They need none: what a
// damaged row leads to is not the head of the transaction that was asked for,
// and its block is not one of the transaction's scope.
const (
	recordVersion1 = 1 // of level 1: checked as a whole, by the store
	recordVersion  = 2

	operationChunk = 16 << 10 // bytes

	// A row leads from a ledger index to its transaction: u32 where it is stored
	// and u32 where its block begins, both from the beginning of the record. An
	// index without a transaction has noRow in both.
	rowSize = 8
	noRow   = 1<<32 - 1

	recordStart = 1 + 8 // the version and the first ledger index
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// SelfChecked tells whether the parts of a stored value have checksums of their
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
	last  uint64 // the ledger index in its key
	first uint64 // version 2: the ledger index of the first row
	rows  []byte // version 2
}

// openRecord checks what can be checked without reading the blocks.
func openRecord(key, data []byte) (r record, err error) {
	d := decoder{rest: data}
	switch d.octet() {
	case recordVersion1:
		if len(key) != 8 {
			return r, fmt.Errorf("%w: record of blocks under a key of %d bytes", ErrCorrupt, len(key))
		}
		return record{data: data, last: binary.BigEndian.Uint64(key)}, nil
	case recordVersion:
	default:
		return r, fmt.Errorf("%w: record of blocks of unknown version", ErrCorrupt)
	}
	first := d.uint64()
	if len(key) != 8 || len(d.rest) < 4 {
		return r, fmt.Errorf("%w: record of blocks does not decode", ErrCorrupt)
	}
	body := len(data) - 4
	rows := uint64(binary.BigEndian.Uint32(data[body:]))
	if rows == 0 || rows > uint64(body-recordStart)/rowSize || binary.BigEndian.Uint64(key) != first+rows-1 {
		return r, fmt.Errorf("%w: record of blocks under another key", ErrCorrupt)
	}
	at := body - int(rows)*rowSize
	return record{data: data[:at], last: first + rows - 1, first: first, rows: data[at:body]}, nil
}

// count returns how many transactions the rows lead to.
func (r *record) count() (n uint64, ok bool) {
	if r.rows == nil {
		return tableRows(r.data)
	}
	for rows := r.rows; len(rows) > 0; rows = rows[rowSize:] {
		if binary.BigEndian.Uint64(rows) != 1<<64-1 { // noRow twice
			n++
		}
	}
	return n, true
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
	if r.rows == nil {
		b, position, t, found, err := lookupVersion1(r.data, index)
		return located{t, b.header, position, b}, found, err
	}
	if index < r.first {
		return l, false, nil // between two records: the index has no transaction
	}
	row := r.rows[(index-r.first)*rowSize:]
	at, blockAt := binary.BigEndian.Uint32(row), binary.BigEndian.Uint32(row[4:])
	if at == noRow && blockAt == noRow {
		return l, false, nil
	}
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

// blockAt returns the block that begins at an offset.
func (r *record) blockAt(offset uint32) (blockRecord, error) {
	d := decoder{rest: r.data}
	d.take(uint64(offset))
	b := d.block()
	if d.bad {
		return blockRecord{}, fmt.Errorf("%w: header of a block in the record that ends at ledger index %d",
			ErrCorrupt, r.last)
	}
	return b, nil
}

// blockAtPlace returns the block that the table of heights has a place for.
func (r *record) blockAtPlace(place uint64) (b blockRecord, err error) {
	if r.rows != nil {
		if place > noRow {
			place = noRow
		}
		return r.blockAt(uint32(place))
	}
	found := false
	err = r.visitBlocks(func(at uint64, candidate *blockRecord) bool {
		b, found = *candidate, at == place
		return !found
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: no block %d in the record that ends at ledger index %d", ErrCorrupt, place, r.last)
	}
	return b, err
}

// visitBlocks calls f for the blocks of the record, in their order, until it
// returns false. Place is what the table of heights has for the block.
func (r *record) visitBlocks(f func(place uint64, b *blockRecord) bool) error {
	if r.rows == nil {
		return visitBlocksVersion1(r.data, f)
	}
	d := decoder{rest: r.data}
	d.take(recordStart)
	for range d.uvarint() {
		offset := uint64(len(r.data) - len(d.rest))
		b := d.block()
		if d.bad {
			break
		}
		if !f(offset, &b) {
			return nil
		}
	}
	return d.done("record of blocks")
}

// blockRecord is one block inside a record.
type blockRecord struct {
	header   BlockHeader
	body     []byte // the stored transactions
	version1 bool
}

// block reads a block of version 2.
func (d *decoder) block() blockRecord {
	sum := d.uint32()
	checked := d.rest
	header := d.bytes()
	size := d.uint32()
	if d.bad || checksum(checked[:len(checked)-len(d.rest)]) != sum {
		d.fail()
		return blockRecord{}
	}
	inner := decoder{rest: header}
	b := blockRecord{header: inner.header(), body: d.take(uint64(size))}
	if inner.bad || len(inner.rest) != 0 {
		d.fail()
	}
	return b
}

// appendBlock appends a block of version 2.
func appendBlock(dst, header, body []byte) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = appendBytes(dst, header)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	binary.BigEndian.PutUint32(dst[at:], checksum(dst[at+4:]))
	return append(dst, body...)
}

// visit calls f for the transactions in order until f returns false.
func (b *blockRecord) visit(f func(position uint32, t storedTransaction) bool) error {
	d := decoder{rest: b.body}
	for position := range b.header.TxCount {
		var t storedTransaction
		if b.version1 {
			t = d.storedVersion1()
			t.position = position
		} else {
			t = d.storedTransaction()
		}
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
		encoded, err := t.verified()
		if failed = err; err != nil {
			return false
		}
		leaves = append(leaves, LeafHash(encoded))
		return true
	})
	return leaves, firstErr(err, failed)
}

// storedTransaction is a transaction in a block's record.
type storedTransaction struct {
	encoded  []byte // the leaf
	head     int    // how many bytes of encoded come before the operations, their number included; 0: not known
	sums     []byte // version 2: a checksum for each chunk of the operations
	changed  []byte // nil: every operation changed something; else a bitmap
	position uint32 // in its block
}

// appendStored appends a transaction as a record of version 2 has it. How many
// operations changed something is beside the leaf, because a reader who
// recomputes the leaf from a Transaction does not know it.
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

// storedTransaction reads a transaction of version 2. Its head is checked, its
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

// storedVersion1 reads a transaction of version 1.
func (d *decoder) storedVersion1() storedTransaction {
	return storedTransaction{encoded: d.bytes(), changed: d.bytes()}
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

// check checks the operations between two offsets. Those of version 1 were
// checked with their record.
func (t *storedTransaction) check(from, to int) error {
	if t.sums == nil {
		return nil
	}
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
// and check tells whether it is sound.
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
