package machine

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// What follows reads and writes the records of blocks of ledgers of level 1. A
// record of version 1 has one checksum for all of it, which is the store's, so
// that looking up one transaction costs the bytes of all. It is written only
// when a log entry of level 1 is replayed.

// visitBlocksVersion1 calls f for the blocks in a record until it returns false.
// Place is the number of the block.
func visitBlocksVersion1(record []byte, f func(place uint64, b *blockRecord) bool) error {
	d := decoder{rest: record}
	d.version(recordVersion1)
	n, transactions := d.uvarint(), uint64(0)
	for place := range n {
		b := d.blockVersion1()
		if d.bad {
			break
		}
		transactions += uint64(b.header.TxCount)
		if !f(place, &b) {
			return nil
		}
	}
	if len(d.rest) != tableSize(transactions) {
		d.fail()
	} else {
		d.take(uint64(tableSize(transactions)))
	}
	return d.done("record of blocks")
}

func (d *decoder) blockVersion1() blockRecord {
	inner := decoder{rest: d.bytes()}
	b := blockRecord{header: inner.header(), body: inner.rest, version1: true}
	if inner.bad {
		d.fail()
	}
	return b
}

// A record of version 1 ends with a table: for each transaction, in the order
// of their indexes, the offset of its block, its position in it, and its own
// offset, and then how many there are; all of 32 bits.
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

// lookupVersion1 finds the transaction of an index in a record.
func lookupVersion1(
	record []byte, index uint64,
) (b blockRecord, position uint32, t storedTransaction, found bool, err error) {
	damaged := fmt.Errorf("%w: table of a record of blocks", ErrCorrupt)
	rows, ok := tableRows(record)
	if !ok {
		return b, 0, t, false, damaged
	}
	table := record[len(record)-tableSize(rows):]
	at := func(i int) (t storedTransaction, d decoder) { // what row i leads to
		if offset := binary.BigEndian.Uint32(table[i*tableRow+8:]); uint64(offset) < uint64(len(record)) {
			d.rest = record[offset:]
		}
		t = d.storedVersion1()
		return t, d
	}
	i := sort.Search(int(rows), func(i int) bool {
		t, _ := at(i)
		return t.index() >= index
	})
	if i == int(rows) {
		return b, 0, t, false, nil
	}
	t, d := at(i)
	if d.bad || t.index() != index {
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
	b, position = d.blockVersion1(), binary.BigEndian.Uint32(table[i*tableRow+4:])
	if d.bad || position >= b.header.TxCount {
		return b, 0, t, false, damaged
	}
	t.position = position
	return b, position, t, true, nil
}

func appendStoredVersion1(dst []byte, t storedTransaction) []byte {
	dst = appendBytes(dst, t.encoded)
	return appendBytes(dst, t.changed)
}

// writeRecordVersion1 stores the blocks of an entry under the last index that
// the entry took.
func (m *Machine) writeRecordVersion1(tx Tx) error {
	last := m.head.index
	record := binary.AppendUvarint(append(m.record[:0], recordVersion1), uint64(len(m.blocks)))
	for place, b := range m.blocks {
		header, hash := m.sealHeader(b)
		b.blockOffset = len(record)
		record = binary.AppendUvarint(record, uint64(len(header)+len(b.body)))
		b.bodyOffset = len(record) + len(header)
		record = append(append(record, header...), b.body...)
		if err := m.putBlock(tx, b, hash, last, uint64(place)); err != nil {
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
