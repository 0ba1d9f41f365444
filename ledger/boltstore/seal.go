package boltstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/seqledger/seqledger/ledger/machine"
)

// sumSize is what the checksum adds to every value in the file, in bytes.
const sumSize = 4

// controlTable is the number that the store's own records are sealed under. It
// must never be given to a table, otherwise a record of one bucket could pass
// for one of the other.
const controlTable machine.Table = 255

// maxKeySize is bbolt's limit, in bytes. It is checked at Put, because a key
// that only the flush refuses has been applied, and acknowledged, already.
const maxKeySize = 32768

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers table, key and value. Table and key length are the initial
// state of the CRC: the CRC of given bytes is a bijection of its initial state,
// so another table, or another border between key and value, never has the same
// sum over the same bytes.
func checksum(table machine.Table, key, value []byte) uint32 {
	sum := uint32(table)<<16 | uint32(len(key))
	sum = crc32.Update(sum, castagnoli, key)
	return crc32.Update(sum, castagnoli, value)
}

// seal writes the checksum of the value into the last sumSize bytes of sealed.
func seal(table machine.Table, key, sealed []byte) {
	body := len(sealed) - sumSize
	binary.LittleEndian.PutUint32(sealed[body:], checksum(table, key, sealed[:body]))
}

// sealed returns a copy of value with its checksum.
func sealed(table machine.Table, key, value []byte) []byte {
	buf := make([]byte, len(value)+sumSize)
	copy(buf, value)
	seal(table, key, buf)
	return buf
}

// unseal returns the value inside sealed once its checksum has been checked.
// The result is never nil, because a nil value means an absent key.
func unseal(table machine.Table, key, sealed []byte) ([]byte, error) {
	body := len(sealed) - sumSize
	if body < 0 {
		return nil, damaged(table, key, "value of %d bytes has no checksum", len(sealed))
	}
	want := binary.LittleEndian.Uint32(sealed[body:])
	if got := checksum(table, key, sealed[:body]); got != want {
		return nil, damaged(table, key, "checksum is %08x, stored %08x", got, want)
	}
	// Clipped, so that a caller's append can never write into the file's map.
	return sealed[:body:body], nil
}

// damaged says which record is not what was written.
func damaged(table machine.Table, key []byte, format string, args ...any) error {
	return fmt.Errorf("table %d key %x: %w: %s", table, key, machine.ErrCorrupt, fmt.Sprintf(format, args...))
}
