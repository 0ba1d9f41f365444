// Package uuid makes UUIDs of version 7 (RFC 9562), which sort approximately by time.
package uuid

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// New returns a UUID that nobody can guess.
func New() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails: it ends the program instead
	return Of(binary.BigEndian.Uint64(random[:8]), binary.BigEndian.Uint64(random[8:]))
}

// Of returns the UUID of the present time with 74 of the given bits, which must be random.
func Of(high, low uint64) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(time.Now().UnixMilli())<<16|high>>48)
	binary.BigEndian.PutUint64(id[8:], low)
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
