package machine

import (
	"encoding/binary"
	"fmt"

	"github.com/seqledger/seqledger/ledger/internal/format"
)

// The codec is our own because bytes that are hashed must have exactly one
// form: protobuf guarantees none. Numbers are minimal unsigned varints
// or fixed big-endian words, byte strings are length-prefixed, and a decoder
// refuses what an encoder would not have written.

func appendBytes[T ~string | ~[]byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// uvarintLength returns how many bytes a number of operations takes.
func uvarintLength(n int) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], uint64(n))
}

func appendTime(dst []byte, unixNanos int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(unixNanos))
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendKey(dst []byte, k Key) []byte {
	if !k.Present {
		return append(dst, 0)
	}
	return append(append(dst, 1), k.UUID[:]...)
}

// decoder reads canonical bytes. The first defect sticks, so that callers
// check once, in done.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) fail() {
	d.bad = true
	d.rest = nil
}

func (d *decoder) uvarint() uint64 {
	if len(d.rest) > 0 && d.rest[0] < 0x80 { // most numbers are small
		v := uint64(d.rest[0])
		d.rest = d.rest[1:]
		return v
	}
	v, n := binary.Uvarint(d.rest)
	// A last byte of 0 would be a second spelling of a shorter number, and every
	// number must have one, because it is hashed.
	if n <= 0 || d.rest[n-1] == 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

func (d *decoder) octet() byte {
	b := d.take(1)
	if b == nil {
		return 0
	}
	return b[0]
}

func (d *decoder) uint64() uint64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func (d *decoder) uint32() uint32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (d *decoder) time() int64 { return int64(d.uint64()) }

func (d *decoder) bool() bool {
	switch d.octet() {
	case 0:
		return false
	case 1:
		return true
	}
	d.fail()
	return false
}

func (d *decoder) key() Key {
	var k Key
	switch d.octet() {
	case 0:
	case 1:
		k.Present = true
		copy(k.UUID[:], d.take(16))
	default:
		d.fail()
	}
	return k
}

func (d *decoder) hash() Hash {
	var h Hash
	copy(h[:], d.take(32))
	return h
}

// formatVersion is version for what a checksum covers as a whole: there another version is no damage.
func (d *decoder) formatVersion(want byte, what string) error {
	found := d.octet()
	if d.bad {
		return d.done(what)
	}
	if err := format.Check(found, want); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// version consumes the version byte that every stored value begins with.
func (d *decoder) version(want byte) {
	if d.octet() != want {
		d.fail()
	}
}

// done returns an error that names what was being read unless every byte was
// read and understood.
func (d *decoder) done(what string) error {
	if d.bad {
		return fmt.Errorf("%w: %s does not decode", ErrCorrupt, what)
	}
	if len(d.rest) != 0 {
		return fmt.Errorf("%w: %s has %d bytes too many", ErrCorrupt, what, len(d.rest))
	}
	return nil
}
